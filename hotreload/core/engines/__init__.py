"""Several engines of one daemon: they change together, or none does."""
