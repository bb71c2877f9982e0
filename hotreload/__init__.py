"""Keeps a running sglang-jax engine's weights equal to the newest good checkpoint."""

__version__ = "0.1.0"
