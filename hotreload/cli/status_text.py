"""The daemon's answers as people read them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hotreload.cli import show
from hotreload.cli.bar import bar_text
from hotreload.cli.booting_text import boot_text
from hotreload.cli.columns import TIED
from hotreload.cli.loading_text import damage_text, drift_text, loader_text
from hotreload.cli.ranks_text import follows, rank_text
from hotreload.cli.replicas_text import replica_lines
from hotreload.cli.show import (
    Fields,
    Now,
    ago,
    local,
    moment,
    named,
    outcome_word,
    painted,
    plain,
    who,
)
from hotreload.figures import duration
from hotreload.observe.summary import summed_up

COLOUR_OF = {
    "serving": "good",
    "following": "good",
    "live": "good",
    "passed": "good",
    "reloading": "wait",
    "booting": "wait",
    "stopping": "wait",
    "postponed": "wait",
    "superseded": "dim",
    "rejected": "bad",
    "lost": "bad",
}

BYTES_OF = {"fetching": "download", "staging": "loading"}
"""What it is, by the phase whose bytes are counted."""

NOISY = """\
somebody put noise on the live weights, and no probe judged them
`hotreload rollback` takes the noise off, and so does a restart"""


def status_text(status: Fields, now: Now | None = None) -> str:
    """Write /status as one sentence, and a block of names and values."""
    block = show.pairs(list(_status_rows(status, now or show.now())))
    return f"{headline(status)}\n\n{block}"


def headline(status: Fields) -> str:
    """Write how things are in one sentence, with the command to type next."""
    said = summary_of(status)
    return painted(show.paragraph(told(said)), said["tone"])


def check_text(status: Fields) -> str:
    """Write a line for each thing that is wrong, with the command to type next."""
    said = summary_of(status)
    nobody = [told(said)] if status["reasons"] else []
    lines = [*nobody, *(f"{plain(each['code'])}: {told(each)}" for each in said["findings"])]
    return "\n".join(show.paragraph(line, show.BELOW) for line in lines)


def summary_of(status: Fields) -> Fields:
    """Return the status in a sentence; of a daemon that is older than this command, as now."""
    return status.get("summary") or summed_up(status)


def told(part: Fields) -> str:
    """Write what is so, and the command to type next, which stands on one line."""
    words = plain(part["words"])
    return f"{words}: {plain(part['next']).replace(' ', TIED)}" if part["next"] else words


def _status_rows(status: Fields, now: Now) -> Iterator[tuple[str, str]]:
    state = plain(status["state"])
    yield "state", painted(state, COLOUR_OF.get(state))
    if rank := status.get("rank"):
        yield "rank", rank_text(rank)
    if boot := status.get("boot"):
        yield "boot", painted(boot_text(boot), "wait")
    if status["generation"] is not None:
        yield "generation", str(status["generation"])
        yield "revision", named(status)
        yield "fingerprint", plain(status["fingerprint"])
        yield "live since", moment(status["live_since"], now)
    for trouble in status.get("troubles", ()):
        yield "trouble", painted(_trouble(trouble, now), "bad")
    yield from _weights_rows(status, now)
    if status.get("noise"):
        yield "noise", painted(NOISY, "bad")
    yield from _coming_rows(status, now)
    yield from _requests_rows(status)
    if replicas := replica_lines(status, now):
        yield "replicas", "\n".join(painted(*line) for line in replicas)
    if status["pinned"]:
        asked = "\n" + _asked(status["pin"], now) if status.get("pin") else ""
        yield "pinned", f"yes, the source is not followed until `hotreload unpin`{asked}"
    if (kept := status.get("state_file")) and not kept["saved"]:
        yield "not saved", painted(_unsaved(kept, now), "bad")
    if settings := status.get("settings"):
        yield from _settings_rows(settings, now)
    if status["last_attempt"]:
        yield "last attempt", _last_attempt(status["last_attempt"], now)
    if status["refused"]:
        yield "refused", "\n".join(_refusal(refusal, now) for refusal in status["refused"])


def _trouble(trouble: Fields, now: Now) -> str:
    """Say what is wrong, since when, and what to do about it."""
    what = f"{trouble['code']}: {plain(trouble['message'])}"
    lines = [what, f"since {moment(trouble['since'], now)}"]
    return "\n".join([*lines, *([f"to do: {plain(trouble['todo'])}"] if trouble["todo"] else [])])


def _coming_rows(status: Fields, now: Now) -> Iterator[tuple[str, str]]:
    """What becomes of the checkpoint that is wanted, and what the source holds back.

    A rank that follows wants nothing by itself, and looks at its source when rank 0 asks.
    """
    if not follows(status):
        yield "wanted", _wanted(status, now)
    for name in ("waiting_for", "phase"):
        if status[name]:
            yield name.replace("_", " "), plain(status[name])
    if status.get("progress"):
        of = status["progress"].get("phase", "fetching")
        yield BYTES_OF.get(of, of), bar_text(status["progress"])
    if status.get("source", {}).get("stale") and not follows(status):
        yield "source", painted(_stale(status["source"], now), "wait")
    if status.get("passed_over"):
        yield "passed over", painted(passed_over_text(status), "wait")


def _settings_rows(settings: Fields, now: Now) -> Iterator[tuple[str, str]]:
    """What became of settings that were read again, where something is left to do."""
    if settings["error"]:
        words = f"reread {moment(settings['read_at'], now)}, but not applied"
        yield "settings", painted(f"{words}: {plain(settings['error'])}", "bad")
    elif settings["waiting"]:
        names = ", ".join(map(plain, settings["waiting"]))
        yield "settings", painted(f"changed, and want a restart: {names}", "wait")


def _weights_rows(status: Fields, now: Now) -> Iterator[tuple[str, str]]:
    """How the live weights were loaded, and what is wrong with them or with our loader."""
    if loading := status.get("loading"):
        yield "loaded", f"{loader_text(loading)}\n{drift_text(loading)}"
    if drifted := status.get("drifted"):
        words = f"live leaves are no longer what went live: {damage_text(drifted)}"
        yield "drifted", painted(f"{words}\nsince {moment(drifted['since'], now)}", "bad")
    if (loader := status.get("loader")) and not loader["trusted"]:
        yield "own loader", painted(f"switched off: {plain(loader['reason'])}", "bad")


def _requests_rows(status: Fields) -> Iterator[tuple[str, str]]:
    """Who is at the gate, who answers, and what a swap does to them; rank 0 alone answers."""
    if not follows(status):
        gate = status["gate"]
        yield "gate", f"{plain(gate['state'])}, {gate['inside']} inside, {gate['held']} held"
        if status.get("answering"):
            yield "answering", _answering(status["answering"])
    if status.get("mode"):
        yield "mode", _mode(status)


def _answering(answering: Sequence[Fields]) -> str:
    """Say who answers how many requests: what is live, and what still ends those from before."""
    live, *older = answering
    now = f"{_requests(live)} by generation {live['generation']}"
    return ", ".join([now, painted(older_text(older), "wait")] if older else [now])


def older_text(older: Sequence[Fields]) -> str:
    """Say what generations from before the live one still answer, the newest of them first."""
    return ", ".join(f"{_requests(each)} still by {each['generation']}" for each in older)


def _requests(answering: Fields) -> str:
    number = answering["requests"]
    return f"{number} request{'' if number == 1 else 's'}"


def _mode(status: Fields) -> str:
    """How weights are exchanged, and why they drain though that was not asked for."""
    mode, why = plain(status["mode"]), status["mode_reason"]
    return f"{mode}: {plain(why)}" if why else mode


def _stale(source: Fields, now: Now) -> str:
    """Say that the source is stale; `waiting for` says why."""
    seen = source["last_seen"]
    return f"stale, last seen {ago(seen, now)}" if seen else "stale, not seen since the start"


def passed_over_text(status: Fields) -> str:
    """Say why folders are passed over, and how many more there are."""
    lines = [plain(folder["reason"]) for folder in status["passed_over"]]
    more = status["passed_over_total"] - len(lines)
    return "\n".join([*lines, *([f"and {more} more"] if more > 0 else [])])


def _wanted(status: Fields, now: Now) -> str:
    if not status["wanted"]:
        return "nothing yet"
    is_live = status["wanted"] == status["revision"]
    wanted = "what is live" if is_live else named(status, "wanted", "wanted_label")
    overruled = status.get("overruled")
    if not overruled:
        return wanted
    wish = f"it overrules the source's {named(overruled)} until the source wishes something new"
    return f"{wanted}, by hand: {_asked(overruled, now)}\n{wish}"


def _asked(by: Fields, now: Now) -> str:
    """Who asked for something, when, and what they said it is for."""
    reason = f": {plain(by['reason'])}" if by["reason"] else ""
    return f"{plain(by['verb'])} by {who(by)}, {moment(by['at'], now)}{reason}"


def _unsaved(state: Fields, now: Now) -> str:
    since = moment(state["since"], now)
    return f"since {since}, so a restart forgets what changes\n{plain(state['error'])}"


def _last_attempt(attempt: Fields, now: Now) -> str:
    outcome = painted(outcome_word(attempt), COLOUR_OF.get(attempt["outcome"]))
    first = f"{named(attempt)}: {outcome}{_as_generation(attempt)}, "
    lines = [first + moment(attempt["finished_at"], now)]
    if attempt.get("by"):
        lines.append(f"asked for: {_asked(attempt['by'], now)}")
    if attempt["reason"]:
        lines.append(plain(attempt["reason"]))
    if attempt.get("loader") and attempt["outcome"] != "live":  # of the live ones `loaded` says it
        lines.append(drift_text(attempt))
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
    return f"{named(refusal)}: {plain(refusal['reason'])}, {moment(refusal['at'], now)}"


def event_text(event: Fields) -> str:
    """Write one event on a line, the local time before it."""
    fields = {name: value for name, value in event.items() if value not in (None, [], "")}
    others = {name: value for name, value in fields.items() if name not in ("event", "at")}
    said = (f"{plain(name)}={_value(value)}" for name, value in others.items())
    at = f"{local(event['at'])}  " if event.get("at") else ""
    return f"{at}{plain(event['event']):<20} {' '.join(said)}".rstrip()


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{plain(key)}: {_value(item)}" for key, item in value.items()) + "}"
    text = plain("; ".join(map(str, value)) if isinstance(value, list) else value)
    return repr(text) if " " in text else text


def outcome_text(attempt: Fields, generation: str | None) -> str:
    """Say in words how an attempt ended; `generation` is the one that answers requests now."""
    name, outcome = named(attempt), attempt["outcome"]
    if outcome == "live":
        number = attempt["generation"]
        if not attempt["phases"]:
            return f"{name} is live already, as generation {number}"
        took = duration(sum(attempt["phases"].values()))
        held = duration(attempt["pause_seconds"])
        went = "rolled back to {} as" if outcome_word(attempt) == "rolled back" else "{} is live as"
        said = f"{went.format(name)} generation {number}; it took {took}, requests were held {held}"
        return f"{said}\n  {drift_text(attempt)}" if attempt.get("loader") else said
    words = {
        "rejected": "was rejected",
        "postponed": "was put off (what the source wishes is tried again by itself)",
        "superseded": "was let go for a newer one",
        "lost": "killed the engine; a new one is starting",
    }
    reason = str(attempt["reason"])
    lines = [f"{name} {words.get(outcome, outcome)}: {plain(reason)}"]
    lines += [f"  {plain(finding)}" for finding in attempt["findings"] if finding not in reason]
    if generation and outcome != "lost":
        lines.append(f"  generation {plain(generation)} goes on answering")
    return "\n".join(lines)
