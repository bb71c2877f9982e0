"""Loads a checkpoint with upstream's own loader, for what our rules do not understand.

That loader maps files, and raises nothing if a tensor is missing. Therefore it gets a private copy,
and makes a model that never runs, whose leaves are checked.
"""

import copy
import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
from flax import nnx

from hotreload.checkpoint.file_reader import Cancelled
from hotreload.engine.weights.leaf.leaf_rules import Plan
from hotreload.engine.weights.leaf.leaves import (
    Layout,
    is_placeholder,
    leaves_by_path,
    like,
    wait_for,
)
from hotreload.engine.weights.load.spool import private_copy
from hotreload.errors import CheckpointIncompatible
from hotreload.types import Checkpoint

MOST_NAMED = 10
"""The most leaves or tensors that a message names."""


def load_upstream(
    checkpoint: Checkpoint,
    *,
    model_runner: Any,
    layout: Layout,
    live: list[Any],
    plan: Plan,
    spool: Path,
    cancel: threading.Event,
    report: Callable[[int], None],
) -> list[Any]:
    """The engine's list of leaves with the checkpoint's weights, placed like the live ones."""
    _check_complete(checkpoint, plan)
    with private_copy(checkpoint, spool, cancel, report) as folder:
        loaded = _load(model_runner, folder, checkpoint)
        with _emptied_at_the_end(loaded):
            _check_written(loaded, layout, plan)
            leaves = _fit(loaded, layout, live, cancel)
            wait_for(layout, leaves)
            return leaves


def _check_complete(checkpoint: Checkpoint, plan: Plan) -> None:
    """Refuse a checkpoint that lacks a tensor the model needs."""
    missing = sorted(plan.targets.keys() - checkpoint.tensors.keys())
    if missing:
        raise _incomplete("tensors the model needs", missing)


@contextmanager
def _emptied_at_the_end(loaded: dict[str, Any]) -> Iterator[None]:
    """Empty it: an error keeps the frames it passed, and they must not keep a set of weights."""
    try:
        yield
    finally:
        loaded.clear()


def _load(model_runner: Any, folder: Path, checkpoint: Checkpoint) -> dict[str, Any]:
    try:
        return leaves_by_path(load_shadow(model_runner, folder))
    except (MemoryError, jax.errors.JaxRuntimeError):
        raise
    except Exception as fault:
        raise CheckpointIncompatible(
            f"{checkpoint.path}: the engine's loader fails on it: {type(fault).__name__}: {fault}"
        ) from fault


def _check_written(loaded: Mapping[str, Any], layout: Layout, plan: Plan) -> None:
    """Refuse leaves written never or twice: the loader raises nothing where a tensor is missing."""
    paths = (layout.paths[place] for place in layout.places)
    unwritten = [path for path in paths if path not in loaded or is_placeholder(loaded[path])]
    written = Counter(path for paths in plan.targets.values() for path in paths)
    twice = sorted({path for path in written if written[path] > 1} - _stacked_leaves(plan))
    if unwritten:
        raise _incomplete("tensors for the leaves", unwritten)
    if twice:
        raise _incomplete("one tensor each for the leaves", twice)


def _stacked_leaves(plan: Plan) -> set[str]:
    """Leaves that are made of many tensors by design: experts."""
    return {paths[0] for name, paths in plan.targets.items() if ".experts." in name}


def _incomplete(what: str, names: list[str]) -> CheckpointIncompatible:
    shown = ", ".join(names[:MOST_NAMED]) + (", …" if len(names) > MOST_NAMED else "")
    return CheckpointIncompatible(
        f"the checkpoint lacks {what} {shown}", code="missing", findings=names[:MOST_NAMED]
    )


def _fit(
    loaded: dict[str, Any], layout: Layout, live: list[Any], cancel: threading.Event
) -> list[Any]:
    """The engine's list with the loaded weights, matched by path; the others are live ones."""
    fitted = list(live)
    try:
        for place in layout.places:
            if cancel.is_set():
                raise Cancelled
            fitted[place] = _place(layout.paths[place], loaded, live[place])
    except BaseException:
        fitted.clear()
        raise
    return fitted


def _place(path: str, loaded: dict[str, Any], live: jax.Array) -> jax.Array:
    leaf = loaded.pop(path)
    _check_shape(path, leaf, live)
    return like(leaf, live)


def _check_shape(path: str, leaf: Any, live: Any) -> None:
    """Refuse a leaf of another shape or dtype: the loader would assign it."""
    if leaf.shape != live.shape or leaf.dtype != live.dtype:
        raise CheckpointIncompatible(
            f"{path} would be {leaf.dtype}{list(leaf.shape)}, "
            f"the engine serves {live.dtype}{list(live.shape)}",
            code="shape" if leaf.shape != live.shape else "dtype",
        )


def load_shadow(model_runner: Any, folder: Path) -> nnx.Module:
    """A model of the served kind with the weights in `folder`; the live one is left alone.

    The loader is no validator: what the files lack stays a placeholder.
    """
    return load(model_runner, config_for(model_runner, folder))


def load(model_runner: Any, config: Any) -> nnx.Module:
    """Have upstream's loader make a model with this config."""
    from sgl_jax.srt.configs.load_config import LoadConfig
    from sgl_jax.srt.model_loader.loader import JAXModelLoader

    known = {"load_config": LoadConfig(), "mesh": model_runner.mesh, "rngs": nnx.Rngs(0)}
    takes = inspect.signature(JAXModelLoader.__init__).parameters
    loader = JAXModelLoader(**{name: known[name] for name in known if name in takes})
    model: nnx.Module = loader._get_model(loader._initialize_model(config), config)
    return model


def config_for(model_runner: Any, folder: Path) -> Any:
    """The served model's config, for weights that lie in `folder`."""
    config = copy.copy(model_runner.model_config)
    config.model_path = str(folder)
    # main's dummy start marks the config, and a marked one loads random weights.
    config._dummy_mode = False
    return config
