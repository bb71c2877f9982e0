"""`hotreload check`: every check on a checkpoint folder, without an engine."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotreload.checks.check import Report
    from hotreload.types import Served

FIT, NOT_FIT, USAGE = 0, 1, 2


def add(verbs: Any) -> None:
    """Add the verb to the command's subparsers."""
    parser = verbs.add_parser(
        "check",
        help="run every check on a checkpoint, without an engine",
        description="Run every check on a checkpoint and list each finding. Exits 0 when it is"
        " fit to load, 1 when it is not, 2 when there is nothing to check.",
    )
    parser.add_argument("path", metavar="PATH", type=Path, help="the checkpoint's folder")
    parser.add_argument(
        "--against",
        metavar="DIR",
        type=Path,
        help="the folder of the model that is served: names, shapes, dtypes, config and tokenizer"
        " must match it",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check the folder and print what was found."""
    from hotreload.checks.check import findings
    from hotreload.checks.fit import Policy
    from hotreload.errors import CheckpointCorrupt

    for folder in filter(None, (args.path, args.against)):
        if not folder.is_dir():
            what = "is no folder" if folder.exists() else "is not there"
            return _usage(f"{folder}: {what}; name the folder of a checkpoint")
    try:
        served = _served(args.against)
    except CheckpointCorrupt as error:
        return _usage(f"--against {args.against}: cannot be what is served: {error}")
    if served is not None and not served.tensors:
        return _usage(f"--against {args.against}: holds no weights to compare with")
    report = findings(args.path, served, Policy())
    _print(_as_json(report) if args.json else _as_text(report, _colour()))
    return FIT if report.fit else NOT_FIT


def _served(folder: Path | None) -> "Served | None":
    from hotreload.checks.fit import served_by

    return served_by(folder) if folder is not None else None


def _usage(words: str) -> int:
    print(f"hotreload check: {words}", file=sys.stderr)
    return USAGE


def _as_json(report: "Report") -> str:
    from dataclasses import asdict

    return json.dumps(
        {
            "fit": report.fit,
            "findings": [asdict(finding) for finding in report.findings],
            "notes": list(report.notes),
            "files": len(report.files),
            "tensors": len(report.tensors),
            "bytes": report.bytes,
            "content_id": report.content_id,
        },
        indent=2,
    )


def _as_text(report: "Report", colour: bool) -> str:
    from hotreload.checks.findings import size_words

    width = max((len(finding.code) for finding in report.findings), default=0)
    lines = [
        f"{_painted(finding.code.ljust(width), 31, colour)}  {finding.message}"
        for finding in report.findings
    ]
    lines += [f"note: {note}" for note in report.notes]
    if report.fit:
        counts = f"{_many(len(report.tensors), 'tensor')}, {_many(len(report.files), 'file')}"
        lines.append(f"{_painted('fit', 32, colour)}: {counts}, {size_words(report.bytes)}")
    else:
        many = _many(len(report.findings), "finding")
        lines.append(f"{_painted('NOT FIT', 31, colour)}: {many}")
    return "\n".join(lines)


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _painted(text: str, code: int, colour: bool) -> str:
    return f"\033[{code}m{text}\033[0m" if colour else text


def _print(text: str) -> None:
    # A folder's name may hold bytes that are no text, and the terminal may not know "…".
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))
