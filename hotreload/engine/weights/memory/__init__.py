"""Memory for weights: how much of it is free, on devices and on the host."""
