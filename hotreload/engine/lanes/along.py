"""Notes what a lane's weights expect at each place of an answer: of their own, and of a given one.

An answer that is given comes with its prompt, so one step computes many of its places. For prompts
upstream makes logits of the last token of each request; in these lanes it makes them of all tokens
of a batch. That is one program more, which is compiled ahead.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from hotreload.engine.lanes.lane import name_of

NAMED = 32
"""The number of likeliest tokens that are noted at each place; of the others the sum is known."""
LIKELIEST = -1
"""In the place of a token that is given: the likeliest, which is what an answer goes on with."""
LEAST = -1e4
"""The logarithm of a forbidden token's probability: a number, as all others are."""


@dataclass(frozen=True, slots=True)
class PromptPart:
    """The tokens of a request that one step computes, counted from the first of its prompt."""

    rid: str
    begin: int
    end: int
    whole: int
    """The number of tokens that are to be computed before it is answered."""


@dataclass(slots=True)
class Along:
    """Answers given to requests of a lane by their names, and notes of what was expected."""

    given: Mapping[str, Sequence[int]]
    noted: dict[str, list[tuple[Any, int]]] = field(default_factory=dict)
    """For each request, place by place, what was noted and in which row."""
    _steps: deque[list[tuple[int, str, int]]] = field(default_factory=deque)
    """Of each step that is to come the rows to note, whose they are, and the token given there."""

    def note_launch(self, parts: Sequence[PromptPart]) -> None:
        """Note that a step was launched which computes these parts, one after the other."""
        step, before = list[tuple[int, str, int]](), 0
        for part in parts:
            name = name_of(part.rid)
            given = self.given.get(name, ())
            first = part.whole - max(1, len(given))
            for at in range(max(part.begin, first), part.end):
                token = given[at - first] if at - first < len(given) else LIKELIEST
                step.append((before + at - part.begin, name, token))
            before += part.end - part.begin
        self._steps.append(step)

    def note_logits(self, logits: Any) -> None:
        """Note what the logits of a step expect, which lie whole on each device."""
        noted = self._steps.popleft() if self._steps else []
        given = np.full(logits.shape[0], LIKELIEST, np.int32)
        for row, _, token in noted:
            given[row] = token
        expected = _READ_LOGITS(logits, given)
        for each in expected:
            each.copy_to_host_async()
        for row, name, _ in noted:
            self.noted.setdefault(name, []).append((expected, row))


def parts_of(requests: Iterable[Any], *, is_prompt: bool) -> list[PromptPart]:
    """Return the part of each request that a batch computes which was just made."""
    return [_part_of(each, is_prompt=is_prompt) for each in requests]


def _part_of(request: Any, *, is_prompt: bool) -> PromptPart:
    whole = len(request.origin_input_ids) + len(request.output_ids)
    end, tokens = (len(request.fill_ids), request.extend_input_len) if is_prompt else (whole, 1)
    return PromptPart(request.rid, end - tokens, end, whole)


def note_along(model_runner: Any) -> None:
    """Have the runner report each step to the lane's `Along`, if it has one."""
    forward = model_runner.forward
    everywhere = NamedSharding(model_runner.mesh, PartitionSpec())  # type: ignore[no-untyped-call]
    model_runner.along = None

    def forward_and_note(forward_batch: Any, logits_metadata: Any) -> Any:
        if (along := model_runner.along) is None:
            return forward(forward_batch, logits_metadata)
        is_prompt = forward_batch.forward_mode.is_extend()
        last = _ask_of_all(forward_batch, logits_metadata) if is_prompt else None
        output, *more = forward(forward_batch, logits_metadata)
        logits = output.next_token_logits
        whole = jax.device_put(logits, everywhere)
        along.note_logits(whole)
        if last is not None:  # the sampler's
            rows = _ROWS(whole, jax.device_put(last, everywhere))
            output.next_token_logits = jax.device_put(rows, logits.sharding)
        return (output, *more)

    model_runner.forward = forward_and_note


def _ask_of_all(forward_batch: Any, metadata: Any) -> Any:
    """Have logits made of all tokens of a batch of prompts; return the last one's of each."""
    tokens = len(forward_batch.input_ids)
    if (last := getattr(metadata, "logits_indices", None)) is not None:  # the newer engine
        every = np.arange(tokens, dtype=last.dtype)
        metadata.logits_indices = jax.device_put(every, last.sharding)
        return last
    lengths = metadata.extend_seq_lens  # 0.0.2 adds them up
    every = np.ones(tokens, lengths.dtype)
    metadata.extend_seq_lens = jax.device_put(every, lengths.sharding)
    return _LAST(lengths)


def _read_logits(logits: Any, given: Any) -> tuple[Any, ...]:
    logs = jnp.maximum(jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1), LEAST)
    entropy = -jnp.sum(jnp.exp(logs) * logs, axis=-1)
    own = jnp.take_along_axis(logs, jnp.maximum(given, 0)[:, None], axis=-1)[:, 0]
    own = jnp.where(given == LIKELIEST, jnp.max(logs, axis=-1), own)
    # No part of these is used here: XLA would sort all of them, on a CPU for a second.
    values, places = jax.lax.top_k(logs, min(NAMED, logs.shape[-1]))
    return own, entropy, values, places


_READ_LOGITS = jax.jit(_read_logits)
_ROWS = jax.jit(lambda logits, rows: logits[rows])
_LAST = jax.jit(lambda lengths: jnp.cumsum(lengths) - 1)
