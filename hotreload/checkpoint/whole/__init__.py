"""A whole checkpoint's bytes: read all at once, or while somebody loads them."""
