"""Finds the files that are shipped beside the package."""

from pathlib import Path

import hotreload


def find_shipped(folder: str) -> Path:
    """Return the folder of this name: inside the installed package, or beside it in a checkout."""
    package = Path(hotreload.__file__).parent
    inside = package / folder
    return inside if inside.is_dir() else package.parent / folder
