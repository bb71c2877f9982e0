"""Tiny checkpoints: built by hand to say a sentence of your choice, or trained on a small text."""

from hotreload.tiny.sayings import SAY_DEFAULT, WORDS, Saying, parse_saying
from hotreload.tiny.weights import ARCHS
from hotreload.tiny.write import UNSOUND, Damage, write_tiny

__all__ = [
    "ARCHS",
    "SAY_DEFAULT",
    "UNSOUND",
    "WORDS",
    "Damage",
    "Saying",
    "parse_saying",
    "write_tiny",
]
