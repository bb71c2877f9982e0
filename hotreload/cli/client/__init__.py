"""Verbs that ask a daemon, and order changes."""
