"""POST /: text generation as huggingface_hub's InferenceClient requests it."""

import json
from typing import TypedDict

from hotreload.errors import BadRequest, HotReloadError
from hotreload.json_fields import Fields
from hotreload.server.answerer import MIN_GENERATION, AnswerFormatter
from hotreload.server.api_schema import kinds
from hotreload.server.api_schema.known_fields import SAMPLING, KnownFields, names
from hotreload.server.http.problems import Refused, text_generation_fields
from hotreload.server.model import EngineAnswer
from hotreload.server.openai.answers import Choice
from hotreload.server.openai.requests import completion_request
from hotreload.types import Generation, StampFields

SAME = ("temperature", "top_p", "top_k", "repetition_penalty", "frequency_penalty", "seed")
"""Parameters with the same name and meaning as in OpenAI's API here."""
PARAMETERS = KnownFields(
    supported={
        **{name: SAMPLING[name][1] for name in SAME},
        "max_new_tokens": kinds.TOKENS,
        "stop": kinds.STOP,
        "do_sample": kinds.BOOLEAN,
        "grammar": kinds.OBJECT,
        "details": kinds.BOOLEAN,
        "return_full_text": kinds.BOOLEAN,
    },
    unsupported=names(
        """
        adapter_id best_of decoder_input_details top_n_tokens truncate typical_p watermark
        """
    ),
    within="parameters.",
)
TEXT_GENERATION = KnownFields(
    supported={
        "inputs": kinds.STRING,
        "parameters": PARAMETERS.as_field_kind,
        "stream": kinds.BOOLEAN,
        **MIN_GENERATION,
    },
    unsupported=frozenset(),
    nested={"parameters": PARAMETERS},
)

NEW_TOKENS = 100
"""The client's documented default of max_new_tokens."""
SAMPLES = frozenset({"temperature", "top_p", "top_k"})
"""Parameters that turn sampling on; without them and do_sample the answer is greedy."""
ENGINE_NAMES = {
    **{f"sampling_params.{SAMPLING[name][0]}": f"parameters.{name}" for name in (*SAME, "stop")},
    "sampling_params.max_new_tokens": "parameters.max_new_tokens",
    "max_new_tokens": "parameters.max_new_tokens",
    "sampling_params.json_schema": "parameters.grammar",
    "sampling_params.regex": "parameters.grammar",
    "return_logprob": "parameters.details",
    "text": "inputs",
}


class TextGenerationFields(TypedDict):
    """An answer, and the generation that made it."""

    generated_text: str
    hotreload: StampFields


def generation_request(fields: Fields) -> Fields:
    """Return a completion of OpenAI's API, which has all fields but the grammar, for the engine."""
    given = fields.get("parameters", {})
    asked: Fields = {name: given[name] for name in (*SAME, "stop") if name in given}
    if not (given.get("do_sample") or SAMPLES & given.keys()):
        asked["temperature"] = 0
    asked |= {"prompt": fields["inputs"], "stream": fields.get("stream", False)}
    asked["max_tokens"] = given.get("max_new_tokens", NEW_TOKENS)
    if given.get("details"):
        asked["logprobs"] = 0
    to_engine = completion_request(asked)
    if "grammar" in given:
        to_engine["sampling_params"] |= _grammar(given["grammar"])
    return to_engine


def _grammar(wanted: Fields) -> Fields:
    match wanted:
        case {"type": "json", "value": dict(schema), **more} if not more:
            return {"json_schema": json.dumps(schema)}
        case {"type": "regex", "value": str(regex), **more} if not more:
            return {"regex": regex}
    path = "parameters.grammar"
    words = 'must be {"type": "json", "value": {…}} or {"type": "regex", "value": "…"}'
    raise BadRequest(f"{path}: {words}", code="bad_field", param=path)


class TextGenerationFormatter(AnswerFormatter):
    """Formats one answer; remembers the part that was sent already."""

    def __init__(self, fields: Fields) -> None:
        parameters = fields.get("parameters", {})
        self._choice = Choice()
        self._before = fields["inputs"] if parameters.get("return_full_text") else ""
        self._has_details = bool(parameters.get("details"))
        self._seed = parameters.get("seed")
        self._text = ""
        self._pieces = 0

    def format_whole(self, item: EngineAnswer, generation: Generation) -> list[Fields]:
        """Return the answer in a list, as the client's own server does."""
        assert isinstance(item, dict)
        self._text, ended = self._choice.take_new_text(item)
        fields: Fields = {"generated_text": self._before + self._text, **_stamp(generation)}
        details = self._end_details(ended)  # raises if the answer was cut short
        if self._has_details:
            new = self._choice.take_new_logprobs(item)
            tokens = [
                {"id": id, "text": text, "logprob": logprob, "special": False}
                for logprob, id, text in (new.tokens if new is not None else ())
            ]
            fields["details"] = {**details, "prefill": [], "tokens": tokens}
        return [fields]

    def format_piece(self, answer: Fields, generation: Generation) -> list[Fields]:
        """Return the new part as one token, whose text may be that of several tokens."""
        text, ended = self._choice.take_new_text(answer)
        if not (text or ended):
            return []
        self._text += text
        self._pieces += 1
        fields: Fields = {"index": self._pieces, "token": self._token(text, answer)}
        fields |= {"generated_text": None, "details": None, **_stamp(generation)}
        if ended:
            fields["generated_text"] = self._before + self._text
            fields["details"] = {**self._end_details(ended), "input_length": self._choice.usage[0]}
        return [fields]

    def format_error(self, error: HotReloadError) -> Fields:
        """Return the error that the client raises in place of the next piece."""
        return text_generation_fields(error)

    def _token(self, text: str, answer: Fields) -> Fields:
        new, ids = self._choice.take_new_logprobs(answer), answer.get("output_ids") or [None]
        logprob = new.tokens[-1][0] if new is not None and new.tokens else None
        return {"id": ids[-1], "text": text, "logprob": logprob, "special": False}

    def _end_details(self, ended: Fields | None) -> Fields:
        """Return how the answer ended; Refused if the server cut it short.

        This API has no finish reason for an answer that was cut short.
        """
        ended = ended or {}
        if ended.get("type") == "abort":
            words = ended.get("message") or "ended early"
            raise Refused(503, "cut_short", str(words), retry_after=1)
        is_stop = isinstance(ended.get("matched"), str)
        named = "length" if ended.get("type") == "length" else "eos_token"
        return {
            "finish_reason": "stop_sequence" if is_stop else named,
            "generated_tokens": self._choice.usage[2],
            "seed": self._seed,
        }


def _stamp(generation: Generation) -> Fields:
    return {"hotreload": generation.stamp}
