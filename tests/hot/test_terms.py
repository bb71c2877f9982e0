"""What a program decides is checked as the daemon's settings of the same names are."""

from dataclasses import fields
from functools import partial
from typing import Any

import pytest
from pydantic import ValidationError

from hotreload import HotTerms
from hotreload.checkpoint.settings import CheckSettings
from hotreload.core.rules import KeepPrevious, ReloadSettings, Rules
from hotreload.engine.options import EngineSettings
from hotreload.errors import ConfigError
from hotreload.settings.tables import fields_of, read_table

SECTIONS = (ReloadSettings, CheckSettings, EngineSettings)
VALUES: tuple[Any, ...] = (
    *("drain", "reject", "host", "upstream", "typo", 0, 1, 2, 3, 4, -1, 0.5, 2.5, True, None),
    *(float("nan"), float("inf"), (), ("*.bias",)),
)


def taken(make: Any, name: str, value: Any) -> bool:
    try:
        make({name: value})
    except (ConfigError, ValidationError):
        return False
    return True


@pytest.mark.parametrize("name", [each.name for each in fields(HotTerms)])
def test_what_a_setting_refuses_is_refused(name: str) -> None:
    section = next(each for each in SECTIONS if name in fields_of(each))
    here = [value for value in VALUES if taken(lambda given: HotTerms(**given), name, value)]
    # A program says for how long: nobody asks its requests how long they may take.
    there = [value for value in VALUES if taken(partial(read_table, section), name, value)]
    assert here == [each for each in there if (name, each) != ("finish_timeout", None)]


def test_each_rule_that_a_program_may_set_reaches_its_attempts() -> None:
    both = {each.name for each in fields(HotTerms)} & {each.name for each in fields(Rules)}
    values: dict[str, Any] = dict.fromkeys(both, 0.5)
    values |= {"mode": "drain", "memory": "host", "keep_previous": "host", "sets": 3}
    rules = HotTerms(**values).rules
    assert {name: getattr(rules, name) for name in both} == values
    assert rules.keep_previous is KeepPrevious.HOST


def test_all_that_is_wrong_is_said() -> None:
    with pytest.raises(ConfigError) as refused:
        HotTerms(sets=4, mode="typo")  # type: ignore[arg-type]
    assert refused.value.findings == (
        "HotTerms(mode=…) must be 'overlap' or 'drain', not 'typo'",
        "HotTerms(sets=…) must be 2 or 3 or 'auto', not 4",
    )
