"""Needs of several hosts from upstream and JAX: joining, turns at once, the store and the wire."""
