"""Reads the files of one checkpoint, each by itself, and says what its bytes come to."""

import threading
from collections.abc import Container, Iterable
from dataclasses import dataclass, field, replace

from hotreload.checkpoint.content import Content, examine, head_of, unread
from hotreload.checkpoint.digests import Digests, head_digest
from hotreload.checkpoint.file_reader import Readable
from hotreload.checkpoint.findings import Finding, Findings, Unfit, changed_finding
from hotreload.checkpoint.fit import Policy
from hotreload.checkpoint.safetensors import Header
from hotreload.checkpoint.survey import ServingFile, Survey
from hotreload.types import CheckpointFile, TensorBytes

THROUGH_A_MAPPING = (
    "its bytes changed, and its size and times did not: a program stores into it through a mapping "
    "(mmap), so wait until that has closed it; hotreload tries the new bytes"
)


@dataclass(slots=True)
class Contents:
    """All that the bytes of the files turned out to be."""

    files: list[CheckpointFile] = field(default_factory=list)
    held: dict[str, TensorBytes] = field(default_factory=dict)
    sums: dict[str, int] = field(default_factory=dict)
    findings: Findings = field(default_factory=Findings)


def read_all(looked: Survey, policy: Policy, contents: Iterable[Content | Unfit]) -> Contents:
    """Digest every file; in shards with a sound header also look at tensors and their values."""
    read = Contents()
    any_nonzero = not any(header.data_bytes for header in looked.headers.values())
    for file, content in zip(looked.files, contents, strict=True):
        if isinstance(content, Unfit):
            read.findings.add(content.finding)
            any_nonzero = True  # an unread file may hold anything
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
class FileReader:
    """Reads the files of one checkpoint, each by itself."""

    looked: Survey
    counted: Container[str]
    cancel: threading.Event | None
    digests: Digests
    is_unread: bool

    def read(self, file: ServingFile) -> Content | Unfit:
        """Read weights even if their digest is known, unless they were examined with it."""
        header = self.looked.header_of(file)
        try:
            if header is None:
                return Content(self._digest(file), False, (), {}, {})
            content = self._examine_file(file, header)
            return replace(content, digest=self._digest(file)) if self._is_condemned else content
        except Unfit as unfit:
            return unfit

    @property
    def _is_condemned(self) -> bool:
        """True if its survey condemned it: then its id is made of the heads alone."""
        return bool(self.looked.findings) and not any(each.memory for each in self.looked.files)

    def _digest(self, file: ServingFile) -> str:
        if self._is_condemned:
            return head_digest(self.looked, file)
        return self.digests.of(file, cancel=self.cancel)

    def _examine_file(self, file: ServingFile, header: Header) -> Content:
        if file.memory is not None and file.memory.is_unread:
            return unread(file.name, header, f"unread {file.identity.ino}")
        if self.is_unread:
            head = file.read_by(lambda opened: head_of(opened, header.data_start))
            return unread(file.name, header, head)
        for_its_name = None if self.counted else self.digests.take_content(file, header)

        def work(opened: Readable) -> Content:
            quiet = self.digests.quiet()
            return for_its_name or examine(
                opened, header, counted=self.counted, cancel=self.cancel, quiet=quiet
            )

        content, known = file.read_by(work), self.digests.find(file)
        self.digests.note(file, content.digest)
        if known not in (None, content.digest):
            raise changed_finding(file.name, THROUGH_A_MAPPING)
        return content
