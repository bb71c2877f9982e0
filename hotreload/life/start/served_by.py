"""A model's folder at a start: what an engine with it serves, and what its answers depend on.

Answers depend on the versions, the settings and the small files. Weights that were live and answer
badly now are to blame for it as little as they were before: if all of this is the same the probe is
to blame, or the machine; if not, what differs may be.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from hotreload.checkpoint import fit
from hotreload.core.ledger import ServedBy
from hotreload.errors import CheckpointRejected, ConfigError
from hotreload.facts.upstream import version_of
from hotreload.life.start.model_files import closed_at, digests_of_side_files
from hotreload.life.start.whereabouts import read_from_disk, reject_on_fault
from hotreload.settings.sections import Settings
from hotreload.threads import in_thread
from hotreload.types import Served

UNFIT_MODEL = "unfit_model"
"""The code of a ConfigError that another model folder would mend."""

CAUSES = {
    "sglang_jax": "sglang-jax",
    "jax": "jax",
    "dtype": "[engine] dtype",
    "tp": "[engine] tp",
    "args": "[engine.args]",
    "files": "the model's config or tokenizer",
}


async def find_served_model(model: Path) -> Served:
    """Find what an engine with this model serves: every checkpoint is checked against it."""
    closed = await read_from_disk(model, lambda: closed_at(model))
    if closed is not None:
        words = f"[engine] model: {model} may not be read: {closed} is closed to this user"
        raise ConfigError(f"{words}; open it (chmod a+rX {closed})", code=UNFIT_MODEL)
    if not await read_from_disk(model, (model / "config.json").is_file):
        words = f"[engine] model: {model} is no model folder: it has no config.json"
        raise ConfigError(words, code=UNFIT_MODEL)
    try:
        return await reject_on_fault(read_from_disk(model, lambda: fit.read_served_model(model)))
    except CheckpointRejected as unfit:
        words = f"[engine] model: {model} cannot be served: {unfit}"
        raise ConfigError(words, code=UNFIT_MODEL) from unfit


async def served_by_now(settings: Settings, model: Path) -> ServedBy:
    """Gather what a start with this model's folder serves by."""
    return await in_thread(
        lambda cancel: _served_by(settings, model), leave_as=f"a read of {model}'s small files"
    )


def _served_by(settings: Settings, model: Path) -> ServedBy:
    engine = settings.engine
    return ServedBy(
        sglang_jax=version_of("sglang-jax"),
        jax=version_of("jax"),
        dtype=engine.dtype,
        tp=engine.tp,
        args=_digest(sorted(engine.args.items())),
        files=_digest(list(digests_of_side_files(model))),
        model=str(model),
    )


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def changes(before: ServedBy, now: ServedBy) -> str:
    """Say in what these differ; empty when in nothing."""
    return ", ".join(_changes(before, now))


def _changes(before: ServedBy, now: ServedBy) -> Iterator[str]:
    for field in fields(ServedBy):
        was, is_now = getattr(before, field.name), getattr(now, field.name)
        if not field.compare or was == is_now:
            continue
        if field.name == "files":
            yield f"{CAUSES['files']} (model folder {before.model} then, {now.model} now)"
        elif field.name == "args":
            yield f"{CAUSES['args']} are others"
        else:
            yield f"{CAUSES[field.name]} {was} then, {is_now} now"
