"""Capabilities of an engine, and its limits, as data. `facts` finds both."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Things this engine can do; what it cannot is refused with a reason."""

    logprobs: bool
    """0.0.2 has them and dies of every request that asks for any."""
    grammars: bool
    """0.0.2 takes the parameters and ignores them."""
    seeds: bool
    """Both versions ignore a seed, unless started with enable_deterministic_sampling."""
    sampling: frozenset[str]
    """The names of the sampling parameters it knows."""
    tools: bool = False
    """It takes tools; both versions leave them to the program that makes the prompt."""
    n: bool = False
    """It makes several answers to one prompt; with both versions the caller repeats the prompt."""
    flush: bool = False
    """It forgets its caches when asked; where it cannot, hotreload empties them itself."""
    pause: bool = False
    """It can be paused; 0.0.2 cannot, so the gate stands before every engine."""

    def by_name(self) -> Mapping[str, bool]:
        """Name what differs between releases."""
        return {
            "log-probabilities": self.logprobs,
            "grammars": self.grammars,
            "tools": self.tools,
            "n": self.n,
            "flush": self.flush,
            "pause": self.pause,
        }


@dataclass(frozen=True, slots=True)
class BatchSize:
    """A size that an engine pads batches to: what it compiles for."""

    is_prompt: bool
    requests: int
    tokens: int
    """Tokens that are computed at a time."""
    cached: int
    """Places in the KV pool that the batch names."""
    is_shadow: bool = False
    """True for one in the pool in which weights are proven, where that has a size of its own."""
    has_logprobs: bool = False
    """True for a batch with log-probabilities: it has programs of its own."""
    is_noted: bool = False
    """True for a batch of questions, whose expected tokens are noted: it has its own programs."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Limits of how large things may be in this engine."""

    vocabulary: int
    input_tokens: int
    total_tokens: int
    at_once: int = 1
    """The most requests that are answered at a time."""
