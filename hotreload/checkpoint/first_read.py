"""Reads the bytes of a checkpoint's files, and judges them: at once, or while they are loaded."""

import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

from hotreload.checkpoint.content import Content, OneTensor, examine, head_of, unread
from hotreload.checkpoint.digests import Digests, head_digest, identify
from hotreload.checkpoint.file_reader import HashedPieces, Readable, join_digests
from hotreload.checkpoint.findings import (
    Finding,
    Findings,
    Unfit,
    changed_finding,
    error_of,
    fault,
    limit_findings,
)
from hotreload.checkpoint.fit import Policy
from hotreload.checkpoint.safetensors import Header
from hotreload.checkpoint.survey import ServingFile, Survey
from hotreload.quiet import Quiet, run_steps
from hotreload.types import Checkpoint, CheckpointFile, TensorBytes

FIRST_BYTES = 8 << 20
"""Bytes of the first shard that are read before there is room for the rest."""
_PIECE = 1 << 20

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
                return Content(self._digest(file))
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


# --- the first reading, while files are loaded -------------------------------------------------


@dataclass(kw_only=True)
class FirstRead:
    """The first reading of all tensors of a checkpoint, in any order; threads share it."""

    made: Checkpoint
    """The checkpoint by the heads of its shards."""
    looked: Survey
    policy: Policy
    digests: Digests
    by_stat: str
    """The id of the checkpoint until it is read."""
    check_at_once: Callable[[threading.Event], Checkpoint]
    """Read and judge the checkpoint without loading it."""
    found: Checkpoint | None = None
    """The checkpoint as it was read, once all of it was, and was good."""

    def __post_init__(self) -> None:
        shards = (each for each in self.made.files if each.name in self.looked.headers)
        self._heads = {each.name: each.digest for each in shards}
        """The digests of what each shard holds before its tensors."""
        self._tensors = {
            tensor.name: (name, tensor)
            for name in self._heads
            for tensor in self.looked.headers[name].tensors
        }
        self._passed: dict[str, tuple[str, OneTensor]] = {}
        self._kept: dict[str, memoryview] = {}
        """The bytes of the beginning, until they are loaded."""

    def read_beginning(self, cancel: threading.Event | None, quiet: Quiet) -> None:
        """Read tensors of the first shard, and keep their bytes for the loading.

        If a value is bad, read the other tensors too, and raise CheckpointRejected: a refusal names
        the content.
        """
        left = FIRST_BYTES
        for tensor in self.looked.headers[next(iter(self._heads))].tensors:
            if (size := tensor.end - tensor.begin) <= left:
                self._kept[tensor.name], left = memoryview(bytearray(size)), left - size
        self._read_now(self._kept, cancel, quiet)
        if any(seen.findings for _, seen in self._passed.values()):
            self._kept.clear()
            self._read_now(dict.fromkeys(self.tensors_left), cancel, quiet)
            self.judge()

    def _read_now(
        self,
        into: Mapping[str, memoryview | None],
        cancel: threading.Event | None,
        quiet: Quiet,
    ) -> None:
        """Read these tensors, into memory where some is given."""
        for file in self.looked.files:
            names = [name for name in into if self._tensors[name][0] == file.name]

            def work(opened: Readable, names: Sequence[str] = names) -> None:
                steps = (self._pieces(name, opened, into[name], cancel) for name in names)
                run_steps(chain.from_iterable(steps), quiet)

            try:
                if names:
                    file.read_by(work)
            except Unfit as unfit:
                raise error_of(unfit.finding) from unfit

    def _pieces(
        self,
        name: str,
        opened: Readable,
        memory: memoryview | None,
        cancel: threading.Event | None,
    ) -> Iterator[None]:
        shard, tensor = self._tensors[name]
        seen, hashing = self.begin(name), HashedPieces(opened, _PIECE, cancel)
        begin, end = self.looked.headers[shard].place_of(tensor)
        pieces: Iterator[memoryview] = (piece for _, piece in hashing.pieces(begin, end))
        for piece in pieces if memory is None else hashing.into(memory, begin):
            seen.look(piece)
            yield
        self.end(name, hashing.digest(), seen)

    def take(self, tensor: str) -> memoryview | None:
        """The bytes of a tensor of the beginning, once; None of any other."""
        return self._kept.pop(tensor, None)

    def begin(self, tensor: str) -> OneTensor:
        """Begin a tensor; the caller passes its pieces to `look`, then calls `end`."""
        return OneTensor(*self._tensors[tensor])

    def end(self, tensor: str, digest: str, seen: OneTensor) -> bool:
        """Note a tensor that was read whole; False if its bytes differ from an earlier reading."""
        return self._passed.setdefault(tensor, (digest, seen))[0] == digest

    def digest_of(self, tensor: str) -> str | None:
        """Return the digest of a tensor that was read; None if it was not."""
        return self._passed[tensor][0] if tensor in self._passed else None

    @property
    def tensors_left(self) -> list[str]:
        """The tensors that were not read yet."""
        return [name for name in self._tensors if name not in self._passed]

    def read(self, cancel: threading.Event) -> Checkpoint:
        """Read it all now, for a caller that must know its content before it loads anything."""
        self._kept.clear()
        self.found = self.found or self.check_at_once(cancel)
        return self.found

    def judge(self) -> Checkpoint:
        """Judge all tensors that passed; return the checkpoint, or raise CheckpointRejected.

        CheckpointChanged if a file was touched since before its first byte was read: otherwise half
        of one checkpoint and half of another could pass as one.
        """
        try:
            for file in self.looked.files:
                file.read_by(partial(_require_untouched, file))
        except Unfit as unfit:
            raise error_of(unfit.finding) from unfit
        self.found = self._judge()
        return self.found

    def _judge(self) -> Checkpoint:
        made, files = self.made, self.looked.files
        contents = {file.name: Content(file.digest) for file in made.files}
        contents |= {name: self._content(name) for name in self._heads}
        read = read_all(self.looked, self.policy, [contents[file.name] for file in files])
        for file, found in zip(files, read.files, strict=True):
            self.digests.note(file, found.digest)
        content = identify(read.files)
        self.digests.note_content(self.by_stat, content)
        if not made.revision.is_unread:  # a commit keeps its own name
            self.digests.note_content(made.revision.id, content)
        if wrong := read.findings.all():
            raise fault(wrong)
        name = replace(made.revision, id=content) if made.revision.is_unread else made.revision
        return replace(made, revision=name, files=tuple(read.files), held=read.held)

    def _content(self, name: str) -> Content:
        header = self.looked.headers[name]
        passed = [(each, *self._passed[each.name]) for each in header.tensors]
        digest = join_digests([self._heads[name], *(each for _, each, _ in passed)])
        wrong = limit_findings(finding for *_, seen in passed for finding in seen.findings)
        held = {
            each.name: TensorBytes(name, *header.place_of(each), digest)
            for each, digest, _ in passed
        }
        return Content(digest, any(seen.any_nonzero for *_, seen in passed), wrong, held)


def _require_untouched(file: ServingFile, opened: Readable) -> None:
    if opened.identity != file.identity:
        raise changed_finding(file.name, "it was touched while it was read for the first time")
