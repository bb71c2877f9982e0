"""`hotreload check`: runs every check on a checkpoint folder, without an engine."""

import argparse
import asyncio
import json
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hotreload.checkpoint.check import Each, Report, findings
from hotreload.checkpoint.digests import Digests
from hotreload.checkpoint.findings import Finding, total
from hotreload.checkpoint.fit import AUTO, Policy, read_served_model
from hotreload.checkpoint.known_names import foreign_weights
from hotreload.cli import FAILED
from hotreload.cli.args import add_repo_options, add_set, add_verb, given_settings, show_download
from hotreload.cli.client.show import paint
from hotreload.errors import CheckpointCorrupt, CheckpointRejected, HotReloadError, Misused
from hotreload.facts.names import names_a_repo
from hotreload.figures import size
from hotreload.picture.words import count_of
from hotreload.sources.huggingface import download

MOST_AT_ONCE = 8


def add(verbs: Any) -> None:
    """Add the verb to the command's subparsers."""
    parser = add_verb(verbs, "check", run)
    parser.add_argument(
        "path",
        metavar="PATH",
        type=Path,
        help="the checkpoint's folder, or org/name@revision on a Hugging Face Hub",
    )
    parser.add_argument(
        "--against",
        metavar="DIR",
        type=Path,
        help="the folder of the model that is served: names, shapes, dtypes, config and tokenizer"
        " must match it",
    )
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="settings whose [checks] say what may pass"
    )
    add_set(parser, "one setting, for example checks.dtype_change=cast; may be repeated")
    add_repo_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Check the folder and print the findings."""
    policy, compute_in = _settings(args)
    digests = Digests()
    try:
        args.path = _on_this_disk(args, digests)
    except CheckpointRejected as refused:  # the hub's listing shows a fault: no download
        return _print_report(_report_refusal(refused), args)
    except HotReloadError as error:
        return _usage(str(error))
    for folder in filter(None, (args.path, args.against)):
        if not folder.is_dir():
            return _usage(f"{folder}: {_instead_of_a_folder(folder)}")
    try:
        served = read_served_model(args.against) if args.against else None
    except CheckpointCorrupt as error:
        return _usage(f"--against {args.against}: no engine can serve this model: {error}")
    if served is not None and not served.tensors:
        return _usage(f"--against {args.against}: holds no weights to compare with")
    with _reading_at_once() as (each, cancel):
        report = findings(
            args.path,
            served,
            policy,
            cancel=cancel,
            digests=digests,
            compute_in=compute_in,
            each=each,
        )
    return _print_report(report, args)


@contextmanager
def _reading_at_once() -> Iterator[tuple[Each, threading.Event]]:
    """Yield threads that read files, on half of the cores: an engine may serve at the same time."""
    cancel = threading.Event()
    half = len(os.sched_getaffinity(0)) // 2
    with ThreadPoolExecutor(max(1, min(MOST_AT_ONCE, half))) as threads:
        try:
            yield threads.map, cancel
        except BaseException:
            cancel.set()  # else they would read to the end after ^C
            raise


def _print_report(report: Report, args: argparse.Namespace) -> int:
    text = _as_json(report) if args.json else _as_text(report)
    # A folder's name may have bytes that are no text, and the terminal may lack "…".
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))
    return 0 if report.fit else FAILED


def _report_refusal(refused: CheckpointRejected) -> Report:
    """Return the report on a checkpoint that was refused before its files could be checked."""
    return Report((Finding(refused.code, str(refused)),), (), (), {}, 0, {})


def _instead_of_a_folder(path: Path) -> str:
    if not path.exists():
        return "is not there; name the folder of a checkpoint"
    foreign = foreign_weights([path.name], is_meant=True)
    if foreign is None:
        return f"is a file; name the folder of the checkpoint, such as {path.parent}"
    return f"is a file that hotreload does not read; {foreign.todo}, and name the folder"


def _settings(args: argparse.Namespace) -> tuple[Policy, str]:
    """Return the settings' policy on findings, and the engine's dtype."""
    settings = given_settings(args)
    if settings is None:
        return Policy(), AUTO
    return Policy(**asdict(settings.checks)), settings.engine.dtype


def _on_this_disk(args: argparse.Namespace, digests: Digests) -> Path:
    """Return the checkpoint's folder; a checkpoint on a hub is downloaded first."""
    path: Path = args.path
    if not names_a_repo(str(path)):
        return path
    with show_download(args) as options:
        return asyncio.run(download(str(path), digests=digests, **options))


def _usage(words: str) -> int:
    print(f"hotreload check: {words}", file=sys.stderr)
    return Misused.exit_code


def _as_json(report: Report) -> str:
    return json.dumps(
        {
            "fit": report.fit,
            "findings": [asdict(finding) for finding in report.findings],
            "notes": list(report.notes),
            "files": len(report.files),
            "tensors": len(report.tensors),
            "bytes": report.bytes,
            "content_id": report.content_id if report.files else None,
            "fingerprint": report.fingerprint,
        },
        indent=2,
    )


def _as_text(report: Report) -> str:
    width = max((len(finding.code) for finding in report.findings), default=0)
    lines = [
        f"{paint(finding.code.ljust(width), 'bad')}  {finding.message}"
        for finding in report.findings
    ]
    lines += [f"note: {note}" for note in report.notes]
    if report.fit:
        counts = f"{count_of(len(report.tensors), 'tensor')}, {count_of(len(report.files), 'file')}"
        lines.append(f"{paint('fit', 'good')}: {counts}, {size(report.bytes)}")
        if report.fingerprint is not None:
            lines.append(f"fingerprint {report.fingerprint}")
    else:
        many = count_of(total(report.findings), "finding")
        lines.append(f"{paint('NOT FIT', 'bad')}: {many}")
    return "\n".join(lines)
