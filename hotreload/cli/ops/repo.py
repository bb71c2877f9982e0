"""The options of `check`, `diff` and `swap` for `org/name@revision` on a Hugging Face Hub."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path


def add_repo_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the folder of downloads, and for the token."""
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", help="where downloads go (~/.cache/hotreload/hub)"
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="the file that holds the hub's token (HF_TOKEN, or what `hf auth login` left)",
    )


def cache_of(args: argparse.Namespace) -> Path:
    """Return the folder of downloads."""
    given: Path | None = args.cache
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return given or home / "hotreload" / "hub"


def token_of(args: argparse.Namespace) -> Callable[[], str | None]:
    """Return a function that reads the token."""
    from hotreload.settings.credentials import read_secret
    from hotreload.sources.hub.client import usual_token

    file: Path | None = args.token_file
    return usual_token if file is None else lambda: read_secret(file, "--token-file")
