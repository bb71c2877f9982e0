"""HTTP in processes of its own: what the engine's process and its workers tell each other."""
