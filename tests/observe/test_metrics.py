"""Every metric of the contract, from the start, and what the events do to it."""

import math
import re
import shutil
import subprocess
from collections import deque
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from hotreload.attempts import START, By
from hotreload.core.ledger import Ledger, Overrule, PastGeneration
from hotreload.events import (
    AttemptFinished,
    Event,
    GateChanged,
    GenerationLive,
    PhaseEntered,
    RevisionWanted,
    SourceScanned,
    StateSaved,
    Wait,
)
from hotreload.features.bake.evidence import Bake, BakeChanged, BakeOutcome, SignalCount
from hotreload.features.bake.report import ENDS
from hotreload.features.compare.evidence import Behaviour, RightAnswers
from hotreload.observe.metrics import OTHER_ROUTES, SCAN_CAUSES, STATUS_CODES, Metrics
from hotreload.observe.readings import KV_USES, WEIGHT_PLACES
from hotreload.picture.history import LOADERS
from hotreload.picture.picture import Picture, Rank, Readings, ReplicaFigures, Setup
from hotreload.server.http.request_log import COUNTED_FROM_THE_START
from hotreload.types import (
    NOISY,
    AnsweringGeneration,
    EngineLoad,
    GateState,
    Outcome,
    Phase,
    Reason,
    Revision,
)
from tests.evidence import REASONS, judged
from tests.monitoring.page import whole_page
from tests.observe.things import (
    NOON,
    STEP_7,
    STEP_8,
    Counted,
    ended,
    engines,
    generation,
    picture_of,
    rejected,
    reports,
    went_live,
)

ROUTES = (*COUNTED_FROM_THE_START, OTHER_ROUTES)
CONTRACT = [
    "workers",
    "workers_lost_total",
    "build_info{version,jax,sglang_jax}",
    "live_info{generation,revision,label,fingerprint}",
    "generation",
    "ready",
    "last_reload_successful",
    "last_reload_success_timestamp_seconds",
    "reloads_total{outcome}",
    "rejections_total{reason}",
    "rollbacks_total",
    "phase_seconds{phase}",
    "pause_seconds",
    "swap_seconds",
    "leaf_checksum{leaf}",
    "leaf_checksums_left_out",
    "leaves_changed",
    "weights_bytes{place,replica}",
    "staged_bytes_total{replica}",
    "requests_total{route,code}",
    "request_seconds{route}",
    "time_to_first_token_seconds",
    "tokens_total",
    "requests_inside{replica}",
    "requests_held{replica}",
    "generations_answering",
    "requests_on_previous",
    "recompiles_total{replica}",
    "answers_withheld_total",
    "source_scans_total{cause}",
    "source_last_scan_timestamp_seconds",
    "source_passed_over{reason}",
    "wanted_since_timestamp_seconds",
    "phase_since_timestamp_seconds{phase}",
    "engine_lost_timestamp_seconds",
    "fetched_bytes_total",
    "fetch_progress_ratio",
    "fetch_size_bytes",
    "fetch_remaining_seconds",
    "state_saved",
    "noise_live",
    "overruled",
    "loads_total{loader}",
    "leaves_shared_total",
    "largest_change",
    "loader_trusted{replica}",
    "live_drifted{replica}",
    "socket_rebinds_total",
    "trouble{code}",
    "departure_since_timestamp_seconds",
    "paused_since_timestamp_seconds",
    "requests_paused",
    "pauses_total{ended}",
    "spans_total{result}",
    "notices_total{result}",
    "notice_error_info{receiver,message}",
    "trouble_info{code,message,todo}",
    "live_verified_timestamp_seconds{replica}",
    "engine_waiting{replica}",
    "engine_running{replica}",
    "kv_tokens{use,replica}",
    "wanted_info{revision,label}",
    "last_failure_info{revision,label,outcome,reason,message}",
    "source_passed_over_info{label,reason,message}",
    "last_new_timestamp_seconds",
    "expected_every_seconds",
    "replicas",
    "replicas_serving",
    "replica_generation{replica}",
    "replica_restarts_total{replica}",
    "sizes_to_compile{replica}",
    "ranks",
    "rank",
    "key_refused_total{key,limit}",
    "key_requests_total{key}",
    "key_tokens_total{key}",
    "rank_heard_seconds{rank}",
    "bakes_total{outcome}",
    "behaviour_accuracy",
    "behaviour_agreement",
    "behaviour_heard",
    "behaviour_heard_same_top",
    "behaviour_info{revision,label,generation,outcome,reason}",
    "behaviour_length_ratio",
    "behaviour_live_accuracy",
    "behaviour_mean_kl",
    "behaviour_noise_kl",
    "behaviour_perplexity_ratio",
    "behaviour_same_top",
    "behaviour_seconds",
    "bake_since_timestamp_seconds",
    "bake_answers{weights}",
    "bake_signals{signal,weights}",
]
HISTOGRAMS = {
    "phase_seconds",
    "pause_seconds",
    "swap_seconds",
    "request_seconds",
    "time_to_first_token_seconds",
}


def families(metrics: Metrics) -> dict[str, Metric]:
    page_text = metrics.render().decode()
    return {family.name: family for family in text_string_to_metric_families(page_text)}


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return value_in(families(metrics), name, **labels)


def value_in(page: dict[str, Metric], name: str, **labels: str) -> float | None:
    found = [
        sample.value
        for family in page.values()
        for sample in family.samples
        if sample.name == f"hotreload_{name}" and sample.labels == labels
    ]
    assert len(found) <= 1
    return found[0] if found else None


def after(
    *events: Event,
    max_leaves: int = 1000,
    ledger: Ledger | None = None,
    **how: Any,
) -> Counted:
    picture = picture_of(ledger, **how)
    metrics = Counted(picture, max_leaves=max_leaves, clock=lambda: NOON)
    for event in events:
        metrics.observe(event)
    return metrics


@cache
def families_of_the_whole() -> dict[str, Metric]:
    """All that is told when there is something to tell of each."""
    return families(whole_page())


@pytest.mark.parametrize("entry", CONTRACT)
def test_every_metric_of_the_contract_is_there_with_its_labels(entry: str) -> None:
    name, _, labels = entry.rstrip("}").partition("{")
    found = families_of_the_whole()[f"hotreload_{name}".removesuffix("_total")]
    assert found.documentation
    expected = set(filter(None, labels.split(",")))
    assert found.samples
    assert all(sample.labels.keys() - {"le"} == expected for sample in found.samples)
    kind = "counter" if name.endswith("_total") else "gauge"
    assert found.type == ("histogram" if name in HISTOGRAMS else kind)


def test_a_state_that_is_not_on_the_disk_is_0_while_it_lasts() -> None:
    assert value(after(), "state_saved") == 1
    assert value(after(StateSaved("read-only")), "state_saved") == 0
    assert value(after(StateSaved("read-only"), StateSaved()), "state_saved") == 1


def test_noise_that_answers_and_a_source_that_is_overruled_are_1() -> None:
    usual = after(GenerationLive(generation()))
    assert (value(usual, "noise_live"), value(usual, "overruled")) == (0, 0)
    noisy = GenerationLive(generation(4, Revision(f"{NOISY}1-0.01-3-fp", "step-7 + noise")))
    overruled = Overrule(STEP_7, STEP_8, By("reload", 0, 1, NOON))
    metrics = after(noisy, ledger=Ledger(overruled=overruled))
    assert (value(metrics, "noise_live"), value(metrics, "overruled")) == (1, 1)
    assert value(after(noisy, GenerationLive(generation(5))), "noise_live") == 0


def test_there_is_no_metric_of_ours_that_the_contract_does_not_name() -> None:
    named = {f"hotreload_{entry.partition('{')[0]}".removesuffix("_total") for entry in CONTRACT}
    found = families(whole_page())
    assert {name for name in found if name.startswith("hotreload_")} == named


@pytest.mark.parametrize(
    ("name", "label", "values"),
    [
        ("reloads_total", "outcome", [each for each in Outcome if each is not Outcome.PASSED]),
        ("rejections_total", "reason", REASONS),
        ("phase_seconds_count", "phase", list(Phase)),
        ("phase_since_timestamp_seconds", "phase", list(Phase)),
        ("source_scans_total", "cause", SCAN_CAUSES),
        ("request_seconds_count", "route", ROUTES),
        ("loads_total", "loader", LOADERS),
        ("bakes_total", "outcome", ENDS),
        ("bake_answers", "weights", ("new", "old")),
    ],
)
def test_known_label_values_are_at_0_from_the_start(
    name: str, label: str, values: tuple[str, ...]
) -> None:
    found = families(Counted())
    for known in values:
        assert value_in(found, name, **{label: str(known)}) == 0, known


def test_the_last_comparison_is_told_also_of_what_was_refused() -> None:
    assert math.isnan(value(after(), "behaviour_agreement") or 0)
    right = RightAnswers(50, 40, 45, 2, 7, 0.09, 0.12)
    found = Behaviour(
        *(6, 96, 0.5, 1.0, 3, 1.5, 0, 0, 0, 0, 0, 0), mean_kl=0.25, right_answers=right
    )
    compared = judged(rejected(), behaviour=found)
    metrics = after(
        AttemptFinished(compared, generation()), AttemptFinished(rejected(), generation())
    )
    assert value(metrics, "behaviour_agreement") == 0.5
    assert value(metrics, "behaviour_mean_kl") == 0.25
    assert value(metrics, "behaviour_accuracy") == 0.8
    assert value(metrics, "behaviour_live_accuracy") == 0.9
    assert math.isnan(value(metrics, "behaviour_perplexity_ratio") or 0)
    whose = {"revision": STEP_8.id, "label": "step-8", "generation": ""}
    assert value(metrics, "behaviour_info", **whose, outcome="rejected", reason="truncated") == 1
    live = judged(went_live(), behaviour=found)
    whose = {**whose, "generation": "4", "outcome": "live", "reason": ""}
    assert value(after(AttemptFinished(live, generation())), "behaviour_info", **whose) == 1


def test_a_bake_is_counted_as_it_stands_and_as_it_ends() -> None:
    empty = SignalCount("empty", 3, 0.01, 0.1, 20, 0.01, 0.04, None)
    bake = Bake(BakeOutcome.BAKING, 1.7e9, 1.8e9, 120, 1, 1000, (empty,))
    metrics = after(BakeChanged(2, STEP_7, bake), reports=reports(bake=lambda: bake))
    assert value(metrics, "bake_since_timestamp_seconds") == 1.7e9
    assert value(metrics, "bake_answers", weights="new") == 120
    assert value(metrics, "bake_signals", signal="empty", weights="old") == 20
    assert value(metrics, "bake_signals", signal="error", weights="new") == 0
    convicted = BakeChanged(2, STEP_7, replace(bake, outcome=BakeOutcome.CONVICTED))
    metrics = after(BakeChanged(2, STEP_7, bake), convicted)
    assert value(metrics, "bakes_total", outcome="convicted") == 1
    assert value(metrics, "bakes_total", outcome="promoted") == 0
    assert value(metrics, "bake_since_timestamp_seconds") == 0


def test_every_route_has_its_usual_codes_from_the_start() -> None:
    samples = families(Counted())["hotreload_requests"].samples
    seen = {(sample.labels["route"], sample.labels["code"]): sample.value for sample in samples}
    assert seen == {(route, str(code)): 0 for route in ROUTES for code in STATUS_CODES}


def test_metrics_without_labels_are_at_0_from_the_start() -> None:
    metrics = Counted()
    for name in ("generation", "ready", "last_reload_successful", "rollbacks_total"):
        assert value(metrics, name) == 0, name
    for name in (
        "tokens_total",
        "answers_withheld_total",
        "replicas_serving",
        "pause_seconds_count",
    ):
        assert value(metrics, name) == 0, name


def test_what_is_told_of_each_engine_is_at_0_from_the_start() -> None:
    metrics = Counted(engines(2, replicas=lambda: [ReplicaFigures()] * 2))
    assert value(metrics, "replicas") == 2
    for replica in ("0", "1"):
        for name in ("recompiles_total", "requests_held", "replica_restarts_total"):
            assert value(metrics, name, replica=replica) == 0, name
        for place in WEIGHT_PLACES:
            assert value(metrics, "weights_bytes", place=place, replica=replica) == 0
        for use in KV_USES:
            assert value(metrics, "kv_tokens", use=use, replica=replica) == 0


def test_no_created_series_are_exported() -> None:
    assert b"_created" not in after(AttemptFinished(went_live(), None)).render()


def test_process_and_python_metrics_are_there() -> None:
    found = families(Counted())
    assert "process_resident_memory_bytes" in found
    assert "python_info" in found


def test_what_is_live_is_one_series() -> None:
    metrics = after(GenerationLive(generation(3)), GenerationLive(generation(4, STEP_8)))
    (sample,) = families(metrics)["hotreload_live_info"].samples
    assert sample.labels == {
        "generation": "4",
        "revision": STEP_8.id,
        "label": "step-8",
        "fingerprint": "print-4",
    }
    assert value(metrics, "generation") == 4


def test_checksums_are_those_of_what_is_live_and_whole_numbers() -> None:
    odd = 2**53 - 1
    metrics = after(
        GenerationLive(generation(3, a=1, b=2, gone=3)), GenerationLive(generation(4, a=1, b=odd))
    )
    samples = families(metrics)["hotreload_leaf_checksum"].samples
    assert {sample.labels["leaf"]: sample.value for sample in samples} == {"a": 1, "b": odd}
    assert value(metrics, "leaves_changed") == 2


def test_checksums_can_be_switched_off() -> None:
    metrics = after(GenerationLive(generation()), max_leaves=0)
    assert "hotreload_leaf_checksum" not in families(metrics)
    assert value(metrics, "leaf_checksums_left_out") == 0
    assert value(metrics, "generation") == 3


def test_of_many_leaves_the_first_are_exported_and_the_others_counted_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    leaves = {f"layer.{number}": number for number in range(3000)}
    lives = (replace(generation(number), leaves=leaves) for number in (1, 2))
    metrics = after(*map(GenerationLive, lives), max_leaves=1000)
    told = families(metrics)["hotreload_leaf_checksum"].samples
    assert [sample.labels["leaf"] for sample in told] == list(leaves)[:1000]
    assert value(metrics, "leaf_checksums_left_out") == 2000
    (line,) = [record for record in caplog.records if record.name == "hotreload.metrics"]
    assert line.message == "metrics.leaves_left_out"
    assert (vars(line)["exported"], vars(line)["left_out"]) == (1000, 2000)


def test_a_page_of_very_many_leaves_is_no_longer_than_one_of_a_thousand() -> None:
    def lines(count: int) -> int:
        leaves = {f"model.layers.{n}.mlp.down_proj.weight": 2**52 + n for n in range(count)}
        live = replace(generation(), leaves=leaves)
        return after(GenerationLive(live)).render().count(b"\n")

    assert lines(10_000) == lines(1000) == lines(1) + 999


def test_all_leaves_that_changed_are_counted_also_those_that_are_not_exported() -> None:
    one = GenerationLive(generation(1, a=1, b=1, c=1))
    two = GenerationLive(generation(2, a=1, b=2, c=2))
    assert value(after(one, two, max_leaves=1), "leaves_changed") == 2


def test_a_good_attempt_is_counted_with_its_times() -> None:
    metrics = after(AttemptFinished(went_live(), generation()))
    assert value(metrics, "reloads_total", outcome="live") == 1
    assert value(metrics, "last_reload_successful") == 1
    assert value(metrics, "last_reload_success_timestamp_seconds") == NOON
    assert value(metrics, "phase_seconds_sum", phase="staging") == 1.25
    assert value(metrics, "phase_seconds_count", phase="probing") == 0
    assert value(metrics, "pause_seconds_sum") == 0.04
    assert value(metrics, "swap_seconds_sum") == 0.003


def test_a_swap_that_held_nobody_counts_with_a_pause_of_exactly_0() -> None:
    metrics = after(AttemptFinished(replace(went_live(), pause_seconds=0.0), generation()))
    assert value(metrics, "pause_seconds_count") == 1
    assert value(metrics, "pause_seconds_bucket", le="0.0") == 1


def test_the_older_generations_that_answer_are_told_with_their_requests() -> None:
    def told(*answering: AnsweringGeneration) -> tuple[float | None, float | None]:
        metrics = after(readings=Readings(answering=lambda: answering))
        names = ("generations_answering", "requests_on_previous")
        return value(metrics, names[0]), value(metrics, names[1])

    live, *older = (
        AnsweringGeneration(generation(number), requests) for number, requests in FADING
    )
    assert told() == (0, 0)
    assert told(live) == (1, 0)
    assert told(live, *older) == (3, 4)


FADING = ((9, 12), (8, 3), (7, 1))


def test_a_refusal_is_counted_by_its_reason_and_pauses_nothing() -> None:
    metrics = after(GenerationLive(generation()), AttemptFinished(rejected(), generation()))
    assert value(metrics, "reloads_total", outcome="rejected") == 1
    assert value(metrics, "rejections_total", reason="truncated") == 1
    assert value(metrics, "last_reload_successful") == 0
    assert value(metrics, "rollbacks_total") == 0
    assert value(metrics, "pause_seconds_count") == 0
    assert value(metrics, "swap_seconds_count") == 0


def test_a_rollback_is_counted() -> None:
    attempt = rejected(Reason("probe", "nonsense"), rolled_back=True)
    assert value(after(AttemptFinished(attempt, None)), "rollbacks_total") == 1


def test_a_superseded_attempt_neither_succeeds_nor_fails() -> None:
    good, bad = AttemptFinished(went_live(), None), AttemptFinished(rejected(), None)
    superseded = AttemptFinished(ended(Outcome.SUPERSEDED), None)
    assert value(after(good, superseded), "last_reload_successful") == 1
    assert value(after(bad, superseded), "last_reload_successful") == 0


def test_what_a_start_refused_is_a_failure_while_it_is_wanted() -> None:
    """The start went on to something older, and nobody tries the newest again."""
    by = By(START, 0, 1, NOON, "the newest checkpoint")
    refused = AttemptFinished(replace(rejected(), by=by), None)
    started = AttemptFinished(replace(went_live(), by=by), generation())
    metrics = after(refused, GenerationLive(generation()), started)
    assert value(metrics, "last_reload_successful") == 1
    metrics.observe(RevisionWanted(refused.attempt.revision))
    assert value(metrics, "last_reload_successful") == 0


def test_a_start_has_no_phase_that_may_be_stuck() -> None:
    metrics = after(PhaseEntered(generation().revision, Phase.PROBING))
    assert value(metrics, "phase_since_timestamp_seconds", phase="probing") == 0


def test_the_boot_counts_as_a_success_and_a_later_event_alone_does_not() -> None:
    booted = after(GenerationLive(generation(3)))
    assert value(booted, "last_reload_successful") == 1
    booted.observe(AttemptFinished(rejected(), None))
    booted.observe(GenerationLive(generation(3)))
    assert value(booted, "last_reload_successful") == 0


def test_it_is_ready_while_open_or_holding() -> None:
    seen = []
    metrics = Counted()
    for state in (GateState.OPEN, GateState.HOLDING, GateState.SEALED):
        metrics.observe(GateChanged(state, 0, 0))
        seen.append(value(metrics, "ready"))
    assert seen == [1, 1, 0]


def test_scans_are_counted_and_only_good_ones_are_fresh() -> None:
    failed = after(SourceScanned("rescan", "no such folder"), Wait("x"))
    assert value(failed, "source_scans_total", cause="rescan") == 1
    assert value(failed, "source_last_scan_timestamp_seconds") == 0
    failed.observe(SourceScanned("event"))
    assert value(failed, "source_last_scan_timestamp_seconds") == NOON


def test_the_first_wish_that_is_not_live_says_since_when_the_weights_are_behind() -> None:
    now = iter([NOON, NOON + 1, NOON + 2, NOON + 3])
    metrics = Counted(clock=lambda: next(now))
    name = "wanted_since_timestamp_seconds"
    metrics.observe(GenerationLive(generation(3, STEP_7)))  # reads the clock: NOON
    metrics.observe(RevisionWanted(STEP_7))
    assert value(metrics, name) == 0
    metrics.observe(RevisionWanted(STEP_8))
    metrics.observe(RevisionWanted(Revision("9" * 40)))
    assert value(metrics, name) == NOON + 1
    metrics.observe(RevisionWanted(STEP_7))  # taken back
    assert value(metrics, name) == 0
    metrics.observe(RevisionWanted(STEP_8))
    assert value(metrics, name) == NOON + 2
    metrics.observe(GenerationLive(generation(4, STEP_8)))
    assert value(metrics, name) == 0


def test_the_phase_that_runs_says_since_when() -> None:
    entered = (PhaseEntered(STEP_8, phase) for phase in (Phase.STAGING, Phase.DRAINING))
    metrics = after(GenerationLive(generation()), *entered)
    name = "phase_since_timestamp_seconds"
    assert value(metrics, name, phase="staging") == 0
    assert value(metrics, name, phase="draining") == NOON
    metrics.observe(PhaseEntered(STEP_8, None))
    assert value(metrics, name, phase="draining") == 0


def test_plain_numbers_are_read_at_the_scrape() -> None:
    held = [1]

    def now() -> list[ReplicaFigures]:
        busy = ReplicaFigures(
            inside=7,
            held=held[0],
            load=EngineLoad(5, 8, kv_requests=30, kv_prefixes=20, kv_free=50),
            recompiles=2,
            staged_bytes=10**12,
            weights={"live": 500, "staged": 20},
        )
        return [busy, ReplicaFigures()]

    place = PastGeneration(3, STEP_7, "fp", "", NOON)
    ledger = Ledger(lost_at=NOON, generations=deque([place]))
    metrics = after(readings=Readings(replicas=now), ledger=ledger)

    def told(name: str, replica: str = "0", **labels: str) -> float | None:
        return value(metrics, name, replica=replica, **labels)

    assert (told("requests_inside"), told("requests_inside", "1")) == (7, 0)
    assert (told("recompiles_total"), told("staged_bytes_total")) == (2, 10**12)
    assert value(metrics, "engine_lost_timestamp_seconds") == NOON
    assert [told("weights_bytes", place=place) for place in WEIGHT_PLACES] == [500, 0, 20]
    assert told("weights_bytes", "1", place="live") == 0
    assert (told("engine_waiting"), told("engine_running")) == (5, 8)
    assert [told("kv_tokens", use=use) for use in KV_USES] == [30, 20, 50]
    assert value(metrics, "last_new_timestamp_seconds") == NOON
    held[0] = 9
    assert told("requests_held") == 9


def test_each_host_of_an_engine_says_which_it_is_and_rank_0_when_it_heard_of_the_others() -> None:
    silent = {1: 0.5}
    readings = Readings(silences=lambda: silent)
    leader = Counted(of_rank(0, readings))
    assert (value(leader, "rank"), value(leader, "ranks")) == (0, 3)
    assert value(leader, "rank_heard_seconds", rank="1") == 0.5
    silent |= {1: 7.0, 2: 0.25}
    assert value(leader, "rank_heard_seconds", rank="1") == 7.0
    assert value(leader, "rank_heard_seconds", rank="2") == 0.25
    follower = Counted(of_rank(2))
    assert (value(follower, "rank"), value(follower, "ranks")) == (2, 3)
    assert "hotreload_rank_heard_seconds" not in families(follower)


def test_one_host_alone_is_no_rank() -> None:
    alone = Counted()
    assert value(alone, "ranks") == 1
    assert families(alone).keys().isdisjoint({"hotreload_rank", "hotreload_rank_heard_seconds"})


def test_how_often_something_new_is_expected_is_0_unless_it_is_said() -> None:
    assert value(Counted(), "expected_every_seconds") == 0
    assert value(Counted(expect_every=3600.0), "expected_every_seconds") == 3600


def test_requests_are_counted_and_unknown_routes_share_a_label() -> None:
    metrics = Counted()
    metrics.request_finished("/generate", 200, 0.5)
    metrics.request_finished("/generate", 499, 0.5)
    metrics.request_finished("/a/stranger's/path", 404, 0.5)
    metrics.first_token(0.25)
    metrics.tokens(12)
    assert value(metrics, "requests_total", route="/generate", code="200") == 1
    assert value(metrics, "requests_total", route="/generate", code="499") == 1
    assert value(metrics, "requests_total", route="other", code="404") == 1
    assert value(metrics, "request_seconds_sum", route="/generate") == 1.0
    assert value(metrics, "time_to_first_token_seconds_sum") == 0.25
    assert value(metrics, "tokens_total") == 12


def test_two_daemons_in_one_process_count_apart() -> None:
    first, second = Counted(), Counted()
    first.tokens(1)
    assert value(second, "tokens_total") == 0


def of_rank(own: int, readings: Readings | None = None) -> Picture:
    setup = Setup(rank=Rank(own, 3, "tpu-0:8000"))
    return picture_of(setup=setup, readings=readings or Readings())


def busy() -> Metrics:
    metrics = after(GenerationLive(generation()), AttemptFinished(went_live(), generation()))
    metrics.request_finished("/generate", 200, 0.1)
    return metrics


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_nothing() -> None:
    for metrics in (Counted(), busy()):
        found = subprocess.run(
            ["promtool", "check", "metrics"],
            input=metrics.render(),
            capture_output=True,
            check=False,
        )
        assert (found.returncode, found.stdout, found.stderr) == (0, b"", b"")


def test_names_follow_the_rules_promtool_checks() -> None:
    units = re.compile(r"_(ms|milliseconds|minutes|kb|kilobytes|mb|percent)(_|$)")
    for name, family in families(busy()).items():
        assert family.documentation, name
        assert re.fullmatch(r"[a-z_][a-z0-9_]*", name), name
        assert not units.search(name), name
        for suffix in ("_count", "_sum", "_bucket", "_total"):
            assert family.type == "histogram" or not name.endswith(suffix), name
        raw = {sample.name for sample in family.samples}
        assert family.type != "counter" or all(each.endswith("_total") for each in raw), raw
