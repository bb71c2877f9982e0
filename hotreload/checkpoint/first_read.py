"""Judges the unread bytes of a checkpoint's files while they are loaded."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from hotreload.checkpoint.content import Content, OneTensor
from hotreload.checkpoint.digests import Digests, identify
from hotreload.checkpoint.file_contents import read_all
from hotreload.checkpoint.file_reader import HashedPieces, Readable, join_digests
from hotreload.checkpoint.findings import Unfit, changed_finding, error_of, fault, limit_findings
from hotreload.checkpoint.fit import Policy
from hotreload.checkpoint.survey import ServingFile, Survey
from hotreload.quiet import Quiet, run_steps
from hotreload.types import Checkpoint, TensorBytes

FIRST_BYTES = 8 << 20
"""Bytes of the first shard that are read before there is room for the rest."""
_PIECE = 1 << 20

JudgeShards = Callable[[Mapping[str, Content]], Checkpoint]
"""Judge all shards by what was read of them; make the checkpoint, or raise why not."""


class FirstRead:
    """The first reading of all tensors of a checkpoint, in any order; threads share it."""

    def __init__(
        self,
        looked: Survey,
        heads: Mapping[str, str],
        *,
        judge: JudgeShards,
        read: Callable[[threading.Event], Checkpoint],
    ) -> None:
        """`heads` are the digests of what each shard holds before its tensors.

        `read` does the same at once, without loading.
        """
        self.found: Checkpoint | None = None
        """The checkpoint as it was read, once all of it was, and was good."""
        self._looked, self._heads, self._judge, self._read = looked, heads, judge, read
        self._tensors = {
            tensor.name: (name, tensor) for name in heads for tensor in looked.headers[name].tensors
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
        for tensor in self._looked.headers[next(iter(self._heads))].tensors:
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
        for file in self._looked.files:
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
        begin, end = self._looked.headers[shard].place_of(tensor)
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
        self.found = self.found or self._read(cancel)
        return self.found

    def judge(self) -> Checkpoint:
        """Judge all tensors that passed; return the checkpoint, or raise CheckpointRejected.

        CheckpointChanged if a file was touched since before its first byte was read: otherwise half
        of one checkpoint and half of another could pass as one.
        """
        try:
            for file in self._looked.files:
                file.read_by(partial(_require_untouched, file))
        except Unfit as unfit:
            raise error_of(unfit.finding) from unfit
        self.found = self._judge({name: self._content(name) for name in self._heads})
        return self.found

    def _content(self, name: str) -> Content:
        header = self._looked.headers[name]
        passed = [(each, *self._passed[each.name]) for each in header.tensors]
        digest = join_digests([self._heads[name], *(each for _, each, _ in passed)])
        wrong = limit_findings(finding for *_, seen in passed for finding in seen.findings)
        held = {
            each.name: TensorBytes(name, *header.place_of(each), digest)
            for each, digest, _ in passed
        }
        return Content(digest, any(seen.any_nonzero for *_, seen in passed), wrong, held, {})


def _require_untouched(file: ServingFile, opened: Readable) -> None:
    if opened.identity != file.identity:
        raise changed_finding(file.name, "it was touched while it was read for the first time")


def judge_shards(
    made: Checkpoint,
    looked: Survey,
    shards: Mapping[str, Content],
    *,
    policy: Policy,
    digests: Digests,
    by_stat: str,
) -> Checkpoint:
    """Judge a checkpoint, so far named `by_stat`, by what was read of its shards."""
    known = {file.name: Content(file.digest, False, (), {}, {}) for file in made.files}
    read = read_all(looked, policy, [{**known, **shards}[file.name] for file in looked.files])
    for file, found in zip(looked.files, read.files, strict=True):
        digests.note(file, found.digest)
    content = identify(read.files)
    digests.note_content(by_stat, content)
    if not made.revision.is_unread:  # a commit keeps its own name
        digests.note_content(made.revision.id, content)
    if wrong := read.findings.all():
        raise fault(wrong)
    name = replace(made.revision, id=content) if made.revision.is_unread else made.revision
    return replace(made, revision=name, files=tuple(read.files), held=read.held)
