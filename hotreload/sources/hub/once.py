"""One download without a daemon: for `hotreload check`, `diff` and `swap`."""

import math
from collections.abc import Callable
from pathlib import Path

from hotreload.checkpoint.digests import Digests
from hotreload.events import Publish
from hotreload.facts.names import DEFAULT_BRANCH
from hotreload.sources.hub.client import HubOptions, usual_token
from hotreload.sources.hub.faults import BY_OPTIONS
from hotreload.sources.huggingface import HuggingFaceSource


async def download(
    name: str,
    *,
    cache: Path,
    digests: Digests,
    publish: Publish,
    token: Callable[[], str | None] = usual_token,
) -> Path:
    """Download what `org/name@revision` means now; returns its folder, every file verified."""
    repo, _, revision = name.partition("@")
    options = HubOptions(
        revision=revision or DEFAULT_BRANCH,
        poll=math.inf,
        token=token,
        remedies=BY_OPTIONS,
    )
    source = HuggingFaceSource(repo, options, cache=cache, digests=digests, publish=publish)
    return await source.fetch(await source.resolve(None))
