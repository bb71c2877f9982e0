"""Ends of attempts are posted: signed, tried again, in no one's way."""

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hotreload.attempts import START, Attempt, By
from hotreload.errors import ConfigError
from hotreload.events import AttemptFinished
from hotreload.features import FEATURES
from hotreload.features.notify import receiver as posting
from hotreload.features.notify.receiver import MOST_WAITING, EndNotices, NotifyReport, Receiver
from hotreload.features.notify.settings import NotifySettings
from hotreload.life.acceptance import read_settings
from hotreload.types import Outcome, Reason, Revision
from tests.features.receiver import Receiver as Server
from tests.integration.running import Running, post
from tests.waiting import turn_until
from tests.words.engine import starting_engines_of_words

SECRET = "0123456789abcdef0123456789abcdef"
ONE = Revision("id", "step_1")


@pytest.fixture
def server() -> Iterator[Server]:
    with Server().listening() as server:
        yield server


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    return file


def attempt(outcome: Outcome, by: str | None = None, reason: Reason | None = None) -> Attempt:
    asked = By(by, 0, 7, 0.0) if by else None
    return Attempt(ONE, outcome, reason, {}, 0.0, 0.0, generation=3, by=asked)


@asynccontextmanager
async def posting_to(server: Server, **more: Any) -> AsyncIterator[tuple[EndNotices, NotifyReport]]:
    counts = NotifyReport()
    receiver = Receiver(NotifySettings(url=f"{server.url}/hook?a=b", **more), counts)
    running = asyncio.create_task(receiver.run())
    await asyncio.sleep(0)
    try:
        yield EndNotices([receiver], "tiny"), counts
    finally:
        running.cancel()
        await asyncio.wait({running})


def bodies(server: Server) -> list[dict[str, Any]]:
    return [json.loads(body) for _, _, body in server.came]


def is_signed(headers: Any, body: bytes, key: bytes) -> bool:
    """Check it as a receiver does that knows Standard Webhooks."""
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return hmac.compare_digest(headers["webhook-signature"], f"v1,{digest}")


async def test_a_daemon_posts_how_attempts_ended(
    tmp_path: Path, server: Server, secret: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    table = f'{{url="{server.url}/hook", secret_file="{secret}"}}'
    running = Running(tmp_path, f"notify=[{table}]", "server.model_name=tiny")
    running.drop(1)
    with starting_engines_of_words():
        async with running.serving():
            await running.attempted(running.drop(2))
            await running.attempted(running.drop(3, "truncated"))
            assert (await post(running, "rollback")).is_success
    assert running.exit_code == 0
    *_, live, rejected, back = bodies(server)
    assert (live["event"], live["label"], live["generation"]) == ("live", "step_2", 2)
    assert (rejected["event"], rejected["label"]) == ("rejected", "truncated_step_3")
    assert rejected["code"]
    assert (back["event"], back["label"], back["model"]) == ("rolled_back", "step_1", "tiny")
    for _, headers, body in server.came:
        assert is_signed(headers, body, SECRET.encode())
        assert not is_signed(headers, body + b" ", SECRET.encode())
        assert not is_signed({**headers, "webhook-timestamp": "1"}, body, SECRET.encode())
        assert abs(int(headers["webhook-timestamp"]) - time.time()) < 60
        assert headers["webhook-id"] == json.loads(body)["id"]
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("ended", "event"),
    [
        (attempt(Outcome.LIVE), "live"),
        (attempt(Outcome.LIVE, START), "live"),
        (attempt(Outcome.LIVE, "reload"), "live"),
        (attempt(Outcome.LIVE, "rollback"), "rolled_back"),
        (attempt(Outcome.LIVE, "bake"), "rolled_back"),
        (attempt(Outcome.LOST), "lost"),
        (attempt(Outcome.POSTPONED), None),
    ],
)
async def test_a_receiver_gets_the_ends_that_it_names(
    server: Server, ended: Attempt, event: str | None
) -> None:
    async with posting_to(server) as (notices, counts):
        notices.observe(AttemptFinished(ended, None))
        await turn_until(lambda: counts.sent == (event is not None))
    assert [each["event"] for each in bodies(server)] == ([event] if event else [])


async def test_slack_gets_a_sentence(server: Server) -> None:
    reason = Reason("format", "<bad> & worse")
    async with posting_to(server, format="slack") as (notices, counts):
        notices.observe(AttemptFinished(attempt(Outcome.REJECTED, reason=reason), None))
        await turn_until(lambda: counts.sent == 1)
    [(path, headers, body)] = server.came
    assert (path, headers["content-type"]) == ("/hook?a=b", "application/json")
    assert "webhook-signature" not in headers
    [text] = json.loads(body).values()
    assert text.startswith("hotreload, tiny on ")
    assert text.endswith("step_1: rejected, generation 3 (format): &lt;bad&gt; &amp; worse")


async def test_a_receiver_that_was_down_gets_all_of_it_later(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posting, "PAUSES", (0.01,) * 1000)
    server.status = 503
    async with posting_to(server) as (notices, counts):
        for by in (None, "rollback"):
            notices.observe(AttemptFinished(attempt(Outcome.LIVE, by), None))
        await turn_until(lambda: len(server.came) >= 2)
        assert counts.last_error == ("127.0.0.1", "it answered 503")
        server.status = 204
        await turn_until(lambda: counts.sent == 2)
    assert {each["event"] for each in bodies(server)} == {"live", "rolled_back"}
    tries = [each["id"] for each in bodies(server) if each["event"] == "live"]
    assert len(tries) > 1
    assert len({*tries}) == 1
    assert counts.failed == 0


async def test_a_newer_notice_goes_out_while_an_older_one_waits_for_its_next_try(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posting, "PAUSES", (60.0,))
    server.status = 503
    async with posting_to(server) as (notices, counts):
        notices.observe(AttemptFinished(attempt(Outcome.LIVE), None))
        await turn_until(lambda: counts.last_error is not None)
        server.status = 200
        notices.observe(AttemptFinished(attempt(Outcome.LOST), None))
        await turn_until(lambda: counts.sent == 1)
        assert [each["event"] for each in bodies(server)] == ["live", "lost"]
    assert [each["event"] for each in bodies(server)] == ["live", "lost", "live"]


async def test_one_that_stays_down_costs_a_line_and_a_number(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(posting, "PAUSES", (0.0,))
    server.status = 500
    async with posting_to(server) as (notices, counts):
        notices.observe(AttemptFinished(attempt(Outcome.LIVE), None))
        await turn_until(lambda: counts.failed == 1)
    assert [each.message for each in caplog.records] == ["notify.failed"]
    assert vars(caplog.records[0])["why"] == "it answered 500"
    assert "/hook" not in str(vars(caplog.records[0]))
    numbers, last = counts.families()
    assert dict(numbers.series) == {("sent",): 0, ("failed",): 1, ("dropped",): 0}
    assert last.series == [(("127.0.0.1", "it answered 500"), 1.0)]


async def test_a_slow_receiver_is_in_nobodys_way(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posting, "LAST_TRY_SECONDS", 0.0)
    monkeypatch.setattr(posting, "TRY_SECONDS", 0.2)
    server.may_answer.clear()
    async with posting_to(server) as (notices, counts):
        began = time.monotonic()
        for _ in range(MOST_WAITING + 2):
            notices.observe(AttemptFinished(attempt(Outcome.LIVE), None))
        assert time.monotonic() - began < 1
        assert counts.dropped == 2
        await turn_until(lambda: counts.last_error is not None)
    server.may_answer.set()
    assert counts.sent == 0


@pytest.mark.parametrize("host", ["a..b", "[fe80::a]"])
async def test_a_host_that_cannot_be_reached_ends_nothing(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posting, "PAUSES", ())
    counts = NotifyReport()
    receiver = Receiver(NotifySettings(url=f"http://{host}/hook"), counts)
    running = asyncio.create_task(receiver.run())
    EndNotices([receiver], "tiny").observe(AttemptFinished(attempt(Outcome.LIVE), None))
    await turn_until(lambda: counts.failed == 1 or running.done())
    assert not running.done()
    running.cancel()
    await asyncio.wait({running})


async def test_what_waits_when_the_daemon_stops_is_tried_once_more(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posting, "PAUSES", (60.0,))
    server.status = 503
    async with posting_to(server) as (notices, counts):
        notices.observe(AttemptFinished(attempt(Outcome.LIVE), None))
        await turn_until(lambda: counts.last_error is not None)
        server.status = 200
        notices.observe(AttemptFinished(attempt(Outcome.LOST), None))
    assert (counts.sent, counts.failed) == (2, 0)
    assert [each["event"] for each in bodies(server)] == ["live", "live", "lost"]


async def test_what_is_on_its_way_when_the_daemon_stops_is_not_sent_again(server: Server) -> None:
    counts = NotifyReport()
    receiver = Receiver(NotifySettings(url=f"{server.url}/hook"), counts)
    running = asyncio.create_task(receiver.run())
    server.may_answer.clear()
    EndNotices([receiver], "tiny").observe(AttemptFinished(attempt(Outcome.LIVE), None))
    await turn_until(lambda: bool(server.came))
    running.cancel()
    await asyncio.sleep(0)
    server.may_answer.set()
    await asyncio.wait({running})
    assert (len(server.came), counts.sent, counts.failed) == (1, 1, 0)


REFUSED: list[tuple[str, str]] = [
    ('{url="ops.example.com"}', "url"),
    ('{url="https://x:99999"}', "url.*port"),
    ('{url="https://x", on=["finished"]}', "on"),
    ('{url="https://x", format="teams"}', "format"),
    ('{url="https://x", secret_file="/nowhere/secret"}', "secret_file"),
    ('{on=["live"]}', "url"),
]


@pytest.mark.parametrize(("table", "named"), REFUSED)
def test_a_bad_table_is_refused(tmp_path: Path, table: str, named: str) -> None:
    sets = [f"notify=[{table}]", f"engine.model={tmp_path}", f"source.path={tmp_path}/c"]
    with pytest.raises(ConfigError, match=f"notify.*{named}"):
        read_settings(None, sets, {}, FEATURES)


def test_a_secret_lies_beside_the_file_of_settings(tmp_path: Path, secret: Path) -> None:
    secret.write_text("whsec_" + base64.b64encode(SECRET.encode()).decode())
    file = tmp_path / "hotreload.toml"
    file.write_text(
        '[engine]\nmodel = "m"\n[source]\npath = "c"\n'
        '[[notify]]\nurl = "https://x"\nsecret_file = "secret"\n'
    )
    settings: Any = read_settings(file, [], {}, FEATURES).settings
    assert settings.notify[0].secret_file == secret
    for bad in ("whsec_***", "whsec_"):
        secret.write_text(bad)
        with pytest.raises(ConfigError, match=r"must be base64"):
            read_settings(file, [], {}, FEATURES)
