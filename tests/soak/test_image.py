"""The image is built, and run as a container runtime would: read-only, as its user, PID 1."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest

from hotreload.client.synchronous import Client
from hotreload.tiny import write_tiny
from tests.children import children_of
from tests.integration.process import START_SECONDS, Process
from tests.integration.running import ENGINE_ARGS, Load, request_for, words
from tests.soak.image import Image, needs_buildah
from tests.waiting import PATIENCE

pytestmark = [
    needs_buildah,
    pytest.mark.soak,
    pytest.mark.real_engine,
    pytest.mark.timeout(1800),
]

MOST_MEGABYTES = 1500
CLIENTS, LONG = 8, 200
"""Requests under way at the end, and their tokens."""
SETTINGS = f"""
[engine]
model = "/models/tiny"
args = {ENGINE_ARGS}
warm_batches = 0
[source]
path = "/checkpoints"
marker = "_SUCCESS"
[metrics]
address = ""
[log]
format = "json"
"""


class Contained(Process):
    """The daemon of an image; its folders are mounted where the image's settings name them."""

    def __init__(self, folder: Path, image: Image) -> None:
        super().__init__(folder)
        self.image = image
        _, group = map(int, image.config["User"].split(":"))
        own = {name: folder / name for name in ("settings", "models", "run", "state")}
        for each in (*own.values(), self.checkpoints):
            each.mkdir()
        # As volumes of Kubernetes with fsGroup are: root's, and the group may write.
        for name, mode in (("run", 0o2777), ("state", 0o2775)):
            os.chown(own[name], 0, group)
            own[name].chmod(mode)
        (own["settings"] / "hotreload.toml").write_text(SETTINGS)
        write_tiny(own["models"] / "tiny", words(1))
        self.socket = own["run"] / "hotreload.sock"
        self.daemon = Client(self.socket, named_by="the test")
        self.mounts = {
            own["settings"]: "/etc/hotreload",
            own["models"]: "/models",
            self.checkpoints: "/checkpoints",
            own["state"]: "/var/lib/hotreload",
            own["run"]: "/run/hotreload",
        }

    def drop(self, number: int, damage: str | None = None) -> None:
        """Bring a checkpoint, its marker last."""
        super().drop(number, damage)
        (self.checkpoints / f"step_{number}" / "_SUCCESS").touch()

    def start(
        self, failpoints: str = "", through: Sequence[str] = (), sets: Sequence[str] = ()
    ) -> None:
        """Begin what the image runs."""
        assert (failpoints, through, sets) == ("", (), ()), "the image says what it runs"
        self.child = self.image.begin(self.mounts, self.log)

    @contextmanager
    def begun(
        self, failpoints: str = "", through: Sequence[str] = (), sets: Sequence[str] = ()
    ) -> Iterator[None]:
        """Started, and not waited for; it ends with the block, which its parent cannot see to."""
        with super().begun(failpoints, through, sets):
            try:
                yield
            finally:
                for pid in children_of(self.child.pid):
                    os.kill(pid, signal.SIGKILL)

    @property
    def pid(self) -> int:
        """The daemon's own, as this machine counts."""
        (pid,) = children_of(self.child.pid)
        return pid


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    with Image(tmp_path_factory.mktemp("image")).built() as image:
        yield image


def test_it_is_small_and_has_no_root(image: Image, show_last: Callable[[str], None]) -> None:
    size, parts = image.megabytes()
    show_last(f"image: {size} MB, of which {', '.join(parts)}")
    assert size < MOST_MEGABYTES
    user, _ = image.config["User"].split(":")
    assert int(user) > 0
    assert image.config["StopSignal"] == "SIGTERM"


async def test_read_only_and_not_as_root_it_answers_reloads_and_stops_with_no_answer_lost(
    image: Image, tmp_path: Path
) -> None:
    daemon = Contained(tmp_path, image)
    daemon.drop(2)
    with daemon.begun():
        ready = partial(daemon.until, lambda: daemon.get("/readyz"), START_SECONDS)
        await asyncio.to_thread(ready)
        assert_confined(daemon.pid)
        assert await asyncio.to_thread(image.healthy, daemon.pid)
        async with Load(daemon, 4).on() as load:
            daemon.drop(3)
            await asyncio.to_thread(daemon.live, "step_3")
        assert load.failures == []
        answers = await stopped_under(daemon)
    said = [(each.status_code, each.json()["meta_info"]["completion_tokens"]) for each in answers]
    assert said == [(200, LONG)] * CLIENTS

    daemon.log.unlink()
    with daemon.running():  # what it keeps is in the state folder, compiled programs, too
        assert daemon.ask()["text"] == words(3)
        assert daemon.said("compile_cache.used")[0]["programs"] > 0
        os.kill(daemon.pid, signal.SIGTERM)
        assert daemon.child.wait(PATIENCE) == 0


def assert_confined(pid: int) -> None:
    """It is number 1, not root, without capabilities, and its root is only to read."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    assert status["NSpid"][-1] == "1"
    assert "0" not in (*status["Uid"], *status["Gid"])
    assert {int(status[name][0], 16) for name in ("CapEff", "CapPrm", "CapBnd")} == {0}
    assert status["NoNewPrivs"] == ["1"]
    mounts = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
    (options,) = (fields[5] for fields in mounts if fields[4] == "/")
    assert "ro" in options.split(",")


async def stopped_under(daemon: Contained) -> list[httpx.Response]:
    """What requests are answered that were under way when it was asked to stop."""
    asked = request_for("Who serves?")
    asked["sampling_params"] |= {"max_new_tokens": LONG, "ignore_eos": True}
    async with daemon.client() as client, asyncio.TaskGroup() as tasks:
        asking = [tasks.create_task(client.post("/generate", json=asked)) for _ in range(CLIENTS)]
        inside = partial(daemon.until, lambda: daemon.get("/status")["gate"]["inside"] == CLIENTS)
        await asyncio.to_thread(inside)
        os.kill(daemon.pid, signal.SIGTERM)
        assert await asyncio.to_thread(daemon.child.wait, PATIENCE) == 0
    return [each.result() for each in asking]
