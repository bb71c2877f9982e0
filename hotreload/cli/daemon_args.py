"""The arguments of every verb that talks to the daemon, and the common part of their help."""

import argparse
import math
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hotreload.figures import HOW_TO_WRITE, seconds_in

if TYPE_CHECKING:
    from hotreload.cli.client.daemon_client import DaemonClient

HELP_WIDTH = 96
EPILOG = """\
The daemon's socket is the one named by --socket, else [server] socket in the --config given, else
$HOTRELOAD_SOCKET, else the one in the usual settings ($HOTRELOAD_CONFIG,
/etc/hotreload/hotreload.toml), else /run/hotreload/hotreload.sock. Connecting needs its group
([server] group)."""
EXITS = """\
exit codes: 0 ok, 1 refused or failed, 2 usage, 3 no daemon answers, 4 busy, 5 timed out,
            6 it boots and is not ready yet, 70 the engine is lost, 78 a setting is wrong,
            130 interrupted"""


def seconds(text: str, least: float = 0.0, most: float = math.inf) -> float:
    """Return a duration within bounds; argparse shows the user the error's message."""
    number = seconds_in(text)
    if number is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: {HOW_TO_WRITE}")
    if not least <= number <= most or not 0 < number < math.inf:
        bounds = f"from {least:g} to {most:g} seconds" if least else "more than nothing"
        raise argparse.ArgumentTypeError(f"must be {bounds}, not {text}")
    return number


def how_many(text: str, most: int) -> int:
    """Return a count within bounds; argparse shows the user the error's message."""
    try:
        count = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if not 1 <= count <= most:
        raise argparse.ArgumentTypeError(f"must be from 1 to {most}, not {text}")
    return count


def add_client_verb(
    verbs: Any,
    name: str,
    description: str,
    run: Callable[[argparse.Namespace], int],
    *,
    explained: str = "",
    as_json: bool = True,
) -> argparse.ArgumentParser:
    """Add a verb that talks to the daemon; the overview shows the first sentence of its help.

    `explained`, with more words and examples, is appended unchanged.
    """
    line = description.partition(".")[0]
    paragraphs = (textwrap.fill(description, HELP_WIDTH), explained)
    parser: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=line[:1].lower() + line[1:],
        description="\n\n".join(filter(None, paragraphs)),
        epilog=f"{EPILOG}\n\n{EXITS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    where = parser.add_argument_group("which daemon")
    where.add_argument("--socket", metavar="PATH", help="its unix socket")
    where.add_argument("--config", metavar="FILE", help="the settings it runs with")
    if as_json:
        parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)
    return parser


def daemon_of(args: argparse.Namespace) -> "DaemonClient":
    """Return the daemon that the arguments name."""
    from hotreload.cli.client.daemon_client import (  # imported only by verbs that need it
        DaemonClient,
        find_socket,
    )

    return DaemonClient(find_socket(args))
