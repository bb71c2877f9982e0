"""Holds the requests that come while a trainer asks for a pause."""
