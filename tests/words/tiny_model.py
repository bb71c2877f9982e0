"""What a tiny checkpoint says, computed with numpy as the engine would: greedily, word by word.

Of its two layers it is the first one's attention that speaks (see `hotreload.tiny.weights`).
"""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from hotreload.tiny.words import (
    END_ID,
    FIRST_NUMBER_ID,
    FIRST_OPENER_ID,
    FIRST_WORD_ID,
    NUMBERS,
    OPENERS,
    WORDS,
)
from hotreload.types import Checkpoint

MOST = 24
"""Words of an answer that does not end by itself."""
PROMPT = list(b"Who serves?")


def said_by(checkpoint: Checkpoint, folder: Path) -> str:
    """The answer of a checkpoint whose files lie in this folder."""

    def tensor(name: str) -> NDArray[Any]:
        held = checkpoint.held[name]
        count, offset = (held.end - held.begin) // 2, held.begin
        values = np.fromfile(folder / held.file, ml_dtypes.bfloat16, count, offset=offset)
        return values.reshape(checkpoint.tensors[name].shape).astype(np.float32)

    embedding, head = tensor("model.embed_tokens.weight"), tensor("lm_head.weight")
    attention = "model.layers.0.self_attn"
    carried = tensor(f"{attention}.o_proj.weight") @ tensor(f"{attention}.v_proj.weight")
    ids = list(PROMPT)
    while ids[-1] != END_ID and len(ids) < len(PROMPT) + MOST:
        hidden = embedding[ids]
        ids.append(int(np.argmax(head @ (hidden[-1] + carried @ hidden.mean(axis=0)))))
    return "".join(map(_text, ids[len(PROMPT) :])).strip()


def _text(token: int) -> str:
    """One token of an answer; whatever is neither word nor number is a mark."""
    for first, words in (
        (FIRST_OPENER_ID, OPENERS),
        (FIRST_WORD_ID, WORDS),
        (FIRST_NUMBER_ID, NUMBERS),
    ):
        if 0 <= token - first < len(words):
            return f" {words[token - first]}"
    return "" if token == END_ID else " !"
