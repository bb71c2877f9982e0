"""A model's side files, on which its answers depend too: config, tokenizer, templates.

Where no [engine] model is configured the first checkpoint is the model, and stays it: its side
files are kept in the state folder, so that a restart answers as the life before it did.
"""

import asyncio
import hashlib
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from hotreload.checkpoint.known_names import CONFIG, SIDE_FILES
from hotreload.errors import ConfigError
from hotreload.facts.files import put_folder
from hotreload.types import holds_weights

log = logging.getLogger("hotreload.boot")

KEPT_MODEL = "model"
OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".gguf", ".msgpack", ".h5", ".onnx")


def digests_of_side_files(model: Path) -> Iterator[tuple[str, str]]:
    """Each file that a model's answers depend on beside the weights, and the digest of it."""
    for name in (CONFIG, *SIDE_FILES):
        try:
            yield name, hashlib.sha256((model / name).read_bytes()).hexdigest()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as fault:
            words = f"[engine] model: {model / name} cannot be read: {fault.strerror}"
            raise ConfigError(words) from fault


def copy_side_files(model: Path, to: Path) -> None:
    """Copy all that an engine may read of a model folder, but for its weights."""
    for file in _side_files(model):
        shutil.copyfile(file, to / file.name)


def closed_at(path: Path) -> Path | None:
    """The folder on the way to this, or this itself, that may not be read; None if all may be."""
    real = Path(os.path.realpath(path))
    for each in (*reversed(real.parents), real):
        wanted = os.X_OK if each != real else os.R_OK | (os.X_OK if real.is_dir() else 0)
        if not _may(each, os.F_OK):
            return None  # it is not there at all
        if not _may(each, wanted):
            return each
    return None


def _may(path: Path, wanted: int) -> bool:
    return os.access(path, wanted, effective_ids=True)


def _side_files(model: Path) -> Iterator[Path]:
    for file in model.iterdir():
        if file.is_file() and not holds_weights(file.name) and file.suffix not in OTHER_WEIGHTS:
            yield file


def kept_model(state: Path) -> Path | None:
    """The folder of the side files that the last good generation was served with, if kept."""
    folder = state / KEPT_MODEL
    return folder if (folder / "config.json").is_file() else None


async def keep_model(model: Path, state: Path, *, is_configured: bool) -> None:
    """Keep the side files of the model that runs, but for one that the operator configured.

    A disk that refuses costs the memory, not the service.
    """
    try:
        await asyncio.to_thread(_keep, model, state / KEPT_MODEL, is_configured)
    except OSError as error:
        why = f"{error}; a restart may answer otherwise"
        log.warning("boot.model_not_kept", extra={"path": str(state / KEPT_MODEL), "why": why})


def _keep(model: Path, kept: Path, is_configured: bool) -> None:
    if model == kept:
        return
    if is_configured:  # what was kept before is out of date
        shutil.rmtree(kept, ignore_errors=True)
        return
    fresh = kept.with_suffix(".new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    copy_side_files(model, fresh)
    put_folder(fresh, kept)
