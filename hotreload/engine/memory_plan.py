"""Plans the memory of each device before an engine starts, by headers and config; needs no JAX."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotreload.checkpoint.known_names import INDEX, STORED_DTYPES, computed_dtype
from hotreload.engine.weights.memory.host_memory import host_bytes_free, machine_bytes_free

USUAL_FRACTION = 0.88
"""The share of a device that upstream gives to weights and KV pool; the rest is to compute in."""
CPU_TOKENS = 16384
"""The tokens that a CPU's KV pool has room for, unless the settings say how many."""
HEAD_MULTIPLE = 128
"""Upstream pads a head to a multiple of this."""
LEAST_TOKENS = 4096
"""A KV pool for fewer tokens is too small to serve by, unless the settings ask for fewer."""
MOST_HEADER = 16 * 2**20
OF_HEADS = ("q_proj.", "k_proj.", "v_proj.", "o_proj.")
SHARED_HEADS = ("k_proj.", "v_proj.")


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes on each device."""

    weights: int
    """Bytes of one set."""
    sets: int
    there: int | None
    """Bytes of the device; None if they are unknown."""
    token: int
    """Bytes of a token in the KV pool."""
    tokens: int | None
    """The tokens that the settings allow the pool; None for as many as fit."""
    given: float | None
    """The mem_fraction_static that the operator set."""
    machine: int | None = None
    """Bytes that the machine has free, where the device is a CPU; `there` knows further limits."""

    @property
    def fraction(self) -> float | None:
        """Return upstream's share less the further sets; the given one comes first."""
        if self.given is not None or self.there is None:
            return self.given
        further = (self.sets - 1) * self.weights / self.there
        return max(0.01, math.floor((USUAL_FRACTION - further) * 1000) / 1000)

    @property
    def argument(self) -> float | None:
        """Return mem_fraction_static, on a CPU a share of all that the machine has free."""
        if self.fraction is None or self.there is None or self.machine is None:
            return self.fraction
        return self.fraction * self.there / self.machine

    @property
    def pool(self) -> int | None:
        """Return the bytes of the KV pool; None if nothing says how large it may be."""
        limit = None if self.tokens is None else self.tokens * self.token
        if self.there is None or self.fraction is None:
            return limit
        left = max(0, int(self.there * self.fraction) - self.weights)
        return left if limit is None else min(left, limit)

    @property
    def least_pool(self) -> int:
        """Return the bytes of the smallest KV pool by which the engine can serve."""
        return self.token * min(LEAST_TOKENS, self.tokens or LEAST_TOKENS)

    @property
    def work(self) -> int | None:
        """Return the bytes that computing, and the making of a further set, may take."""
        return None if self.there is None else int(self.there * (1 - USUAL_FRACTION))

    def rows(self) -> Iterator[tuple[str, int | None]]:
        """Yield each part of the plan, in bytes."""
        yield f"weights, {self.sets} sets", self.sets * self.weights
        yield "KV pool", self.pool
        yield "to compute in", self.work
        yield "there", self.there

    def why_not(self) -> str | None:
        """Say what does not fit, and what to change; None where all fits or nothing is known."""
        if self.there is None or self.work is None:
            return None
        is_ours = self.given is None
        work, pool = self.work if is_ours else 0, self.pool or 0
        is_enough = pool >= self.least_pool if is_ours else pool > 0
        if is_enough and self.sets * self.weights + pool + work <= self.there:
            return None
        if is_ours and self.machine is not None:
            todo = "see who takes it, and that no limit of the unit is too low"
        elif is_ours:
            todo = "set [reload] memory = 'host', or spread it over more devices ([engine] tp)"
        elif self.pool:
            todo = f"lower [engine.args] mem_fraction_static from {self.given}, or leave it out"
        else:
            todo = f"raise [engine.args] mem_fraction_static from {self.given}"
        held = f"{self.sets} sets of weights of {self.weights} bytes each, and a KV pool"
        if is_ours:
            held += f" of {self.least_pool} bytes"
        return f"a device has {self.there} bytes, too few for {held}: {todo}"


def plan_memory(
    model: Path,
    *,
    tp: int,
    dtype: str,
    args: Mapping[str, Any],
    sets: Sequence[int],
    there: int | None = None,
    is_cpu: bool = False,
) -> MemoryPlan | None:
    """Return the plan for a model's folder; None where it has no headers, or no config.

    Of several numbers of sets the first that fits is planned, or the last. `there` has the bytes of
    a device; a CPU's are the host's.
    """
    machine = None
    if is_cpu:
        args = {"max_total_tokens": CPU_TOKENS, **args}
        there, machine = host_bytes_free(), machine_bytes_free()
    try:
        config = json.loads((model / "config.json").read_bytes())
        config = config.get("text_config") or config
        heads = int(config["num_attention_heads"])
        kv_heads = int(config.get("num_key_value_heads") or heads)
        head = int(config.get("head_dim") or config["hidden_size"] // heads)
        layers = int(config["num_hidden_layers"])
        stated = dtype if dtype != "auto" else config.get("torch_dtype") or config.get("dtype")
        _, size = STORED_DTYPES[computed_dtype(stated)]
        padding = -(-head // HEAD_MULTIPLE) * HEAD_MULTIPLE / head
        copies = max(1.0, tp / kv_heads)
        weights = 0.0
        for name, kind, elements, rank in _tensors(model):
            stored = 1 if kind.startswith(("F8", "I8", "U8")) else size
            padded = padding if any(each in name for each in OF_HEADS) else 1.0
            copied = copies if any(each in name for each in SHARED_HEADS) else 1.0
            # Norms are on each device whole; so is the embedding of 0.0.2.
            parts = 1 if rank < 2 or "embed_tokens" in name else tp
            weights += elements * stored * padded * copied / parts
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if not weights:
        return None
    token = layers * 2 * max(1, kv_heads // tp) * int(head * padding) * size
    tokens, given = args.get("max_total_tokens"), _fraction_of(args)
    limits = (there, token, tokens, given, machine)
    plans = [MemoryPlan(int(weights), each, *limits) for each in sets]
    return next((plan for plan in plans if plan.why_not() is None), plans[-1])


def _fraction_of(args: Mapping[str, Any]) -> float | None:
    given = args.get("mem_fraction_static")
    return float(given) if isinstance(given, int | float) else None


def _tensors(model: Path) -> Iterator[tuple[str, str, int, int]]:
    """Yield name, dtype, count of elements and rank of each tensor; those of the index, if any."""
    files = sorted(model.glob("*.safetensors"))
    if (index := model / INDEX).is_file():  # other files may hold the same weights once more
        files = [model / name for name in {*json.loads(index.read_bytes())["weight_map"].values()}]
    for file in files:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if length > MOST_HEADER:
                raise ValueError(f"{file} has no header")
            header = json.loads(opened.read(length))
        for name, entry in header.items():
            if name != "__metadata__":
                shape = entry["shape"]
                yield name, entry["dtype"], math.prod(shape), len(shape)
