"""Formats of weights that hotreload does not read, and the file names that give them away."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

_LONGEST = 200


@dataclass(frozen=True, slots=True)
class Format:
    """A foreign format: the file names that give it away, and how to save safetensors instead."""

    names: re.Pattern[str]
    how: str


_PICKLES = "save_pretrained(folder, safe_serialization=True)"
FORMATS = (
    Format(
        re.compile(r"_METADATA|_CHECKPOINT_METADATA|manifest\.ocdbt|ocdbt\.process_.*"),
        "this is Orbax's form; export its parameters under a Hugging Face model's names",
    ),
    Format(
        re.compile(r"(?:bf16_)?zero_(?:pp_rank_)?.*|mp_rank_.*"),
        "this is DeepSpeed's or Megatron's form; gather it, for DeepSpeed by "
        "`python zero_to_fp32.py . OUT --safe_serialization`",
    ),
    Format(
        re.compile(r"__\d+_\d+\.distcp"),
        "this is torch.distributed.checkpoint's form; gather its state first",
    ),
    Format(
        re.compile(
            r"(?:pytorch_|adapter_)?(?:model|weights)[-_.\w]*\.(?:bin|pth?|pkl)"
            r"|consolidated[-_.\w]*\.pth|.*\.ckpt"
        ),
        _PICKLES,
    ),
    Format(
        re.compile(r".*\.(?:gguf|ggml|h5|keras|msgpack|onnx|npz|tflite)|model\.ckpt-.*"),
        _PICKLES,
    ),
)
"""The most telling first: a folder may hold the files of several."""
_LOOSE = Format(re.compile(r".*\.(?:bin|pth?|pkl)"), _PICKLES)
"""Files as likely an optimizer's: they count only in a folder whose name names a step."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """Weights of another format: which files gave them away, and what to do, in words."""

    names: tuple[str, ...]
    words: str


def foreign_weights(names: Iterable[str], *, is_meant: bool) -> Foreign | None:
    """The foreign format of these files, if any; `is_meant`: their folder's name names a step."""
    names = sorted(names)
    for each in (*FORMATS, *([_LOOSE] if is_meant else [])):
        if telling := tuple(name for name in names if each.names.fullmatch(name)):
            name = shown(telling[0])
            words = f"holds {name}, which hotreload does not read: save as safetensors ({each.how})"
            return Foreign(telling, words)
    return None


def shown(name: str) -> str:
    """A name from outside, made fit to stand in a line of the log."""
    name = name.encode(errors="backslashreplace").decode()
    name = name if name.isprintable() else ascii(name)
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…"
