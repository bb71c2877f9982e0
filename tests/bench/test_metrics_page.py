"""What a scrape costs: the page that gateways read, and the whole page of metrics.

`make bench ARGS='-k metrics_page'` prints the table: bytes, and processor time of one page made.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotreload.daemon import Daemon
from hotreload.events import GenerationLive
from hotreload.types import Lease
from tests.bench.figures import median
from tests.features.gateway.test_page import LOADS, ONE, Engine
from tests.features.test_together import settings

pytestmark = pytest.mark.bench

ROUNDS, PAGES = 9, 20
MOST_BYTES, MOST_SECONDS = 12_000, 0.0003


def test_the_page_for_gateways_beside_the_whole_one(tmp_path: Path) -> None:
    daemon = Daemon(settings(tmp_path, "server.model_name=meta-llama/Llama-3.1-8B-Instruct"))
    engine: Any = Engine(LOADS[0])
    daemon.entrance.gates[0].open(Lease(ONE, engine))
    leaves = {f"model.layers.{number}.mlp.down_proj": 2**53 for number in range(400)}
    daemon.events.publish(GenerationLive(replace(ONE, leaves=leaves)))
    makers: dict[str, Callable[[], str | bytes]] = {
        "for gateways": daemon.status.page_for_gateways,
        "whole, 400 leaves": daemon.metrics.render,
    }
    seconds: dict[str, list[float]] = {name: [] for name in makers}
    for _ in range(ROUNDS):
        for name, make in makers.items():
            began = time.thread_time()
            for _ in range(PAGES):
                make()
            seconds[name].append((time.thread_time() - began) / PAGES)
    print(f"\n{'page':20} {'bytes':>9} {'ms':>8}")
    for name, make in makers.items():
        print(f"{name:20} {len(make()):9,} {median(seconds[name]) * 1000:8.3f}")
    assert len(makers["for gateways"]()) <= MOST_BYTES
    assert median(seconds["for gateways"]) <= MOST_SECONDS
