"""The life of a daemon whose engine lies on several hosts: rank 0 leads, the others follow."""
