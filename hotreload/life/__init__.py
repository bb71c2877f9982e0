"""The life of a daemon: its state, its start, what serves from then on, its end."""
