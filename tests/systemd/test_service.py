"""The shipped units under a real systemd: what `systemctl` promises, and that nobody is let down.

One machine is booted for all tests of this file. A start takes seconds, so a test begins with a
service that serves only where it asks for one (`service`), and those that need none come together.
The first daemon is real, with all that a unit forbids it; later ones have an engine of words, where
nothing hangs on the engine.
"""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from hotreload.client.synchronous import Client
from hotreload.errors import HotReloadError, Unreachable
from hotreload.tiny import write_tiny
from tests.integration.running import ENGINE_ARGS, request_for, words
from tests.integration.zygote import OF_WORDS, REAL
from tests.systemd.machine import INSIDE, Machine, missing
from tests.waiting import PATIENCE

WHY_NOT = missing()
pytestmark = [
    pytest.mark.real_engine,
    pytest.mark.skipif(WHY_NOT is not None, reason=f"a real systemd {WHY_NOT}"),
]

SETTINGS = f"""
[engine]
model = "/srv/shared/checkpoints/step_1"
warm_batches = 0
args = {ENGINE_ARGS.replace("=", " = ")}
[source]
path = "/srv/shared/checkpoints"
settle = 0.2
patience = 0.5
"""
TOKEN = "/etc/hotreload/hf-token"
WEBHOOK = "/etc/hotreload/webhook-secret"
KEYS = "/etc/hotreload/api-keys"
HELD = {TOKEN: "hf_secret", WEBHOOK: "hook_secret", KEYS: "key_of_sixteen_and_more"}
"""What each file of a secret holds."""
HUB_SETTINGS = f"""
[engine]
model = "/srv/shared/checkpoints/step_1"
warm_batches = 0
args = {ENGINE_ARGS.replace("=", " = ")}
[source]
kind = "huggingface"
repo = "org/name"
endpoint = "http://127.0.0.1:9"
cache = "/srv/downloads"
token_file = "{TOKEN}"
webhook = "{WEBHOOK}"
[server]
api_keys_file = "{KEYS}"
[state]
directory = "/srv/state"
"""
DROP_INS = "/etc/systemd/system/hotreload.service.d"
WRITTEN = ("10-devices.conf", "20-hub.conf", "25-api-keys.conf", "30-paths.conf")
UNITS = "hotreload.socket hotreload.service"
COMMAND = f"{INSIDE}/bin/hotreload"
DOCTOR = f"{COMMAND} doctor --json --config /etc/hotreload/hotreload.toml"
BECOME = "setpriv --clear-groups --regid hotreload --reuid"
TEST_MACHINE = """
[Service]
Environment=JAX_PLATFORMS=cpu TF_CPP_MIN_LOG_LEVEL=3
RestartSec=1
"""


class Service:
    """hotreload.service on the machine, seen as an operator and as a client see it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.checkpoints = machine.shared / "checkpoints"
        # A socket's name leads to it from outside too.
        self.socket = Path(f"/proc/{machine.pid}/root/run/hotreload/hotreload.sock")
        self.daemon = Client(self.socket, named_by="the test")

    def drop(self, number: int, damage: str | None = None) -> None:
        write_tiny(self.checkpoints / f"step_{number}", words(number), damage=damage)

    def sees(self, number: int) -> None:
        """Until the source wishes it: before, it is not known to be complete."""
        wanted = f"step_{number}"
        self.machine.until(lambda: self.daemon.get("/status")["wanted_label"] == wanted)

    def configure(
        self,
        more: str = "",
        drop_in: str = "",
        settings: str = SETTINGS,
        command: str = OF_WORDS,
    ) -> None:
        """What the next start goes by."""
        self.machine.start_by(command)
        self.machine.write("/etc/hotreload/hotreload.toml", settings + more)
        self.machine.write(f"{DROP_INS}/90-test.conf", TEST_MACHINE + drop_in)
        self.machine.run("systemctl daemon-reload")

    def install(self) -> str:
        """As for the first time: nothing runs, and then what is written is started."""
        self.stop()
        return self.machine.run(f"{COMMAND} install-unit --exec {COMMAND} --enable")

    def stop(self) -> None:
        self.machine.run("systemctl stop hotreload.socket hotreload.service", check=False)

    def doctor(self) -> dict[str, dict[str, str]]:
        """What it finds; whether something else fails on this machine is no matter here."""
        found: dict[str, dict[str, str]] = json.loads(self.machine.attempt(DOCTOR).stdout)
        return found

    def state(self) -> str:
        return self.machine.show("ActiveState")["ActiveState"]

    def status(self) -> str:
        return self.machine.show("StatusText")["StatusText"]

    def pid(self) -> str:
        return self.machine.show("MainPID")["MainPID"]

    def as_daemon(self) -> str:
        """Begins a command that sees the files as the daemon does, and has its rights."""
        return f"nsenter -t {self.pid()} -m {BECOME} hotreload"

    def exposure(self) -> float:
        told = self.machine.run("systemd-analyze security --no-pager hotreload.service")
        found = re.search(r"Overall exposure level for hotreload.service: ([\d.]+)", told)
        assert found is not None, told
        return float(found[1])

    def live(self) -> str:
        return str(self.daemon.get("/status")["label"])

    def read_again(self) -> dict[str, Any]:
        """What became of the settings when they were read again."""
        found: dict[str, Any] = self.daemon.get("/status")["settings"]
        return found

    def ask(self) -> dict[str, Any]:
        return self.daemon.ask("POST", "/generate", request_for("Who serves?"), timeout=60).fields


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("machine")
    with Machine(folder).booted() as machine:
        yield machine


@pytest.fixture(scope="module")
def installed(machine: Machine) -> Service:
    """As docs/start.md says: settings, a checkpoint, install-unit --enable."""
    service = Service(machine)
    service.drop(1)
    service.configure(command=REAL)
    service.install()
    return service


@pytest.fixture
def service(installed: Service) -> Service:
    """Serving, with the usual settings."""
    installed.configure()
    installed.machine.run(f"systemctl reset-failed {UNITS}; systemctl start {UNITS}", check=False)
    installed.machine.until(lambda: installed.state() == "active")
    return installed


@pytest.fixture
def unstarted(installed: Service) -> Service:
    """Installed, and not running: the socket may listen."""
    installed.configure()
    stop = "systemctl stop hotreload.service 2>/dev/null"
    installed.machine.run(f"{stop}; systemctl reset-failed {UNITS}", check=False)
    return installed


def test_the_start_ends_when_the_first_weights_answer(service: Service) -> None:
    assert service.state() == "active"  # `enable --now` waited for it
    assert service.status() == "serving generation 1 (step_1)"
    assert service.daemon.get("/readyz")["ready"] is True
    said = service.machine.journal()
    assert said.index("generation.live") < said.index("Started hotreload.service")


def test_the_units_are_sound_and_leave_little_to_attack(service: Service) -> None:
    done = service.machine.attempt("systemd-analyze verify hotreload.service hotreload.socket")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    assert service.exposure() <= 2.0
    owner = service.machine.run(f"stat -c %U /proc/{service.pid()}")
    assert owner == "hotreload"


def test_a_reload_waits_until_the_new_weights_answer(service: Service) -> None:
    before = service.pid()
    service.drop(2)
    service.sees(2)
    service.machine.run("systemctl reload hotreload")
    assert service.ask()["text"] == words(2)
    said = r"serving generation \d+ \(step_2\)"
    assert re.match(said, service.status())
    # Until the new weights have been compared with those before, it holds these.
    service.machine.until(lambda: re.fullmatch(said, service.status()) is not None)
    assert service.pid() == before


def test_a_reload_fails_when_the_checkpoint_is_refused(service: Service) -> None:
    before, live = service.pid(), service.live()
    service.drop(9, "wrong-shape")
    service.sees(9)
    done = service.machine.attempt("systemctl reload hotreload")
    assert done.returncode != 0
    assert (service.state(), service.pid(), service.live()) == ("active", before, live)
    assert f"({live}); rejected step_9: shape: " in service.status()
    assert "step_9" in service.machine.journal()


def test_settings_made_invalid_fail_the_reload_and_leave_what_runs(service: Service) -> None:
    before, told = service.pid(), service.read_again()
    for wrong, why in (("[broken\n", "is not TOML"), ("[reload]\nsets = 9\n", "not 9")):
        service.configure(wrong)
        assert service.machine.attempt("systemctl reload hotreload").returncode != 0
        assert why in service.machine.journal()
    assert service.read_again() == told  # the daemon was not even asked
    assert (service.state(), service.pid()) == ("active", before)
    assert service.ask()["text"].startswith("served by step")


def test_a_reload_goes_by_what_can_change_and_names_what_wants_a_restart(service: Service) -> None:
    probe = "[[probe]]\nprompt = 'Who serves?'\ncontains = 'nobody'\nmax_new_tokens = 8\n"
    before, live = service.pid(), service.live()
    service.configure(f"[server]\ntcp = '127.0.0.1:8123'\n{probe}")
    service.machine.attempt("systemctl reload hotreload")  # whatever becomes of what is newest
    service.machine.until(lambda: service.read_again()["waiting"] == ["[server] tcp"])
    service.drop(10)
    service.machine.until(lambda: "rejected step_10: " in service.status())
    assert (service.live(), service.pid()) == (live, before)
    service.configure()
    service.machine.attempt("systemctl reload hotreload")
    service.machine.until(lambda: service.read_again()["waiting"] == [])
    service.drop(11)
    service.sees(11)
    service.machine.run("systemctl reload hotreload")
    assert (service.live(), service.pid()) == ("step_11", before)


def test_without_a_journal_it_serves_and_swaps_on(service: Service) -> None:
    before = service.pid()
    try:
        service.machine.run("systemctl stop systemd-journald.service 'systemd-journald*.socket'")
        service.drop(12)
        service.sees(12)
        service.machine.run("systemctl reload hotreload")
        assert service.ask()["text"] == words(12)
        assert service.pid() == before
    finally:
        service.machine.run("systemctl start systemd-journald.socket systemd-journald.service")


def test_a_restart_under_32_clients_loses_no_request(service: Service) -> None:
    before = service.pid()
    told = asyncio.run(_restarted_under_load(service, clients=32, restarts=1))
    assert told.failures == []
    assert told.answered_before > 32
    assert told.answered_after > 32
    assert service.pid() != before


@pytest.mark.at_night
def test_with_workers_it_loses_none_either(service: Service) -> None:
    def serving() -> int:
        return int(service.daemon.get("/status")["workers"]["serving"])

    service.configure("[server]\nworkers = 2\n")
    service.machine.run("systemctl restart hotreload")
    service.machine.until(lambda: serving() == 2)
    told = asyncio.run(_restarted_under_load(service, clients=32, restarts=1))
    assert told.failures == []
    service.machine.until(lambda: serving() == 2)
    assert "worker.lost" not in service.machine.run("journalctl -u hotreload --no-pager")
    service.configure()
    service.machine.run("systemctl restart hotreload")


class Told:
    """What clients were told."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.answers = 0
        self.answered_before = 0
        self.answered_after = 0
        self._some = asyncio.Event()

    def note(self) -> None:
        self.answers += 1
        self._some.set()

    async def more(self, count: int) -> None:
        """Until so many more answers have come."""
        enough = self.answers + count
        async with asyncio.timeout(PATIENCE):
            while self.answers < enough:
                self._some.clear()
                await self._some.wait()


async def _restarted_under_load(service: Service, *, clients: int, restarts: int) -> Told:
    told, over = Told(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for number in range(clients):
            tasks.create_task(_client(service, number, told, over))
        await told.more(2 * clients)
        told.answered_before = told.answers
        for _ in range(restarts):
            await asyncio.to_thread(service.machine.run, "systemctl restart hotreload")
            await told.more(2 * clients)
        told.answered_after = told.answers - told.answered_before
        over.set()
    return told


async def _client(service: Service, number: int, told: Told, over: asyncio.Event) -> None:
    """Every other one keeps its connection; the rest make one for each request."""
    while not over.is_set():
        async with _connected(service) as client:
            for asked in range(1 if number % 2 else 20):
                try:
                    answer = await client.post("/generate", json=request_for("Who serves?"))
                    answer.raise_for_status()
                    told.note()
                except httpx.HTTPError as failure:
                    told.failures.append(f"request {asked} of {number}: {failure!r}")
                if over.is_set():
                    return


@asynccontextmanager
async def _connected(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.AsyncHTTPTransport(uds=str(service.socket), verify=False)  # no TLS
    async with httpx.AsyncClient(
        transport=transport, base_url="http://hotreload", timeout=PATIENCE
    ) as client:
        yield client


def test_after_kill_minus_nine_the_last_good_generation_answers_who_waits(
    service: Service,
) -> None:
    service.drop(20)
    service.sees(20)
    service.machine.run("systemctl reload hotreload")
    number = service.daemon.get("/status")["generation"]
    before = service.pid()
    service.machine.run(f"kill -9 {before}")
    service.drop(21, "gibberish")  # who dies over one may have given its number away
    said = service.daemon.get("/status", PATIENCE)  # who only looks need not wait till it serves
    assert (said["state"], said["boot"]["doing"] != "") == ("booting", True)
    answer = service.ask()  # waits in the socket meanwhile
    assert (answer["text"], answer["meta_info"]["generation"]) == (words(20), number)
    assert service.pid() not in ("0", before)


def test_the_watchdog_replaces_a_daemon_whose_engine_hangs(service: Service) -> None:
    drop_in = "WatchdogSec=3\nEnvironment=HOTRELOAD_FAILPOINTS=resting=hang@12\n"
    service.configure(drop_in=drop_in, command=REAL)
    service.machine.run("systemctl restart hotreload")
    before = service.pid()
    service.configure()  # for the one that comes after
    with pytest.raises(Unreachable, match="broke off"):
        _ask_until_cut_off(service)
    service.machine.until(lambda: service.pid() not in ("0", before))
    service.machine.until(lambda: service.state() == "active")
    said = service.machine.journal()
    assert "systemd.engine_silent" in said
    assert "Watchdog timeout" in said
    assert "reach_in_thread" in said  # the stacks tell where it hung
    assert f"(pid {before}) ended by SIGABRT (watchdog)" in said
    assert service.ask()["text"].startswith("served by step")


def _ask_until_cut_off(service: Service) -> None:
    while True:  # after each answer the engine rests, which it may not do for ever
        service.ask()


def _refused_until_cut_off(service: Service) -> None:
    while True:
        try:
            service.ask()
        except HotReloadError as told:
            if "cannot start" not in str(told):
                raise


def test_a_start_and_an_attempt_may_take_longer_than_systemd_waits(service: Service) -> None:
    # At the start and in each attempt; the watchdog decides how often the daemon asks for more
    # time: here each 3 s. Before it first does, it has to import JAX.
    slow = "WatchdogSec=9\nEnvironment=HOTRELOAD_FAILPOINTS=reading=delay:12\n"
    service.configure(drop_in=f"TimeoutStartSec=15\n{slow}")
    service.machine.run("systemctl restart hotreload")
    before = service.pid()
    service.configure(drop_in=f"TimeoutStartSec=6\n{slow}")
    service.drop(25)
    service.sees(25)
    service.machine.run("systemctl reload hotreload")
    assert (service.live(), service.pid()) == ("step_25", before)


def test_the_doctor_starts_nothing(service: Service) -> None:
    who = f"(pid {service.pid()}) listens on /run/hotreload/hotreload.sock"
    assert service.doctor()["socket"]["says"].endswith(who)
    service.machine.run("systemctl stop hotreload.service 2>/dev/null")
    assert "systemd holds" in service.doctor()["socket"]["says"]
    sockets = service.machine.show("SubState", unit="hotreload.socket")
    assert (service.state(), sockets) == ("inactive", {"SubState": "listening"})


def test_a_client_that_comes_while_the_service_is_stopped_starts_it_and_is_answered(
    unstarted: Service,
) -> None:
    assert unstarted.state() == "inactive"
    assert unstarted.ask()["text"].startswith("served by step")
    assert unstarted.state() in ("active", "reloading")


def test_a_model_that_is_mounted_late_is_waited_for(unstarted: Service) -> None:
    machine = unstarted.machine
    machine.run("mkdir /srv/late /srv/disk && cp -r /srv/shared/checkpoints/step_1 /srv/disk/model")
    late = SETTINGS.replace("/srv/shared/checkpoints/step_1", "/srv/late/model")
    unstarted.configure(settings=late)
    machine.run("systemctl start --no-block hotreload")
    machine.until(lambda: unstarted.status() == "starting: waiting for /srv/late to be mounted")
    machine.run("mount --bind /srv/disk /srv/late")
    machine.until(lambda: unstarted.state() == "active")
    assert unstarted.ask()["text"].startswith("served by step")


def test_a_wrong_setting_is_told_and_makes_no_storm(unstarted: Service) -> None:
    unstarted.configure("[reload]\ndrain_timeout = 'soon'\n", "[Unit]\nStartLimitBurst=3\n")
    done = unstarted.machine.attempt("systemctl restart hotreload")
    assert done.returncode != 0
    shown = unstarted.machine.show("ActiveState", "ExecMainStatus", "NRestarts")
    assert shown == {"ActiveState": "failed", "ExecMainStatus": "78", "NRestarts": "0"}
    assert "[reload] drain_timeout: 'soon' is no duration" in unstarted.machine.journal()
    # A client starts it again, and is told. What comes often is ended by the start limit.
    with pytest.raises(HotReloadError, match=r"cannot start: .* 'soon' is no duration"):
        unstarted.ask()
    with pytest.raises(Unreachable, match=r"broke off|cannot reach"):
        _refused_until_cut_off(unstarted)
    shown = unstarted.machine.show("Result", unit="hotreload.socket")
    assert shown["Result"] == "service-start-limit-hit"


def test_a_fault_that_shows_late_ends_the_service_though_a_client_has_come_and_gone(
    unstarted: Service,
) -> None:
    """Slower than the start limit counts: what is left in the socket would start it for ever."""
    late = "HOTRELOAD_FAILPOINTS=reading=delay:6 HOTRELOAD__ENGINE__TP=64"
    unstarted.configure(drop_in=f"Environment={late}\n", command=REAL)
    unstarted.machine.run("systemctl restart --no-block hotreload")
    unstarted.machine.until(lambda: unstarted.state() == "activating")
    start = unstarted.machine.show("InvocationID")
    with socket.socket(socket.AF_UNIX) as impatient:
        impatient.connect(str(unstarted.socket))
        impatient.sendall(b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n")
    with pytest.raises(HotReloadError, match=r"cannot start: .*\[engine\] tp"):
        unstarted.ask()
    unstarted.machine.until(lambda: unstarted.state() == "failed")
    sockets = unstarted.machine.show("SubState", unit="hotreload.socket")
    assert sockets == {"SubState": "listening"}
    shown = unstarted.machine.show("ActiveState", "ExecMainStatus", "InvocationID")
    assert shown == {"ActiveState": "failed", "ExecMainStatus": "78", **start}


def test_an_absent_accelerator_has_its_own_exit_code_and_is_tried_again(unstarted: Service) -> None:
    drop_in = "Environment=JAX_PLATFORMS=tpu,cpu\nRestartSec=3600\n"
    unstarted.configure(drop_in=drop_in, command=REAL)
    unstarted.machine.attempt("systemctl restart --no-block hotreload")
    is_put_off = {"SubState": "auto-restart"}
    unstarted.machine.until(lambda: unstarted.machine.show("SubState") == is_put_off)
    assert unstarted.machine.show("ExecMainStatus")["ExecMainStatus"] == "69"
    lines = unstarted.machine.journal().splitlines()
    (told,) = [line for line in lines if "daemon.no_device" in line]
    assert "no device can be used" in told
    assert "Traceback" not in told
    unstarted.machine.run("systemctl stop hotreload.service 2>/dev/null")


def test_nobody_starts_it_when_the_socket_is_stopped_too(unstarted: Service) -> None:
    unstarted.stop()
    with pytest.raises(Unreachable, match="no such socket"):
        unstarted.ask()
    assert unstarted.state() == "inactive"


@pytest.fixture
def hub_service(unstarted: Service) -> Iterator[Service]:
    """Installed for a hub with all that has a drop-in; then for a folder again, and not started."""
    machine = unstarted.machine
    for path, secret in HELD.items():
        machine.write(path, f"{secret}\n")
    machine.run("mknod -m 666 /dev/accel0 c 1 3")
    unstarted.configure(settings=HUB_SETTINGS)
    try:
        unstarted.install()
        yield unstarted
    finally:
        machine.run("rm /dev/accel0")
        unstarted.configure()
        told = machine.run(f"{COMMAND} install-unit --exec {COMMAND}")
    assert [name for name in (*WRITTEN, "90") if f"removed {DROP_INS}/{name}" in told] == [*WRITTEN]


def test_what_is_written_for_a_hub_is_sound_and_its_secrets_reach_the_daemon_alone(
    hub_service: Service,
) -> None:
    machine = hub_service.machine
    always = ("15-mounts.conf", "90-test.conf")
    assert machine.run(f"ls {DROP_INS}").split() == sorted([*WRITTEN, *always])
    done = machine.attempt("systemd-analyze verify hotreload.service hotreload.socket")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    assert hub_service.exposure() <= 2.0
    allowed = machine.show("DeviceAllow", "DevicePolicy")
    assert allowed == {"DeviceAllow": "/dev/accel0 rw", "DevicePolicy": "closed"}
    assert hub_service.state() == "active"
    for folder in ("/srv/downloads", "/srv/state"):
        machine.run(f"{hub_service.as_daemon()} touch {folder}/written")
    denied = machine.attempt(f"{hub_service.as_daemon()} touch /srv/shared/written")
    assert "Read-only file system" in denied.stderr
    found = hub_service.doctor()
    assert {found[name]["verdict"] for name in ("token", "webhook", "api keys", "cache")} <= {"ok"}
    assert hub_service.ask()["text"] == words(1)
    _secrets_reach_the_daemon_alone(hub_service)
    machine.attempt("timeout 30 systemctl reload hotreload")  # no hub: it ends in no checkpoint
    assert "settings.read" in machine.journal()
    assert "cannot be read" not in machine.journal()


def _secrets_reach_the_daemon_alone(hub_service: Service) -> None:
    machine, pid = hub_service.machine, hub_service.pid()
    environ = machine.run(f"tr '\\0' '\\n' </proc/{pid}/environ")
    (folder,) = re.findall(r"^CREDENTIALS_DIRECTORY=(.*)$", environ, re.MULTILINE)
    for path, secret in HELD.items():
        copy = f"{folder}/{Path(path).name}"
        assert machine.run(f"{hub_service.as_daemon()} cat {copy}") == secret
        for file in (copy, path):
            assert "Permission denied" in machine.attempt(f"{BECOME} nobody cat {file}").stderr
        assert secret not in machine.journal() + environ
