"""The start of a daemon: which weights answer first, and how the engine is made for them."""
