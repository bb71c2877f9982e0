"""One engine in several processes: each rank's part of it, and rank 0's view of the whole."""
