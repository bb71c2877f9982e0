"""Every check on one folder: all findings for people, one verdict for the reload.

Reads the weights once; what is hashed is what was looked at.
"""

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hotreload.checks.content import Content, examine
from hotreload.checks.files import (
    Digests,
    Roots,
    ServingFile,
    Survey,
    identify,
    require_same,
    survey,
)
from hotreload.checks.findings import INCOMPATIBLE, Finding, Unfit, listed, most_telling
from hotreload.checks.fit import (
    Located,
    Policy,
    config_findings,
    index_findings,
    read_config,
    tensor_findings,
    tensors_by_name,
    tokenizer_findings,
)
from hotreload.checks.reading import Opened, with_file
from hotreload.errors import CheckpointCorrupt, CheckpointIncompatible, CheckpointRejected
from hotreload.types import Checkpoint, CheckpointFile, Revision, Served, TensorSpec

log = logging.getLogger("hotreload.checks")


@dataclass(frozen=True, slots=True)
class Report:
    """All that the checks found out about a folder."""

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    files: tuple[CheckpointFile, ...]
    tensors: Mapping[str, TensorSpec] = field(repr=False)
    bytes: int

    @property
    def fit(self) -> bool:
        """Whether nothing keeps the checkpoint from being loaded."""
        return not self.findings

    @property
    def content_id(self) -> str:
        """The revision id of the bytes that were read."""
        return identify(self.files)


def findings(
    folder: Path,
    served: Served | None,
    policy: Policy,
    root: Roots = None,
    cancel: threading.Event | None = None,
) -> Report:
    """Run every check there is; bad input makes findings, and only `cancel` an exception.

    Without `served` the files are judged by themselves.
    """
    looked = survey(folder, root)
    found, wrong = tensors_by_name(looked)
    wrong = [*looked.findings, *wrong, *index_findings(looked, found)]
    notes = list(looked.notes)
    if served is None:
        wrong += _config_alone(looked)
    else:
        wrong += _misfits(looked, found, served, policy, notes)
    files, content = _read_all(looked, policy, cancel)
    tensors = {n: TensorSpec(held.tensor.shape, held.tensor.dtype) for n, held in found.items()}
    weights = sum(header.data_bytes for header in looked.headers.values())
    return Report((*wrong, *content), tuple(notes), files, tensors, weights)


def _config_alone(looked: Survey) -> list[Finding]:
    try:
        read_config(looked)
    except Unfit as unfit:
        return [unfit.finding]
    return []


def _misfits(
    looked: Survey,
    found: Mapping[str, Located],
    served: Served,
    policy: Policy,
    notes: list[str],
) -> list[Finding]:
    tokenizer, remarks = tokenizer_findings(looked, served)
    wrong = [*config_findings(looked, served), *tokenizer]
    notes += remarks
    if looked.whole:
        wrong += tensor_findings(found, served, policy)
    else:
        notes.append("not every header could be read, so names and shapes were not compared")
    return wrong


def _read_all(
    looked: Survey, policy: Policy, cancel: threading.Event | None
) -> tuple[tuple[CheckpointFile, ...], list[Finding]]:
    """Digest every file; in shards with a sound header also look at the values."""
    files: list[CheckpointFile] = []
    wrong: list[Finding] = []
    any_nonzero = not any(header.data_bytes for header in looked.headers.values())
    for file in looked.files:
        try:
            content = _content(file, looked, policy, cancel)
        except Unfit as unfit:
            wrong.append(unfit.finding)
            any_nonzero = True  # what was not read may be anything
            continue
        files.append(CheckpointFile(file.name, file.identity.size, content.digest))
        any_nonzero = any_nonzero or content.any_nonzero
        wrong += content.nonfinite
    if not any_nonzero:
        wrong.append(Finding("zeros", "every value of every tensor is zero"))
    return tuple(files), wrong


def _content(
    file: ServingFile, looked: Survey, policy: Policy, cancel: threading.Event | None
) -> Content:
    header = looked.headers.get(file.name)
    if header is None or header.file_size > file.identity.size:
        # What lies in a shard that cannot be parsed may be anything but known to be zero.
        return Content(Digests().of(file), file.name in looked.shards, [])

    def work(opened: Opened) -> Content:
        require_same(opened, file)
        return examine(opened, header, nonfinite=policy.nonfinite == "reject", cancel=cancel)

    return with_file(file.path, file.name, work)


def check_checkpoint(
    revision: Revision,
    folder: Path,
    *,
    served: Served | None,
    policy: Policy,
    root: Roots = None,
    content_id: str | None = None,
    cancel: threading.Event | None = None,
) -> Checkpoint:
    """The folder as a checkpoint that passed every check; else CheckpointRejected says why.

    What is odd about it and keeps it from nothing is logged, in one line.
    """
    report = findings(folder, served, policy, root, cancel)
    if report.notes:
        about = {"revision": revision.id, "label": revision.label, "notes": report.notes}
        log.info("checkpoint.notes", extra=about)
    wrong = report.findings
    # Where nothing was read, or not all, the id says nothing and another finding says why.
    telling = report.files and all(finding.code != "io" for finding in wrong)
    if content_id is not None and telling and content_id != report.content_id:
        words = f"{folder.name}: its files changed since it was found"
        wrong = (Finding("changed", words), *wrong)
    if wrong:
        raise rejection(wrong)
    return Checkpoint(revision, folder, report.files, report.tensors, report.bytes)


def rejection(findings: tuple[Finding, ...]) -> CheckpointRejected:
    """The error that says these findings, led by the most telling one."""
    first = most_telling(findings)
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    kind = CheckpointIncompatible if first.code in INCOMPATIBLE else CheckpointCorrupt
    return kind(first.message + more, code=first.code, findings=listed(findings))
