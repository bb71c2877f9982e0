import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotreload import failpoints

SOURCES = sorted((Path(__file__).parents[2] / "hotreload").rglob("*.py"))


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


async def test_nothing_happens_at_a_point_that_is_not_armed() -> None:
    failpoints.arm("staged=raise:OSError")
    await failpoints.reach("staging")
    failpoints.reach_in_thread("reading")


async def test_an_armed_point_raises_what_it_was_told() -> None:
    failpoints.arm("staged=raise:OSError; reading=raise:ValueError")
    with pytest.raises(OSError, match="failpoint"):
        await failpoints.reach("staged")
    with pytest.raises(ValueError, match="failpoint"):
        failpoints.reach_in_thread("reading")


async def test_the_second_time_can_be_meant() -> None:
    failpoints.arm("staged=raise:OSError@2")
    await failpoints.reach("staged")
    with pytest.raises(OSError, match="failpoint"):
        await failpoints.reach("staged")


async def test_a_hang_ends_with_a_cancel() -> None:
    failpoints.arm("staged=hang")
    task = asyncio.create_task(failpoints.reach("staged"))
    await asyncio.wait({task}, timeout=0.02)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_to_arm_anew_forgets_what_was_armed() -> None:
    failpoints.arm("staged=raise:OSError;reading=delay:0.5@3")
    assert failpoints.list_armed() == {"staged": "raise:OSError", "reading": "delay:0.5"}
    failpoints.arm("")
    await failpoints.reach("staged")
    assert failpoints.list_armed() == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("stagin=kill", "no point is called 'stagin'"),
        ("staging", "an action is one of"),
        ("staging=explode", "an action is one of"),
        ("staging=raise:Nonsense", "no built-in exception"),
        ("staging=delay:soon", "soon"),
        ("staging=kill@0", "such as @2"),
    ],
)
def test_what_cannot_be_armed_is_refused_and_arms_nothing(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        failpoints.arm(f"staged=hang;{text}")
    assert failpoints.list_armed() == {}


def test_every_point_stands_somewhere_in_the_code() -> None:
    code = "\n".join(path.read_text() for path in SOURCES if path.name != "failpoints.py")
    named = set(re.findall(r'\breach(?:_in_thread)?\("(\w+)"\)', code))
    phases = set(re.findall(r"\.phase\(\s*Phase\.(\w+)", code))
    assert named | {phase.lower() for phase in phases} == set(failpoints.POINTS)
