"""POST /admin/perturb_weights: its words, and its answer."""

import dataclasses
from typing import Any

import pytest

from hotreload.types import Noise, Outcome, Reason
from tests.server.world import World, attempt


async def perturb(world: World, body: dict[str, Any] | None) -> tuple[int, dict[str, Any]]:
    async with world.client() as client:
        answer = await client.post("/admin/perturb_weights", json=body)
    return answer.status_code, answer.json()


async def test_the_answer_has_both_checksums(world: World) -> None:
    world.control.outcome = dataclasses.replace(attempt(), fingerprints=("before", "after"))
    status, said = await perturb(world, {"seed": 7, "scale": 0.5, "num_leaves": 2})
    assert status == 200
    assert said["ok"] is True
    assert (said["checksum_before"], said["checksum_after"]) == ("before", "after")
    assert said["generation"] == 2
    assert world.control.asked == [("perturb", Noise(7, 0.5, 2), False)]


async def test_what_is_left_out_has_defaults(world: World) -> None:
    world.control.outcome = attempt(Outcome.REJECTED, Reason("incompatible", "rounded away"))
    status, said = await perturb(world, {})
    assert (status, said["ok"], said["code"]) == (422, False, "incompatible")
    assert "checksum_after" not in said
    assert world.control.asked == [("perturb", Noise(), False)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", -1),
        ("seed", 2**31),
        ("seed", 1.5),
        ("seed", True),
        ("scale", 0),
        ("scale", -1.0),
        ("scale", "much"),
        ("scale", 10**400),
        ("num_leaves", 0),
        ("num_leaves", 2.0),
    ],
)
async def test_a_bad_value_is_named(world: World, name: str, value: object) -> None:
    status, said = await perturb(world, {name: value})
    assert (status, said["code"]) == (400, "bad_field")
    assert said["detail"].startswith(name)
    assert world.control.asked == []
