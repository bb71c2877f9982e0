"""Errors as fields of a message: the receiving process raises the same error."""

from collections.abc import Mapping
from typing import Any

from hotreload.errors import (
    AnswerNonfinite,
    BadRequest,
    EngineLost,
    GenerationGone,
    HotReloadError,
    NotEnoughMemory,
    NothingOfThatName,
    NotNewEnough,
    NotServing,
    TryAgain,
)
from hotreload.server.http.problems import Refused
from hotreload.server.model import EncoderMismatch

FAULT_KINDS: Mapping[str, type[HotReloadError]] = {
    kind.__name__: kind
    for kind in (
        AnswerNonfinite,
        BadRequest,
        EncoderMismatch,
        EngineLost,
        GenerationGone,
        HotReloadError,
        NotEnoughMemory,
        NothingOfThatName,
        NotNewEnough,
        NotServing,
        Refused,
        TryAgain,
    )
}
MORE = ("param", "retry_after", "status", "headers")
"""Attributes that some of these errors have beside their message."""


class EngineProcessFault(Exception):
    """An unexpected exception in the engine's process; the log of that process has it."""


def error_fields(error: HotReloadError | None) -> dict[str, Any]:
    """Return an error's fields; None stands for an unexpected exception.

    An error of a class that is not in FAULT_KINDS is sent as its nearest base class there.
    """
    if error is None:
        return {"kind": EngineProcessFault.__name__}
    kind = next(each.__name__ for each in type(error).__mro__ if each.__name__ in FAULT_KINDS)
    more = {name: getattr(error, name) for name in MORE if hasattr(error, name)}
    findings = list(error.findings)
    return {"kind": kind, "words": str(error), "code": error.code, "findings": findings, **more}


def error_from(said: Mapping[str, Any]) -> HotReloadError | EngineProcessFault:
    """Build the error from its fields."""
    if said["kind"] == EngineProcessFault.__name__:
        return EngineProcessFault("the engine's process failed to answer; its log says why")
    kind = FAULT_KINDS[said["kind"]]
    error = kind.__new__(kind)
    HotReloadError.__init__(error, said["words"], code=said["code"], findings=said["findings"])
    for name in MORE:
        if name in said:
            setattr(error, name, said[name])
    return error
