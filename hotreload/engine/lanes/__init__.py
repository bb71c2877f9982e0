"""Several generations of weights answer in one scheduler, each in a lane of its own."""
