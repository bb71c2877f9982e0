"""`hotreload doctor`: checks the machine before the daemon starts, and advises what to do."""

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from hotreload.cli import FAILED
from hotreload.cli.args import add_set, add_settings_or_instance, add_verb, seconds
from hotreload.cli.client.show import paint
from hotreload.cli.ops import machine
from hotreload.cli.ops.doctor_checks.advice import Advice, Facts
from hotreload.cli.ops.units import config_of
from hotreload.errors import ConfigError
from hotreload.features import FEATURES
from hotreload.picture.words import plain
from hotreload.settings.load import config_file, load

TONE_OF_VERDICT = {"ok": "good", "warn": "wait", "fail": "bad"}


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = add_verb(verbs, "doctor", run)
    add_settings_or_instance(parser)
    add_set(parser)
    parser.add_argument(
        "--user",
        metavar="NAME",
        help="the user the daemon runs as (hotreload if you are root and it is there, else you)",
    )
    parser.add_argument("--jax", action="store_true", help="also ask JAX, which takes the device")
    parser.add_argument(
        "--meet",
        type=seconds,
        metavar="TIME",
        help="also meet the other hosts of the engine, and compare; wait so long (90, 30s, 5m)",
    )
    parser.add_argument(
        "--all", action="store_true", help="also print what the settings do not ask for"
    )
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the advice, and return 1 if a check failed."""
    from hotreload.cli.ops.doctor_checks import checkup, hosts  # they import jax: --help need not

    facts = _facts(args)
    found = checkup.examine(facts)
    if args.meet is not None:
        found["meeting"] = hosts.check_meeting(facts, args.meet)
    if args.json:
        print(json.dumps({name: asdict(advice) for name, advice in found.items()}, indent=2))
    else:
        print("\n".join(_lines(found, whole=args.all)))
    return FAILED if any(advice.verdict == "fail" for advice in found.values()) else 0


def _facts(args: argparse.Namespace) -> Facts:
    named = config_of(args.instance) if args.instance else args.config
    settings = load(config_file(named, os.environ), args.set, os.environ, FEATURES).settings
    unit = f"hotreload@{args.instance}" if args.instance else "hotreload"
    return Facts(settings, _user(args.user), machine.accelerators(), ask_jax=args.jax, unit=unit)


def _user(name: str | None) -> machine.User:
    if (
        name is None
        and os.geteuid() == 0
        and (of_service := machine.user_called(machine.SERVICE_USER))
    ):
        return of_service  # root may read everything: its checks would find no fault
    user = machine.user_called(name)
    if user is None:
        raise ConfigError(f"there is no user {name!r} on this machine; systemd-sysusers makes it")
    return user


def _lines(found: Mapping[str, Advice], *, whole: bool) -> Iterator[str]:
    """Yield a line for each check; with `all` also for parts that the settings do not use."""
    shown = {name: each for name, each in found.items() if whole or each.configured}
    yield from (_line(name, each) for name, each in shown.items())
    if left := len(found) - len(shown):
        yield f"      {left} more look at what is not configured; --all prints them"


def _line(name: str, advice: Advice) -> str:
    verdict = paint(f"{advice.verdict:<5}", TONE_OF_VERDICT[advice.verdict])
    todo = f"\n{'':<19}{plain(advice.todo)}" if advice.todo else ""
    return f"{verdict} {name:<12} {plain(advice.says)}{todo}"
