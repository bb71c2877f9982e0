"""Where checkpoints come from. Each source is one file with the two methods of `core.ports`."""
