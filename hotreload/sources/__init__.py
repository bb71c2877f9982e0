"""The sources of checkpoints.

`directory` and `huggingface` are the sources: each has the six methods of `core.ports.Source`. The
other modules are parts of theirs.
"""
