"""The engines of a daemon, as people read them: a line each, where there are several."""

from hotreload.cli.show import Fields, Now, ago, plain
from hotreload.figures import duration

ON_ONE_ENGINE = ("staging", "draining", "swapping", "probing", "rolling_back")
"""The phases of an attempt that are gone through engine by engine."""
COLOURS = {"serving": None, "starting": "wait", "lost": "bad"}


def replica_lines(status: Fields, now: Now) -> list[tuple[str, str | None]]:
    """Say how each engine is, and in which colour; nothing where there is one."""
    replicas = status.get("replicas", [])
    if len(replicas) < 2:
        return []
    return [(_line(each, status, now), _colour(each)) for each in replicas]


def _line(replica: Fields, status: Fields, now: Now) -> str:
    says = _serving if replica["state"] == "serving" else _absent
    return f"{replica['index']}  {plain(replica['state'])}{says(replica, status, now)}"


def _colour(replica: Fields) -> str | None:
    return "bad" if replica["drifted"] else COLOURS.get(replica["state"])


def _serving(replica: Fields, status: Fields, now: Now) -> str:
    gate, attempt = replica["gate"], status["attempt"]
    words = f"  generation {replica['generation']}, {gate['inside']} inside"
    if gate["held"]:
        words += f", {gate['held']} held"
    if replica["drifted"]:
        words += ", live weights drifted"
    is_at_work = status["phase"] in ON_ONE_ENGINE and attempt["replica"] == replica["index"]
    return f"{words}, {plain(status['phase'])}" if is_at_work else words


def _absent(replica: Fields, status: Fields, now: Now) -> str:
    words = f" {ago(replica['since'], now)}"
    if replica["again_in"] is not None:
        words += f", started again in {duration(replica['again_in'])}"
    return f"{words}: {plain(replica['reason'])}" if replica["reason"] else words
