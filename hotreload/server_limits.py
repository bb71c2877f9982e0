"""Every bound of the server and its default, for the settings and for the server."""

from dataclasses import dataclass
from typing import Literal

from hotreload.core.rules import LONGEST_REQUEST


@dataclass(slots=True)
class Limits:
    """Every bound of the server; seconds and bytes. An operator may change some at any time."""

    body_bytes: int = 8 * 2**20
    bodies_bytes: int = 256 * 2**20
    """All bodies together and what is made of them, from the first byte to the answer's last."""
    header_bytes: int = 64 * 2**10
    concurrent: int = 2048
    """Requests to the model at a time, those who wait at the gate among them."""
    connections: int = 4096
    """On the unix socket, and as many over TCP; fewer where few descriptors are allowed."""
    request_seconds: float = LONGEST_REQUEST
    generation_seconds: float = 30.0
    """The longest wait of a request for the oldest generation it accepts."""
    batch: int = 256
    nesting: int = 32
    arrival_seconds: float = 30.0
    """The time in which the headers of a request must arrive, and then its body."""
    write_seconds: float = 15.0
    """Seconds after which we hang up on a client that reads nothing: it holds up every swap."""
    keep_alive_seconds: float = 75.0
    listeners: int = 64
    """Clients of /events; half of them of one user, or of TCP."""
    listener_queue: int = 256
    """Events a client of /events may be behind before it is dropped."""
    heartbeat_seconds: float = 15.0
    unknown_fields: Literal["refuse", "ignore"] = "refuse"
    """The fate of a field that nobody knows, in a request to the model."""
