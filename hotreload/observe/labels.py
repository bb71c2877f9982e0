"""The values of metrics' labels that are known beforehand, and exported at 0 from the start."""

OTHER_ROUTES = "other"
"""The label of requests for an unknown path."""
STATUS_CODES = (200, 400, 500, 503)
"""Exported at 0 for each route from the start; others appear when they first happen."""
SCAN_CAUSES = ("start", "event", "rescan", "overflow", "request", "signal", "webhook")
WEIGHT_PLACES = ("live", "previous", "staged")
KV_USES = ("requests", "prefixes", "free")
LOADERS = ("own", "upstream")
