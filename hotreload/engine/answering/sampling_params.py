"""Checks how a request wants its answer made: sampling, grammars, log-probabilities.

Pure. Unchecked, many parameters end the engine, poison the KV pool or are silently ignored.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hotreload.engine.capabilities import Capabilities, EngineLimits
from hotreload.errors import BadRequest, did_you_mean, show_value

LARGEST_PARAMETER = 1e9
"""No sampling parameter is sensibly larger."""
STOPS = 32
STOP_CHARACTERS = 256
"""The engine looks for each stop string after every token: many would hold up everybody."""
STOP_IDS = 256
GRAMMAR_CHARACTERS = 2**16
"""A longer grammar takes seconds merely to be read, and a kilobyte of memory a character."""
UNSUPPORTED = "unsupported_parameter"

Key = tuple[str, str]
"""A grammar as upstream knows it: its kind, and its text."""

GRAMMARS: Mapping[str, str] = {
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "ebnf",
    "structural_tag": "structural_tag",
}
"""Each parameter that is a grammar, and what upstream calls its kind."""
OBJECTS = frozenset({"json_schema", "structural_tag"})
LOGPROBS = frozenset(
    {
        "return_logprob",
        "logprob_start_len",
        "top_logprobs_num",
        "token_ids_logprob",
        "return_text_in_logprobs",
    }
)
NUMBERS = frozenset(
    {
        "temperature",
        "top_p",
        "min_p",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
    }
)
INTEGERS = frozenset({"max_new_tokens", "top_k", "min_new_tokens", "n", "sampling_seed"})
FLAGS = frozenset(
    {"ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim"}
)

SAMPLING_PARAMETERS = NUMBERS | INTEGERS | FLAGS | GRAMMARS.keys() | {"stop", "stop_token_ids"}
"""All that some engine knows."""


def check_sampling(given: Any, limits: EngineLimits, can: Capabilities) -> dict[str, Any]:
    """The parameters as the engine takes them; BadRequest names the one at fault."""
    if not isinstance(given, dict):
        raise bad("sampling_params", "must be an object, or a list of one for each prompt")
    checked = {}
    for name, value in given.items():
        if name not in can.sampling:
            words = f"this engine has no such parameter{did_you_mean(name, sorted(can.sampling))}"
            raise bad(f"sampling_params.{show_value(name)[1:-1]}", words)
        if value is None or (name == "sampling_seed" and _has_no_use_of_a_seed(given, can)):
            continue
        _check(name, value, limits, can)
        if name != "n":
            checked[name] = _as_text(value) if name in GRAMMARS else value
    if len(checked.keys() & GRAMMARS.keys()) > 1:
        raise bad("sampling_params", f"give one of {', '.join(sorted(GRAMMARS))}")
    return checked


def grammar_of(sampling: Mapping[str, Any]) -> Key | None:
    """The grammar the answer is to follow, if any."""
    return next(((GRAMMARS[name], sampling[name]) for name in GRAMMARS if name in sampling), None)


def stop_characters(sampling: Mapping[str, Any]) -> int:
    """Count the characters that the stop strings of a request have together."""
    stops = sampling.get("stop", ())
    return len(stops) if isinstance(stops, str) else sum(len(stop) for stop in stops)


def asked_logprobs(
    request: Mapping[str, Any], prompt: int, limits: EngineLimits, can: Capabilities
) -> dict[str, Any]:
    """Log-probabilities that are asked for, as the engine takes it; empty when there are none."""
    asked = {name: request[name] for name in LOGPROBS & request.keys()}
    asked = {k: v for k, v in asked.items() if v is not None and v is not False and v != []}
    if not asked.get("return_logprob"):
        return {}
    if not can.logprobs:
        raise bad("return_logprob", "this engine version has no log-probabilities", UNSUPPORTED)
    for name in ("return_logprob", "return_text_in_logprobs"):
        if not isinstance(asked.get(name, True), bool):
            raise bad(name, "must be true or false")
    for name in ("logprob_start_len", "top_logprobs_num"):
        if not _is_int64(asked.get(name, 0)):
            raise bad(name, "must be a whole number")
    if not -1 <= asked.get("logprob_start_len", -1) < prompt:
        raise bad("logprob_start_len", f"must lie in the prompt (-1 to {prompt - 1})")
    if not 0 <= asked.get("top_logprobs_num", 0) <= limits.vocabulary:
        raise bad("top_logprobs_num", "must lie between 0 and the size of the vocabulary")
    if "token_ids_logprob" in asked:
        check_ids("token_ids_logprob", asked["token_ids_logprob"], limits.vocabulary)
    if asked.get("logprob_start_len", -1) == -1:
        # To 0.1.0rc0 and main -1 means the same, but takes them on another path, which ends the
        # engine when another request's prompt is computed in the same step. Goes when
        # `return_output_logprob_only` is read of each request and not of its batch.
        asked["logprob_start_len"] = prompt - 1
    return asked


def check_ids(name: str, ids: Any, vocabulary: int, most: int | None = None) -> None:
    """Refuse an id outside the vocabulary: it gives NaN logits, and NaN in the KV pool."""
    if not isinstance(ids, list) or not ids:
        raise bad(name, "must be a list of token ids, at least one")
    if most is not None and len(ids) > most:
        raise bad(name, f"{len(ids)} ids are too many, there may be {most}")
    for token in ids:
        if type(token) is not int or not 0 <= token < vocabulary:
            raise bad(name, f"{show_value(token)} is no token id (0 to {vocabulary - 1})")


def bad(param: str, words: str, code: str | None = None) -> BadRequest:
    """The error that names a parameter."""
    return BadRequest(f"{param}: {words}", code=code, param=param)


def _has_no_use_of_a_seed(given: Mapping[str, Any], can: Capabilities) -> bool:
    """True if nothing is drawn: some clients send a seed beside temperature 0, always."""
    temperature = given.get("temperature")
    return not can.seeds and _is_number(temperature) and temperature == 0


def _check(name: str, value: Any, limits: EngineLimits, can: Capabilities) -> None:
    path = f"sampling_params.{name}"
    if name in GRAMMARS:
        _check_grammar(path, name, value, can)
    if name == "sampling_seed" and not can.seeds:
        words = "this engine ignores it without [engine.args] enable_deterministic_sampling = true"
        raise bad(path, words, UNSUPPORTED)
    if name in NUMBERS and not _is_number(value):
        raise bad(path, f"must be a number of a sensible size, not {show_value(value)}")
    if name in INTEGERS and not _is_int64(value):
        raise bad(path, f"must be a whole number, not {show_value(value)}")
    if name == "max_new_tokens" and value < 0:
        raise bad(path, f"must be at least 0, not {value}")
    if name in FLAGS and not isinstance(value, bool):
        raise bad(path, f"must be true or false, not {show_value(value)}")
    if name == "n" and value != 1:
        raise bad(path, "the engine makes one answer a prompt; repeat the prompt")
    if name == "stop":
        _check_stops(path, [value] if isinstance(value, str) else value)
    if name == "stop_token_ids" and value != []:
        check_ids(path, value, limits.vocabulary, STOP_IDS)


def _check_grammar(path: str, name: str, value: Any, can: Capabilities) -> None:
    if not can.grammars:
        words = "sglang-jax 0.0.2 ignores it, so its answer would be wrong; 0.1.0rc0 heeds it"
        raise bad(path, words, UNSUPPORTED)
    if not isinstance(value, str | dict if name in OBJECTS else str):
        raise bad(path, f"must be a string{' or an object' if name in OBJECTS else ''}")
    if len(text := _as_text(value)) > GRAMMAR_CHARACTERS:
        raise bad(path, f"{len(text)} characters are too many, there may be {GRAMMAR_CHARACTERS}")
    if not text.strip():
        raise bad(path, "is empty")


def _as_text(value: str | dict[str, Any]) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _check_stops(path: str, stops: Any) -> None:
    if isinstance(stops, list) and len(stops) > STOPS:
        raise bad(path, f"{len(stops)} strings are too many, there may be {STOPS}")
    if isinstance(stops, list) and "" in stops:
        raise bad(path, "an empty string would end every answer at once; leave it out")
    if not _are_strings(stops):
        raise bad(path, "must be a string or a list of strings")
    if any(len(stop) > STOP_CHARACTERS for stop in stops):
        raise bad(path, f"a string of it has more than {STOP_CHARACTERS} characters")


def _is_number(value: Any) -> bool:
    # The comparison is false for NaN, and no overflow for a whole number of 400 digits.
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) < LARGEST_PARAMETER
    )


def _is_int64(value: Any) -> bool:
    return type(value) is int and abs(value) < 2**31


def _are_strings(value: Any) -> bool:
    return isinstance(value, Sequence) and all(isinstance(each, str) and each for each in value)
