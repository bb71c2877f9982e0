"""`hotreload doctor`: what it finds on machines that are not fit, and what it says to do."""

import json
import os
import socket
from pathlib import Path

import pytest

from hotreload.cli import machine, main
from hotreload.cli.checkup import (
    CHECKS,
    Facts,
    check_clock,
    check_device_free,
    check_devices,
    check_disk,
    check_folders,
    check_jax,
    check_socket,
    check_source_file_system,
    check_state_file_system,
    check_token,
)
from hotreload.cli.machine import User, accelerators, file_system, user_called
from hotreload.config import load
from hotreload.tiny import write_tiny

SOMEBODY = User("somebody", 4321, frozenset({4321}))


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """Readable by everybody, as pytest's own folders are not."""
    folder = Path(os.path.realpath(tmp_path))
    for each in (folder, *folder.parents):
        if each.stat().st_uid == os.geteuid() and each != Path("/"):
            each.chmod(each.stat().st_mode | 0o555)
    write_tiny(folder / "model", "served by step 1")
    (folder / "checkpoints").mkdir()
    (folder / "state").mkdir(mode=0o777)
    return folder


def sets(world: Path, *more: str) -> list[str]:
    return [
        f"engine.model={world / 'model'}",
        f"source.path={world / 'checkpoints'}",
        f"state.directory={world / 'state'}",
        f"server.socket={world / 's'}",
        *more,
    ]


def facts(world: Path, *more: str, user: User = SOMEBODY, devices: tuple[Path, ...] = ()) -> Facts:
    settings = load(None, sets(world, *more), {}).settings
    return Facts(settings, user, devices)


def test_a_machine_that_is_fit_exits_0_and_says_a_line_a_check(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"--set={one}" for one in sets(world)]
    assert main(["doctor", "--json", *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == list(CHECKS)
    assert {finding["verdict"] for finding in found.values()} <= {"ok", "warn"}
    assert all(f["todo"] for f in found.values() if f["verdict"] != "ok")


def test_without_settings_the_machine_is_looked_at_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("HOTRELOAD_CONFIG", str(tmp_path / "empty.toml"))
    (tmp_path / "empty.toml").touch()
    assert main(["doctor", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert list(found) == list(CHECKS)
    assert found["settings"]["verdict"] == "fail"
    assert "[engine] model: not set" in found["settings"]["says"]


def test_what_fails_exits_1_and_says_what_to_do(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"--set={one}" for one in sets(world, "source.path=/no/such")]
    assert main(["doctor", *arguments]) == 1
    said = capsys.readouterr().out
    assert "fail  folders      /no/such is no folder" in said
    assert "make it, or name another: /no/such" in said


def test_nodes_that_may_not_be_opened_are_named(world: Path) -> None:
    node = world / "accel0"
    node.touch(mode=0o600)
    closed = check_devices(facts(world, devices=(node,)))
    assert (closed.verdict, closed.says) == ("fail", f"somebody may not open {node}")
    assert f"chmod g+rw {node}" in closed.todo
    node.chmod(0o666)
    assert check_devices(facts(world, devices=(node,))).verdict == "ok"


def test_an_accelerator_that_is_wanted_and_absent_fails(world: Path) -> None:
    assert check_devices(facts(world, "engine.device=tpu")).verdict == "fail"
    assert check_devices(facts(world)).verdict == "ok"


def test_the_process_that_holds_a_device_is_named(world: Path) -> None:
    node = world / "accel0"
    with node.open("w"):
        held = check_device_free(facts(world, devices=(node,)))
    assert held.verdict == "warn"
    assert f"(pid {os.getpid()})" in held.says
    assert check_device_free(facts(world, devices=(node,))).verdict == "ok"


def test_only_numbered_nodes_make_an_accelerator(tmp_path: Path) -> None:
    (tmp_path / "vfio").mkdir()
    (tmp_path / "vfio" / "vfio").touch()
    assert accelerators(tmp_path) == []
    (tmp_path / "vfio" / "0").touch()
    (tmp_path / "accel1").touch()
    found = [str(node.relative_to(tmp_path)) for node in accelerators(tmp_path)]
    assert found == ["accel1", "vfio/0", "vfio/vfio"]


def test_jax_is_asked_in_a_process_of_its_own_and_only_on_demand(world: Path) -> None:
    asked = Facts(facts(world).settings, SOMEBODY, (), ask_jax=True)
    assert "cpu" in check_jax(asked).says.lower()
    assert check_jax(facts(world)).says.startswith("not asked")


def test_folders_closed_to_the_daemon_are_named(world: Path) -> None:
    (world / "checkpoints").chmod(0o700)
    assert "may not read" in check_folders(facts(world)).says
    (world / "checkpoints").chmod(0o755)
    (world / "state").chmod(0o755)
    found = check_folders(facts(world))
    assert (found.verdict, found.todo) == ("fail", f"chown somebody {world / 'state'}")


@pytest.mark.parametrize(
    ("kind", "verdict"), [("nfs4", "warn"), ("fuse.gcsfuse", "warn"), ("ext4", "ok")]
)
def test_remote_file_systems_are_told(
    world: Path, monkeypatch: pytest.MonkeyPatch, kind: str, verdict: str
) -> None:
    monkeypatch.setattr(machine, "file_system", lambda path: kind)
    assert check_source_file_system(facts(world)).verdict == verdict


def test_a_state_that_a_reboot_forgets_is_told(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "file_system", lambda path: "tmpfs")
    assert "a reboot forgets" in check_state_file_system(facts(world)).says


def test_the_nearest_mount_names_the_file_system(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "23 22 0:40 / /mnt/with\\040space rw - nfs4 server:/x rw\n"
        "24 22 0:41 / /mnt rw - xfs /dev/sdb rw\n"
    )
    assert file_system(Path("/mnt/with space/model"), mounts) == "nfs4"
    assert file_system(Path("/mnt/with"), mounts) == "xfs"
    assert file_system(Path("/srv"), mounts) == "ext4"


def test_a_socket_that_cannot_be_had_is_told(world: Path) -> None:
    assert check_socket(facts(world)).says == f"{world / 's'} is free"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(world / "s"))
        listener.listen()
        assert check_socket(facts(world)).says == f"{world / 's'} is listened on"
    (world / "s").unlink()
    (world / "s").write_text("in the way")
    assert check_socket(facts(world)).verdict == "fail"
    long = f"server.socket={world / ('x' * 120)}"
    assert check_socket(facts(world, long)).verdict == "fail"


def test_a_full_disk_is_told_before_the_start(world: Path) -> None:
    assert check_disk(facts(world)).verdict == "ok"
    with (world / "model" / "big.safetensors").open("wb") as sparse:
        sparse.truncate(1 << 43)
    found = check_disk(facts(world))
    assert (found.verdict, "8796.1 GB" in found.says) == ("fail", True)


def test_a_token_must_be_there_and_secret(world: Path) -> None:
    token = world / "token"
    hub = ("source.kind=huggingface", "source.repo=a/b", f"source.token_file={token}")
    settings = load(None, [*sets(world)[:1], *sets(world)[2:], *hub], {}).settings
    me = user_called(None)
    assert me is not None
    patient = Facts(settings, me, ())
    assert check_token(patient).verdict == "fail"
    token.write_text("hf_x")
    token.chmod(0o644)
    assert check_token(patient).todo == f"chmod 600 {token}"
    token.chmod(0o600)
    assert check_token(patient).verdict == "ok"


def test_checkpoints_from_the_future_are_told(world: Path) -> None:
    ahead = world / "checkpoints" / "step_1"
    ahead.mkdir()
    os.utime(ahead, (4e9, 4e9))
    assert "in the future" in check_clock(facts(world)).says
