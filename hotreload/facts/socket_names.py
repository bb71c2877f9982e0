"""Facts of the names of unix sockets. Imports nothing."""

LONGEST_SOCKET_PATH = 107
"""Bytes that the path of a unix socket may have; the kernel takes no more."""
LOOKING = ".look"
"""The end of a second socket's name, beside one that systemd holds. There those who only look are
answered while the daemon boots, when the other one makes everybody wait."""
