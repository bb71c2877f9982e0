"""The words of a problem are short, whatever they tell of."""

import pytest

from hotreload.errors import show_value


@pytest.mark.parametrize("value", ["x" * 10**6, b"x" * 10**6, [["x" * 10**6]], 10**4000])
def test_a_value_is_shown_cut(value: object) -> None:
    assert len(show_value(value)) == 81
    assert show_value(value, 10).endswith("…")


def test_a_short_value_is_shown_whole() -> None:
    assert show_value("hot") == "'hot'"
    assert show_value(float("nan")) == "nan"
