"""Keeps JAX's coordination service in a program of its own, which outlives rank 0 for a moment."""
