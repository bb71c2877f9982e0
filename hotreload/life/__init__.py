"""The life of a daemon: its saved state, its start, its background tasks, its shutdown."""
