"""A copy of the encoder of prompts, for a worker process that has no engine of its own.

A process that loads the copy runs the code in it. Therefore the engine's process sends it to its
workers, and never accepts one from them.
"""

import hashlib
import logging
import pickle
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from hotreload.engine.answering.answer_text import AnswerTexts
from hotreload.engine.answering.prompts import Prompts
from hotreload.engine.answering.tool_calls import is_of_tools
from hotreload.engine.capabilities import Capabilities, EngineLimits

log = logging.getLogger("hotreload.engine")


@dataclass(frozen=True, slots=True)
class EncoderCopy:
    """Bytes of which another process makes what encodes alike, and the name of those bytes."""

    name: str
    data: bytes = field(repr=False)


def copy_of(tokenizer: Any, limits: EngineLimits, can: Capabilities) -> EncoderCopy | None:
    """Make it; None where this tokenizer cannot be copied. It blocks, and keeps Python's lock.

    Not the files that the engine read: they may be others by now.
    """
    try:
        lent = copy(tokenizer)
        # Twins that encode alike may have read other folders, and answer others at a time.
        lent.name_or_path, lent.init_kwargs = "", {**tokenizer.init_kwargs, "name_or_path": ""}
        parts = lent, replace(limits, at_once=1), can
        data = pickle.dumps(parts, pickle.HIGHEST_PROTOCOL)
    except Exception as why:  # whatever a model's own tokenizer is made of
        log.warning("prompts.cannot_be_encoded_elsewhere", extra={"why": str(why)})
        return None
    return EncoderCopy(hashlib.sha256(data).hexdigest(), data)


class CopiedEncoder:
    """Encodes prompts as the engine does of which it is a copy."""

    def __init__(self, name: str, data: bytes) -> None:
        """The bytes are those of a copy that the engine's process made: they are run here."""
        self.name = name
        self._tokenizer, *bounds = pickle.loads(data)
        self._prompts = Prompts(self._tokenizer, *bounds)

    async def encode(self, request: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The request with ids in the place of its texts, or of its chat; BadRequest as the engine.

        None where the engine must do it: tools are its own. Ids that are there already are checked
        by the engine alone.
        """
        messages = request.get("messages") or ()
        if request.get("tools") or any(map(is_of_tools, messages)):
            return None
        if not messages and request.get("text") is None:
            return request
        return await self._prompts.encode_texts(request)

    def make_texts(self, request: Mapping[str, Any]) -> AnswerTexts:
        """Make what has the texts of the answers to a request that was encoded here."""
        return AnswerTexts(self._tokenizer, request)
