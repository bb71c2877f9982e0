"""Stands in for what reads each server's load in llm-d and in GKE's inference gateway.

It is a Go program of a cluster. Its scraper does the following, and no more: every 50 ms it asks
each server for `/metrics`, takes the first series of each name, and trusts none for over 200 ms.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.waiting import PATIENCE

EVERY, STALE = 0.05, 0.2
WANTED = ("num_queue_reqs", "num_running_reqs", "token_usage", "cache_config_info")


class EndpointPicker:
    """Knows the load of each server, and what went wrong while it asked."""

    def __init__(self, *servers: str) -> None:
        self._servers = servers
        self.failures: list[str] = []
        self.ages: list[float] = []
        """How old each figure was when the next one replaced it, in seconds."""

    @asynccontextmanager
    async def on(self) -> AsyncIterator["EndpointPicker"]:
        enough = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for server in self._servers:
                tasks.create_task(self._watch(server, enough))
            try:
                yield self
            finally:
                enough.set()

    async def _watch(self, server: str, enough: asyncio.Event) -> None:
        now = asyncio.get_running_loop().time
        async with httpx.AsyncClient(base_url=server, timeout=PATIENCE) as client:
            began = now()
            while not enough.is_set():
                try:
                    _read(await client.get("/metrics"))
                except Exception as failure:
                    self.failures.append(f"{type(failure).__name__}: {failure}")
                else:
                    self.ages.append(now() - began)
                    began = now()
                await asyncio.sleep(EVERY)


def _read(page: httpx.Response) -> None:
    """Raise an error unless the picker finds all that it looks for."""
    page.raise_for_status()
    firsts = {
        family.name.removeprefix("sglang:"): family.samples[0]
        for family in text_string_to_metric_families(page.text)
    }
    usage, pool = firsts["token_usage"].value, firsts["cache_config_info"].labels
    assert all(firsts[name].value >= 0 for name in WANTED)
    assert usage <= 1
    assert int(pool["page_size"]) > 0
    assert int(pool["num_pages"]) > 0
