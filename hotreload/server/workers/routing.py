"""Decides by a request's first line whether a worker answers it."""

from hotreload.server.model_routes import MODEL_OPERATIONS

BLANKS = b"\r\n"
"""Lines that may stand before a request."""
ASKS_THE_MODEL = tuple(
    b"POST %b%b" % (path.encode(), end) for path in sorted(MODEL_OPERATIONS) for end in (b" ", b"?")
)
LONGEST_START = max(map(len, ASKS_THE_MODEL))


def is_model_request(head: bytes) -> bool | None:
    """True if a request that begins with these bytes asks the model; None if more are needed."""
    head = head.lstrip(BLANKS)
    if head.startswith(ASKS_THE_MODEL):
        return True
    if len(head) < LONGEST_START and any(each.startswith(head) for each in ASKS_THE_MODEL):
        return None
    return False
