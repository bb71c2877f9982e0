"""What `serve` says of itself when it starts."""

from pathlib import Path

import pytest

from hotreload import __version__
from hotreload.cli.serve import _serve, _start_facts
from hotreload.daemon import Daemon
from hotreload.features import FEATURES
from hotreload.features.compare.settings import CompareSettings
from hotreload.settings.load import load


def test_the_start_tells_version_addresses_and_who_decided_what_but_no_value(
    tmp_path: Path,
) -> None:
    file = tmp_path / "hotreload.toml"
    file.write_text('[server]\ntcp = "127.0.0.1:8000"\n[source]\npath = "secret-place"\n')
    environ = {"HOTRELOAD__RELOAD__DRAIN_TIMEOUT": "7"}
    said = _start_facts(load(file, ["log.level=debug"], environ, FEATURES), file)
    assert (said["version"], said["config"]) == (__version__, str(file))
    assert (said["tcp"], said["metrics"]) == ("127.0.0.1:8000", "127.0.0.1:9479")
    assert said["overridden"] == {
        "reload.drain_timeout": "env HOTRELOAD__RELOAD__DRAIN_TIMEOUT",
        "log.level": "--set",
    }
    assert "secret-place" not in str(said)


async def test_a_daemon_gets_the_questions_that_the_settings_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "2 + 2 ="}')
    places = {"engine.model": "m", "source.path": "c", "state.directory": "s"}
    sets = [f"{name}={tmp_path / place}" for name, place in places.items()]
    sets += [f"compare.corpus={tmp_path / 'prompts.jsonl'}"]
    settings = load(None, sets, {}, FEATURES).settings
    begun: list[Daemon] = []

    async def run(daemon: Daemon) -> int:
        begun.append(daemon)
        return 7

    monkeypatch.setattr(Daemon, "run", run)
    assert await _serve(settings, lambda: settings) == 7
    asked = begun[0].settings.of(CompareSettings).questions
    assert [each.prompt for each in asked] == ["2 + 2 ="]
