"""The token that other Hugging Face tools of this user would use."""

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
    """Warn once: the token is read for each request."""
    todo = (
        "make the token file that `hf auth login` wrote readable for this user, or remove it; "
        "HF_TOKEN and [source] token_file come before it"
    )
    log.warning("hub.no_token", extra={"why": why, "todo": todo})
