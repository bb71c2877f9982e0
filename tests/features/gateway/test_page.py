"""The page for gateways has SGLang's names, one series each, of all engines together."""

import asyncio
import subprocess
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from hotreload.core.way_in.admission import AnswerCallbacks, LetIn
from hotreload.core.way_in.entrance import Entrance
from hotreload.daemon import Daemon
from hotreload.events import GenerationLive
from hotreload.features.gateway.page import GatewayPage
from hotreload.types import EngineLoad, Generation, Lease, Revision
from tests.features.admissions import end_answer
from tests.features.gateway.scrape import ALWAYS, BUCKETS, OF_A_POOL, kinds_of, labels_of, read
from tests.features.test_together import settings
from tests.monitoring.rules import needs_promtool

ONE = Generation(1, Revision("a"), "f1", 0.0)
NAME = "meta-llama/Llama-3.1-8B-Instruct"


@dataclass(frozen=True)
class Engine:
    load: EngineLoad


class Scraped:
    """A page of two engines, and a clock that a test turns."""

    def __init__(self, name: str = NAME) -> None:
        self.now = 100.0
        self.entrance = Entrance[Engine](lambda _: None, replicas=2)
        self.of = GatewayPage(self.entrance, model_name=name, clock=lambda: self.now)

    def serve(self, *loads: EngineLoad) -> None:
        for gate, load in zip(self.entrance.gates, loads, strict=True):
            gate.open(Lease(ONE, Engine(load)))

    @property
    def text(self) -> str:
        return self.of.page_for_gateways()

    @property
    def values(self) -> dict[str, float]:
        return read(self.text)

    def ended(self, made: int, prompt: int = 10, cached: int = 0, *, streams: bool = False) -> None:
        """Have a request answered at once."""
        with self.of.listen(request(streams=streams)) as callbacks:
            grow(callbacks, made)
            end(callbacks, prompt, cached)


def request(*, streams: bool, came_at: float | None = None) -> LetIn:
    now = asyncio.get_running_loop().time()
    return LetIn(ONE, 1, 1, 0.0, None, now if came_at is None else came_at, streams)


def grow(callbacks: AnswerCallbacks, new: int, after: float = 0) -> None:
    assert callbacks.grew is not None
    callbacks.grew(0, new, time.monotonic() + after)


def end(callbacks: AnswerCallbacks, prompt: int = 10, cached: int = 0) -> None:
    meta = {"prompt_tokens": prompt, "cached_tokens": cached, "finish_reason": {"type": "stop"}}
    end_answer(callbacks, 0, {"meta_info": meta})


@pytest.fixture
def page() -> Scraped:
    return Scraped()


LOADS = (
    EngineLoad(waiting=1, running=2, kv_requests=160, kv_prefixes=40, kv_free=200, page_size=16),
    EngineLoad(running=1, kv_requests=40, kv_free=360, page_size=16),
)


def test_its_names_types_and_buckets_are_sglangs(page: Scraped) -> None:
    assert kinds_of(page.text) == ALWAYS
    page.serve(*LOADS)
    assert kinds_of(page.text) == {**ALWAYS, **OF_A_POOL}
    for name, bounds in BUCKETS.items():
        rows = [each for each in page.values if each.startswith(f"{name}_seconds_bucket ")]
        assert [each.split()[1] for each in rows] == [*bounds.split(), "inf"]


def test_every_series_names_the_model_whatever_it_is_called() -> None:
    odd = 'a "model"\\of\nmine'
    page = Scraped(odd)
    page.serve(*LOADS)
    assert labels_of(page.text, "num_queue_reqs") == {"model_name": odd}
    pool = {"page_size": "16", "num_pages": "50"}
    assert labels_of(page.text, "cache_config_info") == {"model_name": odd, **pool}
    rows = [each for each in page.text.splitlines() if not each.startswith("#")]
    assert all('{model_name="a' in each for each in rows)


async def test_it_sums_all_engines(page: Scraped) -> None:
    page.serve(*LOADS)
    async with AsyncExitStack() as inside:
        for gate, count in zip(page.entrance.gates, (3, 2), strict=True):
            for _ in range(count):
                await inside.enter_async_context(gate.admit())
        values = page.values
    assert (values["num_running_reqs"], values["num_queue_reqs"]) == (2 + 2, 1)
    assert (values["token_usage"], values["num_pages"]) == (200 / 800, 800 // 16)
    assert page.values["num_running_reqs"] == 0  # though the loads are a moment old


async def test_a_request_that_a_gate_holds_waits(page: Scraped) -> None:
    page.serve(*LOADS)
    for gate in page.entrance.gates:
        gate.hold()
    asking = asyncio.create_task(page.entrance.gates[1].admit().__aenter__())
    await asyncio.sleep(0)
    assert page.values["num_queue_reqs"] == 1
    asking.cancel()


def test_an_engine_that_ends_is_no_part_of_it(page: Scraped) -> None:
    page.serve(*LOADS)
    for gate, code, pages in zip(
        page.entrance.gates, ("engine_lost", "stopping"), (400 // 16, None), strict=True
    ):
        assert gate.lease is not None
        gate.seal("gone", code=code)
        object.__delattr__(gate.lease.engine, "load")  # as one that is closed
        assert page.values.get("num_pages") == pages


async def test_the_times_of_a_stream_are_those_of_its_pieces(page: Scraped) -> None:
    now = asyncio.get_running_loop().time()
    with page.of.listen(request(streams=True, came_at=now - 5)) as callbacks:
        grow(callbacks, 1)
        assert page.values["time_to_first_token_seconds_bucket 4"] == 0
        assert page.values["time_to_first_token_seconds_bucket 6"] == 1
        assert page.values["generation_tokens_total"] == 1  # though it has not ended
        grow(callbacks, 3, after=0.24)  # three tokens at once: 0.08 s between each two
        end(callbacks)
    values = page.values
    assert values["generation_tokens_total"] == 4
    assert values["prompt_tokens_total"] == 10
    assert values["inter_token_latency_seconds_count"] == 3
    assert values["inter_token_latency_seconds_bucket 0.06"] == 0
    assert values["inter_token_latency_seconds_bucket 0.1"] == 3
    assert values["e2e_request_latency_seconds_bucket 6"] == 1
    assert values["e2e_request_latency_seconds_count"] == 1
    assert values["e2e_request_latency_seconds_sum"] == pytest.approx(5, abs=0.5)


async def test_a_whole_answer_says_nothing_of_its_first_token(page: Scraped) -> None:
    page.ended(3)
    page.ended(1, streams=True)
    assert page.values["time_to_first_token_seconds_count"] == 1
    assert page.values["inter_token_latency_seconds_count"] == 0
    assert page.values["e2e_request_latency_seconds_count"] == 2


async def test_rates_are_of_the_last_moments_or_since_the_page_before(page: Scraped) -> None:
    page.ended(10, prompt=8, cached=2)
    assert page.values["gen_throughput"] == 10
    assert page.values["cache_hit_rate"] == 0.25
    page.now += 5
    page.ended(30, prompt=8, cached=8)
    assert page.values["gen_throughput"] == 40 / 5
    page.now += 1
    assert page.values["gen_throughput"] == 0
    assert page.values["cache_hit_rate"] == 0.625  # of the last answers there were


@needs_promtool
def test_promtool_dislikes_nothing_but_sglangs_names(page: Scraped) -> None:
    page.serve(*LOADS)
    command = ["promtool", "check", "metrics"]
    found = subprocess.run(command, input=page.text, capture_output=True, text=True, check=False)
    lines = found.stderr.splitlines()
    assert {each.partition(" ")[2] for each in lines} == {"metric names should not contain ':'"}


def test_it_is_small_and_knows_no_leaf(tmp_path: Path) -> None:
    """Of a daemon of 400 leaves that has served for long."""
    daemon = Daemon(settings(tmp_path, f"server.model_name={NAME}"))
    leaves = {f"model.layers.{number}.mlp.down_proj": 2**53 for number in range(400)}
    daemon.events.publish(GenerationLive(replace(ONE, leaves=leaves)))
    engine: Any = Engine(replace(LOADS[0], kv_free=2**40))
    for gate in daemon.entrance.gates:
        gate.open(Lease(ONE, engine))
    (page,) = [each for each in daemon.features.reports if isinstance(each, GatewayPage)]
    page._prompt = page._generated = 10**15
    for histogram in (page._first_token, page._answer, page._between):
        histogram.observe(0.123456789123, 10**12)
    text = daemon.status.page_for_gateways()
    assert kinds_of(text) == {**ALWAYS, **OF_A_POOL}
    assert len(text) <= 12_000
    whole = daemon.metrics.render().decode()
    assert "hotreload_leaf_checksum{" in whole
    assert kinds_of(whole) == {}  # so who scrapes both counts nothing twice
