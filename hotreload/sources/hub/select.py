"""Which of a commit's files serving needs: never a pickle, never a path out of the folder."""

import json
from collections.abc import Sequence
from fnmatch import fnmatchcase

from hotreload.checkpoint.file_names import LARGEST_INDEX, PICKLES, SINGLE, WEIGHTS
from hotreload.checkpoint.formats import foreign_weights, shown
from hotreload.sources.hub.client import HubFile


def listed_files(files: Sequence[HubFile], allow: Sequence[str]) -> list[HubFile]:
    """The files at the top of the repo that the patterns allow."""
    return [file for file in files if _is_plain(file) and _is_allowed(file.name, allow)]


def serving_files(files: Sequence[HubFile], index: bytes | None) -> list[HubFile]:
    """Leave out weights that are not the checkpoint's: many repos hold their weights twice."""
    chosen = _shards(index) if index is not None else None
    if chosen is None and any(file.name == SINGLE for file in files):
        chosen = {SINGLE}
    if chosen is None:
        return list(files)
    return [file for file in files if not file.name.endswith(WEIGHTS) or file.name in chosen]


def instead_of_weights(files: Sequence[HubFile]) -> tuple[str, str]:
    """Say why a commit holds no weights that we read: a code, and what it holds in their place."""
    names = [file.name for file in files]
    if foreign := foreign_weights(names, is_meant=False):
        return "format", f"; it {foreign.words}"
    nested = [name for name in names if name.endswith(WEIGHTS) and "/" in name]
    there = f"; only files at its top count, not {shown(nested[0])}" if nested else ""
    return "missing", there


def _is_plain(file: HubFile) -> bool:
    """True if the name is safe: it comes from elsewhere, and becomes a path here."""
    name = file.name
    return name.isprintable() and not name.startswith(".") and not {"/", "\\"} & set(name)


def _is_allowed(name: str, allow: Sequence[str]) -> bool:
    if name.lower().endswith(PICKLES):
        return False
    return any(fnmatchcase(name, pattern) for pattern in allow)


def _shards(index: bytes) -> set[str] | None:
    """The files the index names; None when it cannot be read, which the checks will report."""
    try:
        names = set(json.loads(index[:LARGEST_INDEX])["weight_map"].values())
        return {str(name) for name in names}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
