"""The leaves of a model: where they sit, how new ones are staged, and whether they fit."""
