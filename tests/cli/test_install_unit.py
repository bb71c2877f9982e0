"""`hotreload install-unit`: the shipped units, with what this installation calls things."""

import stat
import sys
import tomllib
from pathlib import Path

import pytest

from hotreload.cli import main
from hotreload.cli.units import Installation, render, shipped

COMMAND = Path(sys.executable)
"""Any file that can be run will do."""


def rendered(config: Path, **more: object) -> dict[str, str]:
    given = {"command": Path("/opt/hr/bin/hotreload"), "user": "llm", "devices": (), **more}
    installation = Installation(config=config, **given)  # type: ignore[arg-type]
    return {path.name: text for path, text in render(installation)}


def settings(folder: Path, text: str) -> Path:
    file = folder / "hotreload.toml"
    file.write_text(text)
    return file


def test_the_shipped_files_are_units_as_they_are() -> None:
    names = {path.relative_to(shipped()).as_posix() for path in shipped().rglob("*.*")}
    assert {"hotreload.service", "hotreload.socket"} < names
    unchanged = rendered(
        Path("/etc/hotreload/hotreload.toml"),
        command=Path("/usr/local/bin/hotreload"),
        user="hotreload",
    )
    for name in ("hotreload.service", "hotreload.socket"):
        assert unchanged[name] == (shipped() / name).read_text()


def test_units_name_the_command_the_user_the_settings_and_the_socket(tmp_path: Path) -> None:
    config = settings(tmp_path, "[server]\nsocket = 'run/s'\n")
    files = rendered(config)
    service, socket = files["hotreload.service"], files["hotreload.socket"]
    assert f"ExecStart=/opt/hr/bin/hotreload serve --config {config}\n" in service
    assert f"ExecReload=/opt/hr/bin/hotreload reload --wait --config {config}\n" in service
    assert "User=llm\nGroup=llm\n" in service
    assert "/usr/local/bin" not in service
    assert f"ListenStream={tmp_path}/run/s\n" in socket
    assert "SocketUser=root\nSocketGroup=llm\n" in socket


def test_the_devices_found_are_let_in_by_path(tmp_path: Path) -> None:
    nodes = [Path("/dev/accel0"), Path("/dev/accel7")]
    devices = rendered(tmp_path / "none", devices=nodes)["10-devices.conf"]
    allowed = [line for line in devices.splitlines() if line.startswith("DeviceAllow=")]
    assert allowed == ["DeviceAllow=/dev/accel0 rw", "DeviceAllow=/dev/accel7 rw"]
    assert "Environment=JAX_PLATFORMS=tpu,cpu" in devices
    assert "10-devices.conf" not in rendered(tmp_path / "none")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[source]\npath = '/home/ml/checkpoints'", "ProtectHome=read-only"),
        ("[engine]\nmodel = '/tmp/model'", "PrivateTmp=no"),
        ("[state]\ndirectory = '/mnt/disk/state'", "ReadWritePaths=/mnt/disk/state"),
    ],
)
def test_folders_the_sandbox_would_hide_are_let_in(tmp_path: Path, text: str, line: str) -> None:
    # A settings file in a place that is not hidden itself.
    config = settings(tmp_path, text)
    paths = rendered(config)["30-paths.conf"]
    assert line in paths.splitlines()


def test_following_a_hub_passes_its_token_as_a_credential(tmp_path: Path) -> None:
    hub = "[source]\nkind = 'huggingface'\nrepo = 'a/b'\n"
    public = rendered(settings(tmp_path, hub))["20-hub.conf"]
    assert "network-online.target" in public
    assert "LoadCredential" not in public
    private = rendered(settings(tmp_path, f"{hub}token_file = '/etc/keys/hub'\n"))["20-hub.conf"]
    assert "LoadCredential=hub:/etc/keys/hub\n" in private
    folder = rendered(settings(tmp_path, "[source]\npath = '/srv'\n"))
    assert "20-hub.conf" not in folder


def test_files_are_written_whole_beneath_the_prefix_and_what_comes_next_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = ["--prefix", str(tmp_path), "--config", str(tmp_path / "c"), "--exec", str(COMMAND)]
    assert main(["install-unit", *there]) == 0
    units = tmp_path / "etc/systemd/system"
    assert stat.S_IMODE((units / "hotreload.service").stat().st_mode) == 0o644
    assert (tmp_path / "etc/sysusers.d/hotreload.conf").exists()
    assert list(tmp_path.rglob("*.new")) == []
    told = capsys.readouterr()
    assert "systemctl enable --now hotreload.socket hotreload.service" in told.out
    assert f"{tmp_path}/c is not there" in told.err


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = ["--prefix", str(tmp_path / "new"), "--exec", str(COMMAND), "--dry-run"]
    assert main(["install-unit", *there]) == 0
    assert not (tmp_path / "new").exists()
    assert "[Service]" in capsys.readouterr().out


def test_a_prefix_that_cannot_be_written_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "etc").write_text("a file in the way")
    assert main(["install-unit", "--prefix", str(tmp_path), "--exec", str(COMMAND)]) == 78
    assert "run it as root, or with --prefix" in capsys.readouterr().err


def test_a_command_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install-unit", "--dry-run", "--exec", "/no/such"]) == 78
    assert "--exec" in capsys.readouterr().err


def test_a_wheel_ships_the_files() -> None:
    project = tomllib.loads((shipped().parent / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included[shipped().name] == "hotreload/systemd"
