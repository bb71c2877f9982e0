"""Workers: processes that serve HTTP, and the messages between them and the engine's process."""
