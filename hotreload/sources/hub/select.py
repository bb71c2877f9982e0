"""Which of a commit's files serving needs: never a pickle, never a path out of the folder."""

import json
from collections.abc import Sequence
from fnmatch import fnmatchcase

from hotreload.sources.hub.client import HubFile

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
WEIGHTS = ".safetensors"
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".npy", ".npz")
"""Reading one of these may run what is in it."""
SERVED_FILES = (
    "*.safetensors",
    INDEX,
    "config.json",
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
"""What an engine loads of a repo."""
LARGEST_INDEX = 32 * 2**20


def listed_files(files: Sequence[HubFile], allow: Sequence[str]) -> list[HubFile]:
    """The files at the top of the repo that the patterns allow."""
    return [file for file in files if _is_plain(file) and _is_allowed(file.name, allow)]


def serving_files(files: Sequence[HubFile], index: bytes | None) -> list[HubFile]:
    """Of the weights only those that one checkpoint is made of; many repos hold it twice."""
    chosen = _shards(index) if index is not None else None
    if chosen is None and any(file.name == SINGLE for file in files):
        chosen = {SINGLE}
    if chosen is None:
        return list(files)
    return [file for file in files if not file.name.endswith(WEIGHTS) or file.name in chosen]


def _is_plain(file: HubFile) -> bool:
    """Names come from elsewhere, and become paths here."""
    name = file.name
    return name.isprintable() and not name.startswith(".") and not {"/", "\\"} & set(name)


def _is_allowed(name: str, allow: Sequence[str]) -> bool:
    if name.lower().endswith(PICKLES):
        return False
    return any(fnmatchcase(name, pattern) for pattern in allow)


def _shards(index: bytes) -> set[str] | None:
    """What the index names; None when it cannot be read, which the checks will tell."""
    try:
        names = set(json.loads(index[:LARGEST_INDEX])["weight_map"].values())
        return {str(name) for name in names}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
