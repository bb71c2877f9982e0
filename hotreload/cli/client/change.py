"""`hotreload reload`, `rollback`, `pin`, `unpin` and `perturb`: order changes of the weights."""

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hotreload.cli import FAILED
from hotreload.cli.args import add_client_verb, add_timeout
from hotreload.cli.bar import while_it_lasts
from hotreload.cli.client.texts import dry_run_text, outcome_text
from hotreload.cli.client.which_daemon import find_daemon
from hotreload.client.synchronous import Client, DaemonAnswer
from hotreload.errors import EngineLost, HotReloadError, Misused
from hotreload.picture.words import Fields, plain

MOST_OTHERS = 5
LARGEST_SCALE = 1e6
"""The largest noise; the daemon has the same bound."""


def add(verbs: Any) -> None:
    """Add the verbs."""
    unpin_verb = add_client_verb(verbs, "unpin", unpin)
    that_wait = [_add_reload(verbs), _add_rollback(verbs)]
    that_wait += [add_client_verb(verbs, "pin", pin), _add_perturb(verbs)]
    for verb in that_wait:
        add_timeout(verb, "how long to wait for the outcome: 90, 30s, 5m")
    for verb in (*that_wait, unpin_verb):
        words = "why you ask; log and history show it beside who asked"
        verb.add_argument("--reason", metavar="TEXT", help=words)


def _add_reload(verbs: Any) -> argparse.ArgumentParser:
    reload_verb = add_client_verb(verbs, "reload", reload)
    reload_verb.add_argument(
        "name",
        metavar="PATH|REVISION",
        nargs="?",
        help="a checkpoint's folder, or its name in the source (on a hub a branch, tag or "
        "commit, and a folder only with / . or ~ before it); without one, the newest",
    )
    reload_verb.add_argument("--wait", action="store_true", help="wait for the outcome")
    reload_verb.add_argument(
        "--force", action="store_true", help="also if it was refused before, or is live, or pinned"
    )
    reload_verb.add_argument(
        "--dry-run",
        action="store_true",
        help="do all that is done before anything goes live (checks, staging, the probes where "
        "nobody sees the answers), print what was found, change nothing; it waits, tries also "
        "what was refused before, and exits 1 when it would not go live",
    )
    return reload_verb


def _add_rollback(verbs: Any) -> argparse.ArgumentParser:
    rollback_verb = add_client_verb(verbs, "rollback", rollback)
    rollback_verb.add_argument(
        "generation",
        metavar="GENERATION",
        nargs="?",
        type=_generation,
        help="its number, from `history`",
    )
    rollback_verb.add_argument(
        "--follow", action="store_true", help="go on following the source: hold nothing"
    )
    return rollback_verb


def _add_perturb(verbs: Any) -> argparse.ArgumentParser:
    perturb_verb = add_client_verb(verbs, "perturb", perturb)
    perturb_verb.add_argument("--yes", action="store_true", help="do not ask on a terminal")
    perturb_verb.add_argument(
        "--seed", type=int, metavar="N", help="the seed of the choice of leaves and the noise (0)"
    )
    perturb_verb.add_argument(
        "--scale", type=_scale, metavar="X", help="the noise's standard deviation (0.01)"
    )
    perturb_verb.add_argument("--num-leaves", type=int, metavar="N", help="how many leaves (3)")
    return perturb_verb


def _generation(text: str) -> int:
    """Return a generation's number; the error for a folder's name shows the right verb."""
    if not text.isdecimal():
        words = f"{text!r} is no number of a generation, as `hotreload history` lists them"
        hint = f"; hotreload reload {shlex.quote(text)} loads a checkpoint by its name"
        raise argparse.ArgumentTypeError(words + hint)
    return int(text)


def _scale(text: str) -> float:
    """Return the size of the noise, if the daemon would accept it; JSON has no `nan`."""
    try:
        scale = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not 0 < scale <= LARGEST_SCALE:
        bounds = f"a number above 0 and at most {LARGEST_SCALE:g}"
        raise argparse.ArgumentTypeError(f"must be {bounds}, not {text}")
    return scale


def reload(args: argparse.Namespace) -> int:
    """Order a reload, and with --wait print its end."""
    if args.name == "":
        raise Misused("the name is empty; leave it out to load the newest checkpoint")
    waits = args.wait or args.dry_run or args.timeout is not None
    daemon = find_daemon(args)
    checkpoint = None if args.name is None else _checkpoint(args.name, daemon)
    return _change(
        args,
        daemon,
        lambda: daemon.reload(
            checkpoint,
            force=args.force,
            dry_run=args.dry_run,
            wait=waits,
            timeout=args.timeout,
            reason=args.reason,
        ),
        waits=waits,
    )


def _checkpoint(name: str, daemon: Client) -> str | Path:
    """Return a path as the daemon has it, or the name unchanged.

    A name is a path if it is written like one, or if such a folder exists here. For a daemon that
    follows a hub, a plain name is always a branch. The folders of another machine are not known.
    """
    if not daemon.is_here:
        if name.startswith((".", "~")):
            raise Misused(f"{name}: the daemon is elsewhere: name it as there, from / on")
        return name
    is_written_so = name.startswith(("/", ".", "~"))
    if is_written_so or (Path(name).exists() and not _follows_hub(daemon)):
        # The daemon runs in another folder: our relative paths would be wrong there.
        return Path(name).expanduser().absolute()
    return name


def _follows_hub(daemon: Client) -> bool:
    return bool(daemon.get("/status").get("source", {}).get("kind") == "huggingface")


def rollback(args: argparse.Namespace) -> int:
    """Order a rollback to an earlier generation, and print its end."""
    daemon = find_daemon(args)
    terms = {"hold": not args.follow, "timeout": args.timeout, "reason": args.reason}
    return _change(args, daemon, lambda: daemon.rollback(args.generation, **terms))


def perturb(args: argparse.Namespace) -> int:
    """Order noise on the weights, and print the checksums before and after."""
    given = {name: getattr(args, name) for name in ("seed", "scale", "num_leaves")}
    wish = {name: value for name, value in given.items() if value is not None}
    checksums = ("checksum_before", "checksum_after")
    daemon, terms = find_daemon(args), {"timeout": args.timeout, "reason": args.reason}
    _check_meant(args, daemon)
    return _change(args, daemon, lambda: daemon.perturb(wish, **terms), also=checksums)


def _check_meant(args: argparse.Namespace, daemon: Client) -> None:
    """On a terminal ask the user for confirmation: noise makes the answers of a daemon worse."""
    if args.yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    where = f"everybody who asks {daemon.place}"
    words = f"Noise that no probe judges will answer {where}, until `hotreload rollback`."
    print(f"{words} Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise HotReloadError("nothing was changed")


def pin(args: argparse.Namespace) -> int:
    """Pin the live generation."""
    words = "pinned: generation {generation} stays, and the source is not followed until unpinned"
    daemon = find_daemon(args)
    return _say_pin(args, daemon, daemon.pin(timeout=args.timeout, reason=args.reason), words)


def unpin(args: argparse.Namespace) -> int:
    """Undo a pin."""
    daemon = find_daemon(args)
    words = "unpinned: the source is followed"
    return _say_pin(args, daemon, daemon.unpin(reason=args.reason), words)


def _say_pin(args: argparse.Namespace, daemon: Client, answer: DaemonAnswer, words: str) -> int:
    fields = _of(daemon, answer.fields)
    said = words.format(generation=fields.get("generation", "that is live"))
    print(json.dumps(fields) if args.json else f"{said}\n  {_which(fields)}")
    return 0


def _change(
    args: argparse.Namespace,
    daemon: Client,
    order: Callable[[], DaemonAnswer],
    *,
    waits: bool = True,
    also: Sequence[str] = (),
) -> int:
    """Give the order, and print its outcome."""
    with while_it_lasts(lambda: daemon.get("/status").get("progress"), waits and not args.json):
        answer = order()
    fields = _of(daemon, answer.fields)
    if args.json:
        print(json.dumps(fields, indent=2), flush=True)
    if answer.status == 202:
        _say(args, f"asked for; `hotreload status` tells what comes of it\n  {_which(fields)}")
        return 0
    if fields.get("dry_run"):
        return _print_dry_run(args, fields, answer.generation)
    words = f"{outcome_text(fields, answer.generation)}\n  {_which(fields)}"
    if fields["outcome"] != "live":
        raise (EngineLost if fields["outcome"] == "lost" else HotReloadError)(words)
    also_said = (f"\n  {name.replace('_', ' '):<16}{plain(fields[name])}" for name in also)
    _say(args, "\n".join([words + "".join(also_said), *_after_a_rollback(fields)]))
    if not fields.get("saved", True):
        raise HotReloadError(f"it is live, but a restart forgets it: {plain(fields['not_saved'])}")
    return 0


def _after_a_rollback(fields: Fields) -> Iterator[str]:
    """Return the generations to roll back to, and last the command that ends the hold."""
    if "can_be_had" not in fields:
        return
    yield from (f"  can be had, too: {plain(each)}" for each in fields["can_be_had"][:MOST_OTHERS])
    if fields["pinned"]:
        yield "held: the source is not followed until `hotreload unpin`"
    else:
        yield "not held: the source's next checkpoint takes over; `hotreload pin` holds this one"


def _print_dry_run(args: argparse.Namespace, fields: Fields, generation: str | None) -> int:
    """Print the report of a dry run, good or bad, and return the exit code."""
    _say(args, f"{dry_run_text(fields, generation)}\n  {_which(fields)}")
    if fields["outcome"] == "lost":
        return EngineLost.exit_code
    return 0 if fields["ok"] else FAILED


def _of(daemon: Client, fields: Fields) -> Fields:
    """Return the words with the daemon's socket or address, which it may not know itself."""
    kind = "socket" if daemon.is_here else "url"
    return {**fields, "daemon": {**fields.get("daemon", {}), kind: str(daemon.place)}}


def _which(fields: Fields) -> str:
    daemon = fields["daemon"]
    where = daemon.get("socket") or daemon["url"]
    return f"of the daemon on {where}, pid {daemon.get('pid', 'unknown')}"


def _say(args: argparse.Namespace, words: str) -> None:
    if not args.json:
        print(words)
