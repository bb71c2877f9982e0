"""One download without a daemon: for `hotreload check` and `swap`."""

import re
from collections.abc import Callable
from pathlib import Path

from hotreload.errors import HotReloadError
from hotreload.events import Publish
from hotreload.sources.hub.download import ContentOf
from hotreload.sources.hub.token import usual_token
from hotreload.sources.huggingface import HuggingFaceSource

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@\S+)?", re.ASCII)


def names_a_repo(text: str) -> bool:
    """Whether this is `org/name` or `org/name@revision`, and not a folder or near one."""
    path = Path(text)
    return bool(_NAME.fullmatch(text)) and not path.exists() and not path.parent.exists()


async def download(
    name: str,
    *,
    cache: Path,
    content_of: ContentOf,
    publish: Publish,
    token: Callable[[], str | None] = usual_token,
) -> Path:
    """The folder of what `org/name@revision` means now, every file verified."""
    repo, _, revision = name.partition("@")
    source = HuggingFaceSource(
        repo,
        revision=revision or "main",
        cache=cache,
        content_of=content_of,
        publish=publish,
        token=token,
    )
    try:
        return await source.fetch(await source.resolve(None))
    except HotReloadError as error:
        error.args = (_for_a_command(str(error)),)
        raise


_SAID_HERE = {
    "set [source] token_file, or check": "give --token-file or set HF_TOKEN, or check",
    "check [source] repo and token_file": "check the name, and --token-file or HF_TOKEN",
    "check [source] revision": "check what stands behind the @",
    "; a larger [source] poll asks less": "; run it again then",
    "is [source] endpoint a hub?": "is HF_ENDPOINT a hub?",
    "check [source] endpoint": "check HF_ENDPOINT",
    " that [source] allow lets through": " at its top",
    "give each daemon its own [source] cache": "give each its own --cache",
    "[source] cache": "--cache",
    "`hotreload reload --force` asks": "the same command asks",
}
"""What a daemon's settings say is said by options and variables here."""


def _for_a_command(words: str) -> str:
    for there, here in _SAID_HERE.items():
        words = words.replace(there, here)
    return words
