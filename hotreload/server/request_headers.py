"""The headers by which a request names its weights and its conversation, or forbids to be kept."""

from collections.abc import Hashable
from hashlib import sha256

from starlette.datastructures import Headers

from hotreload.core.way_in.exact_weights import ExactWeights
from hotreload.errors import BadRequest, shown
from hotreload.server.http.request_log import FINGERPRINT_HEADER, GENERATION_HEADER

WEIGHT_VERSION_HEADER = "X-Hotreload-Weight-Version"
NO_REPLAY_HEADER = "X-Hotreload-No-Replay"
"""With this header, whatever its value, a request is not kept for a comparison of weights."""
SESSION_HEADERS = (
    "X-Session-Affinity",
    "X-Multi-Turn-Session-Id",
    "X-Session-ID",
    "X-SMG-Routing-Key",
)
"""The headers that name a conversation.

Fireworks' clients and OpenCode send the first two, prime-rl and SkyRL the third, slime and miles
the last: a uuid for each sample.
"""


def wanted_weights(headers: Headers) -> ExactWeights | None:
    """Return the weights that the request asks for; None if any will do."""
    number = headers.get(GENERATION_HEADER)
    fingerprint = headers.get(FINGERPRINT_HEADER)
    version = headers.get(WEIGHT_VERSION_HEADER)
    if number is fingerprint is version is None:
        return None
    if number is not None and not (number.isascii() and number.isdigit() and len(number) < 20):
        words = f"{GENERATION_HEADER} must be the number of a generation, not {shown(number)}"
        raise BadRequest(words, code="bad_field", param=GENERATION_HEADER)
    return ExactWeights(None if number is None else int(number), fingerprint, version)


def forbids_replay(headers: Headers) -> bool:
    """True if the request and its answer must not be kept."""
    return NO_REPLAY_HEADER in headers


def session_of(headers: Headers) -> Hashable | None:
    """Return a digest of the conversation's name; None if the request has none.

    Thousands of sessions are remembered: a digest is short whatever the name's length.
    """
    named = ((header, headers.get(header)) for header in SESSION_HEADERS)
    header, name = next((each for each in named if each[1]), (None, None))
    return None if header is None else sha256(f"{header}: {name}".encode()).digest()
