"""`hotreload explain`: what a code means and what to do about it, as the runbook says."""

import argparse
from typing import Any

EXPLAINED = """\
CODE is what hotreload, or a monitor, shows: the reason of an attempt that was refused or put off,
or of a folder that is passed over, a trouble, an alert, the code of an error that a client got, an
exit code. Without one it lists all of them. It asks no daemon, and exits 0, or 2 when nobody here
knows the code.

examples:
  hotreload explain
  hotreload explain nonfinite
  hotreload explain WeightsStale
  hotreload explain 78"""


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "explain",
        help="what a reason, a trouble, an alert or an exit code means, and what to do",
        description="What a reason, a trouble, an alert or an exit code means, and what to do.\n\n"
        + EXPLAINED,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("code", nargs="?", metavar="CODE", help="which (all are listed)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print what the runbook says about a code, or every code there is."""
    print(_all() if args.code is None else _explained(args.code))
    return 0


def _all() -> str:
    """List every code under the heading of its table."""
    from hotreload.cli.runbook import entries
    from hotreload.cli.show import BELOW, paragraph

    under: dict[str, dict[str, None]] = {}
    for entry in entries():
        under.setdefault(entry.about, {}).update(dict.fromkeys(entry.codes))
    return "\n\n".join(
        f"{about}:\n{BELOW}{paragraph(', '.join(codes), BELOW)}" for about, codes in under.items()
    )


def _explained(code: str) -> str:
    """Write each entry about a code: one that may mean several things has several."""
    from hotreload.cli.exits import Misused
    from hotreload.cli.runbook import entries
    from hotreload.errors import did_you_mean, shown

    known = {each: each for entry in entries() for each in entry.codes}
    found = [entry for entry in entries() if _same(code) in map(_same, entry.codes)]
    if not found:
        meant = did_you_mean(code, known)
        raise Misused(f"no runbook knows {shown(code)}{meant}\n`hotreload explain` lists all codes")
    exactly_first = sorted(found, key=lambda entry: code not in entry.codes)
    return "\n\n".join(map(_text, exactly_first))


def _same(code: str) -> str:
    """One spelling of a code, however somebody types it."""
    return code.lower().replace("_", "").replace("-", "").replace(" ", "")


def _text(entry: Any) -> str:
    from hotreload.cli.show import pairs, paragraph

    first = paragraph(f"{', '.join(entry.codes)}: {entry.about} (docs/{entry.page})")
    return f"{first}\n{pairs(entry.says)}"
