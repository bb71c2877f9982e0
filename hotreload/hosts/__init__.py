"""How the processes that hold one engine together agree; rank 0 asks, the others say yes or no."""
