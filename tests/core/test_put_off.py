"""All attempts are put off for a reason: none begins, and one that stages is given up."""

from hotreload.types import Outcome, Phase, Revision
from tests.core.conftest import World
from tests.fakes import HANG
from tests.waiting import PATIENCE

WHY = "this machine will be taken away"


async def test_nothing_new_is_staged_and_what_stages_is_given_up(world: World) -> None:
    one = Revision("r1", "step_1")
    world.steps.faults["stage"] = HANG
    async with world.running():
        world.source.publish(one)
        await world.until(lambda: world.status_phase == Phase.STAGING)
        world.recording.put_off(WHY)
        await world.until(lambda: bool(world.attempts))
        (given_up,) = world.attempts
        assert given_up.outcome is Outcome.POSTPONED
        assert given_up.reason is not None
        assert f"was put off: {WHY}" in given_up.reason.message
        world.now += PATIENCE
        world.source.publish(Revision("r2", "step_2"))
        await world.until(lambda: world.waiting_for == WHY)
        ordered = await (await world.operator.reload("step_1"))
        assert ordered.outcome is Outcome.POSTPONED
        del world.steps.faults["stage"]
        world.recording.put_off(None)
        await world.until(lambda: world.replica.live.revision.id == "r2")
