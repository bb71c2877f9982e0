"""Checksum, noise, checksum, rollback, checksum: on the real engine, as an operator does it."""

from pathlib import Path
from typing import Any

from tests.integration.running import Load, Running, one_daemon, one_daemon_marks, post, words

pytestmark = one_daemon_marks()


running = one_daemon()


async def told(running: Running, route: str, **fields: Any) -> tuple[int, dict[str, Any]]:
    answer = await post(running, route, **fields)
    return answer.status_code, answer.json()


async def checksum(running: Running) -> dict[str, Any]:
    async with running.client() as client:
        answer = await client.get("/admin/weights_checksum?leaves=1")
    content: dict[str, Any] = answer.json()
    assert content["changed"] == []
    return content


async def test_noise_moves_the_checksum_and_a_rollback_brings_it_back(running: Running) -> None:
    before, said = await checksum(running), await running.ask()
    async with Load(running, 4).on() as load:
        status, noisy = await told(running, "perturb_weights", seed=7, scale=0.05, num_leaves=4)
    assert (status, noisy["ok"], noisy["generation"]) == (200, True, 2)
    during = await checksum(running)
    assert noisy["checksum_before"] == before["fingerprint"]
    assert noisy["checksum_after"] == during["fingerprint"] != before["fingerprint"]
    moved = [n for n, value in before["leaves"].items() if during["leaves"][n] != value]
    assert len(moved) == 4
    assert load.failures == []

    status, back = await told(running, "rollback")
    assert (status, back["generation"]) == (200, 3)
    assert (await checksum(running))["leaves"] == before["leaves"]
    again = await running.ask()
    assert (again["text"], again["output_ids"]) == (said["text"], said["output_ids"])


async def test_the_same_noise_comes_to_the_same_checksum(running: Running) -> None:
    async def perturb_and_back(seed: int) -> str:
        _, noisy = await told(running, "perturb_weights", seed=seed)
        await told(running, "rollback")
        return str(noisy["checksum_after"])

    assert await perturb_and_back(1) == await perturb_and_back(1) != await perturb_and_back(2)


async def test_after_noise_that_drowns_the_model_a_checkpoint_goes_live_as_ever(
    running: Running,
) -> None:
    """What it computed (NaN, as like as not) must not fail the probe of the next one."""
    status, _ = await told(running, "perturb_weights", scale=1e6, num_leaves=20)
    assert status == 200
    assert (await running.ask())["text"] != words(1)
    await running.attempted(running.drop(2))
    assert (await running.ask())["text"] == words(2)


async def test_noise_that_cannot_be_put_on_is_refused_and_nothing_changes(
    running: Running,
) -> None:
    before = await checksum(running)
    status, refused = await told(running, "perturb_weights", scale=1e-12)
    assert (status, refused["outcome"], refused["code"]) == (422, "rejected", "incompatible")
    status, bad = await told(running, "perturb_weights", num_leaves=1000)
    assert (status, bad["code"]) == (400, "bad_request")
    assert await checksum(running) == before


async def test_a_restart_after_noise_serves_the_files_and_numbers_never_fall(
    tmp_path: Path,
) -> None:
    running = Running(tmp_path)
    running.drop(1)
    async with running.serving():
        before = running.live
        await told(running, "perturb_weights")
        assert running.live.number == 2
    async with running.serving():
        assert (running.live.number, running.live.revision) == (3, before.revision)
        assert running.live.fingerprint == before.fingerprint
        assert (await running.ask())["text"] == words(1)
        status, nowhere = await told(running, "rollback")
        assert (status, nowhere["code"]) == (400, "bad_request")
