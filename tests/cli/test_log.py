"""`hotreload log`: what ended, in words, and what ends while it follows."""

import asyncio
import json
from dataclasses import replace

from hotreload.attempts import By
from hotreload.events import AttemptFinished, OperatorAsked
from hotreload.types import Outcome, Reason
from tests.cli.conftest import Command
from tests.server.world import SECOND, World, attempt
from tests.waiting import PATIENCE

NAN = Reason("nonfinite", "tensor 'lm_head' holds NaN, " + "and more " * 40)
PINNED = OperatorAsked(By("pin", 0, 77, 1.7e9 + 9, "evaluation"))


async def test_it_follows_what_ends_from_then_on_and_tells_each_once(
    world: World, hotreload: Command
) -> None:
    before = [AttemptFinished(replace(attempt(), finished_at=1.7e9 + n), SECOND) for n in (1, 2)]
    for event in before:
        world.events.publish(event)
    observers = len(world.events._observers)
    process = await hotreload.start("log", "-f", "-n", "1")
    assert process.stdout is not None
    first = await asyncio.wait_for(process.stdout.readline(), PATIENCE)
    assert len(world.events._observers) > observers  # it listens by the time it tells anything
    late = replace(attempt(Outcome.POSTPONED, NAN), finished_at=1.7e9 + 5)
    world.events.publish(AttemptFinished(late, SECOND))
    world.events.publish(PINNED)
    world.server.stop()
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE)
    told = [line[21:] for line in (first + out).decode().splitlines() if line[:1] != " "]
    held = ", requests were held 5 ms"
    assert told == [
        f"step-2 is live as generation 2 after 1.2 s{held}",
        f"step-2 was put off after 1.2 s{held}: nonfinite",
        "pinned by root (pid 77)",
    ]
    assert (process.returncode, b"stopping" in err) == (0, True)


async def test_what_it_hears_of_is_what_the_history_has(world: World, hotreload: Command) -> None:
    world.events.publish(AttemptFinished(replace(attempt(), finished_at=1.7e9), SECOND))
    observers = len(world.events._observers)
    process = await hotreload.start("log", "-f", "--json")
    await world.until(lambda: len(world.events._observers) > observers)
    back = By("rollback", 0, 77, 1.7e9, "it talks too much")
    world.events.publish(
        AttemptFinished(replace(attempt(), finished_at=1.7e9 + 1, by=back), SECOND)
    )
    world.events.publish(PINNED)
    world.events.publish(replace(PINNED, refusal="busy"))
    history = json.loads((await hotreload("history", "--json")).out)
    world.server.stop()
    out, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
    told = [json.loads(line) for line in out.splitlines()]
    assert told == [*reversed(history["attempts"]), *history["pins"]]
