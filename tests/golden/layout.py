"""Lays documents out so that a diff of them is read: a fact a line, in the order of the names."""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

WIDTH = 100


def laid_out(value: Any, indent: str = "") -> str:
    """A JSON document whose parts stand on a line each where they fit."""
    short = json.dumps(value, sort_keys=True, ensure_ascii=False)
    if len(indent) + len(short) <= WIDTH or not isinstance(value, dict | list):
        return short
    inner = f"{indent} "
    if isinstance(value, list):
        lines, ends = [laid_out(each, inner) for each in value], "[]"
    else:
        items = sorted(value.items())
        lines, ends = [f"{json.dumps(key)}: {laid_out(each, inner)}" for key, each in items], "{}"
    body = ",\n".join(inner + line for line in lines)
    return f"{ends[0]}\n{body}\n{indent}{ends[1]}"


def flat(value: Any, path: str = "") -> Iterator[str]:
    """A JSON document as lines, `path = value`, in the order of the paths."""
    nested: Iterable[tuple[object, Any]] = ()
    if isinstance(value, dict):
        nested = sorted(value.items())
    elif isinstance(value, list):
        nested = enumerate(value)
    if not value or not nested:
        yield f"{path} = {json.dumps(value, ensure_ascii=False)}"
    for key, each in nested:
        inner = f"[{key}]" if isinstance(value, list) else f".{key}" if path else str(key)
        yield from flat(each, path + inner)


class Deltas:
    """Keeps what lines said, by what each is about, and gives those that say something else."""

    def __init__(self, key: Callable[[str], str], before: Iterable[str] = ()) -> None:
        """`key` names what a line is about; `before` is what was said at first."""
        self._key = key
        self._before = {key(line): line for line in before}

    def of(self, lines: Iterable[str]) -> list[str]:
        """The lines that are new or others, and `- key` for each that is gone.

        What is gone with the whole that it was part of, or has parts now, has no line.
        """
        now = {self._key(line): line for line in lines}
        new = {key: line for key, line in now.items() if self._before.get(key) != line}
        gone = [key for key in self._before if key not in now]
        self._before = now
        return [*new.values(), *(f"- {key}" for key in gone if not _is_told(key, new))]


def _is_told(gone: str, new: Iterable[str]) -> bool:
    return any(_is_part(gone, of=key) or _is_part(key, of=gone) for key in new)


def _is_part(path: str, of: str) -> bool:
    return path.startswith((f"{of}.", f"{of}["))
