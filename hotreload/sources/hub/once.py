"""One download without a daemon: for `hotreload check` and `swap`."""

from collections.abc import Callable
from pathlib import Path

from hotreload.events import Publish
from hotreload.sources.hub.download import ContentOf
from hotreload.sources.hub.remedies import BY_OPTIONS
from hotreload.sources.hub.token import usual_token
from hotreload.sources.huggingface import HuggingFaceSource


async def download(
    name: str,
    *,
    cache: Path,
    content_of: ContentOf,
    publish: Publish,
    token: Callable[[], str | None] = usual_token,
) -> Path:
    """Download what `org/name@revision` means now; returns its folder, every file verified."""
    repo, _, revision = name.partition("@")
    source = HuggingFaceSource(
        repo,
        revision=revision or "main",
        cache=cache,
        content_of=content_of,
        publish=publish,
        token=token,
        remedies=BY_OPTIONS,
    )
    return await source.fetch(await source.resolve(None))
