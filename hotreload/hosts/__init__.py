"""Agreement of the processes that hold one engine: rank 0 asks, the others say yes or no."""
