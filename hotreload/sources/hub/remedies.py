"""Advice for when a hub or its cache refuses: settings for a daemon, options for a command."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Remedies:
    """The ends of error messages; the defaults are a daemon's, and name its settings."""

    endpoint: str = "check [source] endpoint"
    revision: str = "check [source] revision"
    repo: str = "check [source] repo and token_file"
    token: str = "set [source] token_file"
    limited: str = "a larger [source] poll asks less"
    files: str = "that [source] allow lets through"
    cache: str = "[source] cache"
    again: str = "`hotreload reload --force`"


BY_SETTINGS = Remedies()
BY_OPTIONS = Remedies(
    endpoint="check HF_ENDPOINT",
    revision="check what stands behind the @",
    repo="check the name, and --token-file or HF_TOKEN",
    token="give --token-file or set HF_TOKEN",
    limited="run it again then",
    files="at its top",
    cache="--cache",
    again="the same command",
)
"""The ends of messages of `hotreload check` and `swap`."""
