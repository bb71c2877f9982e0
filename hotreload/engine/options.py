"""Options that an engine is started with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotreload.behaviour import Question
from hotreload.core.rules import USUAL_RULES
from hotreload.engine.compile_cache import CompileCache
from hotreload.types import Revision, Shares

RANDOM_WEIGHTS = Revision("random", "random weights")
"""The name of what an engine answers by that started without a checkpoint."""


@dataclass(frozen=True, slots=True)
class UnseenOptions:
    """Questions that weights are asked apart from clients, beside the probes."""

    compares: bool = False
    """True to be ready to compare new weights with the live ones, which compiles for that."""
    corpus: Sequence[Question] = ()
    """Questions that they are asked beside those that are built in."""
    hears: bool = False
    """True to have room to compare them by what clients asked, too."""
    candidate_tokens: int = 0
    """Tokens for which there is to be room where they answer as a candidate; 0 for none."""


PROBES_ALONE = UnseenOptions()


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Model, devices and arguments of an engine, as the operator decided."""

    model: Path
    """A folder with a config, a tokenizer, and weights unless `load_format` is dummy."""
    device: str
    tp: int = 1
    dtype: str = "auto"
    load_format: str = "auto"
    args: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of upstream's, handed on as they are."""
    tool_call_parser: str | None = None
    """Which of upstream's reads the calls of tools, if the operator says so."""
    first_device: int = 0
    engines: int = 1
    """Number of engines in all: there must be devices for each."""
    compile_cache: CompileCache | None = None
    """The place of compiled programs; None where the process decides that, as for any JAX."""
    shares: Shares = USUAL_RULES.shares
    """Parts of their turns in which weights compute that are proven, or that fade out."""
    at_once: int = 1
    """Number of requests of the steps that a start compiles for first; smaller batches are padded
    to them until theirs are compiled."""
    sets: Sequence[int] = (2,)
    """Numbers of sets of weights that the devices are to hold: the first that fits."""
    unseen: UnseenOptions = PROBES_ALONE
    """Questions beside the probes, for which there must be room."""
