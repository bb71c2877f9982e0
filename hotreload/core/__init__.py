"""The rules. No sockets, no disks, no JAX."""
