"""`hotreload check-config`: prints the settings in force, each with its origin."""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hotreload.cli.args import add_set, add_verb
from hotreload.cli.ops.doctor_checks.room import planned_memory
from hotreload.errors import ConfigError
from hotreload.facts.names import DEFAULT_CONFIG
from hotreload.features import FEATURES
from hotreload.life.acceptance import check
from hotreload.settings import tables
from hotreload.settings.faults import mask
from hotreload.settings.load import Loaded, config_file, default_toml, load, to_toml


def add(verbs: Any) -> None:
    """Add the verb to the command's subparsers."""
    parser = add_verb(verbs, "check-config", run)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("file", nargs="?", type=Path, metavar="FILE", help="the TOML file")
    which.add_argument("--config", type=Path, metavar="FILE", help="the same")
    add_set(parser, "override a setting; may be given more than once")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quiet", action="store_true", help="print nothing but what is wrong")
    parser.add_argument(
        "--defaults", action="store_true", help="print a file with every setting and its default"
    )


def run(args: argparse.Namespace) -> int:
    """Print the settings and return 0, or print all their faults and return 78."""
    if args.defaults:
        print(default_toml(FEATURES), end="")
        return 0
    file = config_file(args.file or args.config, os.environ)
    if file is None:
        where = f"no FILE given and no {DEFAULT_CONFIG}"
        print(f"hotreload: {where}: these are the defaults", file=sys.stderr)
    try:
        loaded = load(file, args.set, os.environ, FEATURES)
    except ConfigError as error:
        _print_faults(error, args.json)
        return ConfigError.exit_code
    return _judge(loaded, args)


def _judge(loaded: Loaded, args: argparse.Namespace) -> int:
    """Print the settings, and all faults for which `serve` would refuse them."""
    fault = None
    try:
        check(loaded.settings)
    except ConfigError as error:
        fault = error
    if not (args.quiet or (fault and args.json)):
        _print_settings(loaded, args.json)
    if fault:
        _print_faults(fault, args.json)
    return ConfigError.exit_code if fault else 0


def _print_faults(error: ConfigError, as_json: bool) -> None:
    faults = list(error.findings or [str(error)])
    if as_json:
        print(json.dumps({"ok": False, "faults": faults}, indent=2))
    else:
        print(f"hotreload: {error}", file=sys.stderr)


def _print_settings(loaded: Loaded, as_json: bool) -> None:
    settings = mask("", tables.as_json(loaded.settings))
    if as_json:
        answer = {"ok": True, "settings": settings, "origins": dict(loaded.origins)}
        print(json.dumps(answer, indent=2))
    else:
        print("\n".join([*as_lines(settings, loaded), *_memory_lines(loaded)]))


def _memory_lines(loaded: Loaded) -> Iterator[str]:
    """Yield the plan of each device's memory, in bytes, as comments; nothing without a model."""
    device = loaded.settings.engine.device
    is_cpu = "cpu" in (device, os.environ.get("JAX_PLATFORMS", "").partition(",")[0])
    plan = planned_memory(loaded.settings, is_cpu=is_cpu)
    if plan is not None:
        yield from ("", "# memory of each device, in bytes")
        for name, size in plan.rows():
            yield f"# {name:<20} {'not known here' if size is None else size:>20}"
        if (why := plan.why_not()) is not None:
            yield f"# {why}"


def as_lines(settings: dict[str, Any], loaded: Loaded) -> Iterator[str]:
    """Yield the settings as TOML, each with its origin as a comment."""
    for section, table in settings.items():
        if isinstance(table, dict):
            yield from _table_lines(section, table, loaded)
        else:
            yield from ("", f"# {section}: {loaded.origins[section]}")
            for row in table:
                yield from (f"[[{section}]]", *(_line(key, value) for key, value in row.items()))


def _table_lines(name: str, table: dict[str, Any], loaded: Loaded) -> Iterator[str]:
    yield from ("", f"[{name}]")
    for key, value in table.items():
        if not isinstance(value, dict):
            yield f"{_line(key, value):<50} # {loaded.origins[f'{name}.{key}']}"
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _table_lines(f"{name}.{key}", value, loaded)


def _line(key: str, value: Any) -> str:
    return f"#{key} is not set" if value is None else f"{key} = {to_toml(value)}"
