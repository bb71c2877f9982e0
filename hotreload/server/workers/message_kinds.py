"""The first word of each message, and what generations and wishes are in one."""

from enum import StrEnum
from typing import Any

from hotreload.core.way_in.exact_weights import ExactWeights
from hotreload.json_fields import Fields
from hotreload.server.model import EncodedBy, ModelRequest
from hotreload.server.workers.error_fields import EngineProcessFault, error_fields, error_from
from hotreload.types import Generation, Revision


class MessageKind(StrEnum):
    """The first word of a message."""

    # A worker tells the engine's process:
    ASK = "ask"
    """A request to the model, and the name by which its answer is told.

    As it came, or with ids in the place of its texts; then, by what they were made.
    """
    LEAVE = "leave"
    """The answer of this name is of no more use."""
    FINISHED = "finished"
    """A request of this route ended with this code after so many seconds."""
    FIRST_TOKEN = "first_token"
    """A stream began after so many seconds."""
    ALIVE = "alive"
    """All that was told before the ping of this number has been read, and heeded."""

    # The engine's process tells a worker:
    BEGUN = "begun"
    """The answer of this name begins, and who answers."""
    STEP = "step"
    """News of an answer: its name, which of several answers, and the step."""
    WHOLE = "whole"
    """All that there is of an answer: its name, which of several answers, and that."""
    BATCH = "batch"
    """All answers to a batch at once."""
    OVER = "over"
    """The answer of this name is whole."""
    FAILED = "failed"
    """The answer of this name cannot go on, or cannot begin, and why."""
    LIVE = "live"
    """The generation that is live now."""
    SETTINGS = "settings"
    """The limits, and the keys, that count from now on."""
    ENCODER = "encoder"
    """The name of what encodes prompts from now on, and what it is made of; nothing for none."""
    PING = "ping"
    MAKE_ROOM = "make_room"
    """Close the connection that does nothing for the longest, on a unix socket or over TCP."""
    SHUT_DOWN = "shut_down"
    """Answer everybody who came, and go."""


def request_fields(ask: ModelRequest, now: float) -> Fields:
    """Say what is asked; the two ends have clocks of their own."""
    exactly = ask.exactly
    return {
        "request": ask.request,
        "within": ask.until - now,
        "at_least": ask.at_least,
        "exactly": exactly and [exactly.number, exactly.fingerprint, exactly.weight_version],
        "session": ask.session,
        "may_be_kept": ask.may_be_kept,
        "encoded": ask.encoded and _encoded_by_parts(ask.encoded),
    }


def request_from(fields: Fields, now: float) -> ModelRequest:
    """Make the inquiry that was told."""
    exactly = fields["exactly"]
    return ModelRequest(
        fields["request"],
        now + fields["within"],
        fields["at_least"],
        ExactWeights(*exactly) if exactly is not None else None,
        fields["session"],
        fields["may_be_kept"],
        _encoded_by_from(fields["encoded"]),
    )


def _encoded_by_parts(encoded: EncodedBy) -> list[Any]:
    return [encoded.by, encoded.refusal and error_fields(encoded.refusal)]


def _encoded_by_from(parts: list[Any] | None) -> EncodedBy | None:
    if parts is None:
        return None
    by, refused = parts
    refusal = error_from(refused) if refused is not None else None
    assert not isinstance(refusal, EngineProcessFault), "who encodes has no fault of ours to tell"
    return EncodedBy(by, refusal)


def generation_parts(generation: Generation | None) -> list[Any] | None:
    """Say who answers, without its leaves."""
    if generation is None:
        return None
    revision = generation.revision
    more = [generation.fingerprint, generation.since, generation.version]
    return [generation.number, revision.id, revision.label, *more]


def generation_from(parts: list[Any] | None) -> Generation | None:
    """Make the generation that was told."""
    if parts is None:
        return None
    number, id, label, fingerprint, since, version = parts
    return Generation(number, Revision(id, label), fingerprint, since, version=version)
