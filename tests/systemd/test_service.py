"""The shipped units under a real systemd: what `systemctl` promises, and that nobody is let down.

One machine is booted for all tests of this file; each begins and ends with a service that serves.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from hotreload.cli.client import Daemon, Where
from hotreload.cli.exits import Unreachable
from hotreload.errors import HotReloadError
from hotreload.tiny import write_tiny
from tests.integration.running import ENGINE_ARGS, request_for, words
from tests.systemd.machine import INSIDE, Machine, missing

WHY_NOT = missing()
pytestmark = [
    pytest.mark.real_engine,
    pytest.mark.timeout(240),
    pytest.mark.skipif(WHY_NOT is not None, reason=f"a real systemd {WHY_NOT}"),
]

SETTINGS = f"""
[engine]
model = "/srv/shared/checkpoints/step_1"
args = {ENGINE_ARGS.replace("=", " = ")}
[source]
path = "/srv/shared/checkpoints"
settle = 0.2
patience = 0.5
"""
TOKEN = "/etc/hotreload/hf-token"
HUB = "systemd/hotreload.service.d/20-hub.conf"
DROP_INS = "/etc/systemd/system/hotreload.service.d"
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
        self.daemon = Daemon(Where(self.socket, "the test"))

    def drop(self, number: int, damage: str | None = None) -> None:
        write_tiny(self.checkpoints / f"step_{number}", words(number), damage=damage)

    def sees(self, number: int) -> None:
        """Until the source wishes it: before, it is not known to be complete."""
        wanted = f"step_{number}"
        self.machine.until(lambda: self.daemon.get("/status")["wanted_label"] == wanted)

    def configure(self, more: str = "", drop_in: str = "") -> None:
        self.machine.write("/etc/hotreload/hotreload.toml", SETTINGS + more)
        self.machine.write(f"{DROP_INS}/90-test.conf", TEST_MACHINE + drop_in)
        self.machine.run("systemctl daemon-reload")

    def state(self) -> str:
        return self.machine.show("ActiveState")["ActiveState"]

    def status(self) -> str:
        return self.machine.show("StatusText")["StatusText"]

    def pid(self) -> str:
        return self.machine.show("MainPID")["MainPID"]

    def live(self) -> str:
        return str(self.daemon.get("/status")["label"])

    def ask(self) -> dict[str, Any]:
        return self.daemon.ask("POST", "/generate", request_for("Who serves?"), timeout=60).fields


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("machine")
    with Machine(folder).booted() as machine:
        yield machine


@pytest.fixture(scope="module")
def installed(machine: Machine) -> Service:
    """As the README says: settings, a checkpoint, install-unit --enable."""
    service = Service(machine)
    service.drop(1)
    service.configure()
    machine.write(TOKEN, "hf_secret\n")
    machine.run(f"mkdir -p {DROP_INS}; cp {INSIDE}/code/{HUB} {DROP_INS}")
    machine.run("mkdir /var/cache/hotreload && cp -r /srv/shared/jax /var/cache/hotreload/")
    machine.run(f"{INSIDE}/bin/hotreload install-unit --exec {INSIDE}/bin/hotreload --enable")
    return service


@pytest.fixture
def service(installed: Service) -> Iterator[Service]:
    """Serving at the start of each test, and again at its end."""
    yield installed
    installed.configure()
    units = "hotreload.socket hotreload.service"
    installed.machine.run(f"systemctl reset-failed {units}; systemctl start {units}", check=False)
    installed.machine.until(lambda: installed.state() == "active")


def test_the_start_ends_when_the_first_weights_answer(service: Service) -> None:
    assert service.state() == "active"  # `enable --now` waited for it
    assert service.status() == "serving generation 1 (step_1)"
    assert service.daemon.get("/readyz")["ready"] is True
    said = service.machine.journal()
    assert said.index("generation.live") < said.index("Started hotreload.service")


def test_the_units_are_sound_and_leave_little_to_attack(service: Service) -> None:
    done = service.machine.attempt("systemd-analyze verify hotreload.service hotreload.socket")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    told = service.machine.run("systemd-analyze security --no-pager hotreload.service")
    found = re.search(r"Overall exposure level for hotreload.service: ([\d.]+)", told)
    assert found is not None
    assert float(found[1]) <= 2.0
    owner = service.machine.run(f"stat -c %U /proc/{service.pid()}")
    assert owner == "hotreload"


def test_a_reload_waits_until_the_new_weights_answer(service: Service) -> None:
    before = service.pid()
    service.drop(2)
    service.sees(2)
    service.machine.run("systemctl reload hotreload")
    assert service.ask()["text"] == words(2)
    assert re.fullmatch(r"serving generation \d+ \(step_2\)", service.status())
    assert service.pid() == before


def test_a_reload_fails_when_the_checkpoint_is_refused(service: Service) -> None:
    before, live = service.pid(), service.live()
    service.drop(9, "wrong-shape")
    service.sees(9)
    done = service.machine.attempt("systemctl reload hotreload")
    assert done.returncode != 0
    assert (service.state(), service.pid(), service.live()) == ("active", before, live)
    assert f"({live}); refused step_9: shape: " in service.status()
    assert "step_9" in service.machine.journal()


def test_settings_made_invalid_fail_the_reload_and_leave_what_runs(service: Service) -> None:
    before = service.pid()
    service.configure("[broken\n")
    assert service.machine.attempt("systemctl reload hotreload").returncode != 0
    assert "is not TOML" in service.machine.journal()
    assert (service.state(), service.pid()) == ("active", before)
    assert service.ask()["text"].startswith("served by step")


def test_a_restart_under_32_clients_loses_no_request(service: Service) -> None:
    before = service.pid()
    told = asyncio.run(_restarted_under_load(service, clients=32, restarts=2))
    assert told.failures == []
    assert told.answered_before > 32
    assert told.answered_after > 32
    assert service.pid() != before


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
        async with asyncio.timeout(60):
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
        transport=transport, base_url="http://hotreload", timeout=90
    ) as client:
        yield client


def test_a_client_that_comes_while_the_service_is_stopped_starts_it_and_is_answered(
    service: Service,
) -> None:
    service.machine.run("systemctl stop hotreload.service 2>/dev/null")
    assert service.state() == "inactive"
    assert service.ask()["text"].startswith("served by step")
    assert service.state() in ("active", "reloading")


def test_after_kill_minus_nine_the_last_good_generation_answers_who_waits(
    service: Service,
) -> None:
    service.drop(20)
    service.sees(20)
    service.machine.run("systemctl reload hotreload")
    number = service.daemon.get("/status")["generation"]
    before = service.pid()
    service.drop(21, "gibberish")
    service.machine.run(f"kill -9 {before}")
    answer = service.ask()  # waits in the socket meanwhile
    assert (answer["text"], answer["meta_info"]["generation"]) == (words(20), number)
    assert service.pid() not in ("0", before)


def test_the_watchdog_replaces_a_daemon_whose_engine_hangs(service: Service) -> None:
    drop_in = "WatchdogSec=3\nEnvironment=HOTRELOAD_FAILPOINTS=resting=hang@12\n"
    service.configure(drop_in=drop_in)
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
    assert service.ask()["text"].startswith("served by step")


def _ask_until_cut_off(service: Service) -> None:
    while True:  # after each answer the engine rests, which it may not do for ever
        service.ask()


def test_a_start_and_an_attempt_may_take_longer_than_systemd_waits(service: Service) -> None:
    slow = "HOTRELOAD_FAILPOINTS=copying=delay:7"  # at the start and in each attempt
    # The watchdog decides how often the daemon asks for more time: here each 3 s.
    service.configure(drop_in=f"TimeoutStartSec=6\nWatchdogSec=9\nEnvironment={slow}\n")
    service.machine.run("systemctl restart hotreload")
    before = service.pid()
    service.drop(25)
    service.sees(25)
    service.machine.run("systemctl reload hotreload")
    assert (service.live(), service.pid()) == ("step_25", before)


def test_a_wrong_setting_is_told_and_makes_no_storm(service: Service) -> None:
    service.configure("[reload]\ndrain_timeout = 'soon'\n", "[Unit]\nStartLimitBurst=3\n")
    done = service.machine.attempt("systemctl restart hotreload")
    assert done.returncode != 0
    shown = service.machine.show("ActiveState", "ExecMainStatus", "NRestarts")
    assert shown == {"ActiveState": "failed", "ExecMainStatus": "78", "NRestarts": "0"}
    assert "[reload] drain_timeout: 'soon' is no duration" in service.machine.journal()
    # A client in the socket starts it again and again: the start limit ends that, and tells them.
    with pytest.raises(HotReloadError, match=r"broke off|cannot reach"):
        service.ask()
    shown = service.machine.show("Result", unit="hotreload.socket")
    assert shown["Result"] == "service-start-limit-hit"


def test_an_absent_accelerator_has_its_own_exit_code_and_is_tried_again(service: Service) -> None:
    service.configure(drop_in="Environment=JAX_PLATFORMS=tpu,cpu\nRestartSec=3600\n")
    service.machine.attempt("systemctl restart --no-block hotreload")
    service.machine.until(lambda: service.machine.show("SubState")["SubState"] == "auto-restart")
    assert service.machine.show("ExecMainStatus")["ExecMainStatus"] == "69"
    lines = service.machine.journal().splitlines()
    (told,) = [line for line in lines if "daemon.no_device" in line]
    assert "no auto device can be used" in told
    assert "Traceback" not in told
    service.machine.run("systemctl stop hotreload.service 2>/dev/null")


def test_without_a_journal_it_serves_and_swaps_on(service: Service) -> None:
    before = service.pid()
    try:
        service.machine.run("systemctl stop systemd-journald.service 'systemd-journald*.socket'")
        service.drop(30)
        service.sees(30)
        service.machine.run("systemctl reload hotreload")
        assert service.ask()["text"] == words(30)
        assert service.pid() == before
    finally:
        service.machine.run("systemctl start systemd-journald.socket systemd-journald.service")


def test_the_hub_token_reaches_the_daemon_alone(service: Service) -> None:
    machine = service.machine
    environ = machine.run(f"tr '\\0' '\\n' </proc/{service.pid()}/environ")
    (folder,) = re.findall(r"^CREDENTIALS_DIRECTORY=(.*)$", environ, re.MULTILINE)
    become = "setpriv --clear-groups --regid hotreload --reuid"
    as_daemon = f"nsenter -t {service.pid()} -m {become} hotreload"
    assert machine.run(f"{as_daemon} cat {folder}/hf-token") == "hf_secret"
    for other in (f"{become} nobody cat {folder}/hf-token", f"{become} nobody cat {TOKEN}"):
        assert "Permission denied" in machine.attempt(other).stderr
    assert "hf_secret" not in machine.journal() + environ
