"""`hotreload ls`: prints the source's checkpoints, and why each one is not live."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

from hotreload.cli.args import add_client_verb, add_count
from hotreload.cli.client.show import Now, ago, now, table
from hotreload.cli.client.which_daemon import find_daemon
from hotreload.figures import size
from hotreload.picture.words import Fields, plain

MOST_CHECKPOINTS = 10_000


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = add_client_verb(verbs, "ls", ls)
    add_count(parser, 100, MOST_CHECKPOINTS, "how many at most")


def ls(args: argparse.Namespace) -> int:
    """Print the source's checkpoints."""
    said = find_daemon(args).get(f"/checkpoints?most={args.n}")
    if args.json:
        print(json.dumps(said, indent=2))
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
