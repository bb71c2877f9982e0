"""How a life of the daemon begins: its parts made and joined, its state read, its first weights."""
