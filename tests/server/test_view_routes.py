"""Health, status, history, metrics and the stream of events."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from hotreload.errors import HotReloadError
from hotreload.events import AttemptFinished, RevisionWanted, SourceScanned, Wait
from hotreload.facts.listed import Listed, ListedState
from hotreload.picture.status import Status
from hotreload.server_limits import Limits
from hotreload.types import Outcome, Reason, Revision
from tests.server.world import FIRST, SECOND, World, attempt, serve
from tests.waiting import PATIENCE

LISTEN = b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n"


async def read_events(world: World) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client of /events that has been told that it listens."""
    reader, writer = await world.raw()
    writer.write(LISTEN)
    await asyncio.wait_for(reader.readuntil(b": listening\n\n"), PATIENCE)
    return reader, writer


async def next_event(reader: asyncio.StreamReader) -> dict[str, Any]:
    await asyncio.wait_for(reader.readuntil(b"data: "), PATIENCE)
    event: dict[str, Any] = json.loads(await reader.readuntil(b"\n\n"))
    return event


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health"])
async def test_a_serving_daemon_is_healthy(world: World, path: str) -> None:
    async with world.client() as client:
        assert (await client.get(path)).status_code == 200


async def test_the_gate_answers_200_or_409_and_the_verdict(world: World) -> None:
    async with world.client() as client:
        passes = await client.get("/gate")
        world.events.publish(RevisionWanted(SECOND.revision))
        waits = await client.get("/gate")
        refused = attempt(Outcome.REJECTED, Reason("behaviour", "max_kl: 2 is over 1"))
        world.events.publish(AttemptFinished(refused, FIRST))
        fails = await client.get("/gate")
    told = [(each.status_code, each.json()["verdict"]) for each in (passes, waits, fails)]
    assert told == [(200, "pass"), (409, "waiting"), (409, "rejected")]
    assert fails.json()["why"].endswith("max_kl: 2 is over 1")
    assert fails.json()["attempt"]["code"] == "behaviour"


async def test_the_gate_answers_of_the_revision_that_is_named(world: World) -> None:
    """Before a source has seen it nothing passes that is meant."""
    async with world.client() as client:
        live = await client.get("/gate", params={"revision": FIRST.revision.label})
        unseen = await client.get("/gate", params={"revision": "step_4711"})
    assert (live.status_code, live.json()["verdict"]) == (200, "pass")
    assert (unseen.status_code, unseen.json()["verdict"]) == (409, "waiting")


async def test_while_holding_it_is_still_ready(world: World) -> None:
    world.gate.hold()
    async with world.client() as client:
        assert (await client.get("/readyz")).status_code == 200


@pytest.mark.parametrize("path", ["/readyz", "/health"])
async def test_a_daemon_that_boots_or_is_sealed_is_not_ready_and_says_why(
    tmp_path: Path, path: str
) -> None:
    async with serve(tmp_path, booted=False) as world, world.client() as client:
        booting = await client.get(path)
        world.go_live(FIRST)
        world.gate.seal("the engine is lost")
        sealed = await client.get(path)
        alive = await client.get("/livez")
    assert (booting.status_code, booting.json()["code"]) == (503, "not_ready")
    assert booting.json()["reasons"] == ["booting: the engine is starting"]
    assert "the engine is lost" in sealed.json()["detail"]
    assert alive.status_code == 200


async def test_status_and_history_say_what_the_observers_know(world: World) -> None:
    world.events.publish(Wait("2 of 4 shards of step-3"))
    world.events.publish(AttemptFinished(attempt(), SECOND))
    async with world.client() as client:
        status = (await client.get("/status")).json()
        history = (await client.get("/history")).json()
    assert (status["state"], status["generation"], status["label"]) == ("serving", 2, "step-2")
    assert status["waiting_for"] == "2 of 4 shards of step-3"
    assert [one["outcome"] for one in history["attempts"]] == ["live"]


async def test_the_checkpoints_that_the_source_sees_are_told_and_at_most_so_many(
    world: World,
) -> None:
    world.view.listed += [
        Listed(f"step-{n}", ListedState.ODD, "is empty", "missing") for n in range(3)
    ]
    async with world.client() as client:
        said = (await client.get("/checkpoints?most=2")).json()
        refused = [await client.get(f"/checkpoints?most={most}") for most in (0, 10_001, "x")]
    assert [row["name"] for row in said["checkpoints"]] == ["step-0", "step-1"]
    assert (said["total"], said["states"]) == (3, {"not a checkpoint": 3})
    assert {answer.status_code for answer in refused} == {400}


async def test_the_history_is_told_and_at_most_so_much_of_it(world: World) -> None:
    async with world.client() as client:
        all_of_it = (await client.get("/history")).json()["attempts"]
        said = [(await client.get(f"/history?most={most}")) for most in (1, "abc")]
    assert [answer.status_code for answer in said] == [200, 400]
    assert said[0].json()["attempts"] == all_of_it[:1]
    assert "most" in said[1].json()["detail"]


async def test_metrics_are_served_as_prometheus_reads_them(world: World) -> None:
    async with world.client() as client:
        answer = await client.get("/metrics")
    assert answer.text == "hotreload_generation 1.0\n"
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")


async def test_over_tcp_gateways_read_a_few_metrics_as_they_are_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = iter([1, 2])
    page = "sglang:num_queue_reqs {}\n".format
    monkeypatch.setattr(Status, "page_for_gateways", lambda _: page(next(waiting)))
    async with (
        serve(tmp_path, tcp=True) as world,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{world.tcp_port}") as gateway,
        world.client() as local,
    ):
        answers = [await gateway.get("/metrics") for _ in range(2)]
        version = await gateway.get("/version")
        assert (await local.get("/metrics")).text == "hotreload_generation 1.0\n"
    assert [each.text for each in answers] == [page(1), page(2)]
    assert answers[0].headers["content-type"].startswith("text/plain; version=0.0.4")
    assert version.status_code == 404  # or a router takes the server for vLLM


async def test_any_number_of_scrapes_leaves_the_threads_of_the_loop_to_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A swap waits for one of those threads to save its state."""
    made, may_end = [], threading.Event()

    def slow() -> bytes:
        made.append(1)
        assert may_end.wait(PATIENCE)
        return b"the page"

    monkeypatch.setattr(world.metrics, "render", slow)
    async with world.client() as client, asyncio.timeout(PATIENCE):
        scrapes = [asyncio.create_task(client.get("/metrics")) for _ in range(60)]
        await world.until(lambda: bool(made))
        assert await asyncio.to_thread(lambda: "saved") == "saved"
        scrapes.pop().cancel()
        may_end.set()
        assert {answer.text for answer in await asyncio.gather(*scrapes)} == {"the page"}
    assert len(made) == 1


async def test_a_broken_observer_costs_a_500_and_nothing_else(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> bytes:
        raise ValueError("no such gauge")

    monkeypatch.setattr(world.metrics, "render", fails)
    async with world.client() as client:
        broken = await client.get("/metrics")
        status = await client.get("/status")
    assert (broken.status_code, broken.json()["code"]) == (500, "internal")
    assert status.status_code == 200


async def test_an_error_of_no_known_kind_is_a_500_with_its_code(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> dict[str, Any]:
        raise HotReloadError("odd", code="odd_one")

    monkeypatch.setattr(world.view.documents.status, "snapshot", fails)
    async with world.client() as client:
        answer = await client.get("/status")
    assert (answer.status_code, answer.json()["code"]) == (500, "odd_one")


async def test_every_event_reaches_every_listener_in_order(world: World) -> None:
    listeners = [await read_events(world) for _ in range(3)]
    world.events.publish(RevisionWanted(Revision("cccc3333", "step-3")))
    world.events.publish(SourceScanned("rescan"))
    for reader, writer in listeners:
        wanted, scanned = await next_event(reader), await next_event(reader)
        assert (wanted["event"], wanted["label"]) == ("revision.wanted", "step-3")
        assert (scanned["event"], scanned["cause"]) == ("source.scanned", "rescan")
        writer.close()


async def test_a_listener_that_leaves_is_unsubscribed(world: World) -> None:
    before = len(world.events._observers)
    _, writer = await read_events(world)
    assert len(world.events._observers) == before + 1
    writer.close()
    await world.until(lambda: len(world.events._observers) == before)
    await world.until(lambda: world.metrics.finished == [("/events", 499)])


async def test_a_quiet_stream_shows_that_it_is_alive(tmp_path: Path) -> None:
    async with serve(tmp_path, limits=Limits(heartbeat_seconds=0.02)) as world:
        reader, writer = await read_events(world)
        assert await asyncio.wait_for(reader.readuntil(b": still here\n\n"), PATIENCE)
        world.events.publish(SourceScanned("after a heartbeat"))
        assert (await next_event(reader))["cause"] == "after a heartbeat"
        writer.close()


async def test_a_listener_that_does_not_read_is_dropped_and_others_are_not(
    tmp_path: Path,
) -> None:
    limits = Limits(listener_queue=8, write_seconds=60)
    async with serve(tmp_path, limits=limits) as world, asyncio.timeout(PATIENCE):
        before = len(world.events._observers)
        slow, _ = await read_events(world)
        quick, quick_writer = await read_events(world)
        slow._transport.pause_reading()  # type: ignore[attr-defined]
        cause = "x" * 30_000
        while len(world.events._observers) == before + 2:
            world.events.publish(SourceScanned(cause))
            assert (await next_event(quick))["cause"] == cause
        world.events.publish(SourceScanned("still heard"))
        assert (await next_event(quick))["cause"] == "still heard"
        quick_writer.close()


async def test_more_listeners_than_allowed_are_refused(tmp_path: Path) -> None:
    async with serve(tmp_path, limits=Limits(listeners=1)) as world:
        _, writer = await read_events(world)
        async with world.client() as client:
            answer = await client.get("/events")
        writer.close()
    assert (answer.status_code, answer.json()["code"]) == (503, "too_many_listeners")


ELSEWHERE = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},  # another port of localhost, too
    {"Origin": "https://elsewhere.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost:8080", "User-Agent": "Mozilla/5.0"},
]
OURS = [
    {},
    {"Sec-Fetch-Site": "none"},
    {"Sec-Fetch-Site": "same-origin"},
    {"Sec-Fetch-Site": "same-origin", "Origin": "http://localhost"},
    {"Origin": "http://localhost"},
]


@pytest.mark.parametrize("headers", ELSEWHERE)
async def test_a_page_of_another_site_gets_no_place_among_the_listeners(
    world: World, headers: dict[str, str]
) -> None:
    async with world.client() as client:
        answer = await client.get("/events", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert "page of another site" in answer.json()["detail"]


@pytest.mark.parametrize("headers", OURS)
async def test_our_own_page_and_every_other_client_may_listen(
    world: World, headers: dict[str, str]
) -> None:
    async with world.client() as client, client.stream("GET", "/events", headers=headers) as feed:
        assert feed.status_code == 200


async def test_nobody_takes_all_places_of_the_listeners(tmp_path: Path) -> None:
    """All of TCP counts as one: nothing tells its clients from each other."""
    limits = Limits(listeners=4)
    async with serve(tmp_path, limits=limits, tcp=True) as world:
        over_tcp = [await asyncio.open_connection("127.0.0.1", world.tcp_port) for _ in range(3)]
        for _, writer in over_tcp:
            writer.write(LISTEN)
        heads = [await reader.readuntil(b"\r\n") for reader, _ in over_tcp]
        assert sorted(head.split()[1] for head in heads) == [b"200", b"200", b"503"]
        on_socket = [await read_events(world) for _ in range(2)]
        async with world.client() as client:
            refused = await client.get("/events")
            on_socket[0][1].close()
            before = len(world.events._observers)
            await world.until(lambda: len(world.events._observers) < before)
            async with client.stream("GET", "/events") as feed:
                assert feed.status_code == 200
        for _, writer in [*over_tcp, on_socket[1]]:
            writer.close()
    assert (refused.status_code, refused.json()["code"]) == (503, "too_many_listeners")
    assert refused.headers["retry-after"]


async def test_stopping_ends_streams_of_events_in_order(world: World) -> None:
    reader, writer = await read_events(world)
    world.events.publish(SourceScanned("last words"))
    world.server.stop()
    rest = await asyncio.wait_for(reader.read(), PATIENCE)
    assert b"last words" in rest
    assert rest.endswith(b"0\r\n\r\n")
    writer.close()


async def test_head_is_answered_as_get_is_without_the_body(world: World) -> None:
    async with world.client() as client:
        for path in ("/livez", "/health", "/leaves", "/metrics", "/v1/models", "/page/style.css"):
            got, headed = await client.get(path), await client.head(path)
            assert (headed.status_code, headed.content) == (got.status_code, b"")
            names = [each.headers.pop("x-request-id") for each in (got, headed)]
            assert names[0] != names[1]
            assert dict(headed.headers) == dict(got.headers)
        assert (await client.head("/generate")).status_code == 405
        assert (await client.head("/nowhere")).status_code == 404
        events = await client.head("/events")  # which would never end
    assert events.headers["content-type"] == "text/event-stream"
    assert events.content == b""


def test_every_route_that_answers_get_answers_head(tmp_path: Path) -> None:
    world = World(tmp_path / "unused.sock", Limits(), None)
    methods = [route.methods for route in world.app.routes if isinstance(route, Route)]
    assert len(methods) == len(world.app.routes)
    assert [each for each in methods if each and ("GET" in each) != ("HEAD" in each)] == []
