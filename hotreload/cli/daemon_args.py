"""The arguments of every verb that talks to the daemon."""

import argparse
from collections.abc import Callable
from typing import Any


def add_client_verb(
    verbs: Any, name: str, description: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    """Add a verb that talks to the daemon; the first sentence is its line in the overview."""
    line = description.partition(".")[0]
    parser: argparse.ArgumentParser = verbs.add_parser(
        name, help=line[:1].lower() + line[1:], description=description
    )
    where = parser.add_argument_group("which daemon")
    where.add_argument("--socket", metavar="PATH", help="its unix socket")
    where.add_argument("--config", metavar="FILE", help="the settings it runs with")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)
    return parser
