"""Records what upstream's loader would do with a checkpoint, and says it in rules of our own.

Both versions give their mappings in the same words and do slightly different things. Mappings that
are not fully understood here are left to upstream's loader.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from hotreload.checkpoint.known_names import SPELT, ignorable_names
from hotreload.engine.weights.leaf.leaf_rules import (
    ArrayShape,
    Heads,
    Ingredient,
    Ingredients,
    Plan,
    Rule,
)
from hotreload.engine.weights.leaf.leaves import Layout
from hotreload.engine.weights.load.upstream_loader import config_for, load
from hotreload.errors import ConfigError
from hotreload.types import TensorSpec

STACKED = "__MOE_EXPERTS__"
"""A mapping of this name stacks the tensors named in it: experts."""

type Recorded = Mapping[str, Any]
"""Upstream's mappings by their names."""

_ONE_AT_A_TIME = threading.Lock()
"""Engines that start side by side replace the same method, and must put it back in turn."""


def record_plan(model_runner: Any, layout: Layout) -> Plan:
    """Find what upstream's loader would read for the served model, and where it would put it.

    No file is read for it: a model is made that never runs.
    """
    recorded: dict[str, Any] = {}
    loaders: list[Any] = []

    def record(loader: Any, mappings: Recorded) -> None:
        recorded.update(mappings)
        loaders.append(loader)

    with loading_by(record):
        try:
            shadow = load(model_runner, config_for(model_runner, Path("/nonexistent")))
        except Exception:
            # Some models then use what was loaded, and fail because here nothing was.
            if not recorded:
                raise
    del shadow
    return plan_of(recorded, loaders[0], layout)


def plan_of(recorded: Recorded, loader: Any, layout: Layout) -> Plan:
    """Say in rules what this loader of upstream's would do by its mappings."""
    leaves = layout.shapes
    # A mapping may lead to a leaf this model lacks (qwen2's o_proj.bias): nobody needs it.
    targets = {n: paths for n, paths in _targets(recorded).items() if leaves.keys() >= {*paths}}
    parts, faults = _parts(recorded, leaves, targets, loader)
    tied = bool(getattr(loader.model_config.hf_config, "tie_word_embeddings", False))
    ignorable = ignorable_names(tied=tied) - targets.keys()
    tensors = _specs(targets, parts, loader)
    return Plan(targets, tensors, ignorable, parts, _why_not(parts, leaves, faults))


@contextmanager
def loading_by(load: Callable[[Any, Recorded], None]) -> Iterator[None]:
    """Have this thread call `load` in here wherever upstream's loader would load.

    In both versions every mapping is an argument of one method of its; `load` is given that loader.
    """
    from sgl_jax.srt.utils.weight_utils import WeightLoader

    caller = threading.get_ident()

    def instead(self: Any, mappings: Recorded, *args: Any, **kwargs: Any) -> None:
        if threading.get_ident() == caller:
            load(self, mappings)
        else:  # another thread really loads meanwhile
            original(self, mappings, *args, **kwargs)

    with _ONE_AT_A_TIME:
        original = WeightLoader.load_weights_from_safetensors
        WeightLoader.load_weights_from_safetensors = instead
        try:
            yield
        finally:
            WeightLoader.load_weights_from_safetensors = original


def _targets(recorded: Recorded) -> dict[str, tuple[str, ...]]:
    """Tensor name to leaf paths; patterns (`*`) name no tensor and are left out."""
    targets: dict[str, tuple[str, ...]] = {}
    for name, mapping in recorded.items():
        paths: Any = getattr(mapping, "target_path", mapping)
        paths = (paths,) if isinstance(paths, str) else tuple(paths)
        if name.startswith(STACKED):
            # One leaf stacked from the tensors named after it.
            targets |= dict.fromkeys(paths[1:], paths[:1])
        elif "*" not in name:
            targets[name] = paths
    return targets


def _parts(
    recorded: Recorded,
    leaves: Mapping[str, ArrayShape],
    targets: Mapping[str, tuple[str, ...]],
    loader: Any,
) -> tuple[Ingredients, dict[str, str]]:
    """Return the parts of each leaf, and for other leaves why no rule can give their parts."""
    mappings = Mappings(loader)
    parts: dict[str, tuple[Ingredient, ...]] = {}
    faults: dict[str, str] = {}
    for name, mapping in recorded.items():
        path: Any = getattr(mapping, "target_path", mapping)
        experts = tuple(path[1:]) if name.startswith(STACKED) else None
        path = path[0] if experts is not None else path
        if not isinstance(path, str):
            faults |= dict.fromkeys(path, f"{name} makes more than one leaf")
        elif path not in leaves or (experts is None and name not in targets):
            continue
        elif path in parts:
            faults[path] = f"{name} is not the only tensor it is made of"
        else:
            try:
                parts[path] = mappings.parts(name, mapping, experts, leaves[path])
            except Inexpressible as fault:
                faults[path] = f"{name} {fault}"
    return {path: made for path, made in parts.items() if path not in faults}, faults


def _why_not(
    parts: Ingredients, leaves: Mapping[str, ArrayShape], faults: Mapping[str, str]
) -> str | None:
    for path in sorted(leaves.keys() - parts.keys()):
        return f"{path}: {faults.get(path, 'no tensor is mapped to it')}"
    return None


def _specs(
    targets: Mapping[str, tuple[str, ...]], parts: Ingredients, loader: Any
) -> dict[str, TensorSpec]:
    """The shape and dtype each tensor must have; no shape where no rule can say it."""
    dtype = SPELT[jnp.dtype(loader.dtype).name]
    shapes = {part.tensor: part.rule.shape for made in parts.values() for part in made}
    return {name: TensorSpec(shapes.get(name), dtype) for name in targets}


_NOT_UNDERSTOOD = ("reshape", "repeat", "concat_axis", "physical_to_logical_map")
_BY_HEAD = ("q_proj", "k_proj", "v_proj")
_KEYS_AND_VALUES = ("k_proj", "v_proj")


class Inexpressible(Exception):
    """No rule can say what upstream's loader does with a tensor; the words say why."""


class Mappings:
    """Reads the mappings of one loader."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._config = loader.model_config
        # 0.1.0rc0 pads heads only where it splits a tensor, which no mapping rule covers.
        self._pads_heads = hasattr(loader, "_apply_head_dim_padding") and loader.head_dim_pad > 0

    def parts(
        self, name: str, mapping: Any, experts: Sequence[str] | None, leaf: ArrayShape
    ) -> tuple[Ingredient, ...]:
        """The parts that make a leaf of this shape: one tensor, or one for each expert."""
        self._check(name, mapping)
        if experts is None:
            return (Ingredient(name, self._rule(name, mapping, leaf)),)
        if not leaf or leaf[0] != len(experts):
            raise Inexpressible(f"names {len(experts)} experts for a leaf of {list(leaf)}")
        return tuple(
            Ingredient(expert, self._transpose_rule(expert, mapping, leaf[1:]), at)
            for at, expert in enumerate(experts)
        )

    def _check(self, name: str, mapping: Any) -> None:
        for word in _NOT_UNDERSTOOD:
            if getattr(mapping, word, None) is not None:
                raise Inexpressible(f"has `{word}`, which no mapping rule covers")
        if getattr(self._config, "quantization_config", None) is not None:
            raise Inexpressible("is quantized")
        if "lm_head" in name and hasattr(self._config.hf_config, "output_multiplier_scale"):
            raise Inexpressible("is multiplied while it is loaded")

    def _rule(self, name: str, mapping: Any, leaf: ArrayShape) -> Rule:
        turned = self._transpose_rule(name, mapping, leaf)
        heads = self._heads(name, mapping, leaf)
        if heads is None:
            return turned
        axis = heads.axis if turned.axes is None else turned.axes[heads.axis]
        shape = list(turned.shape)
        shape[axis] = heads.count * heads.length
        rule = Rule(tuple(shape), replace(heads, axis=axis), turned.axes)
        if rule.leaf_shape != leaf:
            raise Inexpressible(f"would make a leaf of {list(rule.leaf_shape)}, not {list(leaf)}")
        return rule

    def _transpose_rule(self, name: str, mapping: Any, leaf: ArrayShape) -> Rule:
        axes = getattr(mapping, "transpose_axes", None)
        if axes is None and getattr(mapping, "transpose", False):
            axes = (1, 0)
        if axes is None or name.endswith(".bias"):
            return Rule(leaf)
        if len(axes) != len(leaf):
            raise Inexpressible(f"is turned by {axes}, and its leaf is {list(leaf)}")
        shape = [0] * len(leaf)
        for at, axis in enumerate(axes):
            shape[axis] = leaf[at]
        return Rule(tuple(shape), axes=tuple(axes))

    def _heads(self, name: str, mapping: Any, leaf: ArrayShape) -> Heads | None:
        """Return how heads along an axis of the leaf change; None if they stay as they are."""
        axis, length, padded = self._padding(name, mapping)
        count, copies, empty = self._count(name), 1, 0
        if getattr(mapping, "kv_head_padding", False) and _is_of(name, _KEYS_AND_VALUES):
            replicas = self._replicas()
            if replicas > 1:
                axis, length, padded = self._find_copies(leaf, count, replicas, length, padded)
                is_copied = self._config.get_kv_padding_strategy() == "replicate"
                copies, empty = (replicas, 0) if is_copied else (1, count * (replicas - 1))
        if axis is None or (length == padded and copies == 1 and not empty):
            return None
        return Heads(axis, count, length, padded, copies, empty)

    def _count(self, name: str) -> int:
        loader = self._loader
        return int(loader.num_kv_heads if _is_of(name, _KEYS_AND_VALUES) else loader.num_heads)

    def _padding(self, name: str, mapping: Any) -> tuple[int | None, int, int]:
        """Along which axis of the leaf heads lie that are padded, how long they are and become."""
        loader = self._loader
        length = int(loader.head_dim_original)
        is_padded = self._pads_heads and getattr(mapping, "head_dim_padding", False)
        if is_padded and name.endswith(".bias") and _is_of(name, _BY_HEAD):
            return 0, length, int(loader.head_dim)
        if is_padded and not name.endswith(".bias") and getattr(mapping, "transpose", False):
            if _is_of(name, _BY_HEAD):
                return 1, length, int(loader.head_dim)
            if "o_proj" in name:
                return 0, length, int(loader.head_dim)
        return None, length, length

    def _replicas(self) -> int:
        size = self._loader.sharding_size
        if not self._config.needs_kv_head_replication(size):
            return 1
        if hasattr(self._config, "_original_swa_num_key_value_heads"):
            raise Inexpressible("has heads of two kinds")
        return int(self._config.get_num_kv_head_replicas(size))

    def _find_copies(
        self, leaf: ArrayShape, count: int, replicas: int, length: int, padded: int
    ) -> tuple[int, int, int]:
        """Along which axis of the leaf the heads stand several times, and how long each is."""
        axis = len(leaf) - 1
        if leaf == (count * replicas * padded, count * padded):
            raise ConfigError(
                f"[engine] tp: hidden_size is as long as all {count} heads of keys and values are, "
                f"and then this engine repeats the wrong axis: set tp to {count} or less"
            )
        if leaf[axis] != count * replicas * padded:
            raise Inexpressible(f"has {replicas} times {count} heads for a leaf of {list(leaf)}")
        return axis, length, padded


def _is_of(name: str, projections: Sequence[str]) -> bool:
    return any(projection in name for projection in projections)
