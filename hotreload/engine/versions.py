"""The installed sglang-jax, without an import of it: its release, its arguments, its models.

An import takes seconds, or fails: this says in words why. `facts` finds the capabilities of a
running engine; the table here serves programs that start none. A capability that the source does
not show is unknown, and left out; the engine itself decides.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from hotreload.errors import ConfigError, did_you_mean, show_value


@dataclass(frozen=True, slots=True)
class Release:
    """A release that every test of ours passes on."""

    jax: str
    """The version that all tests run with, as its constraints file has it."""
    install: str
    """The command that installs it, with a jax that it can be imported with."""
    can: Mapping[str, bool]
    """Things its engine can do, by the names of `Capabilities.named`."""
    runs_with: tuple[str, str] | None = None
    """The oldest and the newest jax that it is tested with; None where only one is."""


SUPPORTED: Mapping[str, Release] = {
    "0.0.2": Release(
        jax="0.8.3",
        install="pip install sglang-jax==0.0.2",
        can={
            "log-probabilities": False,
            "grammars": False,
            "tools": False,
            "n": False,
            "flush": False,
            "pause": False,
        },
    ),
    "0.1.0rc0": Release(
        jax="0.10.2",
        install="pip install 'sglang-jax[tpu]==0.1.0rc0' (or [cpu])",
        can={
            "log-probabilities": True,
            "grammars": True,
            "tools": False,
            "n": False,
            "flush": True,
            "pause": True,
        },
        runs_with=("0.10.2", "0.11.2"),
    ),
}


def installed_version(name: str) -> str | None:
    """Find the installed version of a package; None without one."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def list_supported() -> str:
    """Return the supported releases, in words."""
    return " and ".join(f"{name} (with jax {each.jax})" for name, each in SUPPORTED.items())


def why_untested() -> str | None:
    """Return why the installed versions are untested; None for a release with its jax."""
    engine, jax = installed_version("sglang-jax"), installed_version("jax")
    if engine is None:
        return f"sglang-jax is not installed; hotreload is tested with {list_supported()}"
    release = SUPPORTED.get(engine)
    if release is None:
        return f"sglang-jax {engine} is not tested; hotreload is tested with {list_supported()}"
    if jax not in (release.jax, *(release.runs_with or ())):
        return f"sglang-jax {engine} is tested with jax {release.jax}, and jax {jax} is installed"
    return None


def why_refused() -> str | None:
    """Return why the installed release does not run with this jax; None where it may.

    Within its range a jax that is not tested is only reported (`why_untested`).
    """
    engine, jax = installed_version("sglang-jax") or "", installed_version("jax")
    release = SUPPORTED.get(engine)
    if release is None or release.runs_with is None or jax is None:
        return None
    oldest, newest = release.runs_with
    if _numbers(oldest) <= _numbers(jax) <= _numbers(newest):
        return None
    return f"sglang-jax {engine} runs with jax {oldest} to {newest}, and jax {jax} is installed"


def _numbers(version: str) -> list[int]:
    """The numbers that a version begins with: [0, 11, 2] of 0.11.2.dev20260101."""
    found = re.match(r"\d+(\.\d+)*", version)
    return [int(each) for each in found[0].split(".")] if found else []


def how_to_install() -> str:
    """The command that installs a release and its jax: the one installed here, else the newest."""
    release = SUPPORTED.get(installed_version("sglang-jax") or "", SUPPORTED[max(SUPPORTED)])
    return release.install


@contextmanager
def imports_explained() -> Iterator[None]:
    """Import the engine in here: what fails because of a version is a ConfigError that says so.

    A jax that is too new fails in flax or in sglang-jax, with an error that does not name jax.
    """
    try:
        yield
    except Exception as fault:
        why = why_untested()
        if why is None:
            raise
        words = f"the engine cannot be imported ({type(fault).__name__}: {fault}): {why}"
        raise ConfigError(f"{words}; {how_to_install()}") from fault


GENERATES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""Ends of the names of models that answer prompts; the others are drafts and encoders."""


def unknown_arguments(names: Iterable[str], known: Iterable[str] | None = None) -> list[str]:
    """Say of each name that is no server argument of sglang-jax so, in words.

    `known` are those of the imported engine, where it is imported.
    """
    known = sorted(known if known is not None else arguments())
    what = f"sglang-jax {installed_version('sglang-jax')} has no such argument"
    wrong = [name for name in names if known and name not in known]
    return [f"{name}: {what}{did_you_mean(name, known)}" for name in wrong]


def why_unserved(architectures: object) -> str | None:
    """Say why no engine can serve a model of these architectures; None when one can."""
    served, named = models(), architectures if isinstance(architectures, list) else [architectures]
    if not served or any(each in served for each in named):
        return None
    told = ", ".join(show_value(each) for each in named[:3] if each) or "not there"
    these = ", ".join(name for name in served if name.endswith(GENERATES))
    what = f"sglang-jax {installed_version('sglang-jax')} does not serve that"
    return f"config.json: architectures is {told}; {what}, it serves {these}"


@cache
def arguments() -> frozenset[str]:
    """The names of the engine's server arguments; empty when they cannot be read."""
    classes = (node for node in _parse("srt/server_args.py") if isinstance(node, ast.ClassDef))
    fields = (node for each in classes if each.name == "ServerArgs" for node in each.body)
    names = (node.target for node in fields if isinstance(node, ast.AnnAssign))
    return frozenset(name.id for name in names if isinstance(name, ast.Name))


@cache
def models() -> tuple[str, ...]:
    """The architectures the engine has, by their names; empty when they cannot be read."""
    found: set[str] = set()
    for folder in _folders():
        for file in sorted((folder / "srt/models").glob("*.py")):
            found.update(_entries(_parse(f"srt/models/{file.name}")))
    return tuple(sorted(found))


def _entries(nodes: Iterable[ast.stmt]) -> Iterator[str]:
    """The classes that a model's module offers, as the engine's own registry finds them."""
    for node in nodes:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EntryClass":
            yield from (each.id for each in ast.walk(node.value) if isinstance(each, ast.Name))


def _parse(file: str) -> list[ast.stmt]:
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
