"""The tests' own helpers tell what was compared, as a test itself does, when an assert fails."""

import pkgutil

import pytest

pytest.register_assert_rewrite(*(f"tests.{each.name}" for each in pkgutil.iter_modules(__path__)))
