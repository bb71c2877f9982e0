"""The token everybody else's tools would use."""

import logging
from functools import cache

log = logging.getLogger("hotreload.sources")


def usual_token() -> str | None:
    """HF_TOKEN, or what `hf auth login` left; None when there is neither, or it cannot be read."""
    from huggingface_hub import get_token

    try:
        token: str | None = get_token()
    except (OSError, ValueError) as error:  # ValueError: it is not text
        _tell_once(getattr(error, "strerror", None) or "it is not text")
        return None
    return token


@cache
def _tell_once(why: str) -> None:
    """It is read for each request."""
    log.warning(
        "hub.no_token: what `hf auth login` left cannot be read; HF_TOKEN goes before it, and so "
        "does a token file",
        extra={"why": why},
    )
