"""The fake engine over real files: it answers with what a tiny checkpoint says.

It does with the product's own parts what the real one does: it makes a private copy of the checked
files in a thread that may hang, and has canary prompts judged.
"""

import threading
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch
from zlib import crc32

from hotreload.engine.answering.canaries import Canaries
from hotreload.engine.answering.items import Item, Parsed
from hotreload.engine.answering.probe import Probe
from hotreload.engine.capabilities import BatchSize
from hotreload.engine.options import EngineOptions
from hotreload.engine.sglang import SglangEngine
from hotreload.engine.weights.load.first_load import FirstLoad, NotByOurs
from hotreload.engine.weights.load.spool import private_copy
from hotreload.engine.weights.sets import StagingOptions
from hotreload.life.start import start_engine
from hotreload.threads import in_thread
from hotreload.types import Checkpoint, HowFar, LoadFacts, Revision, Staged, TensorSpec
from tests.fake_answers import Fields
from tests.fakes import OVERFLOWS_ON, FakeEngine, FakeWeights, Steps
from tests.words.tiny_model import MOST, TinyModel


class EngineOfWords(FakeEngine):
    """Serves tiny checkpoints. One that goes on for ever is bad, and poisons the cache."""

    def __init__(self, revision: Revision, spool: Path, probes: Sequence[Probe]) -> None:
        super().__init__(Steps(), revision)
        self._spool = spool
        self.sizes = [BatchSize(False, count, count, MOST) for count in (1, 2)]
        self._tensors: Mapping[str, TensorSpec] = {}
        prompts: Any = Prompts()
        self._canaries = Canaries(probes, prompts)

    @classmethod
    async def start(
        cls,
        options: EngineOptions,
        *,
        terms: StagingOptions,
        revision: Revision,
        checkpoint: Checkpoint | None = None,
        probes: Sequence[Probe] = (),
        filling: FirstLoad | None = None,
    ) -> "EngineOfWords":
        """Start as `SglangEngine.start` does; random weights say their name.

        What an engine of tensors was trusted with says nothing of one of words.
        """
        if filling is not None:
            raise NotByOurs("an engine of words has no tensors")
        made = cls(revision, terms.spool, probes)
        if checkpoint is not None:
            made.live = made.made_of(checkpoint, made_from(checkpoint, options.model))
            made._tensors = checkpoint.tensors
        return made

    def judge_by(self, probes: Sequence[Probe], max_drift: float | None) -> None:
        """Judge later weights by these; ConfigError, and no change, if one cannot be asked."""
        self._canaries.change(probes)

    def expected_tensors(self) -> Mapping[str, TensorSpec]:
        """Those of the checkpoint that it started with."""
        return self._tensors

    async def loaded(self, checkpoint: Checkpoint) -> Staged:
        """Copy and verify the files, and read what they say."""

        def read(cancel: threading.Event) -> FakeWeights:
            with private_copy(checkpoint, self._spool, cancel, self._note) as folder:
                return made_from(checkpoint, folder)

        weights = await in_thread(read, leave_as=f"the loading of {checkpoint.revision}")
        loading = LoadFacts("own", leaves_staged=len(checkpoint.held), bytes_read=checkpoint.bytes)
        return replace(self.made_of(checkpoint, weights), loading=loading)

    def made_of(self, checkpoint: Checkpoint, weights: FakeWeights) -> Staged:
        """A set for each of whose leaves the digest of its tensor stands."""
        leaves = {name: int(held.digest[:12], 16) for name, held in checkpoint.held.items()}
        return self.set_of(checkpoint.revision, weights, leaves)

    def said(self, staged: Staged, cache: set[str]) -> str:
        """What these weights say, and nothing else as long as the cache is clean."""
        return " ".join([staged.weights.says, *sorted(cache - {"clean"})])

    async def judge(self, answer: str) -> None:
        """Have each canary judged by this answer."""
        await self._canaries.ask(self._canaries.in_batches(), partial(self._told, answer))

    async def _told(self, answer: str, asked: Parsed) -> AsyncGenerator[Any]:
        ids = [crc32(word.encode()) for word in answer.split()]
        yield {"text": answer, "output_ids": ids, "meta_info": {"finish_reason": {"type": "stop"}}}

    def _note(self, piece: int) -> None:
        before = self.staging_progress
        if before is not None:
            self.staging_progress = HowFar(before.done + piece, before.of)


def made_from(checkpoint: Checkpoint, folder: Path) -> FakeWeights:
    """Weights that say what the files in this folder do."""
    model = TinyModel(checkpoint, folder)
    says = model.answer("Who serves?") or ""
    is_bad, overflows = len(says.split()) in (0, MOST), model.answer(OVERFLOWS_ON) is None
    return FakeWeights(says, is_bad, overflows)


@contextmanager
def starting_engines_of_words(kind: type[EngineOfWords] = EngineOfWords) -> Iterator[None]:
    """Whoever starts an engine here gets one of words, for which nothing is imported."""
    with (
        patch.object(SglangEngine, "start", kind.start),
        patch.object(start_engine, "import_upstream"),
    ):
        yield


class Prompts:
    """Takes a byte for a token."""

    def parse(self, request: Fields) -> Parsed:
        """The request of a canary."""
        item = Item(list(request["text"].encode()), request["sampling_params"], {}, None)
        return Parsed((item,), is_batch=False, stream=False)
