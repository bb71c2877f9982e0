"""Notes what a lane's weights expect at each step, and leads them along answers that are given.

The scheduler thread says whose rows a step has; the thread that computes it notes, in the same
order, what the logits of each row expect, and puts the token that is given in the place of the one
that was sampled. So one pass over an answer shows what weights would have said at each of its
places, with the programs that the engine has for its own answers.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hotreload.engine.lanes.lane import name_of

LIKELIEST = 32
"""So many of the likeliest tokens are noted at each place; of the others their sum is known."""
FREE = -1
"""In the place of a token that is given: the one that was sampled stands."""
LEAST = -1e4
"""The logarithm of the probability of what is forbidden: it is a number, as all others are."""


@dataclass(slots=True)
class Along:
    """Answers given to requests of a lane by their names, and notes of what was expected."""

    given: Mapping[str, Sequence[int]]
    noted: dict[str, list[tuple[Any, int]]] = field(default_factory=dict)
    """For each request, step by step, what was noted and in which row."""
    _steps: deque[dict[int, str]] = field(default_factory=deque)

    def launched(self, rids: Iterable[str | None]) -> None:
        """A step for these requests was launched, in the order of its rows.

        None for one of whose prompt more is still to come: what is sampled for it is no answer.
        """
        self._steps.append({row: name_of(rid) for row, rid in enumerate(rids) if rid is not None})

    def computed(self, logits: Any, tokens: Any, mesh: Mesh) -> Any:
        """Note what a step's logits expect; return its tokens, those that are given in place."""
        names = self._steps.popleft() if self._steps else {}
        given = np.full(logits.shape[0], FREE, np.int32)
        for row, name in names.items():
            given[row] = self._given_next(name)
        everywhere = NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call]
        whole = jax.device_put((logits, tokens), everywhere)
        led, *expected = _EXPECTED(*whole, given)
        for each in expected:
            each.copy_to_host_async()
        for row, name in names.items():
            self.noted.setdefault(name, []).append((expected, row))
        return jax.device_put(led, tokens.sharding)  # the sampler's, for the next step

    def _given_next(self, name: str) -> int:
        answer, at = self.given.get(name, ()), len(self.noted.get(name, ()))
        return answer[at] if at < len(answer) else FREE


def note_along(model_runner: Any) -> None:
    """Have the runner's sampler tell the lane's `Along`, if it has one, of each step."""
    sample, mesh = model_runner.sample, model_runner.mesh
    model_runner.along = None

    def sample_and_note(logits_output: Any, *more: Any) -> Any:
        sampled = sample(logits_output, *more)
        if model_runner.along is None:
            return sampled
        rows = logits_output.next_token_logits
        if isinstance(sampled, tuple):  # the newer engine and main
            tokens, *others = sampled
            return (model_runner.along.computed(rows, tokens, mesh), *others)
        return model_runner.along.computed(rows, sampled, mesh)

    model_runner.sample = sample_and_note


def _expected(logits: Any, tokens: Any, given: Any) -> tuple[Any, ...]:
    tokens = jnp.where(given == FREE, tokens, given.astype(tokens.dtype))
    logs = jnp.maximum(jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1), LEAST)
    own = jnp.take_along_axis(logs, tokens[:, None].astype(jnp.int32), axis=-1)[:, 0]
    entropy = -jnp.sum(jnp.exp(logs) * logs, axis=-1)
    values, places = jax.lax.top_k(logs, min(LIKELIEST, logs.shape[-1]))
    return tokens, own, entropy, values, places


_EXPECTED = jax.jit(_expected)
