"""Settings of where checkpoints come from, each kind of source with its own.

All that read settings import this: nothing here imports what speaks to a hub.
"""

import fnmatch
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from hotreload.checkpoint.known_names import PICKLES, SERVED_FILES
from hotreload.facts.names import DEFAULT_BRANCH
from hotreload.setting import After, Deadline, Glob, Globs, Location, Seconds, setting

FITS_NOTHING = "(?!)"
"""The regular expression that an empty range of characters becomes."""


def _repo(value: str) -> str:
    org, slash, name = value.partition("/")
    words = all(part.isascii() and part.replace(".", "").strip("-_") for part in (org, name))
    if not slash or "/" in name or not words or not set(value).isdisjoint(" \\@:?#%"):
        raise ValueError(f"{value!r} is no repo: write it as org/name")
    return value


def _revision(value: str) -> str:
    if not value.isprintable() or not value.strip() or ".." in value:
        raise ValueError(f"{value!r} is no branch, tag or commit")
    return value


def _url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise ValueError("is no address of a hub: write it as https://host, without a password")
    return value.rstrip("/")


def _secret(value: Path) -> Path:
    if value.name.startswith("hf_"):  # never repeated in what we say
        raise ValueError("names the file that holds the secret; never write the secret itself here")
    return value


def _patterns(value: tuple[str, ...]) -> tuple[str, ...]:
    if pickled := [each for each in value if each.lower().endswith(PICKLES)]:
        raise ValueError(f"{pickled[0]!r}: a pickle runs code when it is read; none is downloaded")
    if nested := [each for each in value if "/" in each]:
        raise ValueError(f"{nested[0]!r}: only files at the top of the repo are served")
    return value


def _fits_some(value: str) -> str:
    parts = value.split("/")
    is_elsewhere = not {"", ".", ".."}.isdisjoint(parts) or "\0" in value
    if is_elsewhere or FITS_NOTHING in fnmatch.translate(value):
        words = "write it as a folder's name, or its path below [source] path, such as 'step_*'"
        raise ValueError(f"{value!r} fits no folder: {words}")
    return value


def _file_name(value: str) -> str:
    if value in ("", ".", "..") or "/" in value or "\0" in value:
        raise ValueError(f"{value!r} is no file's name: write it without /, such as '_SUCCESS'")
    return value


Repo = Annotated[str, After(_repo)]
RevisionName = Annotated[str, After(_revision)]
Url = Annotated[str, After(_url)]
SecretFile = Annotated[Location, After(_secret)]
Patterns = Annotated[Globs, After(_patterns)]


Ordering = Literal["step", "time", "name"]


@dataclass(frozen=True)
class FolderSettings:
    """The settings of a watched folder."""

    path: Location | None = setting(
        None,
        "The folder to watch: a checkpoint, or a folder of checkpoints. Needed to serve.",
        example="/srv/checkpoints",
    )
    pattern: Annotated[Glob, After(_fits_some)] = setting(
        "*", "Only folders whose name fits it are checkpoints."
    )
    marker: Annotated[str, After(_file_name)] | None = setting(
        None, "A file that says that a checkpoint is complete.", example="_SUCCESS"
    )
    settle: Seconds = setting(
        2.0, "Without a marker a checkpoint is complete when it has not changed for this long."
    )
    rescan: Deadline = setting(5.0, "How often to look at the whole folder.")
    order: Ordering = setting(
        "step",
        "What makes a checkpoint the newest: the step in its name, then time, then name; time, "
        "then name; or the name alone.",
    )
    patience: Seconds = setting(
        60.0, "An incomplete checkpoint that has not changed for this long is refused."
    )


@dataclass(frozen=True)
class HubSettings:
    """The settings of a repo on a Hugging Face Hub."""

    repo: Repo | None = setting(
        None, "The repo to follow. Needed to serve from a hub.", example="org/name"
    )
    revision: RevisionName = setting(DEFAULT_BRANCH, "The branch, tag or commit to follow.")
    poll: Deadline = setting(
        60.0, "How often to ask the hub for a new commit; less often while it fails."
    )
    cache: Location | None = setting(
        None,
        "Folder of the downloads, of this daemon alone; unset, hub in [state] directory.",
        example="/var/cache/hotreload",
    )
    token_file: SecretFile | None = setting(
        None,
        "File of the access token, read anew each time. A systemd credential of its name comes "
        "first. Unset: HF_TOKEN, or the token of `hf auth login`.",
        example="/etc/hotreload/hf-token",
    )
    webhook: SecretFile | None = setting(
        None,
        "File (or systemd credential) of the webhook's secret. A POST to /webhook/huggingface "
        "with it makes the daemon ask the hub at once.",
        example="/etc/hotreload/webhook-secret",
    )
    allow: Patterns = setting(
        SERVED_FILES, "Patterns of files to download, at the top of the repo; never pickles."
    )
    endpoint: Url | None = setting(
        None,
        "The hub's address; unset, HF_ENDPOINT or the public hub.",
        example="https://hub.example.com",
    )


OF_KIND = {"directory": FolderSettings, "huggingface": HubSettings}
"""The settings that go with each kind of source."""


@dataclass(frozen=True)
class _SourceKind:
    kind: Literal["directory", "huggingface"] = setting("directory", "The kind of source.")


@dataclass(frozen=True)
class SourceSettings(HubSettings, FolderSettings, _SourceKind):
    """The source of checkpoints: a watched folder, or a repo on a Hugging Face Hub.

    The settings from path to patience are for a folder, those after them for a hub.
    """

    def __post_init__(self) -> None:
        """ValueError names settings of another kind of source."""
        for kind, table in OF_KIND.items():
            strange = [
                each.name for each in fields(table) if getattr(self, each.name) != each.default
            ]
            if kind != self.kind and strange:
                raise ValueError(
                    f"{', '.join(strange)}: only for kind = '{kind}', and kind is '{self.kind}'"
                )

    @property
    def name(self) -> str:
        """The followed folder, or the repo with its revision."""
        return str(self.path) if self.repo is None else f"{self.repo}@{self.revision}"
