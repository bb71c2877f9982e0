"""`hotreload doctor`: what it finds on machines that are not fit, and what it says to do."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotreload.cli import main, read_help
from hotreload.cli.ops import doctor, machine
from hotreload.cli.ops.doctor_checks import checkup
from hotreload.cli.ops.doctor_checks import places as check_places
from hotreload.cli.ops.doctor_checks import room as check_room
from hotreload.cli.ops.doctor_checks.advice import Check, Facts
from hotreload.cli.ops.doctor_checks.checkup import (
    CHECKS,
    check_device_free,
    check_devices,
    check_jax,
    check_ports,
    check_socket,
    check_user,
)
from hotreload.cli.ops.doctor_checks.places import (
    check_api_keys,
    check_clock,
    check_folders,
    check_model,
    check_source_file_system,
    check_state_file_system,
    check_state_free,
)
from hotreload.cli.ops.doctor_checks.room import (
    check_cache,
    check_device_memory,
    check_disk,
    check_inotify,
    check_memory,
    check_memory_limits,
    check_open_files,
)
from hotreload.cli.ops.machine import User, accelerators, unknown_groups
from hotreload.engine import versions
from hotreload.engine.weights.memory import headroom
from hotreload.engine.weights.memory.host_memory import free_in_groups
from hotreload.facts import holders, upstream
from hotreload.facts.holders import Process
from hotreload.features import FEATURES
from hotreload.life.saved.state_lock import StateFolder
from hotreload.settings.load import load
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
    (folder / "state").mkdir()
    (folder / "state").chmod(0o777)
    return folder


def sets(world: Path, *more: str) -> list[str]:
    return [
        f"engine.model={world / 'model'}",
        f"source.path={world / 'checkpoints'}",
        f"state.directory={world / 'state'}",
        f"server.socket={world / 's'}",
        "metrics.address=''",  # who runs beside the tests may have the usual port
        *more,
    ]


def facts(
    world: Path, *more: str, user: User = SOMEBODY, devices: tuple[Path, ...] = (), **given: Any
) -> Facts:
    settings = load(None, sets(world, *more), {}, FEATURES).settings
    return Facts(settings, user, devices, **given)


def of_hub(world: Path, *more: str, user: User = SOMEBODY, model: bool = False) -> Facts:
    """Facts of a daemon that follows a hub, without a model of its own."""
    kept = [one for one in sets(world) if "source.path" not in one and "engine.model" not in one]
    named = [f"engine.model={world / 'model'}"] if model else []
    hub = ["source.kind=huggingface", "source.repo=a/b", *more]
    settings = load(None, [*kept, *named, *hub], {}, FEATURES).settings
    return Facts(settings, user, (), units=(world / "units",))


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
    on_cpu = check_devices(facts(world))
    assert (on_cpu.verdict, upstream.XLA_FLAGS["cpu"][0] in on_cpu.says) == ("ok", True)


def test_of_a_gpu_it_says_which_flags_xla_gets_and_why(world: Path) -> None:
    node = world / "nvidia0"
    node.touch()
    node.chmod(0o666)
    said = check_devices(facts(world, "engine.device=gpu", devices=(node,)))
    assert said.verdict == "ok"
    assert all(flag in said.says for flag in upstream.XLA_FLAGS["gpu"])
    assert "autotuner ended an engine" in said.says
    assert check_devices(facts(world, "engine.device=gpu")).verdict == "fail"


def test_the_process_that_holds_a_device_is_named(world: Path) -> None:
    node = world / "accel0"
    with node.open("w"):
        held = check_device_free(facts(world, devices=(node,)))
    assert held.verdict == "warn"
    assert f"(pid {os.getpid()})" in held.says
    assert check_device_free(facts(world, devices=(node,))).verdict == "ok"


def test_the_daemon_that_holds_its_device_is_told_from_a_stranger(world: Path) -> None:
    node = world / "accel0"
    with node.open("w") as opened, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(world / "s"))
        listener.listen()
        held = check_device_free(facts(world, devices=(node,)))
        assert (held.verdict, "the daemon itself, " in held.says) == ("ok", True), held
        other = subprocess.Popen(
            ["sh", "-c", "echo; read wait"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=opened,
        )
        with other:
            assert other.stdout is not None
            other.stdout.readline()
            held = check_device_free(facts(world, devices=(node,)))
            other.communicate()
    assert (held.verdict, held.says) == ("warn", f"held by {node}: sh (pid {other.pid})")


def test_only_numbered_nodes_make_an_accelerator(tmp_path: Path) -> None:
    (tmp_path / "vfio").mkdir()
    (tmp_path / "vfio" / "vfio").touch()
    assert accelerators(tmp_path, tmp_path) == []
    (tmp_path / "vfio" / "0").touch()
    (tmp_path / "accel1").touch()
    found = [str(node.relative_to(tmp_path)) for node in accelerators(tmp_path, tmp_path)]
    assert found == ["accel1", "vfio/0", "vfio/vfio"]


def test_the_nodes_that_a_gpu_is_driven_through_make_none(tmp_path: Path) -> None:
    for name in ("nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert accelerators(tmp_path, tmp_path) == []
    (tmp_path / "nvidia1").touch()
    found = [node.name for node in accelerators(tmp_path, tmp_path)]
    assert found == ["nvidia1", "nvidiactl", "nvidia-uvm"]


def test_a_vfio_group_is_an_accelerator_only_if_google_made_what_is_in_it(tmp_path: Path) -> None:
    groups, dev = tmp_path / "groups", tmp_path / "dev"
    (dev / "vfio").mkdir(parents=True)
    vendors = {"0": "0x8086", "1": "0x1ae0", "2": None}
    for name in ("vfio", *vendors):
        (dev / "vfio" / name).touch()
    for group, vendor in vendors.items():
        for address, kind, made_by in (("0", "0x060400", "0x1022"), ("1", "0x120000", vendor)):
            device = groups / group / "devices" / address
            device.mkdir(parents=True)
            if made_by is not None:
                (device / "class").write_text(f"{kind}\n")
                (device / "vendor").write_text(f"{made_by}\n")
    found = accelerators(dev, groups)
    assert [node.name for node in found] == ["1", "2", "vfio"]
    assert unknown_groups(found, groups) == [dev / "vfio" / "2"]


def test_jax_is_asked_in_a_process_of_its_own_and_only_on_demand(world: Path) -> None:
    asked = facts(world, ask_jax=True)
    assert "cpu" in check_jax(asked).says.lower()
    assert check_jax(facts(world)).says.startswith("JAX was not asked")


def test_a_cpu_is_not_what_was_asked_for_where_a_tpu_is_wanted(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkup, "ASK_JAX", "print('cpu', 1, 'TFRT_CPU_0', sep='\\n')")
    found = check_jax(facts(world, "engine.device=tpu", ask_jax=True))
    assert (found.verdict, "[engine] device is 'tpu'" in found.says) == ("fail", True)
    assert "JAX_PLATFORMS" in found.todo
    assert check_jax(facts(world, "engine.device=cpu", ask_jax=True)).verdict == "ok"
    unseen = check_jax(facts(world, ask_jax=True, devices=(world / "accel0",)))
    assert (unseen.verdict, "not the accelerator" in unseen.says) == ("warn", True)


def test_more_devices_than_there_are_or_than_the_heads_can_be_shared_by_are_told_by_the_setting(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkup, "ASK_JAX", "print('cpu', 2, 'CPU_0, CPU_1', sep='\\n')")
    assert check_jax(facts(world, "engine.tp=2", ask_jax=True)).verdict == "ok"
    few = check_jax(facts(world, "engine.tp=4", ask_jax=True))
    assert (few.verdict, few.says) == (
        "fail",
        "JAX finds CPU_0, CPU_1; [engine] tp times replicas is 4",
    )
    assert check_model(facts(world, "engine.tp=2")).verdict == "ok"
    many = check_model(facts(world, "engine.tp=4"))
    assert (many.verdict, "[engine] tp = 4: the model has 2 attention heads" in many.says) == (
        "fail",
        True,
    )
    assert many.says.endswith("set it to one of 1, 2")


def test_folders_closed_to_the_daemon_are_named(world: Path) -> None:
    (world / "checkpoints").chmod(0o700)
    assert "may not read" in check_folders(facts(world)).says
    (world / "checkpoints").chmod(0o755)
    (world / "state").chmod(0o755)
    found = check_folders(facts(world))
    assert (found.verdict, found.todo) == ("fail", f"chown somebody {world / 'state'}")


def test_the_folder_above_that_is_closed_is_the_one_that_is_named(world: Path) -> None:
    above = world / "a" / "b"
    (above / "checkpoints").mkdir(parents=True)
    above.chmod(0o700)
    found = check_folders(facts(world, f"source.path={above / 'checkpoints'}"))
    assert found.says == f"somebody may not read {above / 'checkpoints'}: {above} is closed"
    assert found.todo == f"chmod a+rX {above}"


def test_a_folder_that_is_no_model_is_told_before_the_start(world: Path) -> None:
    assert check_model(facts(world)).says == f"{world / 'model'} holds 25 tensors"
    assert check_model(of_hub(world)).verdict == "ok"
    (world / "model" / "model.safetensors").unlink()
    bare = check_model(facts(world))
    assert (bare.verdict, "holds no weights" in bare.says) == ("warn", True)
    assert check_model(facts(world, "engine.boot=dummy")).verdict == "ok"
    (world / "model" / "model.safetensors").write_bytes(b"short")
    torn = check_model(facts(world))
    assert (torn.verdict, "model.safetensors: is 5 bytes" in torn.says) == ("fail", True)
    (world / "empty").mkdir()
    empty = check_model(facts(world, f"engine.model={world / 'empty'}"))
    assert (empty.verdict, "no config.json" in empty.says) == ("fail", True)
    assert "tokenizer" in empty.todo


@pytest.mark.parametrize("setting", ["server.tcp", "metrics.address"])
@pytest.mark.parametrize(
    ("host", "wanted"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "[::1]"), ("::1", "localhost")],
)
def test_a_port_that_somebody_listens_on_is_told_with_its_process(
    world: Path, setting: str, host: str, wanted: str
) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        port = listener.getsockname()[1]
        asked = facts(world, f"{setting}={wanted}:{port}")
        found = check_ports(asked)
        assert found.verdict == "fail"
        assert found.says.startswith(f"{wanted}:{port} is taken by ")
        assert f"(pid {os.getpid()})" in found.says
        section, _, key = setting.partition(".")
        assert f"[{section}] {key}" in found.todo
        with socket.socket(socket.AF_UNIX) as ours:
            ours.bind(str(world / "s"))
            ours.listen()
            again = facts(world, f"{setting}={wanted}:{port}")
            assert check_ports(again).verdict == "ok"
    assert check_ports(asked).verdict == "ok"


def test_an_address_of_another_interface_takes_no_port_from_us(world: Path) -> None:
    with socket.create_server(("127.0.0.2", 0)) as listener:
        port = listener.getsockname()[1]
        free = check_ports(facts(world, f"metrics.address=127.0.0.1:{port}"))
    assert free.verdict == "ok"


@pytest.mark.parametrize(("files", "verdict"), [(64, "fail"), (1024, "warn"), (4096, "ok")])
def test_too_few_open_files_are_told_with_what_to_change(
    world: Path, files: int, verdict: str
) -> None:
    arguments = [f"--set={one}" for one in sets(world)]
    command = [sys.executable, "-m", "hotreload.cli", "doctor", "--json", *arguments]
    limited = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *command]
    done = subprocess.run(limited, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)["open files"]
    assert (found["verdict"], found["says"].startswith(f"{files} files")) == (verdict, True)
    assert (verdict == "ok") == (not found["todo"])
    failed = {name for name, told in json.loads(done.stdout).items() if told["verdict"] == "fail"}
    assert failed == ({"open files"} if verdict == "fail" else set())
    assert done.returncode == bool(failed)


def test_the_units_own_limit_counts_and_a_drop_in_stands_above_it(world: Path) -> None:
    units = world / "units"
    drop_in = units / "hotreload.service.d" / "50-mine.conf"
    drop_in.parent.mkdir(parents=True)
    (units / "hotreload.service").write_text("[Service]\nLimitNOFILE=65535\n")
    given = facts(world, units=(units,))
    assert check_open_files(given).says == "65535 files may be open"
    drop_in.write_text("[Service]\nLimitNOFILE=100\n")
    assert check_open_files(given).verdict == "fail"


def mounted_as(kind: str) -> str:
    return f"22 1 8:1 / / rw - {kind} /dev/sda1 rw\n"


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [
        ("nfs4", "warn"),
        ("fuse.gcsfuse", "warn"),
        ("virtiofs", "warn"),
        ("glusterfs", "warn"),
        ("beegfs", "warn"),
        ("afs", "warn"),
        ("ext4", "ok"),
    ],
)
def test_file_systems_that_the_source_polls_are_told(world: Path, kind: str, verdict: str) -> None:
    found = check_source_file_system(facts(world, mounts=mounted_as(kind)))
    assert (found.verdict, f" is on {kind}" in found.says) == (verdict, True)


def test_a_state_that_a_reboot_forgets_is_told(world: Path) -> None:
    found = check_state_file_system(facts(world, mounts=mounted_as("tmpfs")))
    assert "a reboot forgets" in found.says


def test_a_daemon_that_uses_the_state_folder_is_named_with_its_socket(world: Path) -> None:
    state = world / "state"
    assert check_state_free(facts(world)).says == f"no process uses {state}"
    with StateFolder(state).hold(Path("/run/other.sock")):
        used = check_state_free(facts(world))
        assert used.verdict == "fail"
        assert f"(pid {os.getpid()}), which serves on /run/other.sock" in used.says
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(world / "s"))
            listener.listen()
            ours = check_state_free(facts(world))
    assert (ours.verdict, "the daemon itself, " in ours.says) == ("ok", True)


def test_who_listens_on_the_socket_is_told_without_connecting(world: Path) -> None:
    """Whoever connects to systemd's socket starts the daemon."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(world / "s"))
        listener.listen()
        found = check_socket(facts(world))
        assert found.says.endswith(f"(pid {os.getpid()}) listens on {world / 's'}")
        examined = checkup.examine(facts(world))
        assert examined["socket"] == found
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_a_socket_that_systemd_alone_holds_is_no_daemon(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holders, "listening_on", lambda path: "socket:[1]")
    monkeypatch.setattr(holders, "holders", lambda opened: iter([Process(1, "systemd")]))
    (world / "s").touch()
    with socket.socket(socket.AF_UNIX) as bound:
        (world / "s").unlink()
        bound.bind(str(world / "s"))
    assert "systemd holds" in check_socket(facts(world)).says
    assert facts(world).daemon == []


def test_a_socket_where_the_daemon_may_not_write_is_not_called_free(world: Path) -> None:
    world.chmod(0o755)
    found = check_socket(facts(world))
    assert (found.verdict, found.says) == (
        "warn",
        f"no process listens, and somebody may not write to {world}",
    )
    assert "hotreload.socket" in found.todo


def test_a_folder_we_may_not_look_into_is_not_called_free(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lstat(path: Path) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "lstat", lstat)
    found = checkup._run(check_socket, facts(world))
    assert (found.verdict, found.todo) == ("warn", "run it as root, or as the user")


def test_a_socket_that_cannot_be_had_is_told(world: Path) -> None:
    world.chmod(0o777)
    assert check_socket(facts(world)).says == f"{world / 's'} is free"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(world / "s"))
    assert check_socket(facts(world)).says == f"{world / 's'} is free"  # a stale one is replaced
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


def test_the_plan_of_a_devices_memory_is_said_in_bytes_or_what_to_change(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = check_device_memory(facts(world))
    assert found.verdict == "ok"
    assert found.says.startswith("on each device: weights, 2 sets 6.8 MB, KV pool 33.6 MB, ")
    unsized = check_device_memory(facts(world, devices=(world / "accel0",)))
    assert "the start learns the device's size" in unsized.says
    monkeypatch.setattr("hotreload.engine.memory_plan.host_bytes_free", lambda: 10**7)
    short = check_device_memory(facts(world))
    assert (short.verdict, "see who takes it" in short.todo) == ("warn", True)


def test_the_room_a_hub_needs_is_not_called_enough_before_it_is_known(world: Path) -> None:
    for check in (check_disk, check_cache, check_memory):
        found = check(of_hub(world))
        assert (found.verdict, "none is to be seen yet" in found.todo) == ("warn", True)
    (world / "model" / "model.safetensors").unlink()
    assert check_disk(facts(world)).verdict == "warn"
    commit = world / "state" / "hub" / "a--b" / ("0" * 40)
    commit.mkdir(parents=True)
    (world / "state" / "hub").chmod(0o777)
    with (commit / "model.safetensors").open("wb") as sparse:
        sparse.truncate(1 << 43)
    for check, verdict in ((check_disk, "fail"), (check_cache, "fail"), (check_memory, "warn")):
        found = check(of_hub(world))
        assert (found.verdict, "8796.1 GB" in found.says or "26388.3" in found.says) == (
            verdict,
            True,
        )


def test_a_cache_the_daemon_may_not_write_to_fails(world: Path) -> None:
    cache = world / "cache"
    asked = of_hub(world, f"source.cache={cache}", model=True)
    world.chmod(0o755)
    found = check_cache(asked)
    assert (found.verdict, found.todo) == ("fail", f"install -d -o somebody {cache}")
    cache.mkdir()
    cache.chmod(0o777)
    assert check_cache(of_hub(world, f"source.cache={cache}", model=True)).verdict == "ok"
    assert check_cache(facts(world)).says == "nothing is downloaded"


@pytest.mark.parametrize(
    ("setting", "check"),
    [
        ("source.token_file", CHECKS["token"]),
        ("source.webhook", CHECKS["webhook"]),
        ("server.api_keys_file", check_api_keys),
        ("server.admin_keys_file", CHECKS["admin keys"]),
    ],
)
def test_a_secret_must_be_there_be_secret_and_reach_the_daemon(
    world: Path, setting: str, check: Check
) -> None:
    secret = world / "secret"
    asked = of_hub(world, f"{setting}={secret}")
    assert (check(asked).verdict, check(asked).says) == ("fail", f"{secret} is not there")
    secret.write_text("")
    assert check(asked).says == f"{secret} is empty"
    secret.write_text("hf_x")
    secret.chmod(0o644)
    assert check(asked).todo == f"chmod 600 {secret}"
    secret.chmod(0o600)
    found = check(asked)
    assert (found.verdict, "no unit passes it on" in found.says) == ("fail", True)
    drop_in = world / "units" / "hotreload.service.d" / "20-hub.conf"
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text(f"[Service]\nLoadCredential=secret:{secret}\n")
    assert (check(asked).verdict, "LoadCredential" in check(asked).says) == ("ok", True)
    me = User("me", secret.stat().st_uid, frozenset())
    assert check(of_hub(world, f"{setting}={secret}", user=me)).says.endswith("is secret")


@pytest.mark.parametrize(
    ("address", "verdict"),
    [
        ("0.0.0.0:8000", "warn"),
        ("[::]:8000", "warn"),
        ("llm.example.com:8000", "warn"),
        ("127.0.0.1:8000", "ok"),
        ("[::1]:8000", "ok"),
        ("localhost:8000", "ok"),
    ],
)
def test_an_address_that_others_reach_should_ask_for_keys(
    world: Path, address: str, verdict: str
) -> None:
    assert check_api_keys(facts(world, f"server.tcp={address}")).verdict == verdict
    assert check_api_keys(facts(world)).verdict == "ok"


@pytest.mark.parametrize(
    ("devices", "running", "sets"),
    [((), False, 3), ((), True, 2), ((Path("/dev/accel0"),), False, 1)],
)
def test_memory_for_what_is_loaded_on_the_host_is_reckoned_as_the_engine_does(
    world: Path,
    monkeypatch: pytest.MonkeyPatch,
    devices: tuple[Path, ...],
    running: bool,
    sets: int,
) -> None:
    with (world / "model" / "big.safetensors").open("wb") as sparse:
        sparse.truncate(10 * 10**9)
    if running:
        monkeypatch.setattr(holders, "listening_on", lambda path: "socket:[1]")
        me = Process(os.getpid(), "hotreload")
        monkeypatch.setattr(holders, "holders", lambda opened: iter([me]))
    monkeypatch.setattr(check_room, "host_bytes_free", lambda pid: sets * 10**10 + 10**9)
    found = check_memory(facts(world, devices=devices))
    assert (found.verdict, f"({sets} x the weights)" in found.says) == ("ok", True)
    monkeypatch.setattr(check_room, "host_bytes_free", lambda pid: sets * 10**10 - 10**9)
    assert check_memory(facts(world, devices=devices)).verdict == "warn"
    third = check_memory(facts(world, "reload.sets=3", devices=devices))
    assert f"({sets if devices else sets + 1} x the weights)" in third.says
    auto = check_memory(facts(world, "reload.sets=auto", devices=devices))
    assert f"({sets} x the weights)" in auto.says  # more only where there is memory
    one = check_memory(facts(world, "reload.sets=3", "reload.memory=host", devices=devices))
    assert f"({sets} x the weights)" in one.says
    kept = check_memory(facts(world, "reload.keep_previous=host", devices=devices))
    assert f"({sets + 1} x the weights)" in kept.says


@pytest.mark.parametrize("unit", ["hotreload", "hotreload@chat"])
def test_limits_on_the_units_memory_are_reckoned_and_one_that_is_too_low_is_told(
    world: Path, unit: str
) -> None:
    with (world / "model" / "big.safetensors").open("wb") as sparse:
        sparse.truncate(16 * 2**30 - 10**7)
    units = world / "units"
    drop_in = units / f"{unit}.service.d" / "40-memory.conf"
    drop_in.parent.mkdir(parents=True)
    given = facts(world, devices=(Path("/dev/accel0"),), units=(units,), unit=unit)
    none = check_memory_limits(given)
    assert (none.verdict, "MemoryHigh=24G MemoryMax=40G" in none.says) == ("ok", True)
    for limit, verdict in (("39G", "warn"), (str(40 * 2**30), "ok"), ("1T", "ok")):
        drop_in.write_text(f"[Service]\nMemoryHigh=1G\nMemoryMax={limit}\n")
        found = check_memory_limits(given)
        assert (found.verdict, bool(found.todo)) == (verdict, verdict == "warn")
    kept = facts(world, "reload.keep_previous=host", devices=(Path("/dev/accel0"),))
    assert "MemoryHigh=40G MemoryMax=56G" in check_memory_limits(kept).says
    cpu = check_memory_limits(facts(world))
    assert (cpu.verdict, "the KV pool is host memory too" in cpu.says) == ("ok", True)


def test_doctor_looks_at_the_settings_and_units_of_an_instance(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (world / "chat.toml").write_text("[state]\ndirectory = 'elsewhere'\n")
    monkeypatch.setattr("hotreload.cli.ops.units.DEFAULT_CONFIG", world / "hotreload.toml")
    seen: list[Facts] = []

    def examine(facts: Facts) -> dict[str, Any]:
        seen.append(facts)
        return {}

    monkeypatch.setattr(checkup, "examine", examine)
    assert main(["doctor", "--instance", "chat"]) == 0
    assert seen[0].unit == "hotreload@chat"
    assert seen[0].settings.state.directory == world / "elsewhere"


def test_memory_honours_the_limits_that_the_engine_honours(tmp_path: Path) -> None:
    group = tmp_path / "tree" / "a" / "b"
    group.mkdir(parents=True)
    for each, limit in ((group, "max"), (group.parent, "5000")):
        (each / "memory.max").write_text(f"{limit}\n")
        (each / "memory.current").write_text("4000\n")
        (each / "memory.stat").write_text("anon 7\ninactive_file 100\n")
    membership = tmp_path / "cgroup"
    membership.write_text("1:name=systemd:/x\n0::/a/b\n")
    assert list(free_in_groups(membership, tmp_path / "tree")) == [1100]
    name = "host_bytes_free"  # one reckoning, so that doctor and engine cannot disagree
    assert vars(check_room)[name] is vars(headroom)[name]


@pytest.mark.parametrize(
    ("name", "value"), [("max_user_watches", "1000"), ("max_user_instances", "0")]
)
def test_inotify_limits_that_are_too_low_are_raised_for_good(
    world: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    limits = {"max_user_watches": "100000", "max_user_instances": "128"}
    for each, usual in limits.items():
        (world / each).write_text(f"{usual}\n")
    monkeypatch.setattr(check_room, "INOTIFY", world)
    assert check_inotify(facts(world)).verdict == "ok"
    (world / name).write_text(f"{value}\n")
    found = check_inotify(facts(world))
    assert found.verdict == "warn"
    assert f"fs.inotify.{name} = " in found.todo
    assert "/etc/sysctl.d/" in found.todo


def test_inotify_instances_of_a_user_are_counted(tmp_path: Path) -> None:
    for process in ("12", "34", "self"):
        (tmp_path / process / "fd").mkdir(parents=True)
    for fd, link in (("12/fd/3", "anon_inode:inotify"), ("12/fd/4", "anon_inode:inotify")):
        (tmp_path / fd).symlink_to(link)
    (tmp_path / "34/fd/1").symlink_to("/dev/null")
    assert machine.inotify_instances(os.geteuid(), tmp_path) == 2
    assert machine.inotify_instances(os.geteuid() + 1, tmp_path) == 0


def test_who_asks_is_judged_where_the_services_user_is_absent_and_is_told_so(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newcomer who is root may read what they wrote, whoever will serve it some day."""
    monkeypatch.setattr(machine, "SERVICE_USER", "nobody-made-me")
    asks = machine.user_called(None)
    assert asks is not None
    assert doctor._user(None) == asks
    says = check_user(facts(world, user=asks)).says
    assert says.startswith(f"what may be read and written is judged for {asks.name}, who asks")
    assert ("there is no user nobody-made-me yet" in says) == (asks.uid == 0)
    monkeypatch.setattr(machine, "SERVICE_USER", asks.name)
    assert check_user(facts(world, user=asks)).says.endswith(f"{asks.name}, who asks")
    assert check_user(facts(world)).says.endswith("is judged for somebody; --user names another")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be asked by root; run them as root")
def test_root_looks_as_the_services_user_where_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """root may do everything: looking as root would find every folder fit."""
    monkeypatch.setattr(machine, "SERVICE_USER", "nobody")
    assert doctor._user(None) == machine.user_called("nobody")


def test_what_is_not_configured_is_printed_on_demand_and_is_in_the_json(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*more: str) -> str:
        main(["doctor", *more, *(f"--set={one}" for one in sets(world))])
        return capsys.readouterr().out

    absent = (
        "hosts",
        "host ports",
        "token",
        "webhook",
        "api keys",
        "admin keys",
        "tls",
        "cache",
        "ports",
    )
    short, whole, as_json = told(), told("--all"), json.loads(told("--json"))
    for name in CHECKS:
        assert f" {name} " in whole
        assert (f" {name} " in short) == as_json[name]["configured"]
    assert {name for name in absent if as_json[name]["configured"]} == set()
    left = [each for each in as_json.values() if not each["configured"]]
    assert short.endswith(f" {len(left)} more look at what is not configured; --all prints them\n")
    assert {each["verdict"] for each in left} == {"ok"}


@pytest.mark.parametrize(
    ("can", "said"),
    [
        ({"n": True, "tools": False, "pause": False}, "; it has n; it lacks tools, pause"),
        ({"n": False}, "; it lacks n"),
        ({"n": True}, "; it has n"),
    ],
)
def test_what_sets_an_engine_apart_is_told_and_nothing_where_nothing_does(
    monkeypatch: pytest.MonkeyPatch, can: dict[str, bool], said: str
) -> None:
    release = replace(next(iter(versions.SUPPORTED.values())), can=can)
    monkeypatch.setattr(checkup, "SUPPORTED", {"1.0": release})
    assert checkup._can("1.0") == said


def test_settings_that_cannot_be_read_exit_78_as_the_help_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.toml").write_text("[engine\n")
    assert main(["doctor", "--config", str(tmp_path / "bad.toml")]) == 78
    assert "is not TOML" in capsys.readouterr().err
    assert "78 when the settings" in read_help("doctor")


def test_checkpoints_from_the_future_are_told(world: Path) -> None:
    ahead = world / "checkpoints" / "step_1"
    ahead.mkdir()
    os.utime(ahead, (4e9, 4e9))
    assert "in the future" in check_clock(facts(world)).says


def test_a_link_to_nothing_does_not_keep_the_clock_from_being_looked_at(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (world / "checkpoints" / "latest").symlink_to("gone")
    (world / "model" / "gone.safetensors").symlink_to("gone")
    monkeypatch.setattr(check_places, "clock_is_unsynchronised", lambda: False)
    found = checkup.examine(facts(world))
    assert (found["clock"].verdict, found["disk"].verdict) == ("ok", "ok")


def test_a_clock_that_nothing_keeps_right_is_told(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_places, "clock_is_unsynchronised", lambda: True)
    found = check_clock(facts(world))
    assert (found.verdict, found.todo) == ("warn", "timedatectl set-ntp true")
