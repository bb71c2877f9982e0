"""One leaf of a model: made of tensors, placed, measured and compared."""
