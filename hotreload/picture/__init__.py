"""The state of things: made of the events once, and put into words for all who tell of it."""
