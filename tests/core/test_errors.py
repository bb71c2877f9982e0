"""The words of a problem are short, whatever they tell of."""

import pytest

from hotreload.errors import shown


@pytest.mark.parametrize("value", ["x" * 10**6, b"x" * 10**6, [["x" * 10**6]], 10**4000])
def test_a_value_is_shown_cut(value: object) -> None:
    assert len(shown(value)) == 81
    assert shown(value, 10).endswith("…")


def test_a_short_value_is_shown_whole() -> None:
    assert shown("hot") == "'hot'"
    assert shown(float("nan")) == "nan"
