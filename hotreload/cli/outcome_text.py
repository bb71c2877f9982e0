"""The end of an attempt that somebody waited for, as people read it."""

from hotreload.cli.show import Fields
from hotreload.figures import duration
from hotreload.picture.words import drift_text, named, outcome_word, plain

LOST = "killed the engine; a new one is starting"


def outcome_text(attempt: Fields, generation: str | None) -> str:
    """Say in words how an attempt ended; `generation` is the one that answers requests now."""
    name, outcome = named(attempt), attempt["outcome"]
    if outcome == "live":
        return _live(attempt)
    words = {
        "rejected": "was rejected",
        "postponed": "was put off (what the source wishes is tried again by itself)",
        "superseded": "was let go for a newer one",
        "lost": LOST,
    }
    reason = str(attempt["reason"])
    lines = [f"{name} {words.get(outcome, outcome)}: {plain(reason)}"]
    lines += [f"  {plain(finding)}" for finding in attempt["findings"] if finding not in reason]
    if generation and outcome != "lost":
        lines.append(f"  generation {plain(generation)} goes on answering")
    return "\n".join(lines)


def _live(attempt: Fields) -> str:
    name, number = named(attempt), attempt["generation"]
    if not attempt["phases"]:
        return f"{name} is live already, as generation {number}"
    took = duration(sum(attempt["phases"].values()))
    held = duration(attempt["pause_seconds"])
    went = "rolled back to {} as" if outcome_word(attempt) == "rolled back" else "{} is live as"
    said = f"{went.format(name)} generation {number}; it took {took}, requests were held {held}"
    return f"{said}\n  {drift_text(attempt)}" if attempt.get("loader") else said
