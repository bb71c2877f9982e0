"""Subscribers: log, metrics, status and history. They see every event and decide nothing."""
