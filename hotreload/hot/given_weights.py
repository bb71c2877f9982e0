"""The daemon's checks on what a program gives: a folder, or a mapping of names to arrays."""

import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hotreload.checkpoint.check import check_checkpoint, fault, findings
from hotreload.checkpoint.digests import Digests
from hotreload.checkpoint.fit import Policy
from hotreload.checkpoint.in_memory import InMemory
from hotreload.errors import BadRequest, SourceUnavailable, shown
from hotreload.hub_names import how_to_have
from hotreload.threads import in_thread
from hotreload.types import Checkpoint, Served, TensorSpec

GivenWeights = str | Path | Mapping[str, Any]
"""New weights: a checkpoint's folder, or arrays of numpy or JAX by their Hugging Face names."""


class GivenChecks:
    """Belongs to one engine: what it serves is what new weights are compared with."""

    def __init__(
        self, served: Served, policy: Policy, dtype: str, digests: Digests | None = None
    ) -> None:
        """`dtype` is the one that the engine was started with; `digests` are known of downloads."""
        self._served = served
        self._policy = policy
        self._dtype = dtype
        self._digests = digests

    def against(self, tensors: Mapping[str, TensorSpec], digests: Digests) -> "GivenChecks":
        """The same that compare with these tensors, and know the digests of what was downloaded."""
        served = replace(self._served, tensors=tensors)
        return GivenChecks(served, self._policy, self._dtype, digests)

    async def check(self, given: GivenWeights, name: str = "") -> Checkpoint:
        """The weights as a checkpoint, called by this name; CheckpointRejected says why not."""
        _check_name(name)
        held = held_by(given)
        check = partial(
            check_checkpoint,
            None,
            held,
            served=self._served,
            policy=self._policy,
            digests=self._digests,
        )
        what = f"a check of {held.name}"
        checkpoint = await in_thread(lambda cancel: check(cancel=cancel), leave_as=what)
        revision = replace(checkpoint.revision, label=name or held.name)
        return replace(checkpoint, revision=revision)

    async def fingerprint_of(self, given: GivenWeights) -> str | None:
        """The fingerprint that these weights would have live; None if they would be cast."""
        held = held_by(given)

        def look(cancel: threading.Event) -> str | None:
            report = findings(
                held, self._served, self._policy, cancel=cancel, compute_in=self._dtype
            )
            if report.findings:
                raise fault(report.findings)
            return report.fingerprint

        return await in_thread(look, leave_as=f"a look at {held.name}")


def held_by(given: GivenWeights) -> Path | InMemory:
    """Find what holds the weights; SourceUnavailable for no folder, BadRequest for no path."""
    if isinstance(given, Mapping):
        return InMemory(given)
    if not isinstance(given, str | Path):
        kind = type(given).__name__
        words = "weights are a checkpoint's folder, or a mapping of names to arrays"
        raise BadRequest(f"{words}, and this is a {kind}")
    folder = Path(given).absolute()
    if not folder.is_dir():
        words = "a checkpoint is one, with its weights"
        raise SourceUnavailable(f"{folder} is no folder: {words}{how_to_have(str(given))}")
    return folder


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise BadRequest(f"name must be a text, not {shown(name)}")
