"""The arguments that several verbs share: of a daemon, of settings, of a hub, of an engine.

Client verbs must start quickly, so this module imports nothing heavy.
"""

import argparse
import math
import os
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotreload.cli import VERBS, read_help
from hotreload.cli.bar import Bar, make_observer
from hotreload.errors import Misused
from hotreload.figures import HOW_TO_WRITE, seconds_in

if TYPE_CHECKING:
    from hotreload.settings.load import Settings

OVERRIDES = "a setting; overrides the file and HOTRELOAD__SECTION__KEY"
XLA_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
FATAL_ONLY = "3"

RunVerb = Callable[[argparse.Namespace], int]
"""The work of a verb; it returns the exit code."""


def add_verb(
    verbs: Any, name: str, run: RunVerb, *, epilog: str | None = None
) -> argparse.ArgumentParser:
    """Add a verb, whose help shows the text of its name unchanged."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=VERBS[name],
        description=read_help(name),
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


# --- a daemon -----------------------------------------------------------------------------------


def add_client_verb(
    verbs: Any, name: str, run: RunVerb, *, as_json: bool = True
) -> argparse.ArgumentParser:
    """Add a verb that talks to the daemon."""
    parser = add_verb(verbs, name, run, epilog=read_help("daemon"))
    where = parser.add_argument_group("which daemon")
    one = where.add_mutually_exclusive_group()
    one.add_argument("--socket", metavar="PATH", help="its unix socket")
    one.add_argument("--url", metavar="URL", help="its address: https://host:port")
    where.add_argument("--key-file", metavar="FILE", help="the key for that address")
    where.add_argument("--ca-file", metavar="FILE", help="the CA of its certificate")
    where.add_argument("--config", metavar="FILE", help="the settings it runs with")
    if as_json:
        parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def seconds(text: str, least: float = 0.0, most: float = math.inf) -> float:
    """Return a duration within bounds; argparse shows the user the error's message."""
    number = seconds_in(text)
    if number is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: {HOW_TO_WRITE}")
    if not least <= number <= most or not 0 < number < math.inf:
        bounds = f"from {least:g} to {most:g} seconds" if least else "more than nothing"
        raise argparse.ArgumentTypeError(f"must be {bounds}, not {text}")
    return number


def _how_many(text: str, most: int) -> int:
    """Return a count within bounds; argparse shows the user the error's message."""
    try:
        count = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if not 1 <= count <= most:
        raise argparse.ArgumentTypeError(f"must be from 1 to {most}, not {text}")
    return count


def add_count(parser: argparse.ArgumentParser, default: int, most: int, words: str) -> None:
    """Add -n, how many rows are shown."""
    parser.add_argument(
        "-n",
        type=partial(_how_many, most=most),
        metavar="N",
        default=default,
        help=f"{words}, up to {most} ({default})",
    )


def add_timeout(parser: argparse.ArgumentParser, words: str) -> None:
    """Add --timeout, the longest wait."""
    parser.add_argument("--timeout", type=seconds, metavar="TIME", help=words)


# --- settings -----------------------------------------------------------------------------------


def add_set(parser: argparse.ArgumentParser, words: str = OVERRIDES) -> None:
    """Add --set, one setting each time."""
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help=words
    )


def add_settings_or_instance(parser: argparse.ArgumentParser) -> None:
    """Add --config and --instance, of which one may name the settings of a service."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--config", type=Path, metavar="FILE", help="the settings to serve with")
    which.add_argument(
        "--instance", metavar="NAME", help="one of several daemons, with /etc/hotreload/NAME.toml"
    )


def given_settings(args: argparse.Namespace) -> "Settings | None":
    """Return the settings that --config and --set name; None without either."""
    if args.config is None and not args.set:
        return None
    from hotreload.features import FEATURES
    from hotreload.settings.load import load

    return load(args.config, args.set, os.environ, FEATURES).settings


# --- a hub --------------------------------------------------------------------------------------


def add_repo_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the folder of downloads, and for the token."""
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", help="where downloads go (~/.cache/hotreload/hub)"
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="the file that holds the hub's token (HF_TOKEN, or what `hf auth login` left)",
    )


@contextmanager
def show_download(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the options of a download by name; its progress is shown until the block ends."""
    from hotreload.settings.credentials import read_secret

    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    options = {"cache": args.cache or home / "hotreload" / "hub"}
    if args.token_file is not None:
        options["token"] = partial(read_secret, args.token_file, "--token-file")
    with closing(Bar()) as bar:
        yield {**options, "publish": make_observer(bar)}


# --- an engine ----------------------------------------------------------------------------------


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


def keep_remarks_out(device: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Set XLA's log to fatal faults alone; call it before jax is imported.

    On a CPU XLA writes two lines at level ERROR for each program from the compilation cache, though
    nothing is wrong: real faults are raised, and logged. Nothing changes with an accelerator, whose
    faults XLA may only log, or if a level is set.
    """
    from hotreload.cli.ops.machine import accelerators

    named = device if device != "auto" else environ.get("JAX_PLATFORMS", "").partition(",")[0]
    if named == "cpu" or not (named or accelerators()):
        environ.setdefault(XLA_LOG_LEVEL, FATAL_ONLY)
