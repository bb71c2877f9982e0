"""The way in: every request passes it, and is told which weights answer."""
