"""Reads off its source what the installed sglang-jax takes and serves: an import takes seconds.

What cannot be read is unknown, and nothing is said about it; the engine itself decides.
"""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from hotreload.engine.versions import installed
from hotreload.errors import did_you_mean, shown

GENERATES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""Ends of the names of models that answer prompts; the others are drafts and encoders."""


def unknown_arguments(names: Iterable[str], known: Iterable[str] | None = None) -> list[str]:
    """Say of each name that is no server argument of sglang-jax so, in words.

    `known` are those of the imported engine, where it is imported.
    """
    known = sorted(known if known is not None else arguments())
    what = f"sglang-jax {installed('sglang-jax')} has no such argument"
    wrong = [name for name in names if known and name not in known]
    return [f"{name}: {what}{did_you_mean(name, known)}" for name in wrong]


def unserved(architectures: object) -> str | None:
    """Say why no engine can serve a model of these architectures; None when one can."""
    served, named = models(), architectures if isinstance(architectures, list) else [architectures]
    if not served or any(each in served for each in named):
        return None
    told = ", ".join(shown(each) for each in named[:3] if each) or "not there"
    these = ", ".join(name for name in served if name.endswith(GENERATES))
    what = f"sglang-jax {installed('sglang-jax')} does not serve that"
    return f"config.json: architectures is {told}; {what}, it serves {these}"


@cache
def arguments() -> frozenset[str]:
    """The names of the engine's server arguments; empty when they cannot be read."""
    classes = (node for node in _parsed("srt/server_args.py") if isinstance(node, ast.ClassDef))
    fields = (node for each in classes if each.name == "ServerArgs" for node in each.body)
    names = (node.target for node in fields if isinstance(node, ast.AnnAssign))
    return frozenset(name.id for name in names if isinstance(name, ast.Name))


@cache
def models() -> tuple[str, ...]:
    """The architectures the engine has, by their names; empty when they cannot be read."""
    found: set[str] = set()
    for folder in _folders():
        for file in sorted((folder / "srt/models").glob("*.py")):
            found.update(_entries(_parsed(f"srt/models/{file.name}")))
    return tuple(sorted(found))


def _entries(nodes: Iterable[ast.stmt]) -> Iterator[str]:
    """The classes that a model's module offers, as the engine's own registry finds them."""
    for node in nodes:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EntryClass":
            yield from (each.id for each in ast.walk(node.value) if isinstance(each, ast.Name))


def _parsed(file: str) -> list[ast.stmt]:
    for folder in _folders():
        try:
            return ast.parse((folder / file).read_bytes()).body
        except (OSError, ValueError, SyntaxError):
            continue
    return []


def _folders() -> list[Path]:
    """Find the folders of the package; that imports nothing."""
    spec = find_spec("sgl_jax")
    return [Path(each) for each in (spec.submodule_search_locations or ())] if spec else []
