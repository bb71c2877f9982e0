"""Verbs to try it with: the demo, tiny checkpoints, the library."""
