"""The example of a feature is short, and without it a daemon knows nothing of it.

A real daemon has it in tests/integration/test_unproven.py.
"""

from pathlib import Path

import pytest

import tests.sample_feature
from hotreload.errors import ConfigError, NotJudged
from hotreload.features import FEATURES
from hotreload.settings.load import load
from hotreload.types import Revision
from tests.fakes import FakeEngine, Steps
from tests.features.given import given
from tests.sample_feature import FROZEN_FEATURE, FrozenSettings

FOLDER = Path(tests.sample_feature.__file__).parent
SET = ["frozen.fields=['torch_dtype']"]


def test_it_is_short() -> None:
    modules = [*FOLDER.glob("*.py")]
    assert len(modules) <= 3
    assert sum(len(each.read_text().splitlines()) for each in modules) <= 150


def test_its_settings_are_refused_where_no_daemon_has_it() -> None:
    assert load(None, SET, {}, [FROZEN_FEATURE]).settings.of(FrozenSettings).fields
    with pytest.raises(ConfigError, match="frozen"):
        load(None, SET, {}, FEATURES)


def test_nothing_is_loaded_where_it_cannot_say_what_is_served() -> None:
    [judge] = FROZEN_FEATURE.begin(given(load(None, SET, {}, [FROZEN_FEATURE]).settings)).judges()
    with pytest.raises(NotJudged, match=r"set \[engine\] model"):
        judge.check_can_judge(FakeEngine(Steps(), Revision("a")))
