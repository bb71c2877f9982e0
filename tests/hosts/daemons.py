"""Two daemons that hold one engine together, as two hosts would: each has its own of everything.

They share the address where they meet, and nothing else: each has its settings, its state folder,
its socket, and its copy of every checkpoint.
"""

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from hotreload.errors import HotReloadError
from tests.engine import real
from tests.hosts.member import free_address
from tests.integration.deaths import KILLED, ledger_of
from tests.integration.process import OF_A_RANK, START_SECONDS, Process
from tests.integration.running import not_said_by, words
from tests.waiting import PATIENCE

ONE_DEVICE = {"XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
# As in `tests/hosts/test_engine.py`, whose programs are kept, too.
ARGS = real.ARGS | real.ONE_SIZE
ENGINE_ARGS = f"engine.args={{{','.join(f'{name}={value}' for name, value in ARGS.items())}}}"
LOST = 70
SECRET = "a-secret-of-these-two-hosts-alone"


class Good(NamedTuple):
    """What a rank's ledger would have the next life start with."""

    number: int
    label: str
    fingerprint: str


class Daemons:
    """`hotreload serve` twice, with an engine of two devices over both."""

    def __init__(self, folder: Path, *sets: str) -> None:
        self.address = address = free_address()
        secret = folder / "join-secret"
        secret.write_text(SECRET)
        secret.chmod(0o600)
        where = (f"engine.dist_init_addr={address}", f"engine.join_secret_file={secret}")
        shared = ("engine.ranks=auto", "engine.tp=2", ENGINE_ARGS, *where, *sets)
        self.ranks = [_made(folder / f"rank{rank}", rank, shared) for rank in (0, 1)]
        self.leader, self.follower = self.ranks
        self.newest = 0

    def drop(self) -> int:
        """Bring the next checkpoint to both hosts, to rank 0's last."""
        self.newest += 1
        for process in reversed(self.ranks):
            process.drop(self.newest)
        return self.newest

    @contextmanager
    def living(
        self, leader: str = "", follower: str = "", sets: Sequence[str] = ()
    ) -> Iterator[None]:
        """A life of both from its start to the end of the block, by these failpoints of each."""
        for process in self.ranks:
            process.log.unlink(missing_ok=True)
        with (
            self.leader.begun(leader, sets=sets),
            self.follower.begun(follower, sets=sets),
        ):
            for process in self.ranks:
                process.until(lambda process=process: process.get("/readyz"), START_SECONDS)
            yield

    def until_same(self, number: int) -> Good:
        """Until both remember that step `number` is good, as the same generation."""
        self.leader.until(lambda: good_of(self.leader).label == f"step_{number}")
        self.follower.until(lambda: good_of(self.follower) == good_of(self.leader))
        return good_of(self.leader)

    def told_against(self, number: int, words: str) -> dict[str, Any]:
        """The attempt at step `number` that rank 0 tells of in these words; nobody has flipped."""
        before = [process.get("/status")["generation"] for process in self.ranks]
        told: list[dict[str, Any]] = []

        def is_told() -> bool:
            attempts = self.leader.get("/history")["attempts"]
            own = (each for each in attempts if each["label"] == f"step_{number}")
            told[:] = [each for each in own if words in (each["reason"] or "")]
            return bool(told)

        self.leader.until(is_told)
        assert [process.get("/status")["generation"] for process in self.ranks] == before
        return told[0]

    def labels(self) -> dict[int, str]:
        """Which checkpoint each generation was made of that has answered in this life."""
        return {line["generation"]: line["label"] for line in self.leader.said("generation.live")}

    @contextmanager
    def being_asked(self) -> Iterator[None]:
        """Somebody asks rank 0 until it or the block ends; no answer is a mixed one."""
        answers: list[tuple[int, str]] = []
        enough = threading.Event()

        def ask() -> None:
            with suppress(HotReloadError):  # it has ended
                while not enough.is_set():
                    answer = self.leader.ask()
                    answers.append((answer["meta_info"]["generation"], answer["text"]))

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            yield
        finally:
            enough.set()
            asking.join(PATIENCE)
        assert not_said_by(answers, self.labels()) == []

    # --- lives that follow each other ----------------------------------------------------------

    @contextmanager
    def again(
        self, leader: str = "", follower: str = "", sets: Sequence[str] = ()
    ) -> Iterator[None]:
        """The next life, begun by hand as systemd would do it.

        It begins with what was good on rank 0. By now the newest is live on both, whatever died
        over it before, and no number was given again.
        """
        good, numbers = good_of(self.leader), [good_of(each).number for each in self.ranks]
        with self.living(leader, follower, sets):
            (first, *_) = self.leader.said("generation.live")
            assert (first["label"], first["fingerprint"]) == (good.label, good.fingerprint)
            assert self.until_same(self.newest).number >= max(numbers)
            assert self.leader.ask()["text"] == words(self.newest)
            yield

    def armed(self, failpoint: str) -> str:
        """So that it comes over the checkpoint after what the next life has live by itself."""
        is_tried_again = good_of(self.leader).label != f"step_{self.newest}"
        return f"{failpoint}@{1 + is_tried_again}"

    def killed_at(self, rank: int, point: str | None) -> None:
        """The next life: a rank is killed over the next checkpoint, or while nothing is tried."""
        armed = ["", ""]
        armed[rank] = self.armed(f"{point}=kill") if point else ""
        with self.again(*armed), self.being_asked():
            if point:
                self.drop()
            else:
                self.ranks[rank].child.kill()
            self.until_ended_by(rank)

    def until_ended_by(self, rank: int) -> None:
        """That rank was killed: the other one says so, remembers it, and ends by itself."""
        killed, other = self.ranks[rank], self.ranks[1 - rank]
        assert killed.child.wait(PATIENCE) == KILLED
        assert other.child.wait(START_SECONDS) == LOST
        (lost,) = other.said("daemon.engine_lost")
        assert lost["exit_code"] == LOST
        assert lost["cause"]
        assert ledger_of(other).lost_at

    def stop(self) -> None:
        """Tell rank 0 to stop: the follower cannot go on without it."""
        self.leader.child.send_signal(signal.SIGTERM)
        assert self.leader.child.wait(PATIENCE) == 0
        assert self.follower.child.wait(PATIENCE) == LOST
        (left,) = self.follower.said("daemon.leaving_with_rank_0")
        assert "rank 0 leaves: it was asked to stop" in left["cause"]


def _made(folder: Path, rank: int, shared: tuple[str, ...]) -> Process:
    folder.mkdir()
    process = Process(folder, *shared, command=OF_A_RANK)
    # As a LeaderWorkerSet starts the pods of a group.
    process.environ = {**ONE_DEVICE, "LWS_WORKER_INDEX": str(rank), "LWS_GROUP_SIZE": "2"}
    return process


def good_of(process: Process) -> Good:
    """What its state file says."""
    good = ledger_of(process).last_good
    assert good is not None
    return Good(good.number, good.revision.label, good.fingerprint)
