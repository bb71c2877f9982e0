"""Notes for later starts that our own loader was found to make what upstream's makes.

A note is worth nothing but for the same: the versions, the code of our rules, and of each leaf how
it lies on the devices, of which tensors it is made, and how.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hotreload.engine.versions import installed_version
from hotreload.engine.weights.leaf import leaf_rules, on_device
from hotreload.engine.weights.leaf.leaf_rules import Plan
from hotreload.engine.weights.leaf.leaves import Layout
from hotreload.engine.weights.load import own
from hotreload.engine.weights.memory import host_arrays, page_locked
from hotreload.facts import files
from hotreload.types import Checkpoint

log = logging.getLogger("hotreload.engine")

IN_VAIN = "in vain: "
MAKE_LEAVES = ("hotreload", "sglang-jax", "jax", "jaxlib", "flax", "numpy", "ml-dtypes")
"""Packages that decide what either loader makes."""


def mark_of(layout: Layout, leaves: Sequence[Any], plan: Plan, checkpoint: Checkpoint) -> str:
    """Name by a digest all that both loaders go by for this model, on these devices."""
    digest = hashlib.sha256()
    for about in ({name: installed_version(name) for name in MAKE_LEAVES}, _our_code()):
        digest.update(json.dumps(about).encode())
    for each in _describe_leaves(layout, leaves, plan, checkpoint):
        digest.update(repr(each).encode())
    return digest.hexdigest()


def _our_code() -> list[str]:
    """A version may be another one's code while it is not released."""
    ours = (own, on_device, leaf_rules, host_arrays, page_locked)
    files_of = (str(each.__file__) for each in ours)
    return [hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in files_of]


def _describe_leaves(
    layout: Layout, leaves: Sequence[Any], plan: Plan, checkpoint: Checkpoint
) -> Iterator[tuple[Any, ...]]:
    for place in layout.places:
        path, leaf = layout.paths[place], leaves[place]
        kinds = sorted({device.device_kind for device in leaf.sharding.device_set})
        parts = plan.parts.get(path, ())
        stored = [checkpoint.tensors[part.tensor].dtype for part in parts]
        yield path, leaf.shape, str(leaf.dtype), leaf.sharding, kinds, parts, stored


def read_mark(file: Path) -> str | None:
    """The mark of what our own loader may load at a start; None if there is none."""
    said = _read(file)
    return None if said.startswith(IN_VAIN) else said or None


def note(file: Path, mark: str) -> None:
    """Note that ours made what upstream's made, unless a start has tried that mark in vain."""
    if _read(file) != IN_VAIN + mark:
        _write(file, mark)


def note_in_vain(file: Path, mark: str) -> None:
    """Note that a start could not go by this mark, so that none tries it again."""
    _write(file, IN_VAIN + mark)


def _read(file: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return file.read_text()
    return ""


def _write(file: Path, said: str) -> None:
    try:
        files.replace(file, said.encode())
    except OSError as fault:  # the next start goes by what is there, or has upstream's loader load
        log.warning("loader.not_noted", extra={"why": str(fault)})
