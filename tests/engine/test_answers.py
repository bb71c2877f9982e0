"""The pieces of several answers, as a reader of one stream gets them."""

import asyncio
from typing import Any

import pytest

from hotreload.engine.answering.answers import Newest
from hotreload.errors import BadRequest
from tests.waiting import PATIENCE


async def read(newest: Newest) -> list[tuple[int, str]]:
    return [(piece["index"], piece["text"]) async for piece in newest.pieces()]


async def test_a_slow_reader_costs_one_piece_of_each_answer() -> None:
    newest = Newest(2)
    for length in range(1, 1000):
        for index in range(2):
            newest.put(index, {"index": index, "text": "x" * length})
    newest.end()
    newest.end()
    assert await read(newest) == [(0, "x" * 999), (1, "x" * 999)]


async def test_a_talkative_answer_does_not_keep_another_from_being_told() -> None:
    newest = Newest(2)
    newest.put(0, {"index": 0, "text": "a"})
    newest.put(1, {"index": 1, "text": "b"})
    pieces = newest.pieces()
    first: dict[str, Any] = await anext(pieces)
    newest.put(0, {"index": 0, "text": "aa"})
    second: dict[str, Any] = await anext(pieces)
    assert (first["index"], second["index"]) == (0, 1)


async def test_a_reader_waits_for_what_comes_and_hears_of_the_end() -> None:
    newest = Newest(1)
    reader = asyncio.create_task(read(newest))
    await asyncio.sleep(0)
    newest.put(0, {"index": 0, "text": "a"})
    newest.end()
    async with asyncio.timeout(PATIENCE):
        assert await reader == [(0, "a")]


async def test_a_fault_of_one_answer_ends_all() -> None:
    newest = Newest(2)
    newest.put(0, {"index": 0, "text": "a"})
    newest.fail(BadRequest("top_p: no"))
    with pytest.raises(BadRequest, match="top_p"):
        await read(newest)
