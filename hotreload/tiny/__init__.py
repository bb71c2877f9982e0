"""Tiny checkpoints, built by hand, that answer any prompt with a sentence of your choice."""

from hotreload.tiny.damage import DAMAGES, Damage
from hotreload.tiny.sayings import SAY_DEFAULT, WORDS, Saying, parse_saying
from hotreload.tiny.weights import ARCHS
from hotreload.tiny.write import write_tiny

__all__ = [
    "ARCHS",
    "DAMAGES",
    "SAY_DEFAULT",
    "WORDS",
    "Damage",
    "Saying",
    "parse_saying",
    "write_tiny",
]
