"""The kinds of messages, and the fields of requests, generations and errors in them."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from hotreload.core.way_in.admission import Origin
from hotreload.core.way_in.exact_weights import ExactWeights
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
from hotreload.json_fields import Fields
from hotreload.server.http.problems import Refused
from hotreload.server.model import EncodedBy, EncoderMismatch, ModelRequest
from hotreload.types import Generation, Revision


class MessageKind(StrEnum):
    """The kind of a message, which is its first part."""

    # From a worker to the engine's process:
    ASK = "ask"
    """A request to the model, and the name that messages about its answer will have.

    Its prompts are texts, or ids with the name of the encoder that made them.
    """
    LEAVE = "leave"
    """The client of this answer has left: abort the answer."""
    FINISHED = "finished"
    """A request of this route ended with this code after this many seconds."""
    FIRST_TOKEN = "first_token"
    """A stream sent its first token after this many seconds."""
    ALIVE = "alive"
    """The worker has handled all messages up to the ping of this number."""

    # From the engine's process to a worker:
    BEGUN = "begun"
    """The answer of this name begins; the generation that answers."""
    STEP = "step"
    """The new part of an answer: its name, the index of the answer, and the step."""
    WHOLE = "whole"
    """An answer so far: its name, the index of the answer, and the whole piece."""
    BATCH = "batch"
    """All answers to a batch at once."""
    OVER = "over"
    """The answer of this name is complete."""
    FAILED = "failed"
    """The answer of this name failed, with this error."""
    LIVE = "live"
    """The generation that is live now."""
    SETTINGS = "settings"
    """The limits, keys and log settings from now on."""
    ENCODER = "encoder"
    """The encoder for prompts from now on: its name and its data; empty for none."""
    PING = "ping"
    MAKE_ROOM = "make_room"
    """Close the oldest idle connection, on a unix socket or over TCP."""
    SHUT_DOWN = "shut_down"
    """Answer all requests, and end."""


def request_fields(request: ModelRequest, now: float) -> Fields:
    """Return a request's fields; its deadline is relative, since clocks of two processes differ."""
    exactly = request.exactly
    return {
        "request": request.fields,
        "within": request.until - now,
        "at_least": request.at_least,
        "exactly": exactly and [exactly.number, exactly.fingerprint, exactly.weight_version],
        "session": request.session,
        "may_be_kept": request.may_be_kept,
        "encoded": request.encoded and _encoded_by_parts(request.encoded),
        "origin": [request.origin.route, request.origin.id, request.origin.trace],
        "key": request.key,
    }


def request_from(fields: Fields, now: float) -> ModelRequest:
    """Build the request from its fields."""
    exactly = fields["exactly"]
    return ModelRequest(
        fields["request"],
        now + fields["within"],
        fields["at_least"],
        ExactWeights(*exactly) if exactly is not None else None,
        fields["session"],
        fields["may_be_kept"],
        _encoded_by_from(fields["encoded"]),
        Origin(*fields["origin"]),
        fields["key"],
    )


def _encoded_by_parts(encoded: EncodedBy) -> list[Any]:
    return [encoded.encoder, encoded.refusal and error_fields(encoded.refusal)]


def _encoded_by_from(parts: list[Any] | None) -> EncodedBy | None:
    if parts is None:
        return None
    encoder, refused = parts
    refusal = error_from(refused) if refused is not None else None
    assert not isinstance(refusal, EngineProcessFault), "an encoder refuses with an error of ours"
    return EncodedBy(encoder, refusal)


def generation_parts(generation: Generation | None) -> list[Any] | None:
    """Return a generation as parts of a message, without its leaves."""
    if generation is None:
        return None
    revision = generation.revision
    more = [generation.fingerprint, generation.since, generation.version]
    return [generation.number, revision.id, revision.label, *more]


def generation_from(parts: list[Any] | None) -> Generation | None:
    """Build the generation from its parts."""
    if parts is None:
        return None
    number, id, label, fingerprint, since, version = parts
    return Generation(number, Revision(id, label), fingerprint, since, version=version)


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
