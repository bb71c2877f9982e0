"""For those who hold an engine in a program of their own: new weights while it answers."""
