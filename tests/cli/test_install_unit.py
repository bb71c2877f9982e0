"""`hotreload install-unit`: the shipped units, with what this installation calls things."""

import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hotreload.cli import main, read_help
from hotreload.cli.ops import install_unit, machine, unit_settings, units
from hotreload.cli.ops.units import Installation, config_of, render
from hotreload.errors import ConfigError
from hotreload.facts.files import find_shipped
from hotreload.settings.load import Settings
from hotreload.settings.tables import fields_in

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
    names = {
        path.relative_to(find_shipped("systemd")).as_posix()
        for path in find_shipped("systemd").rglob("*.*")
    }
    assert {"hotreload.service", "hotreload.socket"} < names
    unchanged = rendered(
        Path("/etc/hotreload/hotreload.toml"),
        command=Path("/usr/local/bin/hotreload"),
        user="hotreload",
    )
    for name in ("hotreload.service", "hotreload.socket"):
        assert unchanged[name] == (find_shipped("systemd") / name).read_text()


def test_the_template_differs_from_the_service_by_what_each_instance_has_of_its_own() -> None:
    """So what is changed in one is changed in the other."""
    for kind, its_own in (
        (
            "service",
            {"Description", "Requires", "After", "ExecStart", "ExecReload", "StateDirectory"},
        ),
        ("socket", {"Description", "ListenStream"}),
    ):
        one, many = (_lines_of(f"hotreload{at}.{kind}") for at in ("", "@"))
        differ = [(a, b) for a, b in zip(one, many, strict=True) if a != b]
        assert {a.partition("=")[0] for a, _ in differ} == its_own
        assert all("%i" in b for _, b in differ)


def _lines_of(name: str) -> list[str]:
    lines = (find_shipped("systemd") / name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


SEVERAL = "[server]\nsocket = '/run/hotreload/chat.sock'\n[state]\ndirectory = '{state}'\n"


def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Path:
    """The settings of the instance `chat`, where this machine has them."""
    config = tmp_path / "hotreload.toml"
    monkeypatch.setattr(units, "DEFAULT_CONFIG", config)
    config.with_name("chat.toml").write_text(text)
    return config.with_name("chat.toml")


def test_an_instance_is_a_template_and_drop_ins_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = "/mnt/disk/chat"
    text = SEVERAL.format(state=own) + "[engine]\ndevice = 'cpu'\nmodel = '/srv/models/a b'\n"
    instance(tmp_path, monkeypatch, text)
    there = ["--prefix", str(tmp_path), "--exec", str(COMMAND), "--user", "llm"]
    assert main(["install-unit", "--instance", "chat", *there]) == 0
    files = tmp_path / "etc/systemd/system"
    assert {path.relative_to(files).as_posix() for path in files.rglob("*.*")} == {
        "hotreload@.service",
        "hotreload@.socket",
        "hotreload@chat.service.d",
        *(f"hotreload@chat.service.d/{n}.conf" for n in ("10-devices", "15-mounts", "30-paths")),
    }
    service = (files / "hotreload@.service").read_text()
    assert f"ExecStart={COMMAND} serve --config /etc/hotreload/%i.toml\n" in service
    assert "User=llm\nGroup=llm\n" in service
    assert "ListenStream=/run/hotreload/%i.sock\n" in (files / "hotreload@.socket").read_text()
    drop_ins = files / "hotreload@chat.service.d"
    assert f"ReadWritePaths={own}\n" in (drop_ins / "30-paths.conf").read_text()
    told = capsys.readouterr()
    assert "systemctl enable --now hotreload@chat.socket hotreload@chat.service\n" in told.out
    assert f"install -d -m 0750 -o llm -g llm {own}\n" in told.out
    assert "[metrics] address is not set" in told.err


def test_the_folder_that_systemd_makes_for_an_instance_is_no_other_instances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for state, is_made in (("/var/lib/hotreload/chat", True), ("/var/lib/hotreload/else", False)):
        config = instance(tmp_path, monkeypatch, SEVERAL.format(state=state))
        paths = rendered(config, instance="chat").get("30-paths.conf", "")
        assert ("ReadWritePaths" not in paths) is is_made


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", r"chat.toml: \[server\] socket must be '/run/hotreload/chat.sock'"),
        ("[server]\nsocket = '/run/s'\n", r"\[server\] socket must be"),
        (SEVERAL.partition("[state]")[0], r"\[state\] directory must be one of its own"),
        (SEVERAL.format(state="/var/lib/hotreload"), r"such as '/var/lib/hotreload/chat'"),
    ],
)
def test_an_instance_that_would_meet_another_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, why: str
) -> None:
    config = instance(tmp_path, monkeypatch, text)
    with pytest.raises(ConfigError, match=why):
        rendered(config, instance="chat")


@pytest.mark.parametrize("name", ["a/b", "-x", "a b", "%n", "a@b"])
def test_what_can_name_no_instance_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="can name no instance"):
        config_of(name)


def test_what_the_settings_name_is_mounted_before_the_start(tmp_path: Path) -> None:
    text = (
        "[engine]\nmodel = '/srv/my models/a'\n[source]\npath = 'checkpoints'\n"
        "cache = '/srv/100%'\n[state]\ndirectory = '/mnt/state'\n"
    )
    mounts = rendered(settings(tmp_path, text))["15-mounts.conf"]
    wanted = f'"/srv/my models/a" {tmp_path}/checkpoints "/srv/100%%" /mnt/state'
    assert f"[Unit]\nRequiresMountsFor={wanted}\n" in mounts
    assert "15-mounts.conf" not in rendered(tmp_path / "none")


def test_limits_on_memory_are_written_when_they_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "accelerators", lambda: [Path("/dev/accel0")])
    (tmp_path / "model").mkdir()
    with (tmp_path / "model" / "model.safetensors").open("wb") as weights:
        weights.truncate(16 * 2**30)
    config = settings(tmp_path, "[engine]\nmodel = 'model'\n")
    install = ["install-unit", "--prefix", str(tmp_path), "--config", str(config)]
    install += ["--exec", str(COMMAND)]
    memory = tmp_path / "etc/systemd/system/hotreload.service.d/40-memory.conf"
    assert main([*install, "--limit-memory"]) == 0
    assert f"[Service]\nMemoryHigh={24 * 2**30}\nMemoryMax={40 * 2**30}\n" in memory.read_text()
    assert main(install) == 0
    assert not memory.exists()
    monkeypatch.setattr(machine, "accelerators", list)
    capsys.readouterr()
    assert main([*install, "--limit-memory"]) == 78
    assert "on a CPU the KV pool is host memory too" in capsys.readouterr().err


def test_units_name_the_command_the_user_the_settings_and_the_socket(tmp_path: Path) -> None:
    config = settings(tmp_path, "[server]\nsocket = 'run/s'\n")
    files = rendered(config)
    service, socket = files["hotreload.service"], files["hotreload.socket"]
    assert f"ExecStart=/opt/hr/bin/hotreload serve --config {config}\n" in service
    assert f"ExecReload=/opt/hr/bin/hotreload check-config --quiet {config}\n" in service
    assert f"ExecReload=/opt/hr/bin/hotreload reload --wait --config {config}\n" in service
    assert "User=llm\nGroup=llm\n" in service
    assert "/usr/local/bin" not in service
    assert f"ListenStream={tmp_path}/run/s\n" in socket
    assert f"ListenStream={tmp_path}/run/s.look\n" in socket
    assert "SocketUser=root\nSocketGroup=llm\n" in socket


ODD = 'my tools\' "100%" $HOME ${x} \\\\ [a]* ü'
"""Every sign that some line of a unit gives a meaning to."""
BY_SHELL = """/bin/sh -c 'exec "$$0" "$$@"'"""


def test_paths_are_written_as_each_line_of_a_unit_reads_them(tmp_path: Path) -> None:
    folder = tmp_path / ODD
    folder.mkdir()
    config = settings(folder, "[server]\nsocket = 's'\n[state]\ndirectory = 'state'\n")
    config.write_text(config.read_text() + "[source]\nkind = 'huggingface'\ntoken_file = '100%'\n")
    files = rendered(config, command=folder / "hr")
    escaped = str(folder).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    in_command = escaped.replace("$", "$$")
    for line in (
        f'ExecStart={BY_SHELL} "{in_command}/hr" serve --config "{in_command}/hotreload.toml"',
        f'ExecReload={BY_SHELL} "{in_command}/hr" reload --wait '
        f'--config "{in_command}/hotreload.toml"',
    ):
        assert line in files["hotreload.service"].splitlines()
    in_whole = str(folder).replace("%", "%%")
    assert f"ListenStream={in_whole}/s" in files["hotreload.socket"].splitlines()
    assert f"LoadCredential=100%%:{in_whole}/100%%" in files["20-hub.conf"].splitlines()
    assert f'ReadWritePaths="{escaped}/state"' in files["30-paths.conf"].splitlines()


@pytest.mark.parametrize("name", [ODD, "my tools", "100% $HOME ${x} [a]* ü"])
@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd: apt-get install systemd"
)
def test_systemd_finds_nothing_wrong_with_units_of_odd_paths(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    at = tmp_path_factory.mktemp("u")  # a socket's path has room for 107 bytes
    folder = at / name
    folder.mkdir()
    shutil.copy("/bin/true", folder / "hotreload")  # a command that is not there is a complaint
    config = settings(folder, "[server]\nsocket = 's'\n[state]\ndirectory = 'state'\n")
    files = rendered(config, command=folder / "hotreload", user="root")
    for unit in ("hotreload.service", "hotreload.socket"):
        (at / unit).write_text(files[unit])
    drop_in = at / "hotreload.service.d" / "30-paths.conf"
    drop_in.parent.mkdir()
    drop_in.write_text(files["30-paths.conf"])
    told = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", at / "hotreload.service"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{at}:"},
    )
    complaints = [line for line in told.stderr.splitlines() if "hotreload" in line]
    assert (told.returncode, complaints) == (0, [])


@pytest.mark.parametrize("name", ["a\nExecStart=", "\x1b[1m", "\udcff"])
def test_what_no_unit_can_hold_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="has characters that no unit can hold"):
        rendered(tmp_path / "none", command=tmp_path / name)


@pytest.mark.parametrize("user", ["a b", "%n", "x\nUser=root", ""])
def test_what_is_no_users_name_is_refused(tmp_path: Path, user: str) -> None:
    with pytest.raises(ConfigError, match="is no name of a user"):
        rendered(tmp_path / "none", user=user)


@pytest.mark.parametrize("name", ["s\\\\", "s "])
def test_a_socket_that_would_run_into_the_next_line_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="ends in a character"):
        rendered(settings(tmp_path, f'[server]\nsocket = "{name}"\n'))


def test_the_devices_found_are_let_in_by_path(tmp_path: Path) -> None:
    nodes = [Path("/dev/accel0"), Path("/dev/accel7")]
    devices = rendered(tmp_path / "none", devices=nodes)["10-devices.conf"]
    allowed = [line for line in devices.splitlines() if line.startswith("DeviceAllow=")]
    assert allowed == ["DeviceAllow=/dev/accel0 rw", "DeviceAllow=/dev/accel7 rw"]
    assert "Environment=JAX_PLATFORMS=tpu,cpu" in devices
    assert "10-devices.conf" not in rendered(tmp_path / "none")


def test_on_a_gpu_jax_is_told_of_cuda(tmp_path: Path) -> None:
    nodes = [Path("/dev/nvidia0"), Path("/dev/nvidiactl")]
    devices = rendered(tmp_path / "none", devices=nodes)["10-devices.conf"]
    assert "DeviceAllow=/dev/nvidia0 rw\nDeviceAllow=/dev/nvidiactl rw\n" in devices
    assert "Environment=JAX_PLATFORMS=cuda,cpu\n" in devices


def test_an_engine_on_the_cpu_is_given_no_devices(tmp_path: Path) -> None:
    """With JAX_PLATFORMS=tpu,cpu beside [engine] device = "cpu" it would not start."""
    config = settings(tmp_path, "[engine]\ndevice = 'cpu'\n")
    devices = rendered(config, devices=[Path("/dev/accel0")])["10-devices.conf"]
    assert "DeviceAllow" not in devices
    assert "Environment=JAX_PLATFORMS=cpu\n" in devices


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[source]\npath = '/home/ml/checkpoints'", "ProtectHome=read-only"),
        ("[engine]\nmodel = '/tmp/model'", "PrivateTmp=no"),
        ("[server]\nupdate_roots = ['/tmp/runs']", "PrivateTmp=no"),
        ("[state]\ndirectory = '/mnt/disk/state'", "ReadWritePaths=/mnt/disk/state"),
        ("[source]\ncache = '/mnt/disk/hub'", "ReadWritePaths=/mnt/disk/hub"),
        ("[source]\ncache = '/home/ml/hub'", "ProtectHome=read-only"),
    ],
)
def test_folders_the_sandbox_would_hide_are_let_in(tmp_path: Path, text: str, line: str) -> None:
    # A settings file in a place that is not hidden itself.
    config = settings(tmp_path, text)
    paths = rendered(config)["30-paths.conf"]
    assert line in paths.splitlines()


def test_folders_that_systemd_makes_need_no_line(tmp_path: Path) -> None:
    made = "[state]\ndirectory = '/var/lib/hotreload/a'\n[source]\ncache = '/var/cache/hotreload'\n"
    paths = rendered(settings(tmp_path, made)).get("30-paths.conf", "")
    assert "ReadWritePaths" not in paths


def test_each_secret_of_a_hub_is_a_credential(tmp_path: Path) -> None:
    hub = "[source]\nkind = 'huggingface'\nrepo = 'a/b'\nwebhook = '/etc/keys/hook'\n"
    alone = rendered(settings(tmp_path, hub))["20-hub.conf"]
    assert "[Service]\nLoadCredential=hook:/etc/keys/hook\n" in alone
    assert "hf-token" not in alone
    both = rendered(settings(tmp_path, f"{hub}token_file = '/etc/keys/hub'\n"))["20-hub.conf"]
    assert "LoadCredential=hub:/etc/keys/hub\nLoadCredential=hook:/etc/keys/hook\n" in both


def test_secrets_whose_credentials_would_have_one_name_are_refused(tmp_path: Path) -> None:
    hub = "[source]\nkind = 'huggingface'\nrepo = 'a/b'\n"
    config = settings(tmp_path, f"{hub}token_file = '/a/secret'\nwebhook = '/b/secret'\n")
    with pytest.raises(ConfigError, match="/b/secret has the name of /a/secret"):
        rendered(config)


@pytest.mark.parametrize("source", ["path = '/srv'", "kind = 'huggingface'\nrepo = 'a/b'"])
def test_the_api_keys_are_a_credential_whatever_the_source_is(tmp_path: Path, source: str) -> None:
    keys = "[server]\napi_keys_file = '/etc/keys/api keys'\n"
    files = rendered(settings(tmp_path, f"[source]\n{source}\n{keys}"))
    assert "[Service]\nLoadCredential=api keys:/etc/keys/api keys\n" in files["25-api-keys.conf"]
    assert "/etc/keys" not in files.get("20-hub.conf", "")
    assert "25-api-keys.conf" not in rendered(settings(tmp_path, f"[source]\n{source}\n"))


def test_the_admin_keys_are_a_credential_beside_the_api_keys(tmp_path: Path) -> None:
    keys = "[server]\napi_keys_file = '/etc/keys/api'\nadmin_keys_file = '/etc/keys/admin'\n"
    loaded = rendered(settings(tmp_path, f"[source]\npath = '/srv'\n{keys}"))["25-api-keys.conf"]
    assert "LoadCredential=api:/etc/keys/api\nLoadCredential=admin:/etc/keys/admin\n" in loaded


def test_the_api_keys_may_not_have_the_name_of_the_token(tmp_path: Path) -> None:
    text = "[source]\nkind = 'huggingface'\nrepo = 'a/b'\ntoken_file = '/a/secret'\n"
    config = settings(tmp_path, f"{text}[server]\napi_keys_file = '/b/secret'\n")
    with pytest.raises(ConfigError, match=r"\[server\] api_keys_file: /b/secret has the name of"):
        rendered(config)


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


def test_folders_of_the_daemons_own_are_made_before_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = "[source]\nkind = 'huggingface'\nrepo = 'a/b'\ncache = '/mnt/hub'\n"
    config = settings(tmp_path, f"{hub}[state]\ndirectory = '/mnt/state'\n")
    there = ["--prefix", str(tmp_path), "--config", str(config), "--exec", str(COMMAND)]
    assert main(["install-unit", *there]) == 0
    told = capsys.readouterr().out
    for folder in ("/mnt/hub", "/mnt/state"):
        assert f"install -d -m 0750 -o hotreload -g hotreload {folder}\n" in told


def test_a_drop_in_that_no_longer_applies_is_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = ["--prefix", str(tmp_path), "--config", str(tmp_path / "hotreload.toml")]
    install = ["install-unit", *there, "--exec", str(COMMAND)]
    drop_ins = tmp_path / "etc/systemd/system/hotreload.service.d"
    settings(tmp_path, "[source]\nkind = 'huggingface'\nrepo = 'a/b'\n")
    assert main(install) == 0
    (drop_ins / "override.conf").write_text("# an operator's own\n")
    settings(tmp_path, "[source]\npath = '/srv'\n")
    capsys.readouterr()
    assert main([*install, "--dry-run"]) == 0
    assert f"### {drop_ins}/20-hub.conf\n# would be removed\n" in capsys.readouterr().out
    assert (drop_ins / "20-hub.conf").exists()
    assert main(install) == 0
    assert f"removed {drop_ins}/20-hub.conf" in capsys.readouterr().out
    assert not (drop_ins / "20-hub.conf").exists()
    assert (drop_ins / "override.conf").exists()


def all_in(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_what_was_written_is_taken_back_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "accelerators", lambda: [Path("/dev/accel0")])
    hub = "[source]\nkind = 'huggingface'\nrepo = 'a/b'\n[server]\napi_keys_file = 'api-keys'\n"
    config = settings(tmp_path, f"{hub}[state]\ndirectory = 'state'\n")
    (tmp_path / "api-keys").write_text("key")
    (tmp_path / "state").mkdir()
    (tmp_path / "state/state.json").write_text("{}")
    drop_ins = tmp_path / "etc/systemd/system/hotreload.service.d"
    drop_ins.mkdir(parents=True)
    (drop_ins / "override.conf").write_text("# an operator's own\n")
    (drop_ins.parent / "other.service").write_text("# of another program\n")
    before = all_in(tmp_path)
    there = ["install-unit", "--prefix", str(tmp_path)]
    assert main([*there, "--config", str(config), "--exec", str(COMMAND)]) == 0
    written = all_in(tmp_path)
    assert len(written) - len(before) == 9
    capsys.readouterr()
    assert main([*there, "--remove", "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert all_in(tmp_path) == written
    assert main([*there, "--remove"]) == 0
    assert all_in(tmp_path) == before
    for path in written.keys() - before.keys():
        assert f"### {tmp_path / path}\n# would be removed\n" in told
    assert "settings, keys, state and the service's user stay" in capsys.readouterr().out
    (drop_ins / "override.conf").unlink()
    assert main([*there, "--config", str(config), "--exec", str(COMMAND)]) == 0
    assert main([*there, "--remove"]) == 0
    assert not drop_ins.exists()
    capsys.readouterr()
    assert main([*there, "--remove"]) == 0
    assert "wrote nothing here for hotreload.service" in capsys.readouterr().out


def test_of_an_instance_nothing_goes_that_another_or_the_service_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = ["install-unit", "--prefix", str(tmp_path)]
    units_folder = tmp_path / "etc/systemd/system"

    def installed(*which: str) -> None:
        assert main([*there, "--exec", str(COMMAND), *which]) == 0

    def left() -> set[str]:
        return {each.name for each in (tmp_path / "etc").rglob("*.*") if each.is_file()}

    instance(tmp_path, monkeypatch, SEVERAL.format(state="/mnt/chat"))
    own = f"{SEVERAL.format(state='/mnt/code')}".replace("chat.sock", "code.sock")
    (tmp_path / "code.toml").write_text(own)
    (tmp_path / "bare.toml").write_text(own.replace("code", "bare"))
    for name in ("chat", "code"):
        installed("--instance", name)
    starts = units_folder / "sockets.target.wants" / "hotreload@bare.socket"
    starts.parent.mkdir()
    starts.symlink_to("../hotreload@.socket")
    template = {"hotreload@.service", "hotreload@.socket"}
    for name in ("chat", "code"):
        assert main([*there, "--instance", name, "--remove"]) == 0
        assert template | {"hotreload.conf"} <= left()
        assert not (units_folder / f"hotreload@{name}.service.d").exists()
    installed("--config", str(tmp_path / "none"))
    starts.unlink()
    assert main([*there, "--instance", "bare", "--remove"]) == 0
    its_own = left() - set(units.OUR_DROP_INS)
    assert its_own == {"hotreload.service", "hotreload.socket", "hotreload.conf"}
    assert main([*there, "--remove"]) == 0
    assert left() == set()


def test_what_is_written_for_another_place_is_not_started_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install_unit, "_go_on", lambda *_, **__: pytest.fail("it ran commands"))
    there = ["--prefix", str(tmp_path), "--exec", str(COMMAND)]
    assert main(["install-unit", *there, "--enable"]) == 2
    assert "--enable" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


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


def test_the_help_names_every_drop_in_of_ours() -> None:
    (listed,) = re.findall(r"our drop-ins \((.+?)\)", " ".join(read_help("install-unit").split()))
    assert listed.split(", ") == [name.removesuffix(".conf") for name in units.OUR_DROP_INS]


def test_every_secret_in_its_usual_place_is_kept_from_others() -> None:
    lines = (find_shipped("systemd") / "hotreload.tmpfiles").read_text().splitlines()
    closed = [line.split()[1] for line in lines if line.split()[2:] == ["0600", "root", "root"]]
    settings = dict(fields_in(Settings))
    usual = {settings[place].setting.example for place in unit_settings.SECRETS}
    assert usual == set(closed)


def test_a_wheel_ships_the_files() -> None:
    project = tomllib.loads((find_shipped("systemd").parent / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included == {folder: f"hotreload/{folder}" for folder in ("systemd", "docs")}
    assert all(find_shipped(folder).is_dir() for folder in included)


HOSTS = "[engine]\nnnodes = 2\ntp = 2\nnode_rank = {}\n"
HOSTS += "dist_init_addr = '10.0.0.1:29500'\njoin_secret_file = 'join-secret'\n"


def test_rank_0_waits_for_the_network_to_meet_the_others(tmp_path: Path) -> None:
    files = rendered(settings(tmp_path, HOSTS.format(0)))
    hosts = files["50-hosts.conf"]
    assert "After=network-online.target\n" in hosts
    assert "KillMode=control-group\n" in hosts
    assert f"LoadCredential=join-secret:{tmp_path / 'join-secret'}\n" in hosts
    assert "Requires=hotreload.socket\n" in files["hotreload.service"]
    assert "hotreload.socket" in files
    assert "50-hosts.conf" not in rendered(settings(tmp_path, ""))


def test_a_follower_is_started_by_no_client_and_comes_back_for_ever(tmp_path: Path) -> None:
    config = settings(tmp_path, HOSTS.format(1))
    files = rendered(config)
    assert "hotreload.socket" not in files
    service, hosts = files["hotreload.service"], files["50-hosts.conf"]
    assert "\nAfter=network.target\n" in service
    assert not [line for line in service.splitlines() if line.startswith("Requires=")]
    assert "hotreload), rank 1 of 2: follows rank 0\n" in hosts
    assert "StartLimitIntervalSec=0\n\n[Service]\nRestart=always\n" in hosts
    reload = hosts.partition("ExecReload=\n")[2]
    checks = f"ExecReload=/opt/hr/bin/hotreload check-config --quiet {config}\n"
    hup = "ExecReload=/bin/kill -HUP $MAINPID\n"
    secret = f"LoadCredential=join-secret:{tmp_path / 'join-secret'}\n"
    assert reload == f"{checks}{hup}RuntimeDirectory=hotreload\n{secret}"
    elsewhere = settings(tmp_path, f"{HOSTS.format(1)}[server]\nsocket = '/srv/h/s'\n")
    assert rendered(elsewhere)["50-hosts.conf"].endswith(f"ReadWritePaths=/srv/h\n{secret}")


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd: apt-get install systemd"
)
def test_systemd_finds_nothing_wrong_with_the_units_of_any_rank(tmp_path: Path, rank: int) -> None:
    shutil.copy("/bin/true", tmp_path / "hotreload")
    config = settings(tmp_path, HOSTS.format(rank))
    given = Installation(tmp_path / "hotreload", config, "root", ())
    for path, text in render(given):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    units = tmp_path / "etc/systemd/system"
    told = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", units / "hotreload.service"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{units}:"},
    )
    complaints = [line for line in told.stderr.splitlines() if "hotreload" in line]
    assert (told.returncode, complaints) == (0, [])


def test_a_host_that_becomes_a_follower_is_told_of_the_socket_that_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = ["--prefix", str(tmp_path), "--config", str(tmp_path / "hotreload.toml")]
    install = ["install-unit", *there, "--exec", str(COMMAND)]
    settings(tmp_path, HOSTS.format(0))
    assert main(install) == 0
    assert "is left" not in capsys.readouterr().err
    settings(tmp_path, HOSTS.format(1))
    assert main(install) == 0
    told = capsys.readouterr()
    assert "systemctl enable --now hotreload.service\n" in told.out
    assert "hotreload.socket is left: any client would start a daemon" in told.err


def test_no_instance_can_follow_another_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = SEVERAL.format(state="/var/lib/hotreload/chat")
    config = instance(tmp_path, monkeypatch, own + HOSTS.format(1))
    with pytest.raises(ConfigError, match="no instance can follow another host"):
        rendered(config, instance="chat")
    leads = rendered(instance(tmp_path, monkeypatch, own + HOSTS.format(0)), instance="chat")
    assert "50-hosts.conf" in leads
