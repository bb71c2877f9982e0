"""The verbs for a trial: the demo, tiny checkpoints, a swap and a comparison by the library."""
