"""One engine in several processes: each rank's part, and rank 0's view of the whole."""
