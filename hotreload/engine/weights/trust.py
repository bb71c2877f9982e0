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

from hotreload import files
from hotreload.engine.versions import installed
from hotreload.engine.weights import host_arrays, leaf_rules, own
from hotreload.engine.weights.leaf_rules import Plan
from hotreload.engine.weights.leaves import Layout
from hotreload.types import Checkpoint

log = logging.getLogger("hotreload.engine")

MAKE_LEAVES = ("hotreload", "sglang-jax", "jax", "jaxlib", "flax", "numpy", "ml-dtypes")
"""Packages that decide what either loader makes."""


def mark_of(layout: Layout, leaves: Sequence[Any], plan: Plan, checkpoint: Checkpoint) -> str:
    """Name by a digest all that both loaders go by for this model, on these devices."""
    digest = hashlib.sha256()
    for about in ({name: installed(name) for name in MAKE_LEAVES}, _our_code()):
        digest.update(json.dumps(about).encode())
    for each in _described(layout, leaves, plan, checkpoint):
        digest.update(repr(each).encode())
    return digest.hexdigest()


def _our_code() -> list[str]:
    """A version may be another one's code while it is not released."""
    files_of = (str(each.__file__) for each in (own, leaf_rules, host_arrays))
    return [hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in files_of]


def _described(
    layout: Layout, leaves: Sequence[Any], plan: Plan, checkpoint: Checkpoint
) -> Iterator[tuple[Any, ...]]:
    for place in layout.places:
        path, leaf = layout.paths[place], leaves[place]
        kinds = sorted({device.device_kind for device in leaf.sharding.device_set})
        parts = plan.parts.get(path, ())
        stored = [checkpoint.tensors[part.tensor].dtype for part in parts]
        yield path, leaf.shape, str(leaf.dtype), leaf.sharding, kinds, parts, stored


def noted(file: Path) -> str | None:
    """The mark of what our own loader was trusted with last; None if there is none."""
    with suppress(OSError, UnicodeDecodeError):
        return file.read_text() or None
    return None


def note(file: Path, mark: str) -> None:
    """Note that our own loader may be trusted with this; where that fails, upstream's goes on."""
    try:
        files.replace(file, mark.encode())
    except OSError as fault:
        log.warning("loader.not_noted", extra={"why": str(fault)})


def forget(file: Path) -> None:
    """Remove the note: it is about another model, or another version."""
    with suppress(OSError):
        file.unlink(missing_ok=True)
