"""The values of metrics' labels that are known beforehand, and exported at 0 from the start."""

ROUTES = (
    "/",
    "/generate",
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/models",
    "/livez",
    "/readyz",
    "/health",
    "/status",
    "/checkpoints",
    "/history",
    "/leaves",
    "/events",
    "/metrics",
    "/admin/reload_weights",
    "/admin/reload_status",
    "/admin/weights_checksum",
    "/admin/perturb_weights",
    "/admin/rollback",
    "/admin/pin",
    "/admin/unpin",
    "/webhook/huggingface",
    "other",
)
STATUS_CODES = (200, 400, 500, 503)
"""Exported at 0 for each route from the start; others appear when they first happen."""
SCAN_CAUSES = ("start", "event", "rescan", "overflow", "request", "signal", "webhook")
WEIGHT_PLACES = ("live", "previous", "staged")
KV_USES = ("requests", "prefixes", "free")
LOADERS = ("own", "upstream")
