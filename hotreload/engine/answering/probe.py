"""Canary prompts and verdicts on their answers. Pure: asks no engine."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Any

from hotreload.setting import REQUIRED, After, AtLeastOne, Bounds, TextBounds, setting

SHOWN_CHARACTERS = 200
"""Characters of an answer that a verdict shows."""


def _compiles(value: str) -> str:
    try:
        re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{value!r} is no regular expression: {error}") from error
    return value


NonEmpty = Annotated[str, TextBounds(least=1)]


@dataclass(frozen=True, slots=True)
class Probe:
    """A prompt the new weights must answer well before they answer anybody, or they are refused.

    Repeat the table for more probes. A probe without expectations accepts any answer. Without any
    probe, a built-in one expects that the answer is not one token for ever.
    """

    prompt: NonEmpty = setting(REQUIRED, "The prompt.", example="2 + 2 =")
    max_new_tokens: AtLeastOne = setting(32, "How long the answer may be.")
    contains: NonEmpty | None = setting(None, "Text that the answer must hold.", example="4")
    regex: Annotated[NonEmpty, After(_compiles)] | None = setting(
        None, "A regular expression that must match somewhere in the answer.", example=r"\b4\b"
    )
    equals: str | None = setting(None, "Text that the whole answer must equal.", example=" 4")
    min_mean_logprob: Annotated[float, Bounds(most=0, is_strict=True)] | None = setting(
        None, "The least that the mean log-probability of the answer's tokens may be.", example=-4.0
    )
    max_repeat: AtLeastOne | None = setting(
        None, "How often one token may come in a row.", example=8
    )

    def __post_init__(self) -> None:
        """ValueError says which expectations no answer can meet."""
        whole = self.equals
        if whole is not None and self.contains is not None and self.contains not in whole:
            raise ValueError(f"no answer can equal {whole!r} and contain {self.contains!r}")
        if whole is not None and self.regex is not None and not re.search(self.regex, whole):
            raise ValueError(f"no answer can equal {whole!r} and match {self.regex!r}")


BUILT_IN = Probe("The quick brown fox", max_new_tokens=24, max_repeat=12)
"""Asked when none is configured: it wants an answer that does not repeat one token for ever."""


FIRST_TOKENS = 2
"""Tokens of an answer that show that it begins: one of the prompt, and one of a step after it."""


def beginning_of(probe: Probe) -> Probe:
    """The same question, of which only the beginning of the answer is asked."""
    return Probe(probe.prompt, min(probe.max_new_tokens, FIRST_TOKENS))


def request_for(probe: Probe) -> dict[str, Any]:
    """The request that asks a probe."""
    sampling = {"temperature": 0, "max_new_tokens": probe.max_new_tokens}
    logprobs = {} if probe.min_mean_logprob is None else {"return_logprob": True}
    return {"text": probe.prompt, "sampling_params": sampling, **logprobs}


def decide_verdict(probe: Probe, answer: Mapping[str, Any]) -> str | None:
    """Say in words why an answer is bad; None when it is good."""
    wrong = _wrong(probe, answer)
    if wrong is None:
        return None
    return f"probe {probe.prompt!r}: {wrong}, got {_short(answer.get('text', ''))}"


def _wrong(probe: Probe, answer: Mapping[str, Any]) -> str | None:
    text, ended = answer.get("text", ""), answer.get("meta_info", {}).get("finish_reason") or {}
    ids = _before_the_end(answer.get("output_ids") or [], ended)
    if ended.get("type") == "abort":
        return "the engine gave up"
    if not ids:
        return "expected an answer"
    return (
        _other_text(probe, text)
        or _repetition(probe.max_repeat, ids)
        or _too_unsure(probe.min_mean_logprob, answer)
    )


def _before_the_end(ids: Sequence[int], ended: Mapping[str, Any]) -> Sequence[int]:
    """The tokens without the one that says that it is the last."""
    return ids[:-1] if ids and ids[-1] == ended.get("matched") else ids


def _other_text(probe: Probe, text: str) -> str | None:
    if probe.equals is not None and text != probe.equals:
        return f"expected {_short(probe.equals)}"
    if probe.contains is not None and probe.contains not in text:
        return f"expected {_short(probe.contains)} in it"
    if probe.regex is not None and not re.search(probe.regex, text):
        return f"expected a match of {_short(probe.regex)}"
    return None


def _repetition(most: int | None, ids: Sequence[int]) -> str | None:
    if most is None or _longest_run(ids) <= most:
        return None
    return f"expected no token more than {most} times on end"


def _longest_run(ids: Sequence[int]) -> int:
    return max(len(list(run)) for _, run in groupby(ids))


def _too_unsure(least: float | None, answer: Mapping[str, Any]) -> str | None:
    if least is None:
        return None
    values = [entry[0] for entry in answer["meta_info"].get("output_token_logprobs") or ()]
    mean = sum(values) / len(values) if values else float("-inf")
    # Written so that NaN fails too.
    return None if mean >= least else f"expected a mean log-probability of {least}, is {mean:.3f}"


def _short(text: str) -> str:
    return repr(text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…")
