"""The way in of every request: it waits here, and gets a lease on the weights that answer."""
