"""Runs upstream's own loader on a model that nobody runs."""

import copy
import inspect
from pathlib import Path
from typing import Any

from flax import nnx


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
