"""Errors as messages: whoever hears of one raises it as it was."""

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
"""Fields that some of them have beside their words."""


class EngineProcessFault(Exception):
    """A fault of ours in the engine's process, whose log says what it was."""


def error_fields(error: HotReloadError | None) -> dict[str, Any]:
    """Say an error, None for a fault of ours; of another kind, as the nearest one that is known."""
    if error is None:
        return {"kind": EngineProcessFault.__name__}
    kind = next(each.__name__ for each in type(error).__mro__ if each.__name__ in FAULT_KINDS)
    more = {name: getattr(error, name) for name in MORE if hasattr(error, name)}
    findings = list(error.findings)
    return {"kind": kind, "words": str(error), "code": error.code, "findings": findings, **more}


def error_from(said: Mapping[str, Any]) -> HotReloadError | EngineProcessFault:
    """Make the error that was said."""
    if said["kind"] == EngineProcessFault.__name__:
        return EngineProcessFault("the engine's process failed to answer; its log says why")
    kind = FAULT_KINDS[said["kind"]]
    error = kind.__new__(kind)
    HotReloadError.__init__(error, said["words"], code=said["code"], findings=said["findings"])
    for name in MORE:
        if name in said:
            setattr(error, name, said[name])
    return error
