"""Reads upstream's mappings: what its loader does with a tensor, as a rule.

Both versions say it in the same words and do a little different things; what is not known to be
understood here is left to upstream's loader.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hotreload.engine.weights.rules import Heads, Ingredient, Rule, Shape
from hotreload.errors import ConfigError

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
        self, name: str, mapping: Any, experts: Sequence[str] | None, leaf: Shape
    ) -> tuple[Ingredient, ...]:
        """The parts that make a leaf of this shape: one tensor, or one for each expert."""
        self._check(name, mapping)
        if experts is None:
            return (Ingredient(name, self._rule(name, mapping, leaf)),)
        if not leaf or leaf[0] != len(experts):
            raise Inexpressible(f"names {len(experts)} experts for a leaf of {list(leaf)}")
        return tuple(
            Ingredient(expert, self._turning(expert, mapping, leaf[1:]), at)
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

    def _rule(self, name: str, mapping: Any, leaf: Shape) -> Rule:
        turned = self._turning(name, mapping, leaf)
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

    def _turning(self, name: str, mapping: Any, leaf: Shape) -> Rule:
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

    def _heads(self, name: str, mapping: Any, leaf: Shape) -> Heads | None:
        """Tell how heads along an axis of the leaf change; None where they stay as they are."""
        axis, length, padded = self._padding(name, mapping)
        count, copies, empty = self._count(name), 1, 0
        if getattr(mapping, "kv_head_padding", False) and _is_of(name, _KEYS_AND_VALUES):
            replicas = self._replicas()
            if replicas > 1:
                axis, length, padded = self._replicated(leaf, count, replicas, length, padded)
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

    def _replicated(
        self, leaf: Shape, count: int, replicas: int, length: int, padded: int
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
