"""Judges what went live by the answers that clients get, and leaves bad weights by itself."""
