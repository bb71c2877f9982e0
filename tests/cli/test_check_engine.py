"""`hotreload doctor` on the engine: what is installed, what it can do, and whether it imports."""

import pytest

from hotreload.cli.ops.doctor_checks import checkup as checks
from hotreload.cli.ops.doctor_checks.advice import Facts
from hotreload.cli.ops.doctor_checks.checkup import check_engine
from hotreload.cli.ops.machine import User
from hotreload.features import FEATURES
from hotreload.settings.load import load

FACTS = Facts(load(None, [], {}, FEATURES).settings, User("somebody", 4321, frozenset()), ())


def test_a_tested_engine_is_fit_and_says_what_it_can() -> None:
    found = check_engine(FACTS)
    assert found.verdict == "ok"
    assert "; it has " in found.says or "; it lacks " in found.says


@pytest.mark.parametrize(
    ("script", "verdict", "words"),
    [
        ("import os", "warn", "and it can be imported"),
        ("raise AttributeError('jax.core has no Effect')", "fail", "jax.core has no Effect"),
        ("import os; os._exit(3)", "fail", "it died"),
        ("import time; time.sleep(60)", "fail", "does not end"),
    ],
)
def test_an_untested_engine_is_tried(
    monkeypatch: pytest.MonkeyPatch, script: str, verdict: str, words: str
) -> None:
    monkeypatch.setattr(checks, "why_untested", lambda: "jax 99 is installed")
    monkeypatch.setattr(checks, "IMPORT_ENGINE", script)
    monkeypatch.setattr(checks, "IMPORT_SECONDS", 0.5 if "sleep" in script else 60.0)
    found = check_engine(FACTS)
    assert (found.verdict, words in found.says) == (verdict, True), found
    assert "jax 99 is installed" in found.says
    assert "pip install" in found.todo


def test_the_import_that_is_tried_is_that_of_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "why_untested", lambda: "it is new")
    assert check_engine(FACTS).verdict == "warn"


def test_no_engine_at_all_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "why_untested", lambda: "sglang-jax is not installed")
    monkeypatch.setattr(checks, "installed_version", lambda name: None)
    assert check_engine(FACTS).verdict == "fail"
