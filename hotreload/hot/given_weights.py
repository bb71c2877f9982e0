"""Checks the weights that a program gives, as the daemon does: a folder, or named arrays."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hotreload.checkpoint.arrays.in_memory import InMemory
from hotreload.checkpoint.check import check_checkpoint, findings
from hotreload.checkpoint.digests import Digests, identify
from hotreload.checkpoint.findings import fault
from hotreload.checkpoint.fit import Policy
from hotreload.checkpoint.known_names import matches
from hotreload.errors import BadRequest, SourceUnavailable
from hotreload.facts.names import how_to_have
from hotreload.hot.program_requests import check_text
from hotreload.threads import in_thread
from hotreload.types import Checkpoint, CheckpointFile, Revision, Served, TensorSpec

GivenWeights = str | Path | Mapping[str, Any]
"""New weights: a checkpoint's folder, or arrays of numpy or JAX by their Hugging Face names."""


class Renamed(dict[str, Any]):
    """Arrays by their Hugging Face names, and in `called` the program's name of each."""

    def __init__(self, tensors: Mapping[str, Any], called: Mapping[str, str]) -> None:
        super().__init__(tensors)
        self.called = called


class GivenChecks:
    """The checks of one engine: new weights are compared with the model that it serves."""

    def __init__(
        self, served: Served, policy: Policy, dtype: str, digests: Digests | None = None
    ) -> None:
        """`dtype` is that of the engine's start; `digests` are those of downloaded files."""
        self._served = served
        self._policy = policy
        self._dtype = dtype
        self._digests = digests

    def against(self, tensors: Mapping[str, TensorSpec], digests: Digests) -> "GivenChecks":
        """Return checks against these tensors, with the digests of downloaded files."""
        served = replace(self._served, tensors=tensors)
        return GivenChecks(served, self._policy, self._dtype, digests)

    async def check(
        self,
        given: GivenWeights,
        name: str = "",
        *,
        complete: bool = False,
        is_unread: bool = False,
    ) -> Checkpoint:
        """Return the weights as a checkpoint of this name; CheckpointRejected lists their faults.

        Unless it must be `complete`, a mapping may be a part of the tensors. With `is_unread` only
        names, shapes and dtypes are checked.
        """
        check_text("name", name)
        held = held_by(given, is_unread=is_unread)
        check = partial(
            check_checkpoint,
            None,
            held,
            served=self._served,
            policy=self._policy_for(held, complete),
            digests=self._digests,
        )
        what = f"a check of {held.name}"
        checkpoint = await in_thread(lambda cancel: check(cancel=cancel), leave_as=what)
        revision = replace(checkpoint.revision, label=name or held.name)
        return replace(checkpoint, revision=revision)

    async def fingerprint_of(
        self,
        given: GivenWeights,
        live_sums: Callable[[], Mapping[str, int]],
        *,
        complete: bool = False,
    ) -> str | None:
        """Return the fingerprint that these weights would have live; None if they would be cast.

        For a part of the tensors, `live_sums` is called for the sums of the others.
        """
        held = held_by(given)
        policy = self._policy_for(held, complete)
        beside = live_sums() if policy.missing == "live" else {}

        def look(cancel: threading.Event) -> str | None:
            report = findings(
                held, self._served, policy, cancel=cancel, compute_in=self._dtype, beside=beside
            )
            if report.findings:
                raise fault(report.findings)
            return report.fingerprint

        return await in_thread(look, leave_as=f"a look at {held.name}")

    def _policy_for(self, held: Path | InMemory, complete: bool) -> Policy:
        """Return the policy; unless it must be complete, a mapping may leave tensors out."""
        if complete or not isinstance(held, InMemory):
            return self._policy
        served, names = self._served, set(held.names)
        if not any(self._is_taken(name) for name in names):
            raise BadRequest("the mapping has no tensor that the model takes: give one at least")
        left_out = served.tensors.keys() - names
        is_part = any(not matches(name, served.ignorable) for name in left_out)
        return replace(self._policy, missing="live") if is_part else self._policy

    def _is_taken(self, name: str) -> bool:
        """Return whether the checks look at a tensor of this name, if only to refuse it."""
        served = self._served
        if matches(name, served.ignorable):
            return False
        return name in served.tensors or not matches(name, self._policy.extra_tensors)


def named_upon(part: Checkpoint, live: Revision) -> Checkpoint:
    """Return the part with an id of its bytes and the live ones: equal ids mean equal weights."""
    files = (
        CheckpointFile("the part", part.bytes, part.revision.id),
        CheckpointFile("what stays", 0, live.id),
    )
    return replace(part, revision=replace(part.revision, id=identify(files)))


def held_by(given: GivenWeights, *, is_unread: bool = False) -> Path | InMemory:
    """Return the folder or arrays; SourceUnavailable for no folder, BadRequest for no path."""
    if isinstance(given, Mapping):
        called = given.called if isinstance(given, Renamed) else {}
        return InMemory(given, called=called, is_unread=is_unread)
    if not isinstance(given, str | Path):
        kind = type(given).__name__
        words = "weights are a checkpoint's folder, or a mapping of names to arrays"
        raise BadRequest(f"{words}, and this is a {kind}")
    folder = Path(given).absolute()
    if not folder.is_dir():
        words = "a checkpoint is one, with its weights"
        raise SourceUnavailable(f"{folder} is no folder: {words}{how_to_have(str(given))}")
    return folder
