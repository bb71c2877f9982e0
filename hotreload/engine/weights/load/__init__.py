"""Reads a checkpoint into leaves: with our own loader, or with upstream's."""
