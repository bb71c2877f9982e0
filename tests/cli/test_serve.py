"""What `serve` says of itself when it starts."""

from pathlib import Path

from hotreload import __version__
from hotreload.cli.serve import _start
from hotreload.settings.load import load


def test_the_start_tells_version_addresses_and_who_decided_what_but_no_value(
    tmp_path: Path,
) -> None:
    file = tmp_path / "hotreload.toml"
    file.write_text('[server]\ntcp = "127.0.0.1:8000"\n[source]\npath = "secret-place"\n')
    environ = {"HOTRELOAD__RELOAD__DRAIN_TIMEOUT": "7"}
    said = _start(load(file, ["log.level=debug"], environ), file)
    assert (said["version"], said["config"]) == (__version__, str(file))
    assert (said["tcp"], said["metrics"]) == ("127.0.0.1:8000", "127.0.0.1:9479")
    assert said["overridden"] == {
        "reload.drain_timeout": "env HOTRELOAD__RELOAD__DRAIN_TIMEOUT",
        "log.level": "--set",
    }
    assert "secret-place" not in str(said)
