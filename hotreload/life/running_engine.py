"""The whole port of a running engine: all that the daemon, the server and the core use of one."""

from collections.abc import Mapping, Sequence
from typing import NoReturn, Protocol

from hotreload.behaviour.asked import Question
from hotreload.core.ports import Engine
from hotreload.engine.answering.encoder_copy import EncoderCopy
from hotreload.engine.answering.items import Parsed
from hotreload.engine.answering.probe import Probe
from hotreload.engine.capabilities import BatchSize, EngineLimits
from hotreload.server.ports import AnsweringEngine
from hotreload.types import EngineLoad, Staged, TensorSpec


class RunningEngine(Engine, AnsweringEngine[Parsed], Protocol):
    """An engine that a start made: it answers, its weights can be exchanged, it must be closed."""

    @property
    def limits(self) -> EngineLimits:
        """The limits on sizes in it."""
        ...

    @property
    def recompiles(self) -> int:
        """Count of the compilations that requests waited for since the start; for any thread."""
        ...

    @property
    def load(self) -> EngineLoad:
        """Its load of requests, as it was a moment ago; for any thread."""
        ...

    def sizes_to_compile(self, most: int, longest: int) -> Sequence[BatchSize]:
        """Sizes of batches that it can compile for beside its answers, the most needed first.

        Of up to so many requests, and of prompts of so many tokens, and those that checkpoints are
        proven with. None where it must be asked.
        """
        ...

    def keep_to_compiled(self, is_kept: bool) -> None:
        """Take in what finds its programs compiled, from now on; or whatever comes, again.

        What is not taken in waits for its turn; it does nothing where it must be asked.
        """
        ...

    async def compile_for(self, size: BatchSize) -> None:
        """Compile for a size of batches; nothing is computed, and those under way go on."""
        ...

    def count_anew(self) -> None:
        """Forget what the start asked by itself: from now on it is clients who are counted."""
        ...

    def held_bytes(self, sets: Sequence[Staged]) -> list[int]:
        """Bytes that each of these sets takes on the devices beside those before it.

        A leaf that several hold is held once. For any thread.
        """
        ...

    def expected_tensors(self) -> Mapping[str, TensorSpec]:
        """Every tensor a checkpoint must have; a shape is None where it cannot be derived."""
        ...

    def is_turning(self, within: float) -> bool:
        """True if it was seen at work within so many seconds, or is in the middle of a step."""
        ...

    async def encoder_copy(self) -> EncoderCopy | None:
        """Make a copy of what encodes its prompts, for another process; None if there can be none.

        From then on `encodes_as` names it.
        """
        ...

    def judge_by(self, probes: Sequence[Probe], max_drift: float | None) -> None:
        """Judge later weights by these; ConfigError, and no change, if one cannot be asked."""
        ...

    async def check_questions(self, questions: Sequence[Question]) -> None:
        """Return if all could be asked of new weights; ConfigError names one that cannot be."""
        ...

    async def wait_for_distrust(self) -> str:
        """Wait until our own loader was found to make other weights than upstream's; say which."""
        ...

    async def wait_until_dead(self) -> NoReturn:
        """Raise EngineLost as soon as it is known that the engine died or hangs."""
        ...

    async def close(self) -> None:
        """End all of it and free the device; twice is once."""
        ...
