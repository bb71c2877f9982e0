"""Records what upstream's loader would do with a checkpoint, and says it in rules of our own."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from hotreload.checkpoint.never_loaded import ignorable_names
from hotreload.engine.weights.leaves import Layout
from hotreload.engine.weights.mappings import Inexpressible, Mappings
from hotreload.engine.weights.rules import Ingredient, Ingredients, Plan, Shape
from hotreload.engine.weights.shadow import config_for, load
from hotreload.types import TensorSpec

STACKED = "__MOE_EXPERTS__"
"""A mapping of this name stacks the tensors named in it: experts."""

_ONE_AT_A_TIME = threading.Lock()
"""Engines that start side by side replace the same method, and must put it back in turn."""

_SAFETENSORS = {
    jnp.dtype(jnp.bfloat16): "BF16",
    jnp.dtype(jnp.float16): "F16",
    jnp.dtype(jnp.float32): "F32",
}


def record_plan(model_runner: Any, layout: Layout) -> Plan:
    """Find what upstream's loader would read for the served model, and where it would put it.

    In both versions every mapping is an argument of one method, which only records it here.
    """
    recorded: dict[str, Any] = {}
    with _ONE_AT_A_TIME, _recording(recorded) as loaders:
        try:
            shadow = load(model_runner, config_for(model_runner, Path("/nonexistent")))
        except Exception:
            # Some models then use what was loaded, and fail because here nothing was.
            if not recorded:
                raise
    del shadow
    leaves = layout.shapes
    # A mapping may lead to a leaf this model lacks (qwen2's o_proj.bias): nobody needs it.
    targets = {n: paths for n, paths in _targets(recorded).items() if leaves.keys() >= {*paths}}
    parts, faults = _parts(recorded, leaves, targets, loaders[0])
    tied = bool(getattr(model_runner.model_config.hf_config, "tie_word_embeddings", False))
    ignorable = ignorable_names(tied=tied) - targets.keys()
    tensors = _specs(targets, parts, loaders[0])
    return Plan(targets, tensors, ignorable, parts, _why_not(parts, leaves, faults))


@contextmanager
def _recording(into: dict[str, Any]) -> Iterator[list[Any]]:
    from sgl_jax.srt.utils.weight_utils import WeightLoader

    original, recorder, loaders = (
        WeightLoader.load_weights_from_safetensors,
        threading.get_ident(),
        [],
    )

    def record(self: Any, mappings: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        if threading.get_ident() != recorder:  # another thread really loads meanwhile
            original(self, mappings, *args, **kwargs)
            return
        into.update(mappings)
        loaders.append(self)

    WeightLoader.load_weights_from_safetensors = record
    try:
        yield loaders
    finally:
        WeightLoader.load_weights_from_safetensors = original


def _targets(recorded: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Tensor name to leaf paths; patterns (`*`) name no tensor and are left out."""
    targets: dict[str, tuple[str, ...]] = {}
    for name, mapping in recorded.items():
        paths = getattr(mapping, "target_path", mapping)
        paths = (paths,) if isinstance(paths, str) else tuple(paths)
        if name.startswith(STACKED):
            # One leaf stacked from the tensors named after it.
            targets |= dict.fromkeys(paths[1:], paths[:1])
        elif "*" not in name:
            targets[name] = paths
    return targets


def _parts(
    recorded: Mapping[str, Any],
    leaves: Mapping[str, Shape],
    targets: Mapping[str, tuple[str, ...]],
    loader: Any,
) -> tuple[Ingredients, dict[str, str]]:
    """Find the parts of each leaf, and why they cannot be told of the others."""
    mappings = Mappings(loader)
    parts: dict[str, tuple[Ingredient, ...]] = {}
    faults: dict[str, str] = {}
    for name, mapping in recorded.items():
        path = getattr(mapping, "target_path", mapping)
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
    parts: Ingredients, leaves: Mapping[str, Shape], faults: Mapping[str, str]
) -> str | None:
    for path in sorted(leaves.keys() - parts.keys()):
        return f"{path}: {faults.get(path, 'no tensor is mapped to it')}"
    return None


def _specs(
    targets: Mapping[str, tuple[str, ...]], parts: Ingredients, loader: Any
) -> dict[str, TensorSpec]:
    """The shape and dtype each tensor must have; no shape where no rule can say it."""
    dtype = _SAFETENSORS.get(jnp.dtype(loader.dtype), str(jnp.dtype(loader.dtype)).upper())
    shapes = {part.tensor: part.rule.shape for made in parts.values() for part in made}
    return {name: TensorSpec(shapes.get(name), dtype) for name in targets}
