"""Where the files lie that are shipped beside the package."""

from pathlib import Path

import hotreload


def shipped(folder: str) -> Path:
    """The folder of this name as it is shipped: in the package, or beside it in a checkout."""
    package = Path(hotreload.__file__).parent
    inside = package / folder
    return inside if inside.is_dir() else package.parent / folder
