"""A daemon that is killed or told to stop at a failpoint, and what its state file says then."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hotreload.core.ledger import Ledger
from hotreload.life.saved.state_json import from_json
from tests.integration.process import OF_WORDS, REAL, Process
from tests.integration.running import words
from tests.waiting import PATIENCE

KILLED = -signal.SIGKILL
EXIT_SECONDS = 20.0
"""A good deal less than systemd waits; 5 of them are for a thread that hangs."""
BY_OVERLAP = "reload.mode=overlap"
PHASE_AT = {
    "reading": "staging",
    "staged": "staging",
    "swapped": "swapping",
    "committed": "probing",
}


def made(folder: Path, *sets: str, command: str = REAL) -> Process:
    """A daemon that drains, if nothing else is said, and has one checkpoint."""
    patience = 6 if command == REAL else 2
    usual = ("source.settle=0", f"reload.probe_timeout={patience}", "reload.mode=drain")
    process = Process(folder, *usual, *sets, command=command)
    process.drop(1)
    return process


def of_words(folder: Path, *sets: str) -> Process:
    """The same on an engine of words: for what is about the journal, the state and signals."""
    return made(folder, *sets, command=OF_WORDS)


def ledger_of(process: Process) -> Ledger:
    return from_json((process.folder / "state" / "state.json").read_bytes())


def good_step(process: Process) -> int:
    """The step the state file would have the next life start with."""
    good = ledger_of(process).last_good
    assert good is not None
    return int(good.revision.label.removeprefix("step_"))


def assert_answers_from(process: Process, *numbers: int) -> None:
    """The answer is exactly what the generation named in it says, and is one of these."""
    answer = process.ask()
    assert answer["text"] in {words(number) for number in numbers}, answer


def assert_numbers_rise(process: Process) -> None:
    """No number was given twice, whatever died."""
    numbers = [place.number for place in ledger_of(process).generations]
    assert numbers == sorted(set(numbers))


class Story:
    """One daemon, killed again and again: each start shows what the death before it did."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.good, self.newest = 1, 1
        self.died_on: int | None = None

    def die_at(self, point: str) -> None:
        """Start, see that all is well, publish a checkpoint and be killed over it."""
        # The one it died on before passes the point first; the start makes a copy, too.
        passes = 1 + (self.died_on is not None) + (point == "reading")
        with self.begun(f"{point}=kill@{passes}"):
            self.newest += 1
            self.process.drop(self.newest, "gibberish" if point == "rolling_back" else None)
            assert self.process.child.wait(PATIENCE) == KILLED, point
        if point == "saved":
            self.good, self.died_on = self.newest, None
        else:
            self.died_on = self.newest

    @contextmanager
    def begun(self, failpoints: str = "") -> Iterator[None]:
        """Started, on the last good generation; what it died on is tried again and goes live."""
        self.process.log.unlink(missing_ok=True)
        with self.process.running(failpoints):
            (first, *_) = self.process.said("generation.live")
            assert first["label"] == f"step_{self.good}"
            assert_answers_from(self.process, self.good, self.died_on or self.good)
            if self.died_on is not None:
                self.process.live(f"step_{self.died_on}")
                assert self.process.get("/status")["refused"] == []
                self.good = self.died_on
            assert_answers_from(self.process, self.good)
            yield


def stop_at(process: Process, failpoint: str, good: int) -> None:
    """SIGTERM while step_2 stands at the failpoint: exit 0, nothing refused that was not bad."""
    point = failpoint.partition("=")[0]
    phase = PHASE_AT.get(point, point)
    with process.running(failpoint):
        process.drop(2, "gibberish" if point == "rolling_back" else None)
        process.until(lambda: process.get("/status")["phase"] == phase)
        process.child.send_signal(signal.SIGTERM)
        assert process.child.wait(EXIT_SECONDS) == 0
    assert len(process.said("daemon.left_behind")) == (point == "reading")
    assert not process.socket.exists()
    ledger = ledger_of(process)
    assert ledger.under_way is None
    assert good_step(process) == good
    refused = {refusal.reason.code for refusal in ledger.refused.values()}
    assert refused == ({"probe"} if point in ("probing", "rolling_back") else set())


def stop_in_an_overlap_at(process: Process, failpoint: str, good: int) -> None:
    """The same by overlap, where nobody who only asks the probes is waited for."""
    phase, label = SEEN_AT[failpoint.partition("=")[0]]

    def is_there() -> bool:
        status = process.get("/status")
        return (status["phase"], status["label"]) == (phase, label)

    with process.running(failpoint):
        process.drop(2)
        process.until(is_there)
        process.child.send_signal(signal.SIGTERM)
        assert process.child.wait(EXIT_SECONDS) == 0
    ledger = ledger_of(process)
    assert ledger.under_way is None
    assert good_step(process) == good
    assert ledger.refused == {}  # nobody answered the probes, and nobody waited for it


SEEN_AT: dict[str, tuple[str | None, str]] = {
    "probing": ("probing", "step_1"),
    "proven": ("probing", "step_1"),
    "flipped": ("swapping", "step_1"),
    "ended": (None, "step_2"),
}
"""The phase and the label while it stands at a point of an overlap."""
