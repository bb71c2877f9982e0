"""The tensors that exporters write into a checkpoint and no engine loads, by their names.

One rule for all: what the checks let pass, what the engine leaves out, what a fingerprint counts.
"""

from collections.abc import Iterable
from fnmatch import fnmatchcase

_NEVER_LOADED = ("*.rotary_emb.inv_freq", "*.masked_bias", "*.attn.bias_mask")
_TIED = "lm_head.weight"


def ignorable_names(*, tied: bool) -> frozenset[str]:
    """Patterns of such names; `tied` is what the config says of the embedding of words."""
    return frozenset({*_NEVER_LOADED, _TIED} if tied else _NEVER_LOADED)


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether the name fits one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)
