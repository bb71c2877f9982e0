"""The server's limits and their defaults, for the settings and for the server."""

from dataclasses import dataclass
from typing import Literal

from hotreload.core.rules import LONGEST_REQUEST


@dataclass(slots=True)
class Limits:
    """The server's limits, in seconds and bytes. An operator may change some at any time."""

    body_bytes: int = 8 * 2**20
    bodies_bytes: int = 256 * 2**20
    """All request bodies together and their parsed values, from first byte to the answer's last."""
    header_bytes: int = 64 * 2**10
    concurrent: int = 2048
    """Requests to the model at a time, including those that wait at the gate."""
    connections: int = 4096
    """Connections on the unix socket, and as many over TCP; fewer if descriptors are scarce."""
    request_seconds: float = LONGEST_REQUEST
    generation_seconds: float = 30.0
    """The longest wait of a request for the oldest generation it accepts."""
    batch: int = 256
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
