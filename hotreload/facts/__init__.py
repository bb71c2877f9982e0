"""Facts about files, hubs and processes, which nothing of ours is needed for."""
