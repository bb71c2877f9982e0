"""Prompts that are fit for the engine, as a request becomes them."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Item:
    """One prompt, fit for the engine."""

    input_ids: list[int] = field(repr=False)
    sampling_params: dict[str, Any]
    logprobs: dict[str, Any]
    rid: str | None
    grammar: Any = None
    """Its compiled grammar, which lives as long as somebody follows it."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A whole request: one prompt, or a batch of them."""

    items: tuple[Item, ...]
    is_batch: bool
    stream: bool
