"""What only a probe finds is refused before anybody is answered by it, and no client sees any.

So is what a judge of one's own refuses: the daemon here has the sample feature beside its own.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hotreload.events import AnswersWithheld, SettingsRead
from hotreload.features import FEATURES
from hotreload.picture.rows import row
from hotreload.tiny import write_tiny
from hotreload.types import Outcome, Reason
from tests.engine.real import OVERFLOWS_ON, overflowing
from tests.integration.running import Running, one_daemon, one_daemon_marks, words
from tests.integration.streaming import ENGINE, Streaming, was_held
from tests.sample_feature import FROZEN_FEATURE

pytestmark = one_daemon_marks()

UNPROVEN = ("gibberish", "nan", "inf", "overflow")
PROBES = (
    "probe=[{prompt='Who serves?',contains='served'},"
    f"{{prompt='Who{OVERFLOWS_ON}serves?',contains='served'}}]"
)

running = one_daemon(ENGINE, PROBES, "checks.nonfinite=allow", features=(*FEATURES, FROZEN_FEATURE))


@pytest.mark.parametrize("damage", UNPROVEN)
async def test_bad_answers_are_given_to_nobody(running: Running, damage: str) -> None:
    async with Streaming(running, clients=4).on() as load:
        attempt = await running.attempted(damaged(running, damage))
    assert attempt.outcome is Outcome.REJECTED, attempt
    assert attempt.reason is not None
    assert attempt.reason.code == "probe"
    assert (attempt.rolled_back, attempt.pause_seconds) == (False, 0.0)
    assert load.failures == []
    assert load.wrong() == []
    assert {number for number, *_ in load.answers} == {1}
    assert not was_held(running)
    assert not [event for event in running.happened if isinstance(event, AnswersWithheld)]
    assert (await running.ask())["text"] == words(1)


def damaged(running: Running, damage: str) -> Path:
    """A checkpoint that passes the checks of its files."""
    number = 10 + UNPROVEN.index(damage)
    if damage != "overflow":
        return running.drop(number, damage)
    return overflowing(running.checkpoints / f"overflow_step_{number}", words(number))


# --- the sample feature --------------------------------------------------------------------------


def changed(running: Running, number: int, **fields: Any) -> Path:
    """A checkpoint that says these fields of its config.json are others."""
    aside = write_tiny(running.folder / f"step_{number}", words(number))
    config = aside / "config.json"
    config.write_text(json.dumps(json.loads(config.read_bytes()) | fields))
    return aside.rename(running.checkpoints / aside.name)


async def freeze(running: Running, monkeypatch: pytest.MonkeyPatch, *fields: str) -> SettingsRead:
    """Have SIGHUP read settings that freeze these fields."""
    read = partial(running.with_settings, f"frozen.fields={json.dumps(fields)}")
    monkeypatch.setattr(running.daemon.live_settings, "read", read)
    before = len(settings_read(running))
    running.daemon.look_anew()
    await running.until(lambda: len(settings_read(running)) > before)
    return settings_read(running)[-1]


def settings_read(running: Running) -> list[SettingsRead]:
    return [each for each in running.happened if isinstance(each, SettingsRead)]


def samples(running: Running, *names: str) -> set[str]:
    page = running.daemon.metrics.render().decode().splitlines()  # a scrape may be a second old
    return {line for line in page if line.startswith(names)}


async def test_a_feature_of_ones_own_judges_tells_and_is_asked(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = ("hotreload_frozen", 'hotreload_rejections_total{reason="frozen_field"}')
    async with running.client() as client:

        async def get(route: str) -> Any:
            return (await client.get(route)).json()

        assert samples(running, *own) == {
            "hotreload_frozen_fields 0.0",
            'hotreload_rejections_total{reason="frozen_field"} 0.0',
        }
        read = await freeze(running, monkeypatch, "torch_dtype", "use_cache")
        assert read == SettingsRead(("[frozen] fields",))
        refused = await running.attempted(changed(running, 20, use_cache=False))
        assert refused.outcome is Outcome.REJECTED
        why = "config.json changes use_cache"
        assert refused.reason == Reason("frozen_field", f"{why} ([frozen] fields)")
        assert (await running.ask())["text"] == words(1)
        assert samples(running, *own) == {
            "hotreload_frozen_fields 2.0",
            'hotreload_rejections_total{reason="frozen_field"} 1.0',
        }

        told = {"fields": ["torch_dtype", "use_cache"], "refused": 1}
        status = await get("/status")
        assert status["frozen"] == told
        assert row("frozen", "torch_dtype, use_cache") in status["rows"]
        assert await get("/frozen") == told
        last = (await get("/history"))["attempts"][0]
        assert (last["label"], last["frozen_changed"]) == ("step_20", ["use_cache"])
        assert why in last["told"]["notes"]
        described = (await get("/openapi.json"))["paths"]["/frozen"]["get"]
        assert described["summary"] == "Frozen fields."
        assert samples(running, "hotreload_requests_total") & {
            'hotreload_requests_total{code="200",route="/frozen"} 1.0'
        }

        await freeze(running, monkeypatch, "torch_dtype")
        live = await running.attempted(changed(running, 21, use_cache=False))
        assert live.outcome is Outcome.LIVE
        assert (await running.ask())["text"] == words(21)
        last = (await get("/history"))["attempts"][0]
        assert (last["label"], last["frozen_changed"]) == ("step_21", [])
