"""The routes that change what is live: what they answer, and who may use them."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from hotreload.errors import (
    BadRequest,
    Busy,
    EngineLost,
    HotReloadError,
    NotEnoughMemory,
    NothingOfThatName,
    NotSaved,
    NotServing,
    SourceUnavailable,
)
from hotreload.events import StateSaved
from hotreload.server import admin
from hotreload.server.http import senders
from hotreload.types import Outcome, Reason
from tests.server.world import FIRST, World, attempt, serve

NOBODY = 65534
NAN = Reason("nonfinite", "model.safetensors: tensor 'lm_head' holds NaN", ("lm_head: 3 NaN",))

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")


async def post(world: World, path: str, fields: dict[str, Any] | None = None) -> httpx.Response:
    async with world.client() as client:
        return await client.post(path, json=fields or {})


async def test_a_reload_that_went_live_says_so(world: World) -> None:
    world.control.outcome = attempt()
    answer = await post(world, "/admin/reload_weights", {"model_path": "/ckpt/step-2"})
    assert answer.status_code == 200
    said = answer.json()
    assert (said["ok"], said["outcome"], said["generation"]) == (True, "live", 2)
    assert (said["label"], said["phases"]["staging"]) == ("step-2", 1.0)
    assert world.control.asked == [("reload", "/ckpt/step-2", False)]


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({}, ("reload", None, False)),
        ({"revision": "main", "force": True}, ("reload", "main", True)),
        ({"model_path": "/a", "load_format": "auto"}, ("reload", "/a", False)),
    ],
)
async def test_what_is_asked_reaches_the_control(
    world: World, fields: dict[str, Any], asked: tuple[str, Any, bool]
) -> None:
    world.control.outcome = attempt()
    assert (await post(world, "/admin/reload_weights", fields)).status_code == 200
    assert world.control.asked == [asked]


async def test_a_dry_run_that_passed_is_a_success_and_one_that_did_not_is_none(
    world: World,
) -> None:
    for outcome, status in ((Outcome.PASSED, 200), (Outcome.REJECTED, 422)):
        world.control.outcome = replace(attempt(outcome, None), dry_run=True)
        answer = await post(world, "/admin/reload_weights", {"revision": "a", "dry_run": True})
        said = answer.json()
        assert (answer.status_code, said["ok"], said["dry_run"]) == (status, status == 200, True)
    assert world.control.asked == [("rehearse", "a", False)] * 2
    assert [by.verb for by in world.control.by] == ["dry_run"] * 2


async def test_an_empty_body_asks_for_the_newest(world: World) -> None:
    world.control.outcome = attempt()
    async with world.client() as client:
        answer = await client.post("/admin/reload_weights")
    assert answer.status_code == 200
    assert world.control.asked == [("reload", None, False)]


async def test_a_rejected_checkpoint_is_a_422_with_its_reason(world: World) -> None:
    world.control.outcome = attempt(Outcome.REJECTED, NAN)
    answer = await post(world, "/admin/reload_weights")
    assert answer.status_code == 422
    said = answer.json()
    assert (said["ok"], said["outcome"], said["code"]) == (False, "rejected", "nonfinite")
    assert "lm_head" in said["reason"]
    assert answer.headers["x-hotreload-generation"] == "1"


@pytest.mark.parametrize(
    ("outcome", "status", "retry_after"),
    [
        (Outcome.POSTPONED, 503, "5"),
        (Outcome.SUPERSEDED, 409, None),
        (Outcome.LOST, 503, None),
    ],
)
async def test_every_other_end_has_its_status(
    world: World, outcome: Outcome, status: int, retry_after: str | None
) -> None:
    world.control.outcome = attempt(outcome, Reason("oom", "no room"))
    answer = await post(world, "/admin/reload_weights")
    assert (answer.status_code, answer.json()["outcome"]) == (status, outcome)
    assert answer.headers.get("retry-after") == retry_after


async def test_without_waiting_a_wish_is_accepted_at_once(world: World) -> None:
    answer = await post(world, "/admin/reload_weights", {"wait": False})
    assert (answer.status_code, answer.json()["accepted"]) == (202, True)


async def test_an_attempt_goes_on_when_its_waiter_times_out(world: World) -> None:
    answer = await post(world, "/admin/reload_weights", {"timeout": 0.02})
    assert (answer.status_code, answer.json()["code"]) == (504, "timed_out")
    assert world.control.promise is not None
    assert not world.control.promise.done()


async def test_an_attempt_goes_on_when_its_waiter_leaves(world: World) -> None:
    _, writer = await world.raw()
    writer.write(b"POST /admin/reload_weights HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
    await world.until(lambda: world.control.promise is not None)
    writer.close()
    await world.until(lambda: bool(world.metrics.finished))
    assert world.metrics.finished == [("/admin/reload_weights", 499)]
    assert world.control.promise is not None
    assert not world.control.promise.done()


@pytest.mark.parametrize("path", ["/admin/reload_weights", "/admin/rollback"])
async def test_a_timeout_also_counts_while_it_is_not_known_what_is_meant(
    world: World, path: str
) -> None:
    world.control.may_accept.clear()
    answer = await post(world, path, {"timeout": 0.02})
    assert (answer.status_code, answer.json()["code"]) == (504, "timed_out")
    world.control.may_accept.set()  # it goes on all the same
    await world.until(lambda: world.control.promise is not None)


async def test_without_waiting_nobody_waits_long_to_hear_what_is_meant(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(admin, "ORDER_ACCEPT_SECONDS", 0.02)
    world.control.may_accept.clear()
    answer = await post(world, "/admin/reload_weights", {"wait": False})
    assert (answer.status_code, answer.json()["accepted"]) == (202, True)
    world.control.refusal = SourceUnavailable("/ckpt/step-9 is not there")
    world.control.may_accept.set()
    await world.until(lambda: bool(caplog.records))
    told = [(record.message, getattr(record, "cause", None)) for record in caplog.records]
    assert told == [("admin.not_done", "/ckpt/step-9 is not there")]


async def test_a_client_that_leaves_before_it_is_known_what_is_meant_is_counted_as_gone(
    world: World,
) -> None:
    world.control.may_accept.clear()
    _, writer = await world.raw()
    writer.write(b"POST /admin/reload_weights HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
    await world.until(lambda: world.control.came == 1)
    writer.close()
    await world.until(lambda: bool(world.metrics.finished))
    assert world.metrics.finished == [("/admin/reload_weights", 499)]
    world.control.may_accept.set()
    await world.until(lambda: world.control.promise is not None)


@pytest.mark.parametrize(
    ("refusal", "retry_after"),
    [
        (SourceUnavailable("the hub does not answer in time", retry_after=4.2), "5"),
        (SourceUnavailable("429", code="rate_limited", retry_after=7200.0), "7200"),
        (NotEnoughMemory("no thread could be started", code="threads"), "5"),
    ],
)
async def test_a_source_that_is_away_is_a_503_that_says_when_to_ask_again(
    world: World, refusal: HotReloadError, retry_after: str
) -> None:
    world.control.refusal = refusal
    answer = await post(world, "/admin/reload_weights")
    assert (answer.status_code, answer.json()["code"]) == (503, refusal.code)
    assert answer.headers["retry-after"] == retry_after


async def test_what_is_not_there_is_not_worth_another_try(world: World) -> None:
    world.control.refusal = SourceUnavailable("org/name has no such branch", code="denied")
    answer = await post(world, "/admin/reload_weights")
    assert (answer.status_code, "retry-after" in answer.headers) == (422, False)


async def test_an_ask_that_ends_with_the_daemon_is_a_503(world: World) -> None:
    ask = asyncio.create_task(post(world, "/admin/reload_weights"))
    await world.until(lambda: world.control.promise is not None)
    assert world.control.promise is not None
    world.control.promise.cancel()
    answer = await ask
    assert (answer.status_code, answer.json()["code"]) == (503, "stopping")


async def test_an_ask_that_loses_the_engine_is_a_503(world: World) -> None:
    ask = asyncio.create_task(post(world, "/admin/rollback"))
    await world.until(lambda: world.control.promise is not None)
    assert world.control.promise is not None
    world.control.promise.set_exception(EngineLost("nobody knows what is live"))
    answer = await ask
    assert (answer.status_code, answer.json()["code"]) == (503, "engine_lost")


@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (Busy("another reload is under way"), 409),
        (BadRequest("/etc is not under the watched folder"), 400),
        (NothingOfThatName("step-9: no such folder below /ckpt"), 422),
        (SourceUnavailable("/ckpt/step-9 is not there"), 422),
        (NotServing("the engine is starting", code="booting", retry_after=2), 503),
    ],
)
async def test_a_wish_that_is_not_accepted_says_why(
    world: World, refusal: HotReloadError, status: int
) -> None:
    world.control.refusal = refusal
    answer = await post(world, "/admin/reload_weights")
    assert (answer.status_code, answer.json()["detail"]) == (status, str(refusal))
    assert answer.json()["code"] == refusal.code


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        ("/admin/reload_weights", {"path": "/x"}, "unknown field 'path'"),
        ("/admin/reload_weights", {"model_path": 7}, "model_path must be a string"),
        ("/admin/reload_weights", {"model_path": " "}, "must not be empty"),
        ("/admin/reload_weights", {"model_path": "/a", "revision": "b"}, "not both"),
        ("/admin/reload_weights", {"load_format": "gguf"}, "load_format must be 'auto'"),
        ("/admin/reload_weights", {"timeout": 0}, "timeout must be a positive number"),
        ("/admin/rollback", {"generation": "two"}, "generation must be an integer"),
    ],
)
async def test_a_wish_that_makes_no_sense_is_a_400(
    world: World, path: str, fields: dict[str, Any], words: str
) -> None:
    answer = await post(world, path, fields)
    assert answer.status_code == 400
    assert words in answer.json()["detail"]
    assert world.control.asked == []


async def test_rollback_pin_and_unpin_reach_the_control(world: World) -> None:
    world.control.outcome = attempt()
    assert (await post(world, "/admin/rollback", {"generation": 1})).json()["outcome"] == "live"
    assert (await post(world, "/admin/rollback")).status_code == 200
    for verb, pinned in (("pin", True), ("unpin", False)):
        said = (await post(world, f"/admin/{verb}")).json()
        assert said == {
            "ok": True,
            "pinned": pinned,
            "generation": 1,
            "revision": "aaaa1111",
            "label": "step-1",
            "daemon": {"pid": os.getpid()},
        }
    verbs = [(verb, name) for verb, name, _ in world.control.asked]
    assert verbs == [("rollback", 1), ("rollback", None), ("pin", None), ("unpin", None)]


async def test_a_rollback_holds_unless_it_is_to_follow_the_source(world: World) -> None:
    world.control.outcome = attempt()
    world.control.others = ["generation 2 (step_2, kept in memory): hotreload rollback 2"]
    said = (await post(world, "/admin/rollback")).json()
    assert (said["pinned"], said["can_be_had"]) == (False, world.control.others)
    await post(world, "/admin/rollback", {"hold": False})
    assert world.control.holds == [True, False]
    assert (await post(world, "/admin/rollback", {"hold": "no"})).status_code == 400


@pytest.mark.parametrize(
    ("path", "verb"),
    [
        ("/admin/reload_weights", "reload"),
        ("/admin/rollback", "rollback"),
        ("/admin/perturb_weights", "perturb"),
        ("/admin/pin", "pin"),
        ("/admin/unpin", "unpin"),
    ],
)
async def test_whoever_asks_is_named_by_the_kernel_and_says_why(
    world: World, path: str, verb: str
) -> None:
    world.control.outcome = attempt()
    before = time.time()
    assert (await post(world, path, {"reason": "bad answers since 3"})).status_code == 200
    assert (await post(world, path)).status_code == 200
    said, unsaid = world.control.by
    assert (said.verb, said.uid, said.pid) == (verb, os.getuid(), os.getpid())
    assert before <= said.at <= time.time()
    assert (said.reason, unsaid.reason) == ("bad answers since 3", "")


@pytest.mark.parametrize("reason", ["x" * 501, "two\nlines", "\x1b[31m", 7])
async def test_a_reason_is_one_line_of_bounded_length(world: World, reason: Any) -> None:
    for path in ("/admin/rollback", "/admin/pin"):
        answer = await post(world, path, {"reason": reason})
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_field")
        assert "reason must be one line of at most 500 characters" in answer.json()["detail"]
    assert world.control.by == []


async def test_a_pin_that_a_restart_would_forget_is_refused(world: World) -> None:
    world.control.refusal = NotSaved("not pinned: a restart would forget it")
    answer = await post(world, "/admin/pin")
    assert (answer.status_code, answer.json()["code"]) == (503, "not_saved")


async def test_a_pin_that_is_not_settled_in_time_says_so_and_goes_on(world: World) -> None:
    world.control.may_accept.clear()
    answer = await post(world, "/admin/pin", {"timeout": 0.02})
    assert (answer.status_code, answer.json()["code"]) == (504, "timed_out")
    assert "this order goes on" in answer.json()["detail"]
    world.control.may_accept.set()
    await world.until(lambda: world.control.asked == [("pin", None, False)])


async def test_what_went_live_and_is_not_on_the_disk_says_so(world: World) -> None:
    world.control.outcome = attempt()
    saved = (await post(world, "/admin/reload_weights")).json()
    world.events.publish(StateSaved("/state/state.json cannot be written: read-only"))
    unsaved = (await post(world, "/admin/reload_weights")).json()
    assert (saved["saved"], saved["not_saved"]) == (True, None)
    assert (unsaved["ok"], unsaved["saved"]) == (True, False)
    assert "read-only" in unsaved["not_saved"]


async def test_reload_status_is_the_part_of_the_status_that_is_about_reloads(
    world: World,
) -> None:
    async with world.client() as client:
        said = (await client.get("/admin/reload_status")).json()
    assert said["state"] == "serving"
    assert {"wanted", "waiting_for", "phase", "last_attempt", "mode"} <= said.keys()
    assert said["answering"] == [{"generation": 1, "requests": 0}]


async def test_checksums_are_computed_and_compared_with_what_went_live(world: World) -> None:
    async with world.client() as client:
        brief = (await client.get("/admin/weights_checksum")).json()
        whole = (await client.get("/admin/weights_checksum?leaves=1")).json()
        world.engine.damage["lm_head"] = 12
        bad = (await client.get("/admin/weights_checksum?leaves=1")).json()
    assert brief == {"fingerprint": "fp-1", "generation": 1, "changed": []}
    assert whole["leaves"] == {"model.embed": 7, "lm_head": 11}
    assert (bad["fingerprint"], bad["changed"]) == (None, ["lm_head"])
    assert bad["leaves"]["lm_head"] == 12


async def test_no_swap_happens_while_checksums_are_computed(world: World) -> None:
    world.gate.hold()
    async with world.client() as client:
        ask = asyncio.create_task(client.get("/admin/weights_checksum"))
        await world.until(lambda: world.gate.held == 1)
        assert not ask.done()
        world.open(FIRST)
        assert (await ask).status_code == 200


def admin_routes_of(world: World) -> list[tuple[str, str]]:
    """The method and path of every route under /admin."""
    routes = [route for route in world.app.routes if isinstance(route, Route)]
    found = [(min(route.methods or ()), route.path) for route in routes if "/admin" in route.path]
    assert len(found) >= 7
    return found


async def test_admin_routes_do_not_answer_over_tcp(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        serve(tmp_path, tcp=True) as world,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{world.tcp_port}") as client,
    ):
        world.control.outcome = attempt()
        refusals = [await client.request(*each) for each in admin_routes_of(world)]
        status = await client.get("/status")
        generated = await client.post("/generate", json={"text": "hi"})
    for answer in refusals:
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        assert "unix socket" in answer.json()["detail"]
    assert [record.message for record in caplog.records] == ["admin.refused"] * len(refusals)
    assert (status.status_code, generated.status_code) == (200, 200)
    assert world.control.asked == []


@pytest.mark.parametrize(
    "told_by_a_browser",
    [
        {"Origin": "https://elsewhere.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
async def test_no_web_page_changes_what_is_live_over_a_forwarded_socket(
    tmp_path: Path, told_by_a_browser: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    headers = {"Content-Type": "text/plain", **told_by_a_browser}
    async with serve(tmp_path) as world, world.client() as client:
        answer = await client.post("/admin/perturb_weights", content=b"", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert "web pages" in answer.json()["detail"]
    assert [record.message for record in caplog.records] == ["admin.refused"]
    assert world.control.asked == []


async def test_what_is_sent_over_tcp_does_not_wait_for_what_was_sent_before(tmp_path: Path) -> None:
    async with (
        serve(tmp_path, tcp=True) as world,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{world.tcp_port}") as client,
    ):
        assert (await client.get("/livez")).status_code == 200
        (connection,) = world.server.server_state.connections
        held = connection.transport.get_extra_info("socket")
        assert held.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


ASK_AS = """
import json, os, socket, sys
path, uid, gid, groups = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
method, route = sys.argv[5:]
os.setgroups(groups); os.setgid(gid); os.setuid(uid)
with socket.socket(socket.AF_UNIX) as s:
    s.connect(path)
    head = f"{method} {route} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n"
    s.sendall(head.encode())
    sys.stdout.buffer.write(b"".join(iter(lambda: s.recv(65536), b"")))
"""


async def asked_as(
    world: World,
    uid: int,
    gid: int,
    groups: list[int],
    ask: tuple[str, str] = ("POST", "/admin/pin"),
) -> tuple[int, Any]:
    """Ask to pin, or else, as another user, from a process of its own: its status and fields."""
    folder = world.path.parent
    folder.chmod(0o755)  # it is there already: folders above it need not let it through
    args = [ASK_AS, world.path.name, str(uid), str(gid), json.dumps(groups), *ask]
    asks = [sys.executable, "-c", *args]
    ran = await asyncio.to_thread(
        subprocess.run, asks, check=False, stdout=subprocess.PIPE, cwd=folder
    )
    head, _, body = ran.stdout.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


@needs_root
async def test_another_user_is_refused_and_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.control.outcome = attempt()
    routes = admin_routes_of(world)
    for method, route in routes:
        status, said = await asked_as(world, NOBODY, NOBODY, [], (method, route))
        assert (status, said["code"]) == (403, "forbidden")
        assert f"uid {NOBODY}" in said["detail"]
    logged = [(each.message, vars(each)["uid"], vars(each)["path"]) for each in caplog.records]
    assert logged == [("admin.refused", NOBODY, route) for _, route in routes]
    assert world.control.asked == []


@needs_root
@pytest.mark.parametrize(
    ("gid", "groups"), [(4242, []), (NOBODY, [4242])], ids=["own group", "supplementary group"]
)
async def test_members_of_the_admin_group_may(tmp_path: Path, gid: int, groups: list[int]) -> None:
    async with serve(tmp_path, admin_group=4242) as world:
        status, said = await asked_as(world, NOBODY, gid, groups)
        outsider, _ = await asked_as(world, NOBODY, NOBODY, [4243])
    assert (status, said["pinned"], outsider) == (200, True, 403)


@needs_root
async def test_the_overflow_ids_let_nobody_administrate_though_they_are_the_daemons_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody whom a user namespace does not know comes as them."""
    tmp_path.chmod(0o755)
    async with serve(tmp_path, admin_group=NOBODY) as world:
        monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
        status, said = await asked_as(world, NOBODY, NOBODY, [NOBODY])
        root, _ = await asked_as(world, 0, 0, [])
    assert (status, said["code"], root) == (403, "forbidden", 200)
    assert world.control.asked == [("pin", None, False)]


async def test_the_overflow_ids_are_those_of_this_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(senders, "OVERFLOW", tmp_path)
    assert (senders.overflow_id("uid"), senders.overflow_id("gid")) == (NOBODY, NOBODY)
    (tmp_path / "overflowuid").write_text("4711\n")
    (tmp_path / "overflowgid").write_text("4712\n")
    assert (senders.overflow_id("uid"), senders.overflow_id("gid")) == (4711, 4712)


async def test_the_kernel_says_who_connected() -> None:
    from hotreload.server.http.senders import peer_of

    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = peer_of(ours)
    assert (peer.pid, peer.uid, peer.gid) == (os.getpid(), os.getuid(), os.getgid())
    assert peer.groups >= {os.getgid(), *os.getgroups()}
