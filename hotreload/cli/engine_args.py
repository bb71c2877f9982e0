"""The options of `swap` and `diff` for the engine that these verbs start."""

import argparse
from collections.abc import Sequence
from typing import Any

from hotreload.cli.exits import Misused


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the engine's device, dtype and further arguments."""
    devices = ("auto", "cpu", "tpu", "gpu")
    parser.add_argument("--device", choices=devices, help="where to run (auto)")
    parser.add_argument("--tp", type=_count, metavar="N", help="devices that share the weights (1)")
    parser.add_argument(
        "--dtype",
        choices=("auto", "bfloat16", "float16", "float32"),
        help="what the engine serves (auto: what the config says)",
    )
    parser.add_argument(
        "--engine-arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="one of sglang-jax's server arguments; may be repeated",
    )


def engine_options_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the given options by the names of an engine's options."""
    named = {name: getattr(args, name) for name in ("device", "tp", "dtype")}
    given = {name: value for name, value in named.items() if value is not None}
    return {**given, "args": _engine_args(args.engine_arg)}


def _count(text: str) -> int:
    if (count := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return count


def _engine_args(given: Sequence[str]) -> dict[str, Any]:
    pairs = [text.partition("=") for text in given]
    for (name, equals, _), text in zip(pairs, given, strict=True):
        if not (name.strip() and equals):
            raise Misused(f"--engine-arg {text}: write it as NAME=VALUE")
    return {name.strip(): _value(value.strip()) for name, _, value in pairs}


def _value(text: str) -> Any:
    """Return a TOML value, as in a settings file; a text that is no TOML stays a text."""
    import tomllib

    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        return text
