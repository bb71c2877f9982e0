"""Killed or told to stop where only a swap by overlap passes: the last good generation serves."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.integration.process import Process
from tests.integration.test_crashes import EXIT_SECONDS, KILLED, Story, ledger_of, made
from tests.integration.test_fading import ROOM, TOKENS
from tests.waiting import PATIENCE

pytestmark = pytest.mark.real_engine

BY_OVERLAP = "reload.mode=overlap"


@contextmanager
def being_answered(process: Process) -> Iterator[None]:
    """Somebody reads an answer that takes long, and goes when the block ends."""
    sampling = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
    body = {"text": "x", "sampling_params": sampling, "stream": True}
    transport = httpx.HTTPTransport(uds=str(process.socket))
    with (
        httpx.Client(transport=transport, base_url="http://x", timeout=PATIENCE) as client,
        client.stream("POST", "/generate", json=body) as answer,
    ):
        answer.raise_for_status()
        lines = answer.iter_lines()  # kept: who drops them hangs up
        next(lines)
        yield


def die_when_the_old_one_ends(story: Story) -> None:
    """Killed when nobody is answered by the old weights; by then the new ones are remembered."""
    passes = 1 + (story.died_on is not None)
    with story.begun(f"ended=kill@{passes}"):
        story.newest += 1
        with being_answered(story.process):
            story.process.drop(story.newest)
            story.process.live(f"step_{story.newest}")
            story.process.until(lambda: good_step(story.process) == story.newest)
        assert story.process.child.wait(PATIENCE) == KILLED
    story.good, story.died_on = story.newest, None


def good_step(process: Process) -> int:
    """The step the state file would have the next life start with."""
    good = ledger_of(process).last_good
    assert good is not None
    return int(good.revision.label.removeprefix("step_"))


def test_killed_at_any_point_of_an_overlap_it_comes_back_on_the_last_good_generation(
    tmp_path: Path,
) -> None:
    story = Story(made(tmp_path, BY_OVERLAP, ROOM))
    for point in ("proven", "flipped", "committed"):
        story.die_at(point)
    die_when_the_old_one_ends(story)
    with story.begun():
        assert story.process.get("/status")["mode"] == "overlap"
        assert list((tmp_path / "state" / "staging").iterdir()) == []
        assert story.process.stop() == 0
    numbers = [place.number for place in ledger_of(story.process).generations]
    assert numbers == sorted(set(numbers))


STOPS = {
    "probing=hang": ("probing", "step_1", 1),
    "proven=hang": ("probing", "step_1", 1),
    "flipped=delay:1.5": ("swapping", "step_1", 2),  # from here on it goes on to its end
    "ended=hang": (None, "step_2", 2),
}
"""The phase and the label when it is told to stop, and which step is good afterwards."""


@pytest.mark.parametrize("failpoint", STOPS)
def test_told_to_stop_at_any_point_of_an_overlap_it_exits_0_in_time(
    tmp_path: Path, failpoint: str
) -> None:
    phase, label, good = STOPS[failpoint]
    process = made(tmp_path, BY_OVERLAP)

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
