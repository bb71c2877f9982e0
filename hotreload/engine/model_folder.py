"""Reasons why no engine can be started with a model's folder, in words its owner can act on.

Upstream's words send people elsewhere: to install PyTorch, or to another model's tokenizer.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard

from hotreload.checkpoint.known_names import CONFIG, TOKENIZERS
from hotreload.engine.versions import why_unserved

_STRETCHED = (
    "text_config",
    "rope_scaling",
    "max_sequence_length",
    "seq_length",
    "max_seq_len",
    "model_max_length",
)
"""By these in its config a model's context may be another than max_position_embeddings."""


def unservable(model: Path, tokenizer: Path | None = None) -> str | None:
    """Say what the folder lacks for an engine; None when it is not known to lack anything.

    `tokenizer` is where the tokenizer lies, if it is not the model's.
    """
    why = why_unserved(_config(model).get("architectures"))
    folder = tokenizer or model
    if why is None and folder.is_dir() and not _has_tokenizer(folder):
        these = ", ".join(TOKENIZERS)
        why = f"there is no tokenizer in {folder}: copy the model's own there (one of {these})"
    return why


def why_unshared(model: Path, tp: int, args: Mapping[str, Any]) -> str | None:
    """Say why so many devices cannot share the model's heads.

    None where they can, or nothing is known.
    A device may have a copy of a head of keys and values, but a part of one it cannot have.
    """
    heads, pairs = _heads(_config(model))
    is_known = heads and args.get("dp_size", 1) == 1  # else fewer devices share them
    if not is_known or _is_shared(heads, pairs, tp):
        return None
    fit = [str(count) for count in range(1, heads + 1) if _is_shared(heads, pairs, count)]
    return (
        f"[engine] tp = {tp}: the model has {heads} attention heads and {pairs} of keys and "
        f"values, which {tp} devices cannot share evenly: set it to one of {', '.join(fit)}"
    )


def context_of(model: Path | None, args: Mapping[str, Any]) -> int | None:
    """Tokens that a prompt and its answer may have together; None where nothing is known."""
    given = args.get("context_length")
    if given is not None or model is None or "json_model_override_args" in args:
        return given if _is_count(given) else None
    config = _config(model)
    if any(config.get(name) for name in _STRETCHED):
        return None
    stated = config.get("max_position_embeddings")
    return stated if _is_count(stated) else None


def tokens_of(text: str, folder: Path) -> int | None:
    """Count the tokens of a text by the tokenizer in a folder; None where that cannot be read."""
    from tokenizers import Tokenizer  # it comes with every engine, and takes a moment

    file = folder / "tokenizer.json"
    try:
        return len(Tokenizer.from_file(str(file)).encode(text).ids)
    except Exception:  # its own errors are of no narrower kind
        return None


def _heads(config: dict[str, Any]) -> tuple[int, int]:
    """Count the attention heads, and those of keys and values; zeros where unstated."""
    inner = config.get("text_config")
    stated = inner if isinstance(inner, dict) and "num_attention_heads" in inner else config
    heads = stated.get("num_attention_heads")
    pairs = stated.get("num_key_value_heads") or heads
    return (heads, pairs) if _is_count(heads) and _is_count(pairs) else (0, 0)


def _is_count(stated: object) -> TypeGuard[int]:
    return type(stated) is int and stated > 0


def _is_shared(heads: int, pairs: int, tp: int) -> bool:
    return heads % tp == 0 and max(pairs, tp) % min(pairs, tp) == 0


def _config(model: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError, RecursionError):
        stated = json.loads((model / CONFIG).read_bytes())
        return stated if isinstance(stated, dict) else {}
    return {}


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in TOKENIZERS) or any(folder.glob("*.tiktoken"))
