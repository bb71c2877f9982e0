"""The ids of requests: each tells the scheduler in which lane it was admitted."""


def in_lane(lane: int, name: str) -> str:
    """The id of a request of this lane; `name` is unlike all others."""
    return f"{lane:x}.{name}"


def lane_of(rid: str) -> int:
    """The number of the lane that a request was admitted to."""
    return int(rid.partition(".")[0], 16)
