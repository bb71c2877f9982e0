"""The hub's webhook: its secret wakes the source, and nothing else does anything."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from hotreload.server.http.keys import Webhook
from tests.server.world import serve
from tests.waiting import PATIENCE

PATH = "/webhook/huggingface"


def over_tcp(port: int) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE)


async def test_who_knows_the_secret_wakes_the_source_over_tcp_too(tmp_path: Path) -> None:
    async with (
        serve(tmp_path, tcp=True, webhook="knock-knock") as world,
        over_tcp(world.tcp_port) as client,
    ):
        headers = {"X-Webhook-Secret": "knock-knock"}
        answer = await client.post(PATH, headers=headers, content=b"\xff not even JSON")
        assert (answer.status_code, answer.json()) == (202, {"ok": True})
        assert world.woken == ["webhook"]


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({}, 401, "no_secret"),
        ({"X-Webhook-Secret": "knock"}, 403, "wrong_secret"),
        ({"X-Webhook-Secret": ""}, 403, "wrong_secret"),
        ({"X-Webhook-Secret": "Grüße".encode()}, 403, "wrong_secret"),
    ],
)
async def test_who_does_not_know_it_wakes_nobody_and_does_not_learn_it(
    tmp_path: Path, headers: Any, status: int, code: str
) -> None:
    async with (
        serve(tmp_path, tcp=True, webhook="knock-knock") as world,
        over_tcp(world.tcp_port) as client,
    ):
        answer = await client.post(PATH, headers=httpx.Headers(headers))
        assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert "knock" not in answer.text
        assert world.woken == []


def test_the_secret_is_not_shown_with_what_holds_it() -> None:
    assert "knock" not in repr(Webhook("knock-knock", print))


async def test_without_a_secret_there_is_no_webhook(tmp_path: Path) -> None:
    async with serve(tmp_path) as world, world.client() as client:
        answer = await client.post(PATH, headers={"X-Webhook-Secret": "anything"})
        assert (answer.status_code, answer.json()["code"]) == (404, "no_webhook")


async def test_a_webhook_before_the_boot_is_over_is_taken(tmp_path: Path) -> None:
    async with (
        serve(tmp_path, booted=False, webhook="knock-knock") as world,
        world.client() as client,
    ):
        answer = await client.post(PATH, headers={"X-Webhook-Secret": "knock-knock"})
        assert (answer.status_code, world.woken) == (202, ["webhook"])
