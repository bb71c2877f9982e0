"""Supported releases of sglang-jax, each with its jax, and those that are installed here.

Imports neither of them: it says in words why they cannot be imported. What an engine can do is
found by looking at it (facts.py); the table here tells it to programs that start none.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata

from hotreload.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Release:
    """A release that every test of ours passes on."""

    jax: str
    """The version it is tested with, as its constraints file has it."""
    install: str
    """The command that installs it, with a jax that it can be imported with."""
    can: Mapping[str, bool]
    """Things its engine can do, by the names of `Capabilities.named`."""


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
    ),
}


def installed(name: str) -> str | None:
    """Find the installed version of a package; None without one."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def supported() -> str:
    """The supported releases, in words."""
    return " and ".join(f"{name} (with jax {each.jax})" for name, each in SUPPORTED.items())


def why_untested() -> str | None:
    """Say why nobody has tested what is installed here; None for a release with its jax."""
    engine, jax = installed("sglang-jax"), installed("jax")
    if engine is None:
        return f"sglang-jax is not installed; hotreload is tested with {supported()}"
    release = SUPPORTED.get(engine)
    if release is None:
        return f"sglang-jax {engine} is not tested; hotreload is tested with {supported()}"
    if jax != release.jax:
        return f"sglang-jax {engine} is tested with jax {release.jax}, and jax {jax} is installed"
    return None


def how_to_install() -> str:
    """The command that installs a release and its jax: the one installed here, else the newest."""
    release = SUPPORTED.get(installed("sglang-jax") or "", SUPPORTED[max(SUPPORTED)])
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
