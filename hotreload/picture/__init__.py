"""The state of things: taken in from the events once, and said here for all who tell of it."""
