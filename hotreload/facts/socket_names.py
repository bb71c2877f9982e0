"""Facts of the names of unix sockets. Imports nothing."""

LONGEST_SOCKET_PATH = 107
"""Bytes that the path of a unix socket may have; the kernel takes no more."""
LOOKING = ".look"
"""The suffix of a second socket, beside one of systemd. While the daemon boots, status requests are
answered there, and requests on the other one wait."""
