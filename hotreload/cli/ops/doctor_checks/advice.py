"""The facts that a check of `hotreload doctor` gets, and the advice that it returns."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from hotreload.checkpoint.known_names import WEIGHTS
from hotreload.cli.ops import machine
from hotreload.facts import holders
from hotreload.settings.load import Settings
from hotreload.sources.hub.snapshots import folder_of

WEIGHT_FILES = f"*{WEIGHTS}"
UNIT_FOLDERS = tuple(Path(f"{top}/systemd/system") for top in ("/etc", "/run", "/usr/lib"))


@dataclass(frozen=True, slots=True)
class Advice:
    """A verdict on one part of the machine, and the remedy."""

    verdict: Literal["ok", "warn", "fail"]
    says: str
    todo: str = ""
    configured: bool = True
    """False if the settings do not use this part: only the list of all checks shows it."""


def not_configured(says: str) -> Advice:
    """Return the advice on a part that the settings do not use."""
    return Advice("ok", says, configured=False)


@dataclass(frozen=True)
class Facts:
    """The facts for all checks; each fact is looked up once."""

    settings: Settings
    user: machine.User
    """The user of the daemon."""
    devices: Sequence[Path]
    ask_jax: bool = False
    units: Sequence[Path] = UNIT_FOLDERS
    mounts: str | None = None
    """The table of mounts; None for the kernel's own."""
    unit: str = "hotreload"
    """The name of the daemon's units without the suffix; hotreload@NAME for one of several."""

    @cached_property
    def listener(self) -> str | None:
        """The listener on the daemon's socket: the daemon, or systemd in its place."""
        return holders.listening_on(self.settings.server.socket)

    @cached_property
    def daemon(self) -> list[holders.Process]:
        """The processes that serve on the socket, if visible to us; never systemd itself."""
        if self.listener is None:
            return []
        return [each for each in holders.holders(self.listener) if each.name != "systemd"]

    @property
    def hub_cache(self) -> Path | None:
        """The folder of downloads; None if the source is no hub."""
        return self.settings.hub_cache if self.settings.source.kind == "huggingface" else None

    @cached_property
    def weights_bytes(self) -> int | None:
        """The size of a set of weights, by the model's files or by the downloads."""
        model, cache, repo = self.settings.engine.model, self.hub_cache, self.settings.source.repo
        if model is not None:
            return _size(model.glob(WEIGHT_FILES)) or None
        if cache is None or repo is None:
            return None
        commits = folder_of(repo, cache).glob("*/")
        return max((_size(commit.glob(WEIGHT_FILES)) for commit in commits), default=0) or None


Check = Callable[[Facts], Advice]


def _size(files: Iterable[Path]) -> int:
    total = 0
    for file in files:
        with suppress(FileNotFoundError):  # a broken link
            total += file.stat().st_size
    return total


def find_existing(path: Path) -> Path:
    """Return the path, or the nearest folder above it that exists."""
    return next(each for each in (path, *path.absolute().parents) if each.exists())
