"""The state that survives a restart: its file, its lock, and what the last life left."""
