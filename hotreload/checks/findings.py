"""What is wrong with a checkpoint, one finding at a time, in words a person can act on.

Names come from files we do not trust: they are shown escaped and cut.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_LONGEST_NAME = 160
_SHOWN_PER_CODE = 10

MOST_TELLING_FIRST = (
    "changed",
    "io",
    "unsafe_path",
    "duplicate",
    "index",
    "truncated",
    "bad_header",
    "shape",
    "missing",
    "dtype",
    "config_mismatch",
    "tokenizer_mismatch",
    "extra",
    "nonfinite",
    "zeros",
)
"""A refusal has one reason: the earlier of these, for the later often follow from it."""

INCOMPATIBLE = frozenset(
    {"shape", "missing", "dtype", "config_mismatch", "tokenizer_mismatch", "extra"}
)
"""Codes of sound files that do not fit; all others say that the files are damaged."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that keeps a checkpoint from being loaded."""

    code: str
    message: str
    file: str | None = None
    tensor: str | None = None
    expected: str | None = None
    got: str | None = None


class Unfit(Exception):
    """Ends the reading of one file; the finding says why.

    `unfinished` marks what a file still being written looks like too.
    """

    def __init__(self, finding: Finding, *, unfinished: bool = False) -> None:
        super().__init__(finding.message)
        self.finding = finding
        self.unfinished = unfinished


def shown(name: str) -> str:
    """A file's name as it may be printed: escapes and line breaks never reach a terminal."""
    cut = name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME] + "…"
    return cut if cut.isprintable() else repr(cut)


def quoted(tensor: str) -> str:
    """A tensor's name in quotes, escaped and cut."""
    return repr(tensor if len(tensor) <= _LONGEST_NAME else tensor[:_LONGEST_NAME] + "…")


def size_words(count: int) -> str:
    """A number of bytes as people write it: 1.3 MB."""
    size = float(count)
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1000:
            return f"{count} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def most_telling(findings: Sequence[Finding]) -> Finding:
    """The finding that names the reason best; the first of its kind."""
    return min(findings, key=lambda finding: MOST_TELLING_FIRST.index(finding.code))


def listed(findings: Iterable[Finding]) -> tuple[str, ...]:
    """The findings' words, at most ten of a kind and then how many more there are."""
    kinds: dict[str, list[str]] = {}
    for finding in findings:
        kinds.setdefault(finding.code, []).append(finding.message)
    lines: list[str] = []
    for code, messages in kinds.items():
        lines += messages[:_SHOWN_PER_CODE]
        if len(messages) > _SHOWN_PER_CODE:
            lines.append(f"and {len(messages) - _SHOWN_PER_CODE} more findings of kind {code}")
    return tuple(lines)
