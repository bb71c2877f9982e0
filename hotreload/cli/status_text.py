"""The daemon's answers as people read them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hotreload.cli import show
from hotreload.cli.bar import bar_text
from hotreload.cli.show import Fields, Now, ago, duration, moment, named, painted, plain

COLOUR_OF = {
    "serving": "good",
    "live": "good",
    "reloading": "wait",
    "booting": "wait",
    "stopping": "wait",
    "postponed": "wait",
    "superseded": "wait",
    "rejected": "bad",
    "lost": "bad",
}


def status_text(status: Fields, now: Now | None = None) -> str:
    """Write /status as a block of names and values."""
    return show.pairs(list(_status_rows(status, now or show.now())))


def _status_rows(status: Fields, now: Now) -> Iterator[tuple[str, str]]:
    state = plain(status["state"])
    yield "state", painted(state, COLOUR_OF.get(state))
    if status["generation"] is not None:
        yield "generation", str(status["generation"])
        yield "revision", named(status)
        yield "fingerprint", plain(status["fingerprint"])
        yield "live since", moment(status["live_since"], now)
    yield "wanted", _wanted(status)
    for name in ("waiting_for", "phase"):
        if status[name]:
            yield name.replace("_", " "), plain(status[name])
    if status.get("progress"):
        yield "download", bar_text(status["progress"])
    if status.get("source", {}).get("stale"):
        yield "source", painted(_stale(status["source"], now), "wait")
    gate = status["gate"]
    yield "gate", f"{plain(gate['state'])}, {gate['inside']} inside, {gate['held']} held"
    if status["pinned"]:
        yield "pinned", "yes, the source is not followed until `hotreload unpin`"
    if status["last_attempt"]:
        yield "last attempt", _last_attempt(status["last_attempt"], now)
    if status["refused"]:
        yield "refused", "\n".join(_refusal(refusal, now) for refusal in status["refused"])


def _stale(source: Fields, now: Now) -> str:
    """Why it is so stands at what is waited for."""
    seen = source["last_seen"]
    return f"stale, last seen {ago(seen, now)}" if seen else "stale, not seen since the start"


def _wanted(status: Fields) -> str:
    if not status["wanted"]:
        return "nothing yet"
    if status["wanted"] == status["revision"]:
        return "what is live"
    return named(status, "wanted", "wanted_label")


def _last_attempt(attempt: Fields, now: Now) -> str:
    outcome = painted(plain(attempt["outcome"]), COLOUR_OF.get(attempt["outcome"]))
    first = f"{named(attempt)}: {outcome}{_as_generation(attempt)}, "
    lines = [first + ago(attempt["finished_at"], now)]
    if attempt["reason"]:
        lines.append(plain(attempt["reason"]))
    if attempt["phases"]:
        spent = (f"{plain(name)} {duration(took)}" for name, took in attempt["phases"].items())
        lines.append(", ".join(spent))
    if attempt["pause_seconds"]:
        lines.append(f"requests held {duration(attempt['pause_seconds'])}")
    return "\n".join(lines)


def _as_generation(attempt: Fields) -> str:
    number = attempt["generation"]
    return f" as generation {number}" if number is not None else ""


def _refusal(refusal: Fields, now: Now) -> str:
    return f"{named(refusal)}: {plain(refusal['reason'])}, {ago(refusal['at'], now)}"


def history_text(attempts: Sequence[Fields], now: Now | None = None) -> str:
    """Write attempts as a table."""
    head = ("WHEN", "REVISION", "OUTCOME", "GEN", "TOOK", "HELD", "REASON")
    return show.table(head, [_history_row(attempt, now or show.now()) for attempt in attempts])


def _history_row(attempt: Fields, now: Now) -> tuple[str, ...]:
    generation = attempt["generation"]
    return (
        ago(attempt["finished_at"], now),
        named(attempt),
        plain(attempt["outcome"]),
        "-" if generation is None else str(generation),
        duration(sum(attempt["phases"].values())),
        duration(attempt["pause_seconds"]) if attempt["pause_seconds"] else "-",
        plain(attempt["reason"] or "-"),
    )


def event_text(event: Fields) -> str:
    """Write one event on a line."""
    fields = {name: value for name, value in event.items() if value not in (None, [], "")}
    said = (f"{plain(name)}={_value(value)}" for name, value in fields.items() if name != "event")
    return f"{plain(event['event']):<20} {' '.join(said)}".rstrip()


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{plain(key)}: {_value(item)}" for key, item in value.items()) + "}"
    text = plain("; ".join(map(str, value)) if isinstance(value, list) else value)
    return repr(text) if " " in text else text


def outcome_text(attempt: Fields, generation: str | None) -> str:
    """Say in words how an attempt ended; `generation` is who answers requests now."""
    name, outcome = named(attempt), attempt["outcome"]
    if outcome == "live":
        number = attempt["generation"]
        if not attempt["phases"]:
            return f"{name} is live already, as generation {number}"
        took = duration(sum(attempt["phases"].values()))
        held = duration(attempt["pause_seconds"])
        return f"{name} is live as generation {number}; it took {took}, requests were held {held}"
    words = {
        "rejected": "was refused",
        "postponed": "was put off (what the source wishes is tried again by itself)",
        "superseded": "was let go for a newer one",
        "lost": "cost us the engine, which is being replaced",
    }
    reason = str(attempt["reason"])
    lines = [f"{name} {words.get(outcome, outcome)}: {plain(reason)}"]
    lines += [f"  {plain(finding)}" for finding in attempt["findings"] if finding not in reason]
    if generation and outcome != "lost":
        lines.append(f"  generation {plain(generation)} goes on answering")
    return "\n".join(lines)
