"""A part of the tensors: what is left out stays as it was live when the part was staged."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from hotreload.core.rules import KeepPrevious
from hotreload.errors import Superseded
from hotreload.types import Mode
from tests.hot.program import RULES, Program, running

KEEPING = replace(RULES, sets=3, keep_previous=KeepPrevious.HOST)
"""What was live can be had again while other weights are staged."""


@pytest_asyncio.fixture(params=Mode)
async def program(request: pytest.FixtureRequest) -> AsyncIterator[Program]:
    async with running(request.param, KEEPING) as program:
        yield program


async def updated(program: Program, name: str) -> int:
    number = await program.update(name)
    await program.rested()
    return number


async def test_a_part_goes_live_upon_what_it_was_staged_upon(program: Program) -> None:
    await updated(program, "step 1")
    staged = await program.stage("part 2")
    assert (await staged.flip()).number == 3
    assert program.replica.live.revision.label == "part 2"


async def test_a_part_is_refused_when_what_was_live_is_not_live_any_more(program: Program) -> None:
    await updated(program, "step 1")
    staged = await program.stage("part 2")
    assert await program.rollback() is not None
    await program.rested()
    words = "those of generation 2, and generation 3 is live now: stage the part again"
    with pytest.raises(Superseded, match=words):
        await staged.flip()
    with pytest.raises(Superseded, match=words):
        await staged.probe()
    assert (program.says, staged.is_held) == ("first", True)
    await staged.release()
    assert (await (await program.stage("part 2")).flip()).number == 4


async def test_a_part_goes_live_when_what_was_live_is_so_again(program: Program) -> None:
    second = await updated(program, "step 1")
    staged = await program.stage("part 2")
    for number in (None, second):
        assert await program.rollback(number) is not None
        await program.rested()
    assert (await staged.flip()).number == 5


async def test_a_whole_set_does_not_care_what_was_live(program: Program) -> None:
    await updated(program, "step 1")
    staged = await program.stage("step 2")
    assert await program.rollback() is not None
    assert (await staged.flip()).number == 4


async def test_equal_parts_are_other_revisions_upon_other_weights(program: Program) -> None:
    """Else a rollback would take one for the other, which has the same name."""
    ids = []
    for name in ("step 1", "step 2"):
        await updated(program, name)
        await updated(program, "part 3")
        ids.append(program.replica.live.revision.id)
    assert len(set(ids)) == 2
