"""Killed or told to stop where only a swap by overlap passes: the last good generation serves."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.fake_answers import FOR_EVER
from tests.integration.deaths import (
    BY_OVERLAP,
    KILLED,
    Story,
    assert_numbers_rise,
    good_step,
    made,
    of_words,
    stop_in_an_overlap_at,
)
from tests.integration.process import Process
from tests.integration.test_drain import ROOM
from tests.integration.test_fading import TOKENS
from tests.waiting import PATIENCE


@contextmanager
def being_answered(process: Process) -> Iterator[None]:
    """Somebody reads an answer that takes long, and goes when the block ends."""
    sampling = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
    body = {"text": FOR_EVER, "sampling_params": sampling, "stream": True}
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


def test_killed_at_any_point_of_an_overlap_it_comes_back_on_the_last_good_generation(
    tmp_path: Path,
) -> None:
    story = Story(of_words(tmp_path, BY_OVERLAP))
    for point in ("proven", "flipped", "committed"):
        story.die_at(point)
    die_when_the_old_one_ends(story)
    assert_well_at_the_end(story)


@pytest.mark.real_engine
def test_a_real_engine_that_is_killed_comes_back_on_the_last_good_generation(
    tmp_path: Path,
) -> None:
    story = Story(made(tmp_path, BY_OVERLAP, ROOM))
    for point in ("reading", "flipped", "committed"):
        story.die_at(point)
    assert_well_at_the_end(story)


def assert_well_at_the_end(story: Story) -> None:
    """One more life, which nothing kills."""
    with story.begun():
        assert story.process.get("/status")["mode"] == "overlap"
        assert list((story.process.folder / "state" / "staging").iterdir()) == []
        assert story.process.stop() == 0
    assert_numbers_rise(story.process)


STOPS = {
    "probing=hang": 1,
    "proven=hang": 1,
    "flipped=delay:1.5": 2,  # from here on it goes on to its end
    "ended=hang": 2,
}
"""And which step is good afterwards."""


@pytest.mark.parametrize("failpoint", STOPS)
def test_told_to_stop_at_any_point_of_an_overlap_it_exits_0_in_time(
    tmp_path: Path, failpoint: str
) -> None:
    stop_in_an_overlap_at(of_words(tmp_path, BY_OVERLAP), failpoint, STOPS[failpoint])


@pytest.mark.real_engine
def test_told_to_stop_while_a_real_engine_flips_it_exits_0_in_time(tmp_path: Path) -> None:
    stop_in_an_overlap_at(made(tmp_path, BY_OVERLAP), "flipped=delay:1.5", good=2)
