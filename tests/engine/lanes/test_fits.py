"""Why two generations cannot answer side by side in an engine, in words; and what it does then."""

from types import SimpleNamespace
from typing import Any

import pytest

from hotreload.engine.lanes import kinds
from hotreload.engine.lanes.fits import why_no_lanes
from tests.engine import real
from tests.engine.lanes.crowd import Voices, tell


class RadixCache:
    """Named like upstream's: that is all that is looked at."""


class OtherCache:
    """Of a kind that nobody here knows."""


def scheduler_with(*, args: dict[str, Any] | None = None, runner: Any = None, **fields: Any) -> Any:
    """One in which two generations can answer, but for what is given."""
    runner = runner or SimpleNamespace(token_to_kv_pool=pool())
    made = dict.fromkeys(kinds.COMMON_FIELDS)
    return SimpleNamespace(
        **made
        | {
            "chunked_req": None,
            "tree_cache": RadixCache(),
            "server_args": SimpleNamespace(**(args or {})),
            "tp_worker": SimpleNamespace(get_model_runner=lambda: runner),
        }
        | fields
    )


def pool(rows: int = 101, **fields: Any) -> Any:
    buffers = [SimpleNamespace(shape=(rows, 2, 8))] * 2
    return SimpleNamespace(**{"size": 100, "page_size": 1, "kv_buffer": buffers} | fields)


def with_pool(pool: Any, **pools: Any) -> Any:
    runner = SimpleNamespace(token_to_kv_pool=pool)
    if pools:
        runner.memory_pools = SimpleNamespace(_pools=pools)
    return runner


@pytest.mark.parametrize(
    "scheduler",
    [
        scheduler_with(),
        scheduler_with(args={"speculative_algorithm": None, "disaggregation_mode": "null"}),
        scheduler_with(args={"enable_lora": False}, dp_size=1, pd=None, is_hybrid=False),
        scheduler_with(runner=with_pool(pool(rows=26, page_size=4))),
        scheduler_with(runner=with_pool(pool(rows=104, page_size=4))),
        scheduler_with(runner=with_pool(pool(), token_to_kv_pool=None)),
        scheduler_with(chunked_reqs=[None], dp_size=1),
    ],
)
def test_a_plain_engine_has_lanes(scheduler: Any) -> None:
    assert why_no_lanes(scheduler) is None


@pytest.mark.parametrize(
    ("scheduler", "why"),
    [
        (scheduler_with(args={"speculative_algorithm": "EAGLE"}), "it decodes speculatively"),
        (scheduler_with(args={"disaggregation_mode": "prefill"}), "it is disaggregated"),
        (scheduler_with(pd="pathways"), "it is disaggregated"),
        (scheduler_with(args={"enable_lora": True}), "it serves LoRA adapters"),
        (scheduler_with(dp_size=2), "more than one data rank (dp_size)"),
        (scheduler_with(is_hybrid=True), "its KV pool has several parts"),
        (scheduler_with(runner=with_pool(pool(rows=77))), "KV pool is of a kind"),
        (scheduler_with(runner=with_pool(pool(kv_buffer=[]))), "KV pool is of a kind"),
        (scheduler_with(runner=with_pool(pool(kv_buffer=(1, 2)))), "KV pool is of a kind"),
        (scheduler_with(runner=with_pool(SimpleNamespace())), "KV pool is of a kind"),
        (
            scheduler_with(runner=with_pool(pool(), token_to_kv_pool=None, states=None)),
            "KV pool is of a kind",
        ),
        (scheduler_with(tree_cache=OtherCache()), "KV pool is of a kind"),
        (
            scheduler_with(tree_cache=type("RadixCache", (), {"hicache_enabled": True})()),
            "KV pool is of a kind",
        ),
    ],
)
def test_each_reason_is_told(scheduler: Any, why: str) -> None:
    told = why_no_lanes(scheduler)
    assert told is not None
    assert why in told


@pytest.mark.parametrize("name", sorted({*kinds.COMMON_FIELDS, "chunked_req"} - {"tree_cache"}))
def test_a_field_of_another_name_is_a_reason(name: str) -> None:
    scheduler = scheduler_with()
    delattr(scheduler, name)
    assert why_no_lanes(scheduler) == "its scheduler keeps its state in an unknown place"


def test_each_release_is_told_by_its_fields() -> None:
    assert isinstance(kinds.find_kind(scheduler_with()), kinds.FirstRelease)
    newer = scheduler_with(chunked_reqs=[None], dp_size=1)
    assert isinstance(kinds.find_kind(newer), kinds.Newer)


@pytest.mark.asyncio
@pytest.mark.real_engine
async def test_a_real_engine_with_a_field_renamed_swaps_as_it_did_before(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    voices = Voices(tmp_path_factory.mktemp("checkpoints"))
    monkeypatch.setattr(kinds, "COMMON_FIELDS", (*kinds.COMMON_FIELDS, "renamed_upstream"))
    async with real.engine_of(voices.folder(1), voices.root / "spool") as engine:
        assert "keeps its state in an unknown place" in engine.switch.cannot_overlap
        assert (await tell(engine, 9)).is_whole
        before = await engine.switch.exchange(await engine.weights.stage(voices.checkpoint(2)))
        assert (await tell(engine, 9)).is_whole
        await engine.unseen.probe()
        await engine.switch.scrub()
        await engine.weights.release(await engine.switch.exchange(before))
        assert (await tell(engine, 9)).is_whole
