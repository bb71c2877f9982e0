"""The tests' own helpers tell what was compared, as a test itself does, when an assert fails."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
# Each by its name: that of this package would come too late, it is being imported. Most folders
# have no __init__.py, so pkgutil does not know them.
pytest.register_assert_rewrite(
    *(f"tests.{each.stem}" for each in HERE.iterdir() if each.is_dir() or each.suffix == ".py")
)
