"""Renders the picture for other programs: log, metrics, systemd. None decides anything."""
