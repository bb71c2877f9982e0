"""The files and tensors of a checkpoint that are known by name, and how large a file is read.

One list for all: what a hub serves, what the checks look at, what engines load, what the tiny
checkpoints write.
"""

from collections.abc import Iterable
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


def ignorable_names(*, tied: bool) -> frozenset[str]:
    """Return patterns of names that no engine loads; `tied` as in the config, of the embedding."""
    return frozenset({*_NEVER_LOADED, _TIED} if tied else _NEVER_LOADED)


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether the name fits one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)
