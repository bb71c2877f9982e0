"""Echo: the prompt before its answer, with its log-probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hotreload.json_fields import Fields
from hotreload.server.http.request_body import is_integer
from hotreload.server.openai.messages import bad_value


@dataclass(frozen=True, slots=True)
class Echo:
    """The prompt that is sent before an answer."""

    prompt: str | None
    """None for a prompt of token ids: its text comes from the tokens."""

    def text(self, answer: Fields, text: str) -> str:
        """Return the prompt followed by this text of the answer."""
        prompt = self.prompt
        if prompt is None:
            tokens = answer["meta_info"].get("input_token_logprobs") or []
            prompt = "".join(each for _, _, each in tokens)
        return prompt + text

    def tokens(self, meta: Fields, name: str) -> list[Any]:
        """Return the tokens, or the values beside each, of the prompt and then of the answer."""
        return [*(meta.get(f"input_{name}") or []), *(meta.get(f"output_{name}") or [])]


def read_echoes(fields: Fields) -> list[Echo]:
    """Return the echo of each prompt, none if the client wants none; BadRequest if impossible."""
    if not fields.get("echo"):
        return []
    texts = _texts(fields["prompt"])
    if None in texts and "logprobs" not in fields:
        raise bad_value("echo", "needs logprobs for a prompt of token ids: they bring its text")
    return [Echo(text) for text in texts]


def _texts(prompt: Any) -> Sequence[str | None]:
    several = prompt if isinstance(prompt, list) and not is_integer(prompt[0]) else [prompt]
    return [each if isinstance(each, str) else None for each in several]
