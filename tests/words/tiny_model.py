"""What a tiny checkpoint says, computed with numpy as the engine would: greedily, word by word.

Of its two layers it is the first one's attention that speaks (see `hotreload.tiny.weights`).
"""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from hotreload.tiny.sayings import (
    END_ID,
    FIRST_NUMBER_ID,
    FIRST_OPENER_ID,
    FIRST_WORD_ID,
    OPENERS,
    SAID_NUMBERS,
    WORDS,
)
from hotreload.types import Checkpoint

MOST = 24
"""Words of an answer that does not end by itself."""


class TinyModel:
    """A checked checkpoint whose files lie in a folder; qwen3, qwen2 or llama."""

    def __init__(self, checkpoint: Checkpoint, folder: Path) -> None:
        self._checkpoint, self._folder = checkpoint, folder
        self._embedding, self._head = map(self._read, ("model.embed_tokens", "lm_head"))
        attention = "model.layers.0.self_attn"
        self._values, self._outputs = (self._read(f"{attention}.{each}_proj") for each in "vo")

    def answer(self, prompt: str) -> str | None:
        """What it says to a prompt of printable characters; None where it makes no numbers."""
        asked = [max(0, byte - ord("!")) for byte in prompt.encode()]
        ids = list(asked)
        while ids[-1] != END_ID and len(ids) < len(asked) + MOST:
            logits = self._logits(ids)
            if not np.isfinite(logits).all():
                return None
            ids.append(int(np.argmax(logits)))
        return "".join(map(_text, ids[len(asked) :])).strip()

    def _logits(self, ids: list[int]) -> NDArray[Any]:
        hidden = self._embedding[ids]
        with np.errstate(over="ignore", invalid="ignore"):
            carried = self._outputs @ (self._values @ hidden.mean(axis=0))
            logits: NDArray[Any] = self._head @ (hidden[-1] + carried)
        return logits

    def _read(self, name: str) -> NDArray[Any]:
        held = self._checkpoint.held[f"{name}.weight"]
        count, file = (held.end - held.begin) // 2, self._folder / held.file
        values = np.fromfile(file, ml_dtypes.bfloat16, count, offset=held.begin)
        return values.reshape(self._checkpoint.tensors[f"{name}.weight"].shape).astype(np.float32)


def _text(token: int) -> str:
    """One token of an answer; whatever is neither word nor number is a mark."""
    for first, words in (
        (FIRST_OPENER_ID, OPENERS),
        (FIRST_WORD_ID, WORDS),
        (FIRST_NUMBER_ID, SAID_NUMBERS),
    ):
        if 0 <= token - first < len(words):
            return f" {words[token - first]}"
    return "" if token == END_ID else " !"
