"""The HTTP API: who may ask, what they may send, and what they get back. Knows no engine."""
