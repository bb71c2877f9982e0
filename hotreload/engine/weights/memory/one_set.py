"""Exchanges weights where one set is on the device at a time: leaf by leaf, with host memory.

Nothing may be computed meanwhile; the caller sees to that. A leaf leaves the device before the
next one comes, so the device needs no more room than for the set that is there.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from hotreload.engine.weights.leaf.leaves import Layout, place_copy, signature
from hotreload.engine.weights.memory.headroom import raise_not_enough_memory
from hotreload.errors import CheckpointIncompatible, EngineLost

HostLeaf = np.ndarray[Any, Any]


def stand_ins(leaves: Sequence[Any]) -> list[Any]:
    """Make placeholders for leaves that are being exchanged; they hold no memory.

    Each is an object of its own: programs that were compiled ahead know leaves by identity.
    """
    return [object() for _ in leaves]


class Trade:
    """Puts leaves that wait on the host on the device, and those they replace on the host."""

    def __init__(
        self,
        layout: Layout,
        leaves: list[Any],
        host: dict[int, Any],
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        """`leaves` and `host` change in place; no other reference to device leaves may exist."""
        self._layout = layout
        self._leaves = leaves
        self._host = host
        self._on_progress = on_progress

    def run(self) -> None:
        """Exchange every leaf that waits on the host; a second run undoes the first.

        If one leaf fails, those before are exchanged back and the fault is raised. If that fails
        too, EngineLost is raised.
        """
        done: list[int] = []
        try:
            for place in sorted(self._host):
                self._trade(place)
                done.append(place)
        except EngineLost:
            raise
        except Exception:
            self._walk_back(done)
            raise

    def _walk_back(self, done: list[int]) -> None:
        try:
            for place in reversed(done):
                self._trade(place)
        except EngineLost:
            raise
        except Exception as broken:
            raise _half_a_set(self._layout.paths[place], broken) from broken

    def _trade(self, place: int) -> None:
        """Exchange one leaf; if that fails, put the old one back."""
        seat = _Seat(self._layout.paths[place], self._leaves[place])
        old = _on_host(self._leaves[place])
        self._seat(place, None)  # from here on its memory is free
        try:
            self._seat(place, seat.take(self._host[place]))
        except Exception:
            self._put_back(place, seat, old)
            raise
        self._host[place] = old
        self._on_progress()

    def _put_back(self, place: int, seat: "_Seat", old: HostLeaf) -> None:
        """Put the old leaf back into the room it left: nothing else allocates meanwhile."""
        try:
            self._seat(place, seat.take(old))
        except Exception as broken:
            raise _half_a_set(seat.path, broken) from broken

    def _seat(self, place: int, leaf: jax.Array | None) -> None:
        self._leaves[place] = leaf
        variable: nnx.Variable[Any] | None = self._layout.variables[place]
        assert variable is not None, "only weights wait on the host"
        variable.set_raw_value(leaf)


class _Seat:
    """Place and signature of a leaf on the device; holds none of its memory."""

    def __init__(self, path: str, leaf: jax.Array) -> None:
        self.path = path
        self._signature = signature(leaf)
        self._sharding = leaf.sharding if leaf.committed else None

    def take(self, leaf: HostLeaf) -> jax.Array:
        """Place the leaf on the device with the signature of the one before: no recompile."""
        with raise_not_enough_memory():
            new = place_copy(leaf, self._sharding).block_until_ready()
        if signature(new) != self._signature:
            raise CheckpointIncompatible(
                f"{self.path} cannot be placed like the live one: "
                f"{signature(new)}, not {self._signature}"
            )
        return new


def _on_host(leaf: jax.Array) -> HostLeaf:
    """Copy the leaf into memory of our own; np.asarray would alias device memory on CPU."""
    return np.array(leaf)


def _half_a_set(path: str, broken: Exception) -> EngineLost:
    return EngineLost(
        f"the weights are half exchanged: {path} could not be put back: "
        f"{type(broken).__name__}: {broken}"
    )
