"""Runs every check on one folder, or on tensors in memory: all findings, and one verdict.

The weights are read once, or not at all if they were examined for the checkpoint's name: the bytes
that were hashed are those that were examined. Loading compares them again. Unread files are judged
while they are loaded (`first_read`).
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from hotreload.checkpoint.config import contradictions
from hotreload.checkpoint.content import Content
from hotreload.checkpoint.digests import Digests, identify, unread_id
from hotreload.checkpoint.findings import Finding, Unfit, fault, limit_findings, quote
from hotreload.checkpoint.fingerprint import fingerprint
from hotreload.checkpoint.first_read import FileReader, FirstRead, read_all
from hotreload.checkpoint.fit import (
    CountedTensors,
    Located,
    Policy,
    config_findings,
    find_counted,
    index_findings,
    read_alone,
    side_file_findings,
    specs,
    tensor_findings,
    tensors_by_name,
)
from hotreload.checkpoint.in_memory import InMemory
from hotreload.checkpoint.survey import NO_FILES, Roots, ServingFile, Survey, survey, survey_memory
from hotreload.types import (
    UNREAD,
    Checkpoint,
    CheckpointFile,
    Revision,
    Served,
    TensorBytes,
    TensorSpec,
)

log = logging.getLogger("hotreload.checks")

type Each = Callable[
    [Callable[[ServingFile], Content | Unfit], Iterable[ServingFile]], Iterable[Content | Unfit]
]
"""Does the work for each file, in their order: `map`, or the `map` of some threads."""


@dataclass(frozen=True, slots=True)
class Report:
    """All that the checks found out about a folder."""

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    files: tuple[CheckpointFile, ...]
    tensors: Mapping[str, TensorSpec] = field(repr=False)
    bytes: int
    held: Mapping[str, TensorBytes] = field(repr=False)
    """The places of the tensors that could be read."""
    fingerprint: str | None = None
    """The fingerprint that a daemon shows once it serves this; None if not asked or unknown."""
    looked: Survey = field(default=NO_FILES, repr=False)

    @property
    def fit(self) -> bool:
        """True where nothing keeps the checkpoint from being loaded."""
        return not self.findings

    @property
    def content_id(self) -> str:
        """The revision id of the bytes that were read."""
        return identify(self.files)


def findings(
    folder: Path | InMemory,
    served: Served | None,
    policy: Policy,
    root: Roots = None,
    cancel: threading.Event | None = None,
    *,
    digests: Digests | None = None,
    compute_in: str | None = None,
    beside: Mapping[str, int] = MappingProxyType({}),
    each: Each = map,
    is_unread: bool = False,
) -> Report:
    """Run every check there is; a bad checkpoint makes findings, and no exception.

    It raises Cancelled at `cancel`, and NotEnoughMemory when this machine cannot read now.
    Without `served` the files are judged by themselves. `digests` holds what was read for the
    revision id, and keeps each digest made here: nothing is read again. With `compute_in`, the
    [engine] dtype, a fit checkpoint gets a fingerprint; that of a part includes the sums of the
    tensors `beside` it, by name. `each` may read several files at once. With `is_unread` only the
    head of each shard is read, and digested.
    """
    looked = survey_memory(folder) if isinstance(folder, InMemory) else survey(folder, root)
    found, wrong = tensors_by_name(looked)
    tensors = specs(found)
    notes = list(looked.notes)
    if served is None:
        _, misfits = read_alone(looked, tensors)
    else:
        misfits = _compare_with_served(looked, found, served, policy, notes)
    wrong = (*wrong, *limit_findings(index_findings(looked, found)), *misfits)
    counted = CountedTensors()
    if compute_in is not None and not (looked.findings or wrong):
        counted = find_counted(looked, found, served, policy, compute_in)
    reader = FileReader(looked, counted.names, cancel, digests or Digests(), is_unread)
    read = read_all(looked, policy, each(reader.read, looked.files))
    weights = sum(header.data_bytes for header in looked.headers.values())
    every = limit_findings((*looked.findings, *wrong, *read.findings.all()))
    if isinstance(folder, InMemory):
        every = _in_given_names(every, folder)
    of_all = fingerprint({**beside, **read.sums}) if counted.names and not every else None
    if not every:
        notes += counted.unknown
    files = tuple(read.files)
    return Report(every, tuple(notes), files, tensors, weights, read.held, of_all, looked)


def _in_given_names(findings: Iterable[Finding], memory: InMemory) -> tuple[Finding, ...]:
    """Add to each finding the name that the caller gave its tensor."""
    return tuple(
        replace(each, message=f"{each.message} (it was given as {quote(memory.called[name])})")
        if (name := each.tensor or "") in memory.called
        else each
        for each in findings
    )


def _compare_with_served(
    looked: Survey,
    found: Mapping[str, Located],
    served: Served,
    policy: Policy,
    notes: list[str],
) -> tuple[Finding, ...]:
    beside, remarks = side_file_findings(looked, served)
    wrong = (*config_findings(looked, served), *beside)
    notes += remarks
    if not served.tensors:
        # The engine is yet to start, by its config and with these tensors.
        return (*wrong, *(contradictions(served.config, specs(found)) if looked.whole else ()))
    if looked.whole:
        return (*wrong, *limit_findings(tensor_findings(found, served, policy)))
    notes.append("not every header could be read, so names and shapes were not compared")
    return wrong


def check_checkpoint(
    revision: Revision | None,
    folder: Path | InMemory,
    *,
    served: Served | None,
    policy: Policy,
    root: Roots = None,
    content_id: str | None = None,
    cancel: threading.Event | None = None,
    digests: Digests | None = None,
) -> Checkpoint:
    """Check a folder, or tensors in memory; return the checkpoint if it passed every check.

    CheckpointRejected if it did not, CheckpointChanged if its files changed meanwhile.

    Without `revision` the checkpoint is named by the bytes that were checked. Tensors of
    unknown content whose headers fit are not read here: staging judges their values. Oddities
    that do not keep it from being loaded are logged in one line.
    """
    digests = digests or Digests()
    check = partial(findings, folder, served, policy, root, digests=digests)
    is_unread = content_id is not None and content_id.startswith(UNREAD)
    report = check(cancel, is_unread=is_unread)
    if is_unread and report.findings:  # a refusal names the content
        report, is_unread = check(cancel), False
    looked = report.looked
    named = Revision(report.content_id, revision.label if revision else folder.name)
    revision = named if revision is None or (revision.is_unread and not is_unread) else revision
    if report.notes:
        about = {"revision": revision.id, "label": revision.label, "notes": report.notes}
        log.info("checkpoint.notes", extra=about)
    wrong = report.findings
    # If not all files were read, the id is meaningless, and another finding has the reason.
    telling = bool(report.files) and all(finding.code != "io" for finding in wrong)
    if telling and _is_another(report, content_id, digests, cancel, is_read=not is_unread):
        words = f"{folder.name}: its files changed since it was found"
        wrong = (Finding("changed", words), *wrong)
    elif telling and not is_unread and not isinstance(folder, InMemory) and revision != named:
        digests.note_content(revision.id, report.content_id)  # a commit keeps its own name
    if wrong:
        raise fault(wrong)
    path, memory = (Path(), folder) if isinstance(folder, InMemory) else (folder, None)
    held = (report.files, report.tensors, report.bytes, report.held)
    made = Checkpoint(revision, path, *held, memory, is_part=policy.missing == "live")
    if not is_unread:
        return made
    again = partial(check_checkpoint, revision, folder, served=served, policy=policy, root=root)
    first = FirstRead(
        made=made,
        looked=looked,
        policy=policy,
        digests=digests,
        by_stat=content_id or "",
        check_at_once=lambda cancel: again(digests=digests, cancel=cancel),
    )
    if policy.nonfinite == "reject":
        first.read_beginning(cancel, digests.quiet())
    return replace(made, first_read=first)


def _is_another(
    report: Report,
    content_id: str | None,
    digests: Digests,
    cancel: threading.Event | None,
    *,
    is_read: bool,
) -> bool:
    """Return whether its content differs from this id; note its content if it was read."""
    by_stat = None
    if not any(file.memory for file in report.looked.files):
        by_stat = unread_id(report.looked, digests, cancel)
    if by_stat is not None and is_read:
        digests.note_content(by_stat, report.content_id)
    is_by_stat = content_id is not None and content_id.startswith(UNREAD)
    return content_id not in (None, by_stat if is_by_stat else report.content_id)
