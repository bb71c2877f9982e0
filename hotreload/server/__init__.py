"""The HTTP API: who may ask, what may be sent, and what comes back. Knows no engine."""
