"""`hotreload diff`: compares the answers of two checkpoints, on an engine of its own."""

import argparse
import asyncio
import json
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotreload.cli.args import (
    add_engine_options,
    add_repo_options,
    add_set,
    add_verb,
    engine_options_of,
    given_settings,
    keep_remarks_out,
    show_download,
)
from hotreload.cli.client.show import paint, pairs
from hotreload.engine.versions import imports_explained
from hotreload.errors import HotReloadError
from hotreload.features.compare.comparison import check_limits
from hotreload.features.compare.evidence import behaviour_fields, behaviour_text
from hotreload.features.compare.settings import CompareSettings
from hotreload.json_fields import Fields, reason_fields
from hotreload.picture.words import plain
from hotreload.settings.sections import Settings

if TYPE_CHECKING:
    from hotreload.library import Compared

CHECKS_KEPT = {"extra_tensors", "dtype_change", "nonfinite", "max_drift"}
"""The settings of [checks] that a comparison follows."""


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = add_verb(verbs, "diff", run)
    parser.add_argument("live", metavar="A", help="what the other is compared with: DIR or REPO")
    parser.add_argument("new", metavar="B", help="what is compared: DIR or REPO")
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="settings whose [checks] and [compare] say what B may be, and is asked",
    )
    add_set(parser, "one setting, for example compare.limits.min_agreement=0.3; may be repeated")
    add_repo_options(parser)
    add_engine_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Compare two checkpoints, and print the report or the fault."""
    keep_remarks_out(args.device or "auto")
    settings, steps = given_settings(args), Steps()
    compare = settings.of(CompareSettings).with_files() if settings else CompareSettings()
    found: Compared | None = None
    fault: HotReloadError | None = None
    try:
        found = _ask_and_compare(args, settings, compare, steps)
        check_limits(found.behaviour, compare.limits)
    except HotReloadError as error:
        fault = error
    if args.json:
        print(json.dumps(report_fields(args, found, fault), indent=2))
    elif found is not None:
        print(report_text(args, found, fault, has_limits=compare.limits.are_any))
    elif fault is not None:
        print(fault_text(steps.current, fault), file=sys.stderr)
    return fault.exit_code if fault else 0


class Steps:
    """The steps of a comparison, printed to stderr as each begins."""

    def __init__(self) -> None:
        self.current = ""

    def begin(self, step: str) -> None:
        """Print that this step begins."""
        self.current = plain(step)
        print(f"{self.current} …", file=sys.stderr, flush=True)


def _ask_and_compare(
    args: argparse.Namespace, settings: Settings | None, compare: CompareSettings, steps: Steps
) -> "Compared":
    options = engine_options_of(args)
    with imports_explained():
        from hotreload.library import FOR_ONE_CHECKPOINT, compare_once
    terms = FOR_ONE_CHECKPOINT
    if settings is not None:
        kept = {name: getattr(settings.checks, name) for name in CHECKS_KEPT}
        terms = replace(terms, **kept)
    with redirect_stdout(sys.stderr), show_download(args) as fetching:  # the report has stdout
        comparing = compare_once(
            args.live,
            args.new,
            terms=terms,
            corpus=compare.questions,
            begins=steps.begin,
            **fetching,
            **options,
        )
        return asyncio.run(comparing)


def report_fields(
    args: argparse.Namespace, found: "Compared | None", fault: HotReloadError | None
) -> Fields:
    """Return the report as JSON; figures that are unknown are null, and a missing reason, too."""
    return {
        "live": args.live,
        "new": args.new,
        "live_fingerprint": found and found.live,
        "new_fingerprint": found and found.new,
        "behaviour": found and behaviour_fields(found.behaviour),
        **reason_fields(fault.reason if fault else None),
    }


def report_text(
    args: argparse.Namespace,
    found: "Compared",
    fault: HotReloadError | None,
    *,
    has_limits: bool,
) -> str:
    """Return the report in the words of `hotreload status`, with the most different answers."""
    same = ", the same weights" if found.live == found.new else ""
    rows = [
        ("A", f"{plain(args.live)}, fingerprint {found.live}"),
        ("B", f"{plain(args.new)}, fingerprint {found.new}{same}"),
        ("B beside A", behaviour_text(behaviour_fields(found.behaviour))),
        ("differ most", "\n".join(map(str, found.behaviour.worst))),
    ]
    if fault is not None:
        rows.append(("limits", paint(f"refused: {fault}", "bad")))
    elif has_limits:
        rows.append(("limits", paint("kept", "good")))
    return pairs(rows)


def fault_text(step: str, fault: HotReloadError) -> str:
    """Return each fault, and the time of its finding, on a line of its own."""
    more = [f"  {plain(each)}" for each in fault.findings if each not in str(fault)]
    when = f"{step}: " if step else ""
    return "\n".join([f"hotreload: {when}{fault}", *more])
