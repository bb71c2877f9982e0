"""Runs upstream's own loader on a model that nobody runs, to load weights or to record its plan."""

import copy
import inspect
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from flax import nnx

from hotreload.engine.weights.leaves import is_placeholder, leaves_by_path
from hotreload.types import TensorSpec

_SAFETENSORS = {
    jnp.dtype(jnp.bfloat16): "BF16",
    jnp.dtype(jnp.float16): "F16",
    jnp.dtype(jnp.float32): "F32",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """Which tensor of a checkpoint upstream's loader turns into which leaves."""

    targets: Mapping[str, tuple[str, ...]] = field(repr=False)
    tensors: Mapping[str, TensorSpec] = field(repr=False)
    ignorable: frozenset[str]


def load_shadow(model_runner: Any, folder: Path) -> nnx.Module:
    """A model of the served kind with the weights in `folder`; the live one is left alone.

    The loader is no validator: what the files lack stays a placeholder.
    """
    return _load(model_runner, _config_for(model_runner, folder))


def _load(model_runner: Any, config: Any) -> nnx.Module:
    from sgl_jax.srt.configs.load_config import LoadConfig
    from sgl_jax.srt.model_loader.loader import JAXModelLoader

    known = {"load_config": LoadConfig(), "mesh": model_runner.mesh, "rngs": nnx.Rngs(0)}
    takes = inspect.signature(JAXModelLoader.__init__).parameters
    loader = JAXModelLoader(**{name: known[name] for name in known if name in takes})
    model: nnx.Module = loader._get_model(loader._initialize_model(config), config)
    return model


def _config_for(model_runner: Any, folder: Path) -> Any:
    config = copy.copy(model_runner.model_config)
    config.model_path = str(folder)
    # main's dummy start marks the config, and a marked one loads random weights.
    config._dummy_mode = False
    return config


def record_plan(model_runner: Any) -> Plan:
    """What upstream's loader would read for the served model, and where it would put it.

    In both versions every mapping is an argument of one method, which only records it here.
    """
    recorded: dict[str, Any] = {}
    with _recording(recorded) as loaders:
        try:
            shadow = _load(model_runner, _config_for(model_runner, Path("/nonexistent")))
        except Exception:
            # Some models then use what was loaded, and fail because here nothing was.
            if not recorded:
                raise
    del shadow
    found = leaves_by_path(model_runner.model).items()
    leaves = {path: leaf for path, leaf in found if not is_placeholder(leaf)}
    config = model_runner.model_config
    # A mapping may lead to a leaf this model lacks (qwen2's o_proj.bias): nobody needs it.
    targets = {n: paths for n, paths in _targets(recorded).items() if leaves.keys() >= {*paths}}
    return Plan(
        targets,
        {name: _spec(name, recorded.get(name), leaves, loaders[0]) for name in targets},
        _ignorable(config.hf_config) - targets.keys(),
    )


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
        if name.startswith("__MOE_EXPERTS__"):
            # One leaf stacked from the tensors named after it.
            targets |= dict.fromkeys(paths[1:], paths[:1])
        elif "*" not in name:
            targets[name] = paths
    return targets


def _spec(name: str, mapping: Any, leaves: Mapping[str, Any], loader: Any) -> TensorSpec:
    path = getattr(mapping, "target_path", mapping)
    leaf = leaves.get(path) if isinstance(path, str) else None
    dtype = _SAFETENSORS.get(jnp.dtype(loader.dtype), str(jnp.dtype(loader.dtype)).upper())
    if leaf is None or not _invertible(mapping, loader):
        return TensorSpec(None, dtype)
    shape = tuple(leaf.shape)
    turned = getattr(mapping, "transpose", False) and not name.endswith(".bias")
    return TensorSpec(shape[::-1] if turned else shape, dtype)


def _invertible(mapping: Any, loader: Any) -> bool:
    """Whether the leaf's shape tells the tensor's; padded or repeated heads hide it."""
    odd = ("reshape", "repeat", "transpose_axes", "concat_axis", "physical_to_logical_map")
    if any(getattr(mapping, name, None) is not None for name in odd):
        return False
    if getattr(mapping, "head_dim_padding", False) and loader.head_dim_pad > 0:
        return False
    return not (
        getattr(mapping, "kv_head_padding", False)
        and loader.model_config.needs_kv_head_replication(loader.sharding_size)
    )


def _ignorable(config: Any) -> frozenset[str]:
    """Names of tensors that exporters write and the loader rightly skips."""
    layers = range(getattr(config, "num_hidden_layers", 0))
    rotary = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq" for i in layers}
    tied = {"lm_head.weight"} if getattr(config, "tie_word_embeddings", False) else set()
    return frozenset(rotary | tied)
