"""Runs every check on one folder, or on tensors in memory: all findings for people, one verdict.

Reads the weights once, or not at all where they were examined when the checkpoint was named: the
bytes that were hashed are the bytes that were looked at. Loading proves that they still are.
"""

import logging
import threading
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from hotreload.checkpoint.config import contradictions
from hotreload.checkpoint.content import Content, examine, unread
from hotreload.checkpoint.counted import Counted, what_counts
from hotreload.checkpoint.digests import Digests, head_digest, identify
from hotreload.checkpoint.file_findings import changed
from hotreload.checkpoint.findings import (
    Finding,
    Findings,
    Unfit,
    bounded,
    error_of,
    listed,
    most_telling,
    total,
)
from hotreload.checkpoint.fingerprint import fingerprint
from hotreload.checkpoint.fit import (
    Located,
    Policy,
    config_findings,
    index_findings,
    read_config,
    side_file_findings,
    specs,
    tensor_findings,
    tensors_by_name,
)
from hotreload.checkpoint.in_memory import InMemory
from hotreload.checkpoint.memory import in_given_names, survey_memory, with_serving
from hotreload.checkpoint.reading import Readable
from hotreload.checkpoint.safetensors import Header
from hotreload.checkpoint.survey import Roots, ServingFile, Survey, survey
from hotreload.errors import HotReloadError
from hotreload.types import (
    Checkpoint,
    CheckpointFile,
    Revision,
    Served,
    TensorBytes,
    TensorSpec,
)

log = logging.getLogger("hotreload.checks")

THROUGH_A_MAPPING = (
    "its bytes changed, and its size and times did not: a program stores into it through a mapping "
    "(mmap), so wait until that has closed it; hotreload tries the new bytes"
)

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
    """The one that a daemon shows once it serves this; None where nobody asked, or can tell."""

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
) -> Report:
    """Run every check there is; a bad checkpoint makes findings, and no exception.

    It raises Cancelled at `cancel`, and NotEnoughMemory when this machine cannot read now.
    Without `served` the files are judged by themselves. `digests` holds what was read for the
    revision id, and remembers what is read here, so that nobody reads it again. With
    `compute_in`, the [engine] dtype, a fit checkpoint has a fingerprint; that of a part counts the
    sums of the tensors `beside` it, by name. `each` may read the files at once.
    """
    looked = survey_memory(folder) if isinstance(folder, InMemory) else survey(folder, root)
    found, wrong = tensors_by_name(looked)
    tensors = specs(found)
    notes = list(looked.notes)
    if served is None:
        misfits = _config_alone(looked, tensors)
    else:
        misfits = _misfits(looked, found, served, policy, notes)
    wrong = (*wrong, *bounded(index_findings(looked, found)), *misfits)
    counted = Counted()
    if compute_in is not None and not (looked.findings or wrong):
        counted = what_counts(looked, found, served, policy, compute_in)
    reader = _Reader(looked, counted.names, cancel, digests or Digests())
    read = _read_all(looked, policy, each(reader.read, looked.files))
    weights = sum(header.data_bytes for header in looked.headers.values())
    every = bounded((*looked.findings, *wrong, *read.findings.all()))
    if isinstance(folder, InMemory):
        every = in_given_names(every, folder)
    of_all = fingerprint({**beside, **read.sums}) if counted.names and not every else None
    if not every:
        notes += counted.unknown
    return Report(every, tuple(notes), tuple(read.files), tensors, weights, read.held, of_all)


def _config_alone(looked: Survey, tensors: Mapping[str, TensorSpec]) -> tuple[Finding, ...]:
    try:
        stated = read_config(looked)
    except Unfit as unfit:
        return (unfit.finding,)
    return tuple(contradictions(stated or {}, tensors)) if looked.whole else ()


def _misfits(
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
        return (*wrong, *bounded(tensor_findings(found, served, policy)))
    notes.append("not every header could be read, so names and shapes were not compared")
    return wrong


@dataclass(slots=True)
class _Contents:
    """All that the bytes of the files turned out to be."""

    files: list[CheckpointFile] = field(default_factory=list)
    held: dict[str, TensorBytes] = field(default_factory=dict)
    sums: dict[str, int] = field(default_factory=dict)
    findings: Findings = field(default_factory=Findings)


def _read_all(looked: Survey, policy: Policy, contents: Iterable[Content | Unfit]) -> _Contents:
    """Digest every file; in shards with a sound header also look at tensors and their values."""
    read = _Contents()
    any_nonzero = not any(header.data_bytes for header in looked.headers.values())
    for file, content in zip(looked.files, contents, strict=True):
        if isinstance(content, Unfit):
            read.findings.add(content.finding)
            any_nonzero = True  # nobody knows what is in an unread file
            continue
        is_unknown = file.name in looked.shards and looked.header_of(file) is None
        read.files.append(CheckpointFile(file.name, file.identity.size, content.digest))
        read.held |= content.held
        read.sums |= content.sums
        any_nonzero = any_nonzero or content.any_nonzero or is_unknown
        if policy.nonfinite == "reject":
            read.findings.add(*content.nonfinite)
    if not any_nonzero and policy.missing == "reject":
        read.findings.add(Finding("zeros", "every value of every tensor is zero"))
    return read


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the files of one checkpoint, each by itself."""

    looked: Survey
    counted: Container[str]
    cancel: threading.Event | None
    digests: Digests

    def read(self, file: ServingFile) -> Content | Unfit:
        """Read weights even when their digest is known, unless they were looked at with it."""
        header = self.looked.header_of(file)
        try:
            if header is None:
                return Content(self._digest(file), False, (), {}, {})
            content = self._examined(file, header)
            return replace(content, digest=self._digest(file)) if self._is_condemned else content
        except Unfit as unfit:
            return unfit

    @property
    def _is_condemned(self) -> bool:
        """True if it is unfit whatever the rest of its bytes are, as its name was made by."""
        return bool(self.looked.findings) and not any(each.memory for each in self.looked.files)

    def _digest(self, file: ServingFile) -> str:
        if self._is_condemned:
            return head_digest(self.looked, file)
        return self.digests.of(file, cancel=self.cancel)

    def _examined(self, file: ServingFile, header: Header) -> Content:
        if file.memory is not None and file.memory.is_unread:
            return unread(file.name, header, f"unread {file.identity.ino}")
        for_its_name = None if self.counted else self.digests.taken(file, header)

        def work(opened: Readable) -> Content:
            quiet = self.digests.quiet()
            return for_its_name or examine(
                opened, header, counted=self.counted, cancel=self.cancel, quiet=quiet
            )

        content, known = with_serving(file, work), self.digests.known(file)
        self.digests.note(file, content.digest)
        if known not in (None, content.digest):
            raise changed(file.name, THROUGH_A_MAPPING)
        return content


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
    """A folder, or tensors in memory, as a checkpoint that passed every check.

    Else CheckpointRejected says why, or CheckpointChanged that nobody knows yet.

    Without `revision` the checkpoint is named by the bytes that were checked. Oddities that keep
    nobody from loading it are logged, in one line.
    """
    report = findings(folder, served, policy, root, cancel, digests=digests)
    revision = revision or Revision(report.content_id, folder.name)
    if report.notes:
        about = {"revision": revision.id, "label": revision.label, "notes": report.notes}
        log.info("checkpoint.notes", extra=about)
    wrong = report.findings
    # Where not all files were read, the id says nothing, and another finding says why.
    telling = report.files and all(finding.code != "io" for finding in wrong)
    if content_id is not None and telling and content_id != report.content_id:
        words = f"{folder.name}: its files changed since it was found"
        wrong = (Finding("changed", words), *wrong)
    if wrong:
        raise fault(wrong)
    path, memory = (Path(), folder) if isinstance(folder, InMemory) else (folder, None)
    held = (report.files, report.tensors, report.bytes, report.held)
    return Checkpoint(revision, path, *held, memory, is_part=policy.missing == "live")


def fault(findings: tuple[Finding, ...]) -> HotReloadError:
    """The error that says these findings, led by the most telling one."""
    first = most_telling(findings)
    others = total(findings) - 1
    more = f" (and {others} more)" if others else ""
    return error_of(first, first.message + more, listed(findings))
