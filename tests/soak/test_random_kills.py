"""Killed at random moments, under load and damage, and told to stop at every point."""

import os
import random
import signal
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from hotreload.core.ledger import Ledger, from_json
from hotreload.errors import HotReloadError
from tests.integration.process import Process
from tests.integration.running import words
from tests.integration.test_crashes import STOPS, stop_at

pytestmark = [pytest.mark.soak, pytest.mark.real_engine, pytest.mark.timeout(1800)]

KILLS = 20
SEED = int(os.environ.get("HOTRELOAD_SOAK_SEED", random.randrange(10**6)))
DAMAGES = (None, None, None, "nan", "gibberish", "truncated")
LEGITIMATE = {"nan": "nonfinite", "gibberish": "probe", "truncated": "truncated"}


class Life:
    """One daemon that is killed again and again; what was published, and what was answered."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.process = Process(folder, "source.settle=0", "source.patience=0.3", "log.level=debug")
        self.chance = chance
        self.damage_of: dict[int, str | None] = {1: None}
        self.process.drop(1)
        self.answers = 0
        self.wrong: list[str] = []
        self.survived: Counter[str] = Counter()

    def ledger(self) -> Ledger:
        """Whatever happened, what lies there is whole."""
        return from_json((self.process.folder / "state" / "state.json").read_bytes())

    def publish(self) -> None:
        number = max(self.damage_of) + 1
        damage = self.damage_of[number] = self.chance.choice(DAMAGES)
        self.process.drop(number, damage)

    def ask_until(self, end: threading.Event) -> None:
        """Every answer is exactly what some sound checkpoint says; a kill may cut one off."""
        sound = {words(number) for number in range(1, 100)}
        while not end.is_set():
            with suppress(HotReloadError, OSError):
                answer = self.process.ask()
                self.answers += 1
                number = int(answer["text"].rpartition(" ")[2]) if answer["text"] in sound else 0
                if self.damage_of.get(number, "unknown") is not None:
                    self.wrong.append(str(answer))

    def be_killed(self) -> None:
        """Publish at random, and be killed at a random moment of what follows."""
        end = threading.Event()
        asking = threading.Thread(target=self.ask_until, args=(end,))
        asking.start()
        try:
            for _ in range(self.chance.randint(1, 3)):
                self.publish()
                time.sleep(self.chance.uniform(0, 0.4))  # the random moment
        finally:
            self.process.child.send_signal(signal.SIGKILL)
            self.process.child.wait()
            end.set()
            asking.join()
        phases = [line["phase"] for line in self.process.said("reload.phase")]
        self.survived[str(phases[-1] if phases else None)] += 1


def test_killed_twenty_times_at_random_it_comes_back_each_time(tmp_path: Path) -> None:
    print(f"\nseed {SEED} (HOTRELOAD_SOAK_SEED)")
    life = Life(tmp_path, random.Random(SEED))
    good = "step_1"
    for _ in range(KILLS):
        life.process.log.unlink(missing_ok=True)
        with life.process.running():
            (first, *_) = life.process.said("generation.live")
            assert first["label"] == good
            life.be_killed()
        last = life.ledger().last_good
        assert last is not None
        good = last.revision.label
        assert life.damage_of[int(good[5:])] is None
    finish(life)
    table = "\n".join(
        f"  {count:3} in phase {phase}" for phase, count in life.survived.most_common()
    )
    print(f"{KILLS} kills survived, {life.answers} answers, none of them wrong:\n{table}")


def finish(life: Life) -> None:
    """At the end everything that was refused deserved it, and a new checkpoint goes live."""
    with life.process.running():
        number = max(life.damage_of) + 1
        life.process.drop(number)
        life.process.live(f"step_{number}")
        assert life.process.ask()["text"] == words(number)
        for refusal in life.process.get("/status")["refused"]:
            damage = life.damage_of[int(refusal["label"][5:])]
            # Two kills in two attempts at one sound checkpoint look like its fault.
            assert refusal["code"] in ({LEGITIMATE[damage]} if damage else set()) | {"crashed"}
        assert life.process.stop() == 0
    assert life.wrong == []
    numbers = [place.number for place in life.ledger().generations]
    assert numbers == sorted(set(numbers))


POINTS = {
    "fetching=hang": 1,
    "validating=hang": 1,
    "staged=hang": 1,
    "draining=hang": 1,
    "swapped=delay:1.5": 2,
    "rolling_back=delay:1.5": 1,
    "committed=delay:1.5": 2,
}


@pytest.mark.parametrize("failpoint", POINTS)
def test_told_to_stop_at_any_other_point_it_exits_0_in_time(tmp_path: Path, failpoint: str) -> None:
    assert failpoint not in STOPS
    stop_at(tmp_path, failpoint, POINTS[failpoint])
