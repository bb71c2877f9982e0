"""Requests of a program and their answers, in the words of sglang-jax."""

from collections.abc import Mapping, Sequence
from typing import Any

from hotreload.errors import BadRequest, shown
from hotreload.types import Generation

Answer = dict[str, Any]
"""An answer of sglang-jax; its `meta_info` also has `generation`, `revision` and `fingerprint`."""
Prompt = str | list[int] | tuple[int, ...]
"""A text, or its token ids."""
Prompts = list[str] | tuple[str, ...] | Sequence[list[int]] | Sequence[tuple[int, ...]]
"""Several of them."""
Sampling = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""As sglang-jax takes them, for all prompts or for each."""


def request_for(
    prompt: Prompt | Prompts, sampling: Sampling | None, more: Mapping[str, Any]
) -> dict[str, Any]:
    """In the engine's own schema, which knows lists alone; BadRequest when it is nothing of it."""
    if not isinstance(prompt, str | list | tuple):
        kind = type(prompt).__name__
        raise BadRequest(f"prompt must be a text, token ids, or a list of either, and is a {kind}")
    is_text = isinstance(prompt, str) or any(isinstance(each, str) for each in prompt)
    name, sampling = "text" if is_text else "input_ids", {} if sampling is None else sampling
    return {name: _in_lists(prompt), "sampling_params": _in_lists(sampling), **more}


def check_whole_number(name: str, value: object) -> None:
    """BadRequest for what is none."""
    if type(value) is not int:
        raise BadRequest(f"{name} must be a whole number, not {shown(value)}")


def check_is_staged(value: object, kind: type) -> None:
    """BadRequest for what is not what `stage` returned."""
    if not isinstance(value, kind):
        raise BadRequest(f"staged must be what stage returned, and is a {type(value).__name__}")


def stamp(answer: Answer, generation: Generation) -> None:
    """Say in the answer which generation made it."""
    answer["meta_info"] = {**answer.get("meta_info", {}), **generation.stamp}


def _in_lists(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_in_lists(each) for each in value]
    return dict(value) if isinstance(value, Mapping) else value
