"""`hotreload status`, `log`, `history`, `checksums`, `events`, `ls`: print what a daemon knows."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hotreload.cli import FAILED
from hotreload.cli.args import add_client_verb, add_count
from hotreload.cli.client.show import Now, ago, local, now, table
from hotreload.cli.client.texts import (
    check_text,
    end_time,
    history_text,
    log_text,
    status_text,
    summary_of,
    words_of,
)
from hotreload.cli.client.which_daemon import add_wait, find_daemon, until_ready
from hotreload.errors import EngineLost, NotReady
from hotreload.figures import size
from hotreload.picture.words import Fields, plain

MOST_SHOWN = 1000
"""The most entries of a history; a daemon keeps fewer."""
MOST_CHECKPOINTS = 10_000
HISTORIES = ("attempts", "pins")
OF_AN_END = ("revision", "label", "generation", "reason", "by")
"""The fields that the line of an ended attempt shows."""
OF_EVENTS = ("event", "live", "replica", "wish", "refusal")
"""The fields of events that entries of /history lack."""
STREAM_ENDED = "hotreload: the daemon ended the stream; it is stopping"


def add(verbs: Any) -> None:
    """Add the verbs."""
    status_verb = add_client_verb(verbs, "status", status)
    status_verb.add_argument(
        "--check",
        action="store_true",
        help="print only what is wrong; the exit code says whether anything is",
    )
    add_wait(status_verb)
    log_verb = add_client_verb(verbs, "log", print_log)
    add_count(log_verb, 10, MOST_SHOWN, "how many")
    log_verb.add_argument(
        "-f", "--follow", action="store_true", help="go on with what ends from now on"
    )
    history_verb = add_client_verb(verbs, "history", history)
    add_count(history_verb, 20, MOST_SHOWN, "how many")
    add_client_verb(verbs, "checksums", checksums)
    events_verb = add_client_verb(verbs, "events", events)
    events_verb.add_argument(
        "--all", action="store_true", help="also each look at the source that comes by the clock"
    )
    add_count(add_client_verb(verbs, "ls", ls), 100, MOST_CHECKPOINTS, "how many at most")


def status(args: argparse.Namespace) -> int:
    """Print the daemon's status."""
    daemon, waits = find_daemon(args), args.wait is not None or args.timeout is not None
    fields = until_ready(daemon, args.timeout) if waits else daemon.get("/status")
    if args.check:
        return _check(fields, args.json)
    print(_dump(fields) if args.json else status_text(fields))
    return 0


def _check(fields: Fields, as_json: bool) -> int:
    """Print every fault, and return the exit code."""
    said = summary_of(fields)
    if text := _dump(said) if as_json else check_text(fields):
        print(text)
    return check_code(fields, said["findings"])


_CODES = {
    "booting": NotReady.exit_code,
    "stopping": NotReady.exit_code,
    "lost": EngineLost.exit_code,
}
"""The exit codes of the states in which no request is answered."""


def check_code(status: Fields, findings: Sequence[object]) -> int:
    """Return the exit code of `hotreload status --check`: 0 if there is no fault."""
    return _CODES.get(status["state"], FAILED if findings else 0)


def history(args: argparse.Namespace) -> int:
    """Print the last attempts."""
    said = find_daemon(args).get("/history")
    past = newest_first(said)[: args.n]
    if args.json:
        shown = {name: [each for each in said.get(name, []) if each in past] for name in HISTORIES}
        print(_dump(shown))
    elif past:
        print(history_text(past))
    else:
        print("no attempt yet", file=sys.stderr)
    return 0


def newest_first(history: Fields) -> list[Fields]:
    """Return attempts and pins of /history together, newest first; older daemons have no pins."""
    return sorted((*history["attempts"], *history.get("pins", [])), key=end_time, reverse=True)


def print_log(args: argparse.Namespace) -> int:
    """Print the attempts and orders that have ended, and with --follow those that end later."""
    daemon = find_daemon(args)
    if not args.follow:
        past = newest_first(daemon.get("/history"))[: args.n]
        _print_sentences(past, args.json)
        if not past:
            print("no attempt yet", file=sys.stderr)
        return 0
    with daemon.open_stream("GET", "/events") as events:  # opened before /history: nothing is lost
        past = newest_first(daemon.get("/history"))
        _print_sentences(past[: args.n], args.json)
        for event in events:
            each = _entry(event, past)
            if each is not None and _key(each) not in map(_key, past):
                _print_sentences([each], args.json)
                past.insert(0, each)
    print(STREAM_ENDED, file=sys.stderr)
    return 0


def _entry(event: Fields, past: Sequence[Fields]) -> Fields | None:
    """Return an event as an entry of /history; None if the history has no such entry."""
    if event["event"] in ("operator.pin", "operator.unpin") and event["refusal"] is None:
        return {name: value for name, value in event.items() if name not in OF_EVENTS}
    if "finished_at" not in event:
        return None
    attempt = {name: value for name, value in event.items() if name not in (*OF_EVENTS, "at")}
    went_live = (each for each in past if each.get("generation") is not None)
    before = next(went_live, None) if attempt["generation"] is not None else None
    replaced = before and {name: before[name] for name in ("generation", "revision", "label")}
    told = attempt | {"replaced": replaced}
    return told | {"told": words_of(told)}


def _key(past: Fields) -> tuple[Any, ...]:
    return end_time(past), past.get("verb"), past.get("revision")


def _print_sentences(past: Iterable[Fields], as_json: bool) -> None:
    """Print entries, given newest first, in the order of time."""
    for each in reversed([*past]):
        print(json.dumps(each) if as_json else log_text(each), flush=True)


def checksums(args: argparse.Namespace) -> int:
    """Print the checksum of each leaf, and the fingerprint of all."""
    fields = find_daemon(args).ask("GET", "/admin/weights_checksum?leaves=1").fields
    if args.json:
        print(_dump(fields))
    else:
        for path, checksum in fields["leaves"].items():
            print(f"{checksum:>16}  {plain(path)}")
        print(_fingerprint_text(fields))
    return _print_changes(fields)


def _fingerprint_text(fields: Fields) -> str:
    """Return the fingerprint in words; weights that changed since they went live have none."""
    of = f"of generation {fields['generation']}"
    if fields["changed"]:
        return f"no fingerprint {of}: its weights are no longer what went live"
    return f"fingerprint {fields['fingerprint']} {of}"


def _print_changes(fields: Fields) -> int:
    for path in fields["changed"]:
        print(f"hotreload: {path} is no longer what went live", file=sys.stderr)
    return FAILED if fields["changed"] else 0


def events(args: argparse.Namespace) -> int:
    """Print events until the daemon stops or the output is closed."""
    for event in find_daemon(args).events():
        if args.all or not _is_usual_look(event):
            print(json.dumps(event) if args.json else _event_text(event), flush=True)
    print(STREAM_ENDED, file=sys.stderr)
    return 0


def _is_usual_look(event: Fields) -> bool:
    """Return whether an event is a look that repeats every few seconds, without a fault."""
    return event.get("cause") == "rescan" and not event.get("error")


def _event_text(event: Fields) -> str:
    """Return one event as a line that begins with its local time; an attempt is abridged.

    The JSON and the history have all fields of an attempt.
    """
    if "finished_at" in event:
        event = {name: event.get(name) for name in ("event", "at", *OF_AN_END)}
        event["by"] = event["by"] and event["by"]["verb"]
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


def _dump(fields: Fields) -> str:
    return json.dumps(fields, indent=2)


# --- the source's checkpoints ---------------------------------------------------------------------


def ls(args: argparse.Namespace) -> int:
    """Print the source's checkpoints."""
    said = find_daemon(args).get(f"/checkpoints?most={args.n}")
    if args.json:
        print(_dump(said))
        return 0
    at = now()
    if said["checkpoints"]:
        print(listing_text(said["checkpoints"], at))
    for line in notes(said, at):
        print(line, file=sys.stderr)
    return 0


def listing_text(rows: list[Fields], at: Now) -> str:
    """Return a table of checkpoints."""
    head = ("CHECKPOINT", "STEP", "SIZE", "WRITTEN", "STATE", "WHY")
    return table(head, [_row(each, at) for each in rows])


def _row(each: Fields, at: Now) -> tuple[str, ...]:
    return (
        plain(each["name"]),
        _step(each),
        "-" if each["bytes"] is None else size(each["bytes"]),
        ago(each["written_at"], at) if each["written_at"] else "-",
        plain(each["state"]),
        "; ".join(_why(each, at)) or "-",
    )


def _step(each: Fields) -> str:
    if each["step"] is None:
        return "-"
    return f"{each['epoch']}/{each['step']}" if each["epoch"] else str(each["step"])


def _why(each: Fields, at: Now) -> Iterator[str]:
    """Return why a checkpoint is not live, and its generation if it has one."""
    since = f", went live {ago(each['since'], at)}" if each["since"] else ""
    if each["state"] == "live":
        yield f"generation {each['generation']}{since}"
    if each["why"]:
        code = f"{plain(each['code'])}: " if each["state"] == "refused" else ""
        yield f"{code}{plain(each['why'])}"
    if each["generation"] is not None and each["state"] != "live":
        yield f"was generation {each['generation']}"


def notes(said: Fields, at: Now) -> Iterator[str]:
    """Return the notes to the table: the number of checkpoints not in it, and its age."""
    shown = Counter(each["state"] for each in said["checkpoints"])
    rest = {state: count - shown[state] for state, count in said["states"].items()}
    if more := said["total"] - len(said["checkpoints"]):
        counts = ", ".join(f"{count} {plain(state)}" for state, count in rest.items() if count)
        yield f"and {more} more: {counts}; -n shows more of them"
    looked = said["looked_at"]
    if said["error"]:
        seen = f"what it saw {ago(looked, at)} is shown" if looked else "it saw nothing yet"
        yield f"the source cannot look: {plain(said['error'])}; {seen}"
    elif not said["checkpoints"]:
        yield "the source sees no checkpoint" if looked else "the source has not looked yet"
