"""`hotreload log`: prints the end of each attempt and order in a sentence."""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from hotreload.cli.args import add_client_verb, add_count, daemon_of
from hotreload.cli.client.look import MOST_SHOWN, STREAM_ENDED, newest_first, when
from hotreload.picture.words import Fields

OF_EVENTS = ("event", "live", "replica", "wish", "refusal")
"""The fields of events that entries of /history lack."""

EXPLAINED = """\
A sentence for each attempt that ended, and for each pin and unpin, the newest last; below it why,
or what changed. It asks the daemon, which keeps the last 200 over a restart, and no journal.
`hotreload history` has the same as a table, with all words; `hotreload explain CODE` says what to
do about a refusal.

With --follow it goes on with what ends from now on, until the daemon stops or you interrupt it.
With --json it prints each as one line of JSON, with the fields of /history.

examples:
  hotreload log
  hotreload log -n 3
  hotreload log -f
  hotreload log -f --json | jq -r 'select(.outcome == "rejected") | .label'"""


def add(verbs: Any) -> None:
    """Add the verb."""
    words = "What came of each checkpoint and order, in words, the newest last."
    parser = add_client_verb(verbs, "log", words, run, explained=EXPLAINED)
    add_count(parser, 10, MOST_SHOWN, "how many")
    parser.add_argument(
        "-f", "--follow", action="store_true", help="go on with what ends from now on"
    )


def run(args: argparse.Namespace) -> int:
    """Print the attempts and orders that have ended, and with --follow those that end later."""
    daemon = daemon_of(args)
    if not args.follow:
        past = newest_first(daemon.get("/history"))[: args.n]
        _print(past, args.json)
        if not past:
            print("no attempt yet", file=sys.stderr)
        return 0
    with daemon.open_stream("GET", "/events") as events:  # opened before /history: nothing is lost
        past = newest_first(daemon.get("/history"))
        _print(past[: args.n], args.json)
        for event in events:
            each = _entry(event, past)
            if each is not None and _key(each) not in map(_key, past):
                _print([each], args.json)
                past.insert(0, each)
    print(STREAM_ENDED, file=sys.stderr)
    return 0


def _entry(event: Fields, past: Sequence[Fields]) -> Fields | None:
    """Return an event as an entry of /history; None if the history has no such entry."""
    from hotreload.cli.client.texts import words_of

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
    return when(past), past.get("verb"), past.get("revision")


def _print(past: Iterable[Fields], as_json: bool) -> None:
    """Print entries, given newest first, in the order of time."""
    from hotreload.cli.client.texts import log_text

    for each in reversed([*past]):
        print(json.dumps(each) if as_json else log_text(each), flush=True)
