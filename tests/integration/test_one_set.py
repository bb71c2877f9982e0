"""A daemon with one set of weights on the device at a time: swaps drain, and say why."""

from typing import Any

from hotreload.types import Outcome, Phase
from tests.integration.running import (
    Load,
    Running,
    mixed,
    one_daemon,
    one_daemon_marks,
    post,
    words,
)

pytestmark = one_daemon_marks()

WHY = "[reload] memory = 'host': one set of weights at a time is on the device"

running = one_daemon("reload.memory=host", "reload.keep_previous=host")


async def status(running: Running) -> dict[str, Any]:
    async with running.client() as client:
        return dict((await client.get("/status")).json())


async def sets_on_device(running: Running) -> dict[str, float]:
    """Of how many sets the metrics count the bytes, by place."""
    async with running.client() as client:
        page = (await client.get("/metrics")).text
    rows = [line for line in page.splitlines() if line.startswith("hotreload_weights_bytes{")]
    return {row.split('"')[1]: float(row.split()[-1]) / running.live.bytes for row in rows}


async def test_good_and_bad_checkpoints_under_load_and_every_answer_is_its_generations(
    running: Running,
) -> None:
    assert {key: (await status(running))[key] for key in ("mode", "mode_reason")} == {
        "mode": "drain",
        "mode_reason": WHY,
    }
    async with Load(running, clients=4).on() as load:
        good = await running.attempted(running.drop(2))
        bad = await running.attempted(running.drop(3, "gibberish"))
        again = await running.attempted(running.drop(4))
    outcomes = [attempt.outcome for attempt in (good, bad, again)]
    assert outcomes == [Outcome.LIVE, Outcome.REJECTED, Outcome.LIVE]
    assert bad.reason is not None
    assert (bad.reason.code, bad.rolled_back) == ("probe", True)
    assert {Phase.DRAINING, Phase.SWAPPING, Phase.ROLLING_BACK} <= bad.phases.keys()
    assert load.failures == []
    assert mixed(load.answers, running.generations) == []
    assert (await running.ask())["text"] == words(4)
    assert await sets_on_device(running) == {"live": 1.0, "previous": 0.0, "staged": 0.0}


async def test_a_rollback_and_noise_go_the_same_way_and_compile_nothing(running: Running) -> None:
    await running.ask()
    before, compiled = running.live, running.engine.recompiles
    assert (await post(running, "rollback")).json()["ok"]
    assert (await running.ask())["text"] == words(2)
    noisy = (await post(running, "perturb_weights", seed=7, scale=0.01)).json()
    assert (noisy["ok"], noisy["checksum_before"] == noisy["checksum_after"]) == (True, False)
    assert (await post(running, "rollback")).json()["ok"]
    assert (await running.ask())["text"] == words(2)
    assert running.live.number == before.number + 3
    assert running.engine.recompiles == compiled
