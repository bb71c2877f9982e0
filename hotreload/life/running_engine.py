"""The protocol of a running engine: all that the daemon, the server and the core use of it."""

from collections.abc import Mapping, Sequence
from typing import NoReturn, Protocol

from hotreload.behaviour import Question
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
        """The engine's limits on sizes."""
        ...

    @property
    def recompiles(self) -> int:
        """Count of compilations that requests waited for since the start; for any thread."""
        ...

    @property
    def load(self) -> EngineLoad:
        """The engine's load of requests a moment ago; for any thread."""
        ...

    def sizes_to_compile(self, most: int, longest: int) -> Sequence[BatchSize]:
        """List the batch sizes to compile beside requests, the most needed first.

        For up to `most` requests and prompts of up to `longest` tokens, and for the proofs of
        checkpoints. Empty if the engine compiles only for batches that are asked.
        """
        ...

    def keep_to_compiled(self, is_kept: bool) -> None:
        """Admit only requests whose programs are compiled, or, with False, all again.

        Other requests wait for their turn. No effect on engines that compile only by being asked.
        """
        ...

    async def compile_for(self, size: BatchSize) -> None:
        """Compile for a batch size without computing; requests under way go on."""
        ...

    def count_anew(self) -> None:
        """Reset the counters: requests of the start do not count."""
        ...

    def held_bytes(self, sets: Sequence[Staged]) -> list[int]:
        """Return the device bytes of each set, without leaves that an earlier set holds, too.

        For any thread.
        """
        ...

    def expected_tensors(self) -> Mapping[str, TensorSpec]:
        """Return every tensor that a checkpoint must have; a shape is None where it is unknown."""
        ...

    def is_turning(self, within: float) -> bool:
        """Return True if the scheduler ran within so many seconds, or is in a step now."""
        ...

    async def encoder_copy(self) -> EncoderCopy | None:
        """Copy the prompt encoder for another process; None if it cannot be copied.

        From then on `encodes_as` names it.
        """
        ...

    def judge_by(self, probes: Sequence[Probe], max_drift: float | None) -> None:
        """Judge later weights by these; ConfigError, and no change, if a probe cannot be asked."""
        ...

    async def check_questions(self, questions: Sequence[Question]) -> None:
        """Check that new weights can be asked all these questions; ConfigError names one that
        cannot."""
        ...

    async def wait_for_distrust(self) -> str:
        """Wait until our own loader has made other weights than upstream's; return which."""
        ...

    async def wait_until_dead(self) -> NoReturn:
        """Raise EngineLost as soon as the engine has died or hangs."""
        ...

    async def close(self) -> None:
        """Stop the engine and free the device; a second call does nothing."""
        ...
