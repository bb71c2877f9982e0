"""A whole checkpoint's bytes: read all at once, or while they are loaded."""
