"""The scheduler's own thread: runs it, works between its steps, and watches it."""
