"""A real Prometheus scrapes a real daemon through swaps, refusals, a rollback and a loss.

It runs the rules as they are, with shorter times (`SOONER`): every alert has to fire, and every
panel has to have something to show.
"""

import re
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from hotreload.attempts import Attempt, By
from hotreload.core.ledger import Ledger, Overrule, PastGeneration
from hotreload.events import (
    AnswersWithheld,
    GateChanged,
    GenerationLive,
    LiveDrifted,
    LoaderDistrusted,
    SourceScanned,
    StateSaved,
    TroubleNews,
    WorkerMoved,
)
from hotreload.features.bake.evidence import Bake, BakeChanged, BakeOutcome
from hotreload.features.compare.evidence import Behaviour, RightAnswers
from hotreload.features.pause.pause import PauseBegan
from hotreload.observe.metrics import Metrics
from hotreload.observe.metrics_page import Page
from hotreload.picture.picture import Readings, ReplicaFigures, Setup
from hotreload.types import NOISY, AnsweringGeneration, GateState, Generation, Outcome, Revision
from tests.evidence import judged
from tests.integration.process import Process
from tests.integration.running import request_for
from tests.monitoring.dashboard import panels, swaps
from tests.monitoring.page import filled_in
from tests.monitoring.prometheus import Prometheus, free_port, needs_prometheus
from tests.monitoring.rules import ALERTS, RECORDED
from tests.observe.things import Counted, picture_of
from tests.waiting import PATIENCE

pytestmark = [needs_prometheus, pytest.mark.real_engine]

FAILPOINTS = "swapping=delay:3@2;saved=raise:RuntimeError@5"
"""The second swap and those after it take long; after the fifth attempt the daemon is lost."""
EIGHTH = Generation(8, Revision("step_8"), "old", 0.0)
NINTH = Generation(9, Revision(f"{NOISY}1-0.01-3-fp", "step_9"), "other", 0.0)
INTERVAL_SECONDS = 1
"""What the dashboard's steps are here; no two attempts end within one."""


COMPARED = Behaviour(
    *(6, 90, 0.75, 1.0, 3, 1.25, 0, 1, 0, 0, 0, 0),
    mean_kl=0.25,
    noise_kl=0.0,
    same_top=0.9,
    perplexity_ratio=1.1,
    right_answers=RightAnswers(10, 8, 9, 0, 1, 0.5, None),
    heard=20,
    heard_same_top=0.9,
)
"""What the other daemon compared last; ours drains, and so compares nothing."""

ODD = (
    "GenerationSkew",
    "StateNotSaved",
    "NoiseAnswers",
    "SourceOverruled",
    "OldGenerationAnswers",
    "LiveWeightsDrifted",
    "LoaderDistrusted",
    "NothingNew",
    "RequestsHeld",
    "Paused",
    "ReplicaLost",
    "ReplicasDiffer",
    "Trouble",
    "WaitsForFiles",
)
"""What a daemon beside ours fires, which serves other weights, noisy ones at that, by hand, on a
full disk, whose old generation does not end, whose memory and loader fail, where nothing new comes,
requests wait, somebody paused, files are gone, and one of three engines does not serve and another
lags behind. That a real one says the first four of itself, `tests/integration/test_by_hand.py`
sees."""


@dataclass
class Story:
    """What happened, and the Prometheus that saw it."""

    prometheus: Prometheus
    began: float = field(default_factory=time.time)
    before_the_loss: float = 0.0
    ended: float = 0.0
    calm: list[str] = field(default_factory=list)
    """Alerts that went on firing when nothing was wrong yet."""
    said_of_nan: dict[str, str] = field(default_factory=dict)
    """How the alert told of the damaged checkpoint."""

    def over(self, expr: str) -> list[dict[str, str]]:
        """What an expression of the dashboard showed from the beginning to the end."""
        return self.prometheus.over(self._filled_in(expr, self.ended), self.began, self.ended)

    def counts(self, title: str) -> dict[str, float]:
        """The last numbers of a panel before the daemon was lost, by their legend's label."""
        (target, *_), end = panel_of(title)["targets"], self.before_the_loss
        (label,) = re.findall(r"{{(\w+)}}", target["legendFormat"])
        found = self.prometheus.at(self._filled_in(target["expr"], end), end)
        return {labels[label]: number for labels, number in found}

    def table(self, title: str) -> list[tuple[dict[str, str], float]]:
        """The rows of a panel that is a table, as they were before the daemon was lost."""
        (target,), end = panel_of(title)["targets"], self.before_the_loss
        return self.prometheus.at(self._filled_in(target["expr"], end), end)

    def _filled_in(self, expr: str, end: float) -> str:
        values = {
            "$job": "hotreload",
            "$instance": "127.*",
            "$__rate_interval": "3s",
            "$__interval": f"{INTERVAL_SECONDS}s",
            "$__range": f"{end - self.began:.0f}s",
        }
        return filled_in(expr, values)


def panel_of(title: str) -> Any:
    return next(panel for panel in panels() if panel["title"] == title)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("story")
    address, other = (f"127.0.0.1:{free_port()}" for _ in range(2))
    sets = (
        "source.patience=0.5",
        "source.rescan=0.5",
        "reload.mode=drain",  # or nobody is ever held, and nothing rolled back
        f"metrics.address={address}",
        "metrics.expect_every=24h",
    )
    process = Process(folder, *sets)
    process.drop(1)
    with Prometheus(folder / "prometheus", address, other).running() as prometheus:
        story = Story(prometheus)
        with process.running(FAILPOINTS):
            go_well(process, story)
            go_badly(process, story)
            replica = another_replica()
            with closing(Page(other, replica.latest)):
                for alert in ODD:
                    prometheus.until_fires(alert)
                replica.observe(AnswersWithheld(NINTH, 24))
                for _ in range(20):
                    replica.request_finished("/generate", 500, 0.1)
                for worker in range(1, 5):
                    replica.observe(WorkerMoved(worker, is_serving=False, why="it ended"))
                replica.observe(
                    BakeChanged(9, NINTH.revision, Bake(BakeOutcome.CONVICTED, 1.0, 2.0))
                )
                prometheus.until_fires("AnswersWithheld")
                prometheus.until_fires("BakeConvicted")
                prometheus.until_fires("WorkerLost")
                prometheus.until_fires("ErrorsAnswered")
            story.before_the_loss = time.time()
            lose_the_engine(process, prometheus)
        process.start()
        try:
            prometheus.until_fires("NotReady")
            prometheus.until_fires("EngineLost")
            prometheus.until_fires("RestartLoop")
        finally:
            process.child.kill()
            process.child.wait()
        story.ended = time.time()
        yield story


def go_well(process: Process, story: Story) -> None:
    """Answers, a stream, a swap; then one that holds arrivals for long."""
    prometheus = story.prometheus
    # What comes before its first look, or a step after it, is no increase.
    prometheus.until(f"hotreload_ready offset {INTERVAL_SECONDS}s == 1")
    process.ask()
    transport = httpx.HTTPTransport(uds=str(process.socket))
    with httpx.Client(transport=transport, base_url="http://x", timeout=PATIENCE) as client:
        client.post("/generate", json=request_for("Who serves?", stream=True)).raise_for_status()
    process.drop(2)
    process.live("step_2")
    prometheus.until("hotreload_live_info{label='step_2'}")
    prometheus.until("instance:hotreload_pause_seconds:p99_1h > 0")
    with suppress(TimeoutError):  # a slow machine may swap for longer than the times here allow
        prometheus.until('absent(ALERTS{alertstate="firing"})')
    story.calm = prometheus.firing()
    process.drop(3)
    prometheus.until_fires("ReloadStuck")
    process.live("step_3")
    prometheus.until_fires("PauseTooLong")


def go_badly(process: Process, story: Story) -> None:
    """A damaged checkpoint, one that talks nonsense, a folder of nothing, and one that is gone."""
    prometheus = story.prometheus
    process.drop(4, "nan")
    prometheus.until_fires("LastReloadFailed")
    story.said_of_nan = prometheus.said("LastReloadFailed")
    prometheus.until_fires("WeightsStale")
    process.drop(5, "gibberish")
    prometheus.until_fires("RejectedAfterExchange")
    empty = process.checkpoints / "step_90"  # no attempt is made of it
    empty.mkdir()
    prometheus.until_fires("SourcePassedOver")
    empty.rmdir()
    away = process.checkpoints.rename(process.folder / "away")
    prometheus.until_fires("SourceDead")
    away.rename(process.checkpoints)
    prometheus.until('absent(ALERTS{alertname="SourceDead"})')


def another_replica() -> Metrics:
    """What a daemon exports in which all is `ODD`; it needs no second engine."""
    both = (AnsweringGeneration(NINTH, 0), AnsweringGeneration(EIGHTH, 1))
    told = Readings(
        replicas=lambda: (ReplicaFigures(held=1), *[ReplicaFigures()] * 2),
        answering=lambda: both,
    )
    long_ago = PastGeneration(8, EIGHTH.revision, "old", "", 1.0)
    overruled = Overrule(NINTH.revision, EIGHTH.revision, By("reload", 0, 1, 1.0))
    tried = Attempt(NINTH.revision, Outcome.LIVE, None, {}, 0.0, 1.0, 9)
    tried = judged(tried, behaviour=COMPARED)
    ledger = Ledger(overruled=overruled, generations=deque([long_ago]), attempts=deque([tried]))
    picture = picture_of(ledger, readings=told, setup=Setup(replicas=3))
    metrics = Counted(picture, expect_every=60.0)
    metrics.observe(GenerationLive(NINTH))
    metrics.observe(GenerationLive(EIGHTH, 1))
    metrics.observe(StateSaved("no space left on the device"))
    metrics.observe(GateChanged(GateState.OPEN, 0, 0))
    metrics.observe(SourceScanned("start"))
    metrics.observe(PauseBegan(By("pause", 0, 1, 1.0), "abort", "abort", 600.0))
    metrics.observe(LiveDrifted(NINTH, ("a leaf",)))
    metrics.observe(LoaderDistrusted("it made another leaf"))
    metrics.observe(TroubleNews("files_gone", "step_8 is gone", "copy it back"))
    metrics.observe(TroubleNews("waits_for_files", "step_9 is gone", "mount it"))
    return metrics


def lose_the_engine(process: Process, prometheus: Prometheus) -> None:
    """A fault of ours in mid-attempt: nobody knows what is whole, so the daemon leaves with 70."""
    process.drop(6)
    assert process.child.wait(PATIENCE) == 70
    prometheus.until_fires("DaemonDown")


def test_when_all_is_well_nothing_fires(story: Story) -> None:
    assert story.calm == []


def test_every_rule_is_evaluated_without_a_fault(story: Story) -> None:
    groups = story.prometheus.ask("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == {*ALERTS, *RECORDED}
    assert [rule["lastError"] for rule in rules if rule["health"] != "ok"] == []


@pytest.mark.parametrize("name", RECORDED)
def test_every_recorded_series_has_numbers(story: Story, name: str) -> None:
    assert story.over(name)


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_fires_in_a_real_prometheus(story: Story, name: str) -> None:
    assert story.over(f'ALERTS{{alertname="{name}",alertstate="firing"}}')


def test_an_alert_says_which_checkpoint_failed_and_why(story: Story) -> None:
    said = story.said_of_nan
    assert re.match(r"step_4 was rejected \(nonfinite\): \S+", said["description"])
    assert said["runbook_url"].endswith("/docs/reference.md#alert-lastreloadfailed")


def test_what_the_settings_expect_is_what_prometheus_sees(story: Story) -> None:
    assert story.over("hotreload_expected_every_seconds == 86400")


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: str(panel["title"]))
def test_every_panel_has_something_to_show(story: Story, panel: Any) -> None:
    for target in panel["targets"]:
        found = story.over(target["expr"])
        assert found, target["expr"]
        named = re.findall(r"{{(\w+)}}", target.get("legendFormat", ""))
        assert set(named) <= found[0].keys(), "the legend names a label that is not there"


def test_each_reload_counts_once_and_whole(story: Story) -> None:
    counted = story.counts("Reloads in an hour")
    assert counted["rejected"] == 2
    # A start counts, too, if it was scraped before it ended, which is chance.
    assert counted["live"] in (2, 3)
    assert counted.keys() == {"live", "rejected"}


def test_the_time_to_first_token_is_told_by_the_generation_that_was_live(story: Story) -> None:
    (target,) = panel_of("Time to first token by generation")["targets"]
    found = story.over(target["expr"])
    told = {(each["generation"], each["label"]) for each in found}
    assert told <= {(f"{number}", f"step_{number}") for number in (1, 2, 3)}


def test_each_generation_tells_how_many_leaves_it_changed_and_which(story: Story) -> None:
    made = story.table("Generations and how many leaves each changed")
    counts = {labels["label"]: number for labels, number in made if labels["label"] != "step_9"}
    assert counts["step_1"] == 0
    assert counts["step_2"] > 0
    assert counts.keys() == {"step_1", "step_2", "step_3"}
    leaves = story.table("Leaf checksums that changed at each generation")
    assert Counter(labels["label"] for labels, _ in leaves) == +Counter(counts)
    assert len({labels["leaf"] for labels, _ in leaves}) == counts["step_2"]


def test_every_swap_is_marked_with_what_went_live(story: Story) -> None:
    marked = story.over(swaps()["expr"])
    labels = [each["label"] for each in marked]
    # The daemon was lost over step_6, so whether that was seen is chance.
    assert {*labels} - {"step_6"} == {f"step_{number}" for number in (1, 2, 3, 9)}
