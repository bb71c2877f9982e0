"""The settings: their sections, the kinds of their values, and how they are read and checked."""
