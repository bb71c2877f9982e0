"""HTTP itself: sockets, connections, limits, keys, bodies and problems."""
