"""An engine in a program of one's own: new weights while it answers."""
