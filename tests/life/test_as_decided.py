"""What the operator decides about attempts and arrivals reaches the parts that go by it."""

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from hotreload.core.engines.replica import Replica
from hotreload.core.rules import KeepPrevious, Rules
from hotreload.core.way_in.gate import Gate
from hotreload.daemon import Daemon
from hotreload.errors import ConfigError, NotServing
from hotreload.events import Event, GateChanged, GenerationLive, ModeChosen
from hotreload.features import FEATURES
from hotreload.life.serving_life import ServingLife, integrity_tasks
from hotreload.life.serving_slot import _weights_held
from hotreload.quiet import LOUD, Quiet
from hotreload.server.from_settings import admin_group
from hotreload.settings.load import load
from hotreload.settings.sections import NAMING_SECONDS, Settings
from hotreload.types import GateState, Generation, Lease, Mode, Revision
from tests.fakes import FakeEngine, Steps, unread
from tests.waiting import PATIENCE, turn_until

LIVE = Generation(1, Revision("aaaa", "step_1"), "fp", 1.0)


def settings(folder: Path, *sets: str) -> Settings:
    usual = [f"source.path={folder}", f"state.directory={folder / 'state'}", "metrics.address=''"]
    return load(None, [*usual, *sets], {}, FEATURES).settings


def decider(made: Daemon) -> ServingLife:
    """What a daemon on one host does."""
    assert isinstance(made.life, ServingLife)
    return made.life


def client_of(daemon: Daemon) -> httpx.AsyncClient:
    """Asks a daemon's app, as by TCP."""
    transport = httpx.ASGITransport(app=daemon.app)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


def test_every_rule_is_what_its_setting_says(tmp_path: Path) -> None:
    rules = settings(
        tmp_path,
        "reload.fetch_timeout=11",
        "reload.validate_timeout=12",
        "reload.stage_timeout=13",
        "reload.drain_timeout=14",
        "server.limits.request_seconds=15",
        "reload.on_drain_timeout=abort",
        "reload.probe_timeout=16",
        "reload.keep_previous=host",
        "reload.sets=3",
        "reload.finish_timeout=17",
        "reload.shadow_share=0.2",
        "reload.prove_within=6",
    ).rules
    assert rules == Rules(
        fetch_timeout=11,
        validate_timeout=12,
        stage_timeout=13,
        drain_timeout=14,
        longest_drain=15,
        on_drain_timeout="abort",
        probe_timeout=16,
        keep_previous=KeepPrevious.HOST,
        sets=3,
        finish_timeout=17,
        shadow_share=0.2,
        prove_within=6,
    )
    assert rules.proving_timeout == 6 + 2 * 16


def test_an_attempt_over_several_hosts_waits_until_it_can_name_who_is_late(tmp_path: Path) -> None:
    """Others fetch and check while rank 0 stages; its own time is up after theirs."""
    several = ("engine.nnodes=2", "engine.tp=2", "engine.dist_init_addr=localhost:7000")
    timeouts = ("fetch_timeout=1", "validate_timeout=2", "stage_timeout=4", "probe_timeout=8")
    decided = settings(tmp_path, *several, *(f"reload.{each}" for each in timeouts))
    assert (decided.stage_seconds, decided.rules.stage_timeout) == (7, 7 + NAMING_SECONDS)
    rules = decided.rules
    assert rules.probe_timeout == 8 + NAMING_SECONDS
    assert rules.proving_timeout == rules.probe_timeout / 0.25  # a proof has its share alone there


@pytest.mark.parametrize(
    ("decision", "aborts"), [("postpone", False), ("abort", True), ("replay", True)]
)
def test_what_a_drain_ends_is_aborted_as_decided(
    tmp_path: Path, decision: str, aborts: bool
) -> None:
    decided = settings(tmp_path, f"reload.on_drain_timeout={decision}")
    assert decided.rules.abort_on_drain_timeout == aborts


KEY = "a-key-of-24-characters-1"
SITE = "https://chat.example.com"


@pytest.mark.parametrize(("is_decided", "codes"), [(True, [401, 200]), (False, [200, 200])])
async def test_clients_over_tcp_sites_and_the_request_log_are_as_decided(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_decided: bool, codes: list[int]
) -> None:
    (tmp_path / "keys").write_text(f"{KEY}\n")
    sets = (
        f"server.api_keys_file={tmp_path / 'keys'}",
        f"server.cors_origins=['{SITE}']",
        "server.access_log=true",
    )
    caplog.set_level("INFO", "hotreload.access")
    async with client_of(Daemon(settings(tmp_path, *(sets if is_decided else ())))) as client:
        answers = [await client.get("/status", headers={"Origin": SITE})]
        answers.append(await client.get("/status", headers={"Authorization": f"Bearer {KEY}"}))
    assert [answer.status_code for answer in answers] == codes
    assert answers[0].headers.get("access-control-allow-origin") == (SITE if is_decided else None)
    logged = [each for each in caplog.records if each.name == "hotreload.access"]
    assert len(logged) == (2 if is_decided else 0)


async def test_a_folder_is_read_by_threads_that_give_way_once_somebody_is_served(
    tmp_path: Path,
) -> None:
    daemon = Daemon(settings(tmp_path, "engine.staging_starve=3"))
    quiet = daemon.checking.digests.quiet
    assert quiet() == LOUD
    daemon.slot.filled.set()
    assert quiet() == Quiet(threads=1, priority="idle", starve_seconds=3)


def test_a_start_that_is_nobodys_says_who_may_not_administrate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert admin_group(settings(tmp_path, "server.admin_group='4242'").server) == 4242
    assert caplog.records == []
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    assert admin_group(settings(tmp_path, "server.admin_group='65534'").server) == 65534
    assert [each.message for each in caplog.records] == [
        "admin.nobodys_group",
        "admin.nobodys_user",
    ]


def test_a_daemon_without_the_keys_it_is_to_ask_for_does_not_begin(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\[server\] api_keys_file: .*cannot be read"):
        Daemon(settings(tmp_path, f"server.api_keys_file={tmp_path / 'gone'}"))


def test_the_first_stop_ends_the_alarm_that_xlas_handler_sets(tmp_path: Path) -> None:
    daemon = Daemon(settings(tmp_path))
    signal.alarm(60)
    try:
        daemon.stop()
    finally:
        assert signal.alarm(0) == 0


async def test_the_reconciler_goes_by_the_operators_rules(tmp_path: Path) -> None:
    decided = settings(tmp_path, "reload.min_interval=17", "reload.keep_previous=host")
    engine: Any = FakeEngine(Steps(), LIVE.revision)
    daemon = Daemon(decided)
    decider(daemon).begin(engine, LIVE)
    reconciler = daemon.slot.operator().reconciler
    assert (reconciler.rules.min_interval, reconciler.rules) == (17.0, decided.rules)


@pytest.mark.parametrize(
    ("asked", "why_not", "chosen"),
    [
        ("overlap", None, ModeChosen(Mode.OVERLAP)),
        ("overlap", "two devices", ModeChosen(Mode.DRAIN, "two devices")),
        ("drain", None, ModeChosen(Mode.DRAIN)),
        ("drain", "two devices", ModeChosen(Mode.DRAIN)),
    ],
)
async def test_weights_overlap_if_so_decided_and_the_engine_can_and_else_it_is_told_why(
    tmp_path: Path, asked: str, why_not: str | None, chosen: ModeChosen
) -> None:
    engine: Any = FakeEngine(Steps(), LIVE.revision)
    engine.cannot_overlap = why_not
    daemon = Daemon(settings(tmp_path, f"reload.mode={asked}"))
    told: list[Event] = []
    daemon.events.subscribe(told.append)
    decider(daemon).begin(engine, LIVE)
    assert [event for event in told if isinstance(event, ModeChosen)] == [chosen]
    assert daemon.slot.replicas().mode is chosen.mode
    async with daemon.entrance.admit() as lease:
        assert lease.weights is (engine.live if chosen.mode is Mode.OVERLAP else None)


@pytest.mark.parametrize("kept", list(KeepPrevious))
async def test_old_generations_are_seen_out_and_kept_as_decided(
    tmp_path: Path, kept: KeepPrevious
) -> None:
    engine: Any = FakeEngine(Steps(), LIVE.revision)
    daemon = Daemon(settings(tmp_path, f"reload.keep_previous={kept}"))
    decider(daemon).begin(engine, LIVE)
    replica = daemon.slot.replicas().first
    task = asyncio.create_task(decider(daemon)._lasting["engine 0"]())
    async with daemon.entrance.admit():
        staged = await engine.stage(unread(Revision("new")))
        replica.switch_to(replace(LIVE, number=2), await engine.flip(staged))
        assert _weights_held(replica, False)["previous"] == 10
    await turn_until(lambda: not replica.fading)
    task.cancel()
    assert (replica.previous is None) is (kept is KeepPrevious.NONE)
    if replica.previous is not None:
        assert replica.previous.weights.is_on_device is (kept is KeepPrevious.DEVICE)


@pytest.mark.parametrize(
    ("setting", "code", "awaiting"),
    [
        ("reload.while_closed=refuse", "swapping", None),
        ("reload.max_held=0", "too_many_held", "too_many_awaiting"),
    ],
)
async def test_who_arrives_while_the_gate_is_closed_is_treated_as_decided(
    tmp_path: Path, setting: str, code: str, awaiting: str | None
) -> None:
    gate = Daemon(settings(tmp_path, setting)).entrance.gates[0]
    engine: Any = FakeEngine(Steps(), LIVE.revision)
    gate.open(Lease(LIVE, engine))
    if awaiting:
        await refused_as(awaiting, gate.admit(at_least=2, within=1.0))
    gate.hold()
    await refused_as(code, gate.admit())


async def refused_as(code: str, passing: Any) -> None:
    with pytest.raises(NotServing) as caught:
        async with asyncio.timeout(PATIENCE), passing:
            pass
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("sets", "exported", "left_out"),
    [((), 3, 0), (("metrics.max_leaves=2",), 2, 1), (("metrics.per_leaf=false",), 0, 0)],
)
def test_so_many_leaves_are_exported_as_decided(
    tmp_path: Path, sets: tuple[str, ...], exported: int, left_out: int
) -> None:
    daemon = Daemon(settings(tmp_path, *sets))
    daemon.events.publish(GenerationLive(replace(LIVE, leaves={"a": 1, "b": 2, "c": 3})))
    page = daemon.metrics.render().decode()
    assert page.count("hotreload_leaf_checksum{") == exported
    assert f"hotreload_leaf_checksums_left_out {left_out}.0" in page


def test_the_picture_has_what_happened_before_anybody_tells_of_it(tmp_path: Path) -> None:
    daemon = Daemon(settings(tmp_path))
    daemon.events.publish(GateChanged(GateState.OPEN, 0, 0))
    assert "hotreload_ready 1.0" in daemon.metrics.render().decode()
    daemon.events.publish(GenerationLive(LIVE))
    assert "hotreload_last_reload_successful 1.0" in daemon.metrics.render().decode()


TWO_HOSTS = ("engine.nnodes=2", "engine.tp=2", "engine.dist_init_addr=127.0.0.1:29500")


@pytest.mark.parametrize(("own", "follows"), [(0, False), (1, True)])
def test_each_of_several_hosts_says_which_it_is(tmp_path: Path, own: int, follows: bool) -> None:
    daemon = Daemon(settings(tmp_path, *TWO_HOSTS, f"engine.node_rank={own}"))
    daemon.events.publish(GateChanged(GateState.OPEN, 0, 0))
    daemon.events.publish(GenerationLive(LIVE))
    said = daemon.status.snapshot()
    assert said["rank"] == {"own": own, "of": 2, "leader": "127.0.0.1:29500"}
    assert said["state"] == ("following" if follows else "serving")
    page = daemon.metrics.render().decode()
    assert f"hotreload_rank {own}.0" in page
    assert "hotreload_ranks 2.0" in page


async def test_a_host_that_follows_sends_requests_and_orders_to_rank_0(tmp_path: Path) -> None:
    words = "rank 1 of 2 of one engine: rank 0, on 127.0.0.1, answers requests and takes orders"
    daemon = Daemon(settings(tmp_path, *TWO_HOSTS, "engine.node_rank=1"))
    async with client_of(daemon) as client:
        answer = await client.post("/generate", json={"text": "hi"})
    assert (answer.status_code, answer.json()["code"]) == (503, "not_rank_0")
    assert words in answer.text


async def test_a_scrape_reads_how_busy_the_engine_is(tmp_path: Path) -> None:
    engine: Any = FakeEngine(Steps(), LIVE.revision)
    daemon = Daemon(settings(tmp_path))
    assert 'hotreload_kv_tokens{replica="0",use="free"} 0.0' in daemon.metrics.render().decode()
    decider(daemon).begin(engine, LIVE)
    assert 'hotreload_kv_tokens{replica="0",use="free"} 9.0' in daemon.metrics.render().decode()


def test_live_weights_are_verified_only_if_so_decided(tmp_path: Path) -> None:
    engine = FakeEngine(Steps(), LIVE.revision)
    replica: Any = Replica(engine, Gate[FakeEngine](publish=lambda event: None), LIVE)
    assert integrity_tasks(settings(tmp_path), replica, print).keys() == {"tell of distrust"}
    tasks = integrity_tasks(settings(tmp_path, "checks.verify_live_every=6h"), replica, print)
    look = tasks["verify what is live"]
    assert look.keywords["every"] == 6 * 3600  # type: ignore[attr-defined]
