"""One engine over two hosts, each with a systemd and a network of its own, and a wire between them.

As docs/start.md says: settings and a checkpoint on both, and install-unit --enable.
"""

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hotreload.client.synchronous import Client
from hotreload.errors import HotReloadError, Unreachable
from hotreload.tiny import write_tiny
from tests.integration.running import ENGINE_ARGS, request_for, words
from tests.systemd.machine import INSIDE, Machine, missing

WHY_NOT = missing()
pytestmark = [
    pytest.mark.real_engine,
    pytest.mark.soak,  # two starts of both, each half a minute
    pytest.mark.timeout(900),
    pytest.mark.skipif(WHY_NOT is not None, reason=f"a real systemd {WHY_NOT}"),
]

ADDRESSES = ("10.77.0.1", "10.77.0.2")
LONG = 300.0
SECRET = "a-secret-of-these-two-machines-alone"
SETTINGS = """
[engine]
model = "/srv/shared/checkpoints/step_1"
tp = 2
nnodes = 2
node_rank = {rank}
dist_init_addr = "{leader}:29500"
join_secret_file = "/etc/hotreload/join-secret"
warm_batches = 0
args = {args}
[source]
path = "/srv/shared/checkpoints"
settle = 0.2
"""
TEST_MACHINE = """
[Service]
Environment=JAX_PLATFORMS=cpu TF_CPP_MIN_LOG_LEVEL=3
Environment=XLA_FLAGS=--xla_force_host_platform_device_count=1
RestartSec=1
"""
COMMAND = f"{INSIDE}/bin/hotreload"


class Host:
    """One of the two."""

    def __init__(self, machine: Machine, rank: int) -> None:
        self.machine = machine
        self.rank = rank
        socket = Path(f"/proc/{machine.pid}/root/run/hotreload/hotreload.sock")
        self._daemon = Client(socket, named_by="the test")

    def configure(self) -> None:
        """Its name leads to its address, its settings say which rank it is."""
        lines = [f"{address} host{rank}" for rank, address in enumerate(ADDRESSES)]
        self.machine.write("/etc/hosts", "\n".join(["127.0.0.1 localhost", *lines, ""]))
        self.machine.run(f"hostname host{self.rank}")
        args = ENGINE_ARGS.replace("=", " = ")
        settings = SETTINGS.format(rank=self.rank, leader=ADDRESSES[0], args=args)
        self.machine.write("/etc/hotreload/hotreload.toml", settings)
        self.machine.write("/etc/hotreload/join-secret", SECRET)
        self.machine.run("chmod 600 /etc/hotreload/join-secret")
        drop_in = "/etc/systemd/system/hotreload.service.d/90-test.conf"
        self.machine.write(drop_in, TEST_MACHINE)
        self.drop(1)

    def drop(self, number: int) -> None:
        write_tiny(self.machine.shared / "checkpoints" / f"step_{number}", words(number))

    def install(self) -> None:
        """It ends when the host is ready, for which it needs the other one."""
        command = f"{COMMAND} install-unit --exec {COMMAND} --enable"
        self.machine.run(f"systemd-run --quiet --unit install --no-block {command}")

    def status(self) -> dict[str, Any]:
        try:
            return self._daemon.get("/status")
        except (Unreachable, HotReloadError):
            return {}

    def is_live(self, number: int) -> bool:
        return self.status().get("label") == f"step_{number}"

    def ask(self) -> str:
        request = request_for("Who serves?")
        return str(self._daemon.ask("POST", "/generate", request, timeout=LONG).fields["text"])

    def was_restarted_since(self, restarts: int) -> bool:
        return self.restarts > restarts

    @property
    def restarts(self) -> int:
        return int(self.shown("NRestarts"))

    def shown(self, name: str) -> str:
        return self.machine.show(name)[name]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Host]]:
    folder = tmp_path_factory.mktemp("hosts")
    with ExitStack() as booted:
        machines = [booted.enter_context(Machine(folder / str(r)).booted()) for r in (0, 1)]
        connect(machines)
        made = [Host(machine, rank) for rank, machine in enumerate(machines)]
        for host in made:
            host.configure()
        with ThreadPoolExecutor() as both:
            list(both.map(Host.install, made))
        yield made


def connect(machines: list[Machine]) -> None:
    """A wire from one to the other."""
    first, second = (machine.pid for machine in machines)
    wire = f"ip link add name wire netns {first} type veth peer name wire netns {second}"
    subprocess.run(wire.split(), check=True)
    for machine, address in zip(machines, ADDRESSES, strict=True):
        machine.run(f"ip addr add {address}/24 dev wire; ip link set wire up; ip link set lo up")


def both_have(hosts: list[Host], number: int) -> None:
    for host in hosts:
        host.machine.until(partial(host.is_live, number), LONG)


def test_both_come_up_as_one_engine_and_what_goes_live_goes_live_on_both(
    hosts: list[Host],
) -> None:
    leader, follower = hosts
    both_have(hosts, 1)
    assert leader.ask() == words(1)
    assert [host.status()["state"] for host in hosts] == ["serving", "following"]
    assert follower.shown("StatusText").startswith("following as rank 1 of 2: generation 1")
    assert "rank 1 of 2" in follower.shown("Description")
    for host in reversed(hosts):
        host.drop(2)
    both_have(hosts, 2)
    assert leader.ask() == words(2)
    assert leader.status()["fingerprint"] == follower.status()["fingerprint"]


@pytest.mark.parametrize("rank", [1, 0])
def test_systemd_brings_both_back_when_one_of_them_dies(hosts: list[Host], rank: int) -> None:
    leader, follower = hosts
    killed, other = hosts[rank], hosts[1 - rank]
    before, restarts = leader.status(), [host.restarts for host in hosts]
    killed.machine.run("systemctl kill --signal SIGKILL --kill-whom main hotreload.service")
    for host, restarted in zip(hosts, restarts, strict=True):
        host.machine.until(partial(host.was_restarted_since, restarted), LONG)
    both_have(hosts, 2)
    assert leader.ask() == words(2)
    for name in ("generation", "revision", "fingerprint"):
        assert leader.status()[name] == follower.status()[name] == before[name]
    assert '"exit_code": 70' in other.machine.journal()
