"""Settings of where checkpoints come from, each kind of source with its own."""

from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from hotreload.settings_kinds import Deadline, Location, Seconds, Table
from hotreload.sources.hub.select import PICKLES, SERVED_FILES

OF_KIND = {
    "directory": ("path", "pattern", "marker", "settle", "rescan", "order", "patience"),
    "huggingface": (
        "repo",
        "revision",
        "poll",
        "cache",
        "token_file",
        "webhook",
        "allow",
        "endpoint",
    ),
}
"""Which settings go with which kind of source."""


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


Repo = Annotated[str, AfterValidator(_repo)]
RevisionName = Annotated[str, AfterValidator(_revision)]
Url = Annotated[str, AfterValidator(_url)]
SecretFile = Annotated[Location, AfterValidator(_secret)]
Patterns = Annotated[tuple[str, ...], AfterValidator(_patterns)]


class SourceSettings(Table):
    """Where checkpoints come from: a watched folder, or a repo on a Hugging Face Hub.

    The settings up to patience are the folder's, the others the hub's.
    """

    kind: Literal["directory", "huggingface"] = Field(
        default="directory", description="The kind of source."
    )
    path: Location | None = Field(
        default=None,
        description="The folder to watch: a checkpoint, or a folder of checkpoints. "
        "Needed to serve.",
        examples=["/srv/checkpoints"],
    )
    pattern: str = Field(
        default="*", min_length=1, description="Only folders whose name fits this are checkpoints."
    )
    marker: str | None = Field(
        default=None,
        pattern=r"^[^/]+$",
        description="A file whose appearance says that a checkpoint is complete.",
        examples=["_SUCCESS"],
    )
    settle: Seconds = Field(
        default=2.0, description="Without a marker: complete once nothing has changed for so long."
    )
    rescan: Deadline = Field(default=5.0, description="Look at the whole folder this often.")
    order: Literal["step", "time", "name"] = Field(
        default="step",
        description="Which is the newest: the highest step number in the name, then the latest "
        "time, then the last name; or beginning with time, or name.",
    )
    patience: Seconds = Field(
        default=60.0, description="An incomplete checkpoint that is quiet for so long is refused."
    )
    repo: Repo | None = Field(
        default=None,
        description="The repo to follow. Needed to serve from a hub.",
        examples=["org/name"],
    )
    revision: RevisionName = Field(
        default="main", description="The branch, tag or commit to follow."
    )
    poll: Deadline = Field(
        default=60.0,
        description="Ask the hub for a new commit this often; less often while it fails.",
    )
    cache: Location | None = Field(
        default=None,
        description="Folder of the downloads, which keeps the live, the previous and the wanted "
        "commit; else hub in [state] directory. Not shared between daemons.",
        examples=["/var/cache/hotreload"],
    )
    token_file: SecretFile | None = Field(
        default=None,
        description="A file that holds the access token, read anew each time. A systemd "
        "credential of the same name goes first. Without it: HF_TOKEN, or what "
        "`hf auth login` left.",
        examples=["/etc/hotreload/hf-token"],
    )
    webhook: SecretFile | None = Field(
        default=None,
        description="A file (or systemd credential) that holds the secret of the hub's webhook; "
        "then POST /webhook/huggingface with it makes us look at once.",
        examples=["/etc/hotreload/webhook-secret"],
    )
    allow: Patterns = Field(
        default=SERVED_FILES,
        description="Patterns of the files to download, at the top of the repo. Never pickles.",
    )
    endpoint: Url | None = Field(
        default=None,
        description="The hub's address; else HF_ENDPOINT, or the public hub.",
        examples=["https://hub.example.com"],
    )

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        for kind, names in OF_KIND.items():
            defaults = {name: field.default for name, field in type(self).model_fields.items()}
            strange = [name for name in names if getattr(self, name) != defaults[name]]
            if kind != self.kind and strange:
                raise ValueError(
                    f"{', '.join(strange)}: only for kind = '{kind}', and kind is '{self.kind}'"
                )
        return self
