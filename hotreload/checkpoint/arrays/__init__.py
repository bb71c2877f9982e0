"""Tensors in memory, read and checked as the file that they would make."""
