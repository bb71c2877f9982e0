"""`hotreload reload`, `rollback`, `pin`, `unpin` and `perturb`: order changes of the weights."""

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hotreload.cli.args import add_client_verb, add_timeout, daemon_of
from hotreload.cli.exits import ENGINE_LOST, FAILED, Misused
from hotreload.errors import EngineLost, HotReloadError
from hotreload.picture.words import Fields, plain
from hotreload.types import as_text

SPARE_SECONDS = 10.0
"""The command waits longer than the daemon by this: the timeout message is the daemon's."""
OUTCOME_WAIT_WORDS = "how long to wait for the outcome: 90, 30s, 5m"
MOST_OTHERS = 5
LARGEST_SCALE = 1e6
"""The largest noise; the daemon has the same bound."""


def add(verbs: Any) -> None:
    """Add the verbs."""
    _add_reload(verbs)
    _add_rollback(verbs)
    _add_pins(verbs)
    _add_perturb(verbs)


def _add_reload(verbs: Any) -> None:
    reload_verb = add_client_verb(
        verbs,
        "reload",
        "Make a checkpoint live, or the newest. With --wait it exits 0 once the checkpoint is "
        "live, 1 when it was refused, 4 when another change is under way, 5 when --timeout was "
        "over first; the attempt then goes on.",
        reload,
        explained="""\
examples:
  hotreload reload                            look for the newest, and do not wait
  hotreload reload --wait --timeout 600       as systemctl reload does
  hotreload reload step_120 --wait --force    also if it was refused before
  hotreload reload step_120 --dry-run         whether it would go live, and what would change
  hotreload reload v1.2 --wait                a tag, when a hub is followed""",
    )
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
    add_timeout(reload_verb, OUTCOME_WAIT_WORDS)
    _add_reason(reload_verb)


def _add_rollback(verbs: Any) -> None:
    rollback_verb = add_client_verb(
        verbs,
        "rollback",
        "Go back to the generation before, or to a named one, and hold it. As after a pin the "
        "source is not followed until `hotreload unpin`. The one left is refused from then on.",
        rollback,
        explained="""\
examples:
  hotreload rollback
  hotreload rollback 7
  hotreload rollback --follow    the source's next checkpoint may take over""",
    )
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
    add_timeout(rollback_verb, OUTCOME_WAIT_WORDS)
    _add_reason(rollback_verb)


def _add_pins(verbs: Any) -> None:
    pin_verb = add_client_verb(
        verbs,
        "pin",
        "Hold what is live against the source, across restarts too. It ends an attempt at the "
        "source's wish that is not going live yet, waits for what operators asked before, exits "
        "0 and names the generation it holds. It exits 1, and holds nothing, when a restart would "
        "forget the pin.",
        pin,
        explained='example:\n  hotreload pin --reason "evaluation until Friday"',
    )
    unpin_verb = add_client_verb(
        verbs, "unpin", "Follow the source again.", unpin, explained="example:\n  hotreload unpin"
    )
    add_timeout(pin_verb, OUTCOME_WAIT_WORDS)
    for verb in (pin_verb, unpin_verb):
        _add_reason(verb)


def _add_reason(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--reason", metavar="TEXT", help="why you ask; log and history show it beside who asked"
    )


def _add_perturb(verbs: Any) -> None:
    perturb_verb = add_client_verb(
        verbs,
        "perturb",
        "Put noise on some of the live weights, to see that checksums move. It makes a new "
        "generation that no probe judges: `rollback` ends it, and so does a restart or the next "
        "checkpoint.",
        perturb,
        explained="example:\n  hotreload perturb --seed 1 --scale 0.01 --num-leaves 3 --yes",
    )
    perturb_verb.add_argument("--yes", action="store_true", help="do not ask on a terminal")
    perturb_verb.add_argument(
        "--seed", type=int, metavar="N", help="the seed of the choice of leaves and the noise (0)"
    )
    perturb_verb.add_argument(
        "--scale", type=_scale, metavar="X", help="the noise's standard deviation (0.01)"
    )
    perturb_verb.add_argument("--num-leaves", type=int, metavar="N", help="how many leaves (3)")
    add_timeout(perturb_verb, OUTCOME_WAIT_WORDS)
    _add_reason(perturb_verb)


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
    wish: Fields = {"force": args.force, "wait": waits}
    if args.dry_run:
        wish["dry_run"] = True
    if args.name is not None:
        key = "model_path" if _is_path(args) else "revision"
        # The daemon runs in another folder: our relative paths would be wrong there.
        here = Path(args.name).expanduser().absolute()
        wish[key] = as_text(str(here) if key == "model_path" else args.name)
    return _change(args, "/admin/reload_weights", wish)


def _is_path(args: argparse.Namespace) -> bool:
    """Return whether the name is a path: it is written like one, or such a folder exists here.

    For a daemon that follows a hub, a plain name is always a branch.
    """
    if args.name.startswith(("/", ".", "~")):
        return True
    return Path(args.name).exists() and not _follows_hub(args)


def _follows_hub(args: argparse.Namespace) -> bool:
    source = daemon_of(args).get("/status").get("source", {})
    return bool(source.get("kind") == "huggingface")


def rollback(args: argparse.Namespace) -> int:
    """Order a rollback to an earlier generation, and print its end."""
    wish: Fields = {} if args.generation is None else {"generation": args.generation}
    if args.follow:
        wish["hold"] = False
    return _change(args, "/admin/rollback", wish)


def perturb(args: argparse.Namespace) -> int:
    """Order noise on the weights, and print the checksums before and after."""
    given = {name: getattr(args, name) for name in ("seed", "scale", "num_leaves")}
    wish = {name: value for name, value in given.items() if value is not None}
    checksums = ("checksum_before", "checksum_after")
    _check_meant(args)
    return _change(args, "/admin/perturb_weights", wish, also=checksums)


def _check_meant(args: argparse.Namespace) -> None:
    """On a terminal ask the user for confirmation: noise makes the answers of a daemon worse."""
    if args.yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    where = f"everybody who asks {daemon_of(args).path}"
    words = f"Noise that no probe judges will answer {where}, until `hotreload rollback`."
    print(f"{words} Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise HotReloadError("nothing was changed")


def pin(args: argparse.Namespace) -> int:
    """Pin the live generation."""
    words = "pinned: generation {generation} stays, and the source is not followed until unpinned"
    return _set_pin(args, "/admin/pin", words, args.timeout)


def unpin(args: argparse.Namespace) -> int:
    """Undo a pin."""
    return _set_pin(args, "/admin/unpin", "unpinned: the source is followed", SPARE_SECONDS)


def _set_pin(args: argparse.Namespace, path: str, words: str, within: float | None) -> int:
    daemon, timeout = daemon_of(args), None
    wish = _reason(args)
    if within is not None:
        wish["timeout"], timeout = within, within + SPARE_SECONDS
    fields = _of(daemon, daemon.ask("POST", path, wish, timeout=timeout).fields)
    said = words.format(generation=fields.get("generation", "that is live"))
    print(json.dumps(fields) if args.json else f"{said}\n  {_which(fields)}")
    return 0


def _change(args: argparse.Namespace, path: str, wish: Fields, *, also: Sequence[str] = ()) -> int:
    from hotreload.cli.bar import while_it_lasts
    from hotreload.cli.client.texts import outcome_text

    timeout = None
    if args.timeout is not None:
        wish["timeout"] = args.timeout
        timeout = args.timeout + SPARE_SECONDS
    daemon, waits = daemon_of(args), bool(wish.get("wait", True))
    wish |= _reason(args)
    with while_it_lasts(lambda: daemon.get("/status").get("progress"), waits and not args.json):
        answer = daemon.ask("POST", path, wish, timeout=timeout)
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
    from hotreload.cli.client.texts import dry_run_text

    _say(args, f"{dry_run_text(fields, generation)}\n  {_which(fields)}")
    if fields["outcome"] == "lost":
        return ENGINE_LOST
    return 0 if fields["ok"] else FAILED


def _reason(args: argparse.Namespace) -> Fields:
    return {} if args.reason is None else {"reason": args.reason}


def _of(daemon: Any, fields: Fields) -> Fields:
    """Return the words with the socket's path, which the daemon itself may not know."""
    return {**fields, "daemon": {**fields.get("daemon", {}), "socket": str(daemon.path)}}


def _which(fields: Fields) -> str:
    daemon = fields["daemon"]
    return f"of the daemon on {daemon['socket']}, pid {daemon.get('pid', 'unknown')}"


def _say(args: argparse.Namespace, words: str) -> None:
    if not args.json:
        print(words)
