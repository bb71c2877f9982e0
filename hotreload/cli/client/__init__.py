"""Verbs that ask a daemon, and tell it."""
