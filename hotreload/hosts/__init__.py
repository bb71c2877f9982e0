"""Keeps the processes of one engine in step: rank 0 calls each step, the others vote on it."""
