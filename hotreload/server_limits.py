"""The server's limits and their defaults, for the settings and for the server."""

from dataclasses import dataclass
from typing import Literal

from hotreload.core.rules import LONGEST_REQUEST
from hotreload.setting import AtLeastOne, Deadline, setting


@dataclass(frozen=True, slots=True)
class KeyTerms:
    """The name of an API key, and the limits of all keys of that name together."""

    name: str = ""
    """Empty for a key without a name, which has no limits of its own."""
    requests: int | None = None
    """The most requests to the model under way."""
    tokens_per_minute: int | None = None
    """The most tokens a minute, of prompts and answers."""


UNNAMED = KeyTerms()


@dataclass(slots=True)
class LimitSettings:
    """The most that one client may ask of the server."""

    body_bytes: AtLeastOne = setting(
        8 * 2**20, "The longest body; a longer one gets 413.", live=True
    )
    bodies_bytes: AtLeastOne = setting(
        256 * 2**20,
        "Memory for the bodies of all requests under way, beyond 64 KiB of each; a request that "
        "needs more gets 503.",
        live=True,
    )
    header_bytes: AtLeastOne = setting(64 * 2**10, "The longest headers; longer ones get 431.")
    concurrent: AtLeastOne = setting(
        2048,
        "How many requests may be under way; one more gets 503.",
        live=True,
    )
    request_seconds: Deadline = setting(
        LONGEST_REQUEST, "How long a request may take before it is ended.", live=True
    )
    generation_seconds: Deadline = setting(
        30.0,
        "How long a request waits for the generation of X-Hotreload-Min-Generation; then it gets "
        "409.",
        live=True,
    )
    batch: AtLeastOne = setting(256, "How many prompts one request may hold.", live=True)


@dataclass(slots=True)
class Limits(LimitSettings):
    """The server's limits, in seconds and bytes. An operator may change some at any time."""

    connections: int = 4096
    """Connections on the unix socket, and as many over TCP; fewer if descriptors are scarce."""
    nesting: int = 32
    arrival_seconds: float = 30.0
    """Seconds in which the headers of a request must arrive, and then again its body."""
    write_seconds: float = 15.0
    """Seconds after which the server hangs up on a client that reads nothing and delays swaps."""
    keep_alive_seconds: float = 75.0
    listeners: int = 64
    """Clients of /events; one user has at most half of them, and so have all over TCP together."""
    listener_queue: int = 256
    """Unread events after which a client of /events is dropped."""
    heartbeat_seconds: float = 15.0
    unknown_fields: Literal["refuse", "ignore"] = "refuse"
    """The treatment of an unknown field in a request to the model."""
