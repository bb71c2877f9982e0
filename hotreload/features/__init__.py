"""Capabilities beside the kernel: each uses its doors, and goes when its folder goes."""
