"""Judges the unread bytes of a checkpoint's files while they are loaded."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from hotreload.checkpoint.arrays.memory import with_serving
from hotreload.checkpoint.content import Content, OneTensor
from hotreload.checkpoint.digests import Digests, identify
from hotreload.checkpoint.file_findings import changed_finding
from hotreload.checkpoint.file_reader import Readable, join_digests
from hotreload.checkpoint.findings import Unfit, error_of, fault, limit_findings
from hotreload.checkpoint.fit import Policy
from hotreload.checkpoint.survey import ServingFile, Survey
from hotreload.checkpoint.whole.contents import read_all
from hotreload.types import Checkpoint, TensorBytes

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
        self.found = self.found or self._read(cancel)
        return self.found

    def judge(self) -> Checkpoint:
        """Judge all tensors that passed; return the checkpoint, or raise CheckpointRejected.

        CheckpointChanged if a file was touched since before its first byte was read: otherwise half
        of one checkpoint and half of another could pass as one.
        """
        try:
            for file in self._looked.files:
                with_serving(file, partial(_require_untouched, file))
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
