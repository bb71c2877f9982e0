"""The protocol of a running engine: all that the daemon, the server and the core use of it."""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Protocol

from hotreload.behaviour import Question
from hotreload.core import ports
from hotreload.engine.answering.encoder_copy import EncoderCopy
from hotreload.engine.answering.items import Parsed
from hotreload.engine.answering.probe import Probe
from hotreload.engine.capabilities import BatchSize, EngineLimits
from hotreload.server.ports import ClientAnswers, PrefixCaches, ReadableWeights, Replays
from hotreload.types import EngineLoad, Staged, TensorSpec


class RunningSets(ports.WeightSets, ReadableWeights, Protocol):
    """The sets of weights of an engine that a start made."""

    def held_bytes(self, sets: Sequence[Staged]) -> list[int]:
        """Return the device bytes of each set, without leaves that an earlier set holds, too.

        For any thread.
        """

    def expected_tensors(self) -> Mapping[str, TensorSpec]:
        """Return every tensor that a checkpoint must have; a shape is None where it is unknown."""

    async def wait_for_distrust(self) -> str:
        """Wait until our own loader has made other weights than upstream's; return which."""


class RunningSwitch(ports.WeightSwitch, PrefixCaches, Protocol):
    """Changes which weights answer, and drops cached prefixes."""


class RunningUnseen(ports.UnseenAnswers, Replays[Parsed], Protocol):
    """The answers that no client sees."""

    async def check_questions(self, questions: Sequence[Question]) -> None:
        """Check that new weights can be asked all these questions; ConfigError names one that
        cannot."""


class RunningAnswers(ports.ClientAnswers, ClientAnswers[Parsed], Protocol):
    """The answers to clients."""

    @property
    def limits(self) -> EngineLimits:
        """The engine's limits on sizes."""

    async def encoder_copy(self) -> EncoderCopy | None:
        """Copy the prompt encoder for another process; None if it cannot be copied.

        From then on `encodes_as` names it.
        """


class AheadCompiler(Protocol):
    """Compiles for sizes of batches before any request needs them."""

    def sizes_to_compile(self, most: int, longest: int) -> Sequence[BatchSize]:
        """List the batch sizes to compile beside requests, the most needed first.

        For up to `most` requests and prompts of up to `longest` tokens, and for the proofs of
        checkpoints. Empty if the engine compiles only for batches that are asked.
        """

    def keep_to_compiled(self, is_kept: bool) -> None:
        """Admit only requests whose programs are compiled, or, with False, all again.

        Other requests wait for their turn. No effect on engines that compile only by being asked.
        """

    async def compile_for(self, size: BatchSize) -> None:
        """Compile for a batch size without computing; requests under way go on."""


class RunningEngine(ports.Engine, Protocol):
    """An engine that a start made: it answers, its weights can be exchanged, it must be closed."""

    @property
    def weights(self) -> RunningSets:
        """The sets of weights."""

    @property
    def switch(self) -> RunningSwitch:
        """Changes which of them answer."""

    @property
    def unseen(self) -> RunningUnseen:
        """Asks each of them apart from clients."""

    @property
    def answers(self) -> RunningAnswers:
        """Answers clients by them."""

    @property
    def ahead(self) -> AheadCompiler:
        """Compiles ahead of requests."""

    def facts(self) -> Mapping[str, Any]:
        """Return the model, devices and settings of the engine, under upstream's names."""

    @property
    def recompiles(self) -> int:
        """Count of compilations that requests waited for since the start; for any thread."""

    @property
    def load(self) -> EngineLoad:
        """The engine's load of requests a moment ago; for any thread."""

    def count_anew(self) -> None:
        """Reset the counters: requests of the start do not count."""

    def is_turning(self, within: float) -> bool:
        """Return True if the scheduler ran within so many seconds, or is in a step now."""

    def judge_by(self, probes: Sequence[Probe], max_drift: float | None) -> None:
        """Judge later weights by these; ConfigError, and no change, if a probe cannot be asked."""

    async def wait_until_dead(self) -> NoReturn:
        """Raise EngineLost as soon as the engine has died or hangs."""

    async def close(self) -> None:
        """Stop the engine and free the device; a second call does nothing."""
