"""A server for every test that asks for one, and where what asks the model is answered."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import tests.server.world
from tests.loops import pytest_asyncio_loop_factories
from tests.server.world import World, serve

__all__ = ["pytest_asyncio_loop_factories"]

ASK_THE_MODEL = {
    "test_answer_listeners",
    "test_bodies",
    "test_connections",
    "test_request_headers",
    "test_echo",
    "test_flip",
    "test_generate",
    "test_half_closed",
    "test_request_listeners",
    "test_key_limits",
    "test_keys",
    "test_min_generation",
    "test_openai",
    "test_stream_pieces",
    "test_replay",
    "test_responses",
    "test_several_answers",
    "test_several_engines",
    "test_text_generation",
    "test_tools",
}
"""All that is promised to who asks the model is promised wherever it is answered."""
WORDS_ALONE = {
    "test_echo",
    "test_request_listeners",
    "test_keys",
    "test_min_generation",
    "test_openai",
    "test_responses",
    "test_several_answers",
    "test_text_generation",
    "test_tools",
}
"""What these are about is the same code on the same pieces: through a worker they run at night."""
COUNT_WHAT_A_PROCESS_HAS = {
    "test_an_answer_that_nobody_reads_keeps_no_connection_when_all_of_it_is_written",
    "test_answers_that_nobody_reads_keep_no_place_and_no_connection",
    "test_many_unfinished_bodies_take_no_more_than_is_allowed",
}
"""In the loop of a test, a worker's own sockets and memory would be counted, too."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what asks the model a second time, answered by a worker."""
    module = metafunc.module.__name__.rpartition(".")[2]
    if module in ASK_THE_MODEL:
        name = metafunc.function.__name__
        marks = [pytest.mark.at_night] if module in WORDS_ALONE else []
        by_a_worker = [pytest.param("a worker", marks=marks)]
        there = by_a_worker if name not in COUNT_WHAT_A_PROCESS_HAS else []
        metafunc.parametrize("answered_by", ["itself", *there], indirect=True)


@pytest.fixture(autouse=True)
def answered_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Say who answers in this test."""
    by_a_worker = getattr(request, "param", "itself") == "a worker"
    monkeypatch.setattr(tests.server.world, "BY_A_WORKER", by_a_worker)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A server that has booted and answers with generation 1."""
    async with serve(tmp_path) as world:
        yield world
