"""The files and tensors of a checkpoint that are known by name, and how large a file is read.

One list for all: what a hub serves, what the checks look at, what engines load, what the tiny
checkpoints write. File names give away weights in a format that hotreload does not read, first
bytes a file under a false name.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
WEIGHTS = ".safetensors"
CONFIG = "config.json"
SIDE_FILES = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
)
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""A folder without any of these has no tokenizer."""
SERVED_FILES = (f"*{WEIGHTS}", INDEX, CONFIG, *SIDE_FILES)
"""Patterns of the names of all files that an engine loads of a checkpoint."""
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".npy", ".npz")
"""Loading one of these may run code in it."""
LARGEST_INDEX = 32 * 2**20
LARGEST_VOCABULARY = 64 * 2**20
LARGEST_SETTINGS = 8 * 2**20
_LARGEST = {
    INDEX: LARGEST_INDEX,
    CONFIG: 2**20,
    "generation_config.json": 2**20,
    **dict.fromkeys(
        ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt"), LARGEST_VOCABULARY
    ),
}
STORED_DTYPES = {
    "BOOL": ("bool", 1),
    "U8": ("uint8", 1),
    "I8": ("int8", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E8M0": ("float8_e8m0fnu", 1),
    "I16": ("int16", 2),
    "U16": ("uint16", 2),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "I32": ("int32", 4),
    "U32": ("uint32", 4),
    "F32": ("float32", 4),
    "I64": ("int64", 8),
    "U64": ("uint64", 8),
    "F64": ("float64", 8),
}
"""Each dtype of safetensors: its name in numpy, and the bytes that an element takes."""
SPELT = {numpys: name for name, (numpys, _) in STORED_DTYPES.items()}
"""Names of numpy's dtypes in safetensors."""
CASTABLE = ("BF16", "F16", "F32", "F64")
"""Floats that are cast without a scale: those of 8 bits mean nothing without one."""
FLOATS = frozenset({*CASTABLE, "F8_E4M3", "F8_E5M2"})
_COMPUTED = {"bfloat16": "BF16", "float16": "F16", "half": "F16"}
MAX_SHARDS = 4096
"""Some times what the largest models have; a name may speak of 99999."""
_NEVER_LOADED = ("*.rotary_emb.inv_freq", "*.masked_bias", "*.attn.bias_mask")
"""Tensors that exporters write and no engine loads."""
_TIED = "lm_head.weight"


def largest(name: str) -> int:
    """Return the largest size of such a file: one `json.loads` stops every request meanwhile.

    Each is some times what the largest models have: 9 MB of index, 33 MB of vocabulary, and 1 MB
    of tokenizer settings where they list thousands of unused tokens.
    """
    return _LARGEST.get(name, LARGEST_SETTINGS)


def computed_dtype(named: object) -> str:
    """Return the dtype that an engine computes in, by a config's name for it; F32 for others."""
    return _COMPUTED.get(str(named).removeprefix("torch."), "F32")


def ignorable_names(*, tied: bool) -> frozenset[str]:
    """Return patterns of names that no engine loads; `tied` as in the config, of the embedding."""
    return frozenset({*_NEVER_LOADED, _TIED} if tied else _NEVER_LOADED)


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether the name fits one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


# --- formats of weights that hotreload does not read ------------------------------------------

_LONGEST = 200


_SAVE = "save as safetensors (save_pretrained(folder, safe_serialization=True))"
FORMATS = {
    r"_METADATA|_CHECKPOINT_METADATA|manifest\.ocdbt|ocdbt\.process_.*": (
        "save as safetensors (this is Orbax's form; export its parameters under a Hugging Face "
        "model's names)"
    ),
    r"(?:bf16_)?zero_(?:pp_rank_)?.*|mp_rank_.*": (
        "save as safetensors (this is DeepSpeed's or Megatron's form; gather it, for DeepSpeed by "
        "`python zero_to_fp32.py . OUT --safe_serialization`)"
    ),
    r"__\d+_\d+\.distcp": (
        "save as safetensors (this is torch.distributed.checkpoint's form; gather its state first)"
    ),
    r"(?:pytorch_|adapter_)?(?:model|weights)[-_.\w]*\.(?:bin|pth?|pkl)"
    r"|consolidated[-_.\w]*\.pth|.*\.ckpt": _SAVE,
    r".*\.(?:gguf|ggml|h5|keras|msgpack|onnx|npz|tflite)|model\.ckpt-.*": _SAVE,
}
"""The file names that give a foreign format away, and what to do instead.

The most telling first: a folder may hold the files of several."""
_LOOSE = {r".*\.(?:bin|pth?|pkl)": _SAVE, r".*\.(?:zip|tar|tgz|tar\.\w+|7z)": "unpack it"}
"""Files as likely an optimizer's: they count only in a folder whose name names a step."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """Weights of another format: which files gave them away, and what to do, in words."""

    names: tuple[str, ...]
    words: str
    todo: str


def foreign_weights(names: Iterable[str], *, is_meant: bool) -> Foreign | None:
    """Find the foreign format of these files; `is_meant`: their folder's name names a step."""
    names = sorted(names)
    for pattern, todo in (FORMATS | _LOOSE if is_meant else FORMATS).items():
        if telling := tuple(name for name in names if re.fullmatch(pattern, name)):
            name = as_one_line(telling[0])
            words = f"holds {name}, which hotreload does not read: {todo}"
            return Foreign(telling, words, todo)
    return None


DISGUISES: tuple[tuple[bytes, str], ...] = (
    (
        b"version https://git-lfs.github.com/",
        "is a Git LFS pointer and not the file itself: run `git lfs pull` in the clone it is from",
    ),
    (
        b"PK\x03\x04",
        f"is a zip archive, as torch.save and archivers write them: unpack it, or {_SAVE}",
    ),
    (b"\x1f\x8b", "is compressed (gzip): unpack it"),
    (b"\x28\xb5\x2f\xfd", "is compressed (zstd): unpack it"),
    (b"\x80\x02", f"is a pickle: {_SAVE}"),
    (b"GGUF", f"is in llama.cpp's form (GGUF): {_SAVE}"),
    (b"\x89HDF", f"is an HDF5 file: {_SAVE}"),
    (b"<!doctype", "is a web page, so its download failed: look into it, and get the file again"),
    (b"<html", "is a web page, so its download failed: look into it, and get the file again"),
)
"""First bytes of formats that are often found under another name, and what to do."""
LONGEST_DISGUISE = max(len(begin) for begin, _ in DISGUISES)
LARGEST_POINTER = 1024
"""Git LFS makes no larger ones."""


def find_disguise(begin: bytes) -> str | None:
    """Say what a file that begins with these bytes really is, and what to do; None if unknown."""
    return next(
        (words for known, words in DISGUISES if begin.lower().startswith(known.lower())), None
    )


def as_one_line(name: str) -> str:
    """Make a name from outside fit for a line of the log."""
    name = name.encode(errors="backslashreplace").decode()
    name = name if name.isprintable() else ascii(name)
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…"
