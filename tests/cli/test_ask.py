"""`hotreload generate`."""

import asyncio

from hotreload.errors import BadRequest
from tests.cli.conftest import Command
from tests.server.world import World
from tests.waiting import PATIENCE


async def test_the_answer_is_printed(world: World, hotreload: Command) -> None:
    said = await hotreload("generate", "hi", "--max-new-tokens", "7")
    assert (said.code, said.out, said.err) == (0, "served by step 1\n", "")
    assert world.engine.requests == [
        {"text": "hi", "sampling_params": {"temperature": 0.0, "max_new_tokens": 7}}
    ]


async def test_a_stream_is_printed_as_it_comes(world: World, hotreload: Command) -> None:
    world.engine.may_answer.clear()
    process = await hotreload.start("generate", "hi", "--stream")
    assert process.stdout is not None
    assert await asyncio.wait_for(process.stdout.readexactly(6), PATIENCE) == b"served"
    world.engine.may_answer.set()
    rest, err = await process.communicate()
    assert (process.returncode, rest, err) == (0, b" by step 1\n", b"")


async def test_a_refused_request_exits_1(world: World, hotreload: Command) -> None:
    world.engine.steps.faults["generate"] = BadRequest("max_new_tokens must be at least 0")
    for flags in ([], ["--stream"]):
        said = await hotreload("generate", "hi", *flags)
        assert (said.code, said.err) == (1, "hotreload: max_new_tokens must be at least 0\n")


async def test_a_stream_that_breaks_off_exits_3(world: World, hotreload: Command) -> None:
    world.engine.breaks_after = (1, KeyError("oops"))
    said = await hotreload("generate", "hi", "--stream")
    assert said.code == 3
    assert "broke off" in said.err


async def test_an_aborted_answer_is_printed_and_exits_1(world: World, hotreload: Command) -> None:
    world.engine.end = {"type": "abort", "message": "drained for a swap"}
    said = await hotreload("generate", "hi")
    assert (said.code, said.out) == (1, "served by step 1\n")
    assert "drained for a swap" in said.err
