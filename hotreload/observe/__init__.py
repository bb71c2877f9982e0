"""Subscribers: log, metrics, systemd, status and history. They see every event, decide nothing."""
