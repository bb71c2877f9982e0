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
    "/gate",
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
OTHER_SERVERS_ROUTES = (
    "/abort_request",
    "/detokenize",
    "/flush_cache",
    "/get_load",
    "/get_model_info",
    "/get_server_info",
    "/get_weight_version",
    "/get_weights_by_name",
    "/get_world_size",
    "/health_generate",
    "/model_info",
    "/reset_prefix_cache",
    "/server_info",
    "/tokenize",
    "/update_weight_version",
    "/update_weights",
    "/update_weights_from_disk",
    "/v1/detokenize",
    "/v1/loads",
    "/v1/responses",
    "/v1/tokenize",
    "/weight_checker",
    "/weight_info",
    "/weight_version",
    "/weights_checker",
)
"""By these names other servers' clients ask. Exported when they first do: most servers never see
one, and no alert counts them."""
STATUS_CODES = (200, 400, 500, 503)
"""Exported at 0 for each route from the start; others appear when they first happen."""
SCAN_CAUSES = ("start", "event", "rescan", "overflow", "request", "signal", "webhook")
WEIGHT_PLACES = ("live", "previous", "staged")
KV_USES = ("requests", "prefixes", "free")
LOADERS = ("own", "upstream")
