"""Puts a word in the place of what is no fact of ours: times, processes, paths, versions."""

import os
import re
from pathlib import Path

from hotreload import __version__

BLANKS = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)?"), "TIME"),
    (re.compile(r"\d+ (d|h|min|s) ago|just now"), "AGO"),
    (re.compile(rf"\bpid\b(\W+){os.getpid()}\b"), r"pid\1PID"),
    (re.compile(r'\b(version|jax|sglang_jax)("?[=:] ?)"[^"]*"'), r'\1\2"VERSION"'),
    (re.compile(r"(process|-CONT) \d+"), r"\1 PID"),
    (re.compile(r"cmpl-\w+"), "cmpl-ID"),
    (re.compile(r'"created": ?\d+'), '"created": NOW'),
    (re.compile(r"within \d+\.\d{5,} s"), "within SOME s"),
    (re.compile(r"pause_seconds=[\d.e-]+"), "pause_seconds=SOME"),
    (re.compile(r"MONOTONIC_USEC=\d+"), "MONOTONIC_USEC=NOW"),
    (re.compile(rf"(?<![\d.]){re.escape(__version__)}(?![\d.])"), "VERSION"),
)


def blanked(text: str, folder: Path | None = None) -> str:
    """The text without what another machine, moment or version would say in its place."""
    if folder is not None:
        text = text.replace(str(folder), "DIR")
    for found, word in BLANKS:
        text = found.sub(word, text)
    return text


def without_defaults(text: str) -> str:
    """Settings as `check-config` prints them, but for those that are as by default."""
    return re.sub(r"(?m)^.* # default\n", "", text)
