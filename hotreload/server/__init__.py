"""The HTTP API: routes, limits, permissions and answers. Knows no engine."""
