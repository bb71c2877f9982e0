"""A start: what is served first, and how the engine is made for it."""
