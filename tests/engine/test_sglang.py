"""The real engine behind the port: answers, swaps, staging, and what it does to the process."""

import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest
import pytest_asyncio
from safetensors.numpy import load_file

from hotreload.behaviour import LEAD, NOTED, Led, Question, Text
from hotreload.checkpoint.known_names import matches
from hotreload.core.progress import AttemptProgress
from hotreload.engine import versions, weight_switch
from hotreload.engine.answering.probe import Probe
from hotreload.engine.memory_plan import plan_memory
from hotreload.engine.upstream.thread import between
from hotreload.engine.weights.weights import Weights
from hotreload.errors import (
    BadRequest,
    CheckpointChanged,
    CheckpointRejected,
    ConfigError,
    DrainTimedOut,
    HotReloadError,
    NotEnoughMemory,
    ProbeFailed,
)
from hotreload.life.start.warmup import warm
from hotreload.tiny import write_tiny
from hotreload.tiny.sayings import TUNED_TEXT, asked_ids
from hotreload.tiny.trainer import Network
from hotreload.types import Revision
from tests.engine import real
from tests.engine.slow_compiler import AT_ONCE, nobody_waits_for_the_compiler
from tests.tiny.conversions import write_wrong
from tests.waiting import PATIENCE, turn_until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.real_engine]

Engine = Any
TEXT = "The sun rises in the east and sets in the west."
ROUNDING = 0.1
"""Logits that an engine in bfloat16 may be off, of some that reach 20."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> real.Folders:
    return real.Folders(tmp_path_factory.mktemp("checkpoints"))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engine(folders: real.Folders) -> AsyncIterator[Engine]:
    handlers = [signal.getsignal(s) for s in (signal.SIGCHLD, signal.SIGQUIT, signal.SIGTERM)]
    async with real.engine_of(folders.folder(1), folders.root / "spool") as engine:
        await real.ask(engine)
        assert handlers == [
            signal.getsignal(s) for s in (signal.SIGCHLD, signal.SIGQUIT, signal.SIGTERM)
        ]
        yield engine


async def idle(engine: Engine) -> None:
    """Return when no step is under way any more."""
    await engine.switch.between.run(lambda: None)


# Answers


async def test_the_planned_memory_is_what_leaves_and_pool_take(
    engine: Engine, folders: real.Folders
) -> None:
    from hotreload.engine.upstream.thread.scheduler import rewrite_pools

    taken: list[int] = []

    def look(buffer: Any) -> Any:
        taken.append(buffer.nbytes)
        return buffer

    runner = engine._parts.model_runner
    await engine.switch.between.run(lambda: rewrite_pools(runner, look))
    plan = plan_memory(folders.folder(1), tp=1, dtype="auto", args=real.ARGS, sets=(2,))
    assert plan is not None
    assert plan.weights == pytest.approx(engine.weights.live.bytes, rel=0.1)
    assert plan.pool == pytest.approx(sum(taken), rel=0.1)


async def test_an_answer_is_upstreams_with_the_clients_own_id(engine: Engine) -> None:
    request = {"text": "hi", "rid": "mine", "sampling_params": real.GREEDY}
    (answer,) = [answer async for answer in engine.answers.generate(request)]
    assert answer["text"] == "served by step 1"
    assert answer["meta_info"]["id"] == "mine"
    assert answer["meta_info"]["finish_reason"]["type"] == "stop"


async def test_a_stream_comes_piece_by_piece_and_ends_like_the_whole(engine: Engine) -> None:
    # So long that a loop on a busy machine does not find all of it there at once.
    sampling = {**real.ENDLESS, "max_new_tokens": 60}
    request = {"text": "hi", "sampling_params": sampling, "stream": True}
    pieces = [answer async for answer in engine.answers.generate(request)]
    texts = [piece["text"] for piece in pieces]
    assert len(texts) > 2
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert real.said(pieces[-1]) == real.said(await real.ask(engine, "hi", **sampling))


async def test_a_batch_answers_every_prompt_in_its_place(engine: Engine) -> None:
    each = [{**real.GREEDY, "max_new_tokens": n} for n in (1, 2, 3)]
    request = {"text": ["a", "b", "c"], "sampling_params": each}
    (answers,) = [answer async for answer in engine.answers.generate(request)]
    assert [len(answer["output_ids"]) for answer in answers] == [1, 2, 3]


async def test_a_streamed_batch_names_each_pieces_prompt(engine: Engine) -> None:
    each = [{**real.GREEDY, "max_new_tokens": n} for n in (1, 3)]
    request = {"input_ids": [[104], [105]], "sampling_params": each, "stream": True}
    pieces = [piece async for piece in engine.answers.generate(request)]
    last = {piece["index"]: len(piece["output_ids"]) for piece in pieces}
    assert last == {0: 1, 1: 3}


async def test_an_answer_that_ends_by_its_length_has_no_step_launched_for_nothing(
    engine: Engine,
) -> None:
    """Who asks next, as the first client after a start's probe, would wait for it."""
    scheduler = engine._scheduler.scheduler
    for tokens in (2, 5):
        await idle(engine)
        before = scheduler.forward_ct
        await real.ask(engine, "hi", max_new_tokens=tokens, ignore_eos=True)
        await idle(engine)
        assert scheduler.forward_ct - before == tokens


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_lists_every_token_that_it_counts(engine: Engine, stream: bool) -> None:
    """The end token too; and each byte of a character once, though a stream shows it when whole."""
    ends = {"text": "hi", "sampling_params": real.GREEDY}
    goes_on = {"text": "hi", "sampling_params": {**real.ENDLESS, "max_new_tokens": 24}}
    for request in (ends, goes_on):
        logprobs = {"return_logprob": True} if engine.answers.capabilities.logprobs else {}
        asked = {**request, **logprobs, "stream": stream}
        answers = [answer async for answer in engine.answers.generate(asked)]
        told = answers[-1]["meta_info"]
        for answer in answers:
            assert len(answer["output_ids"]) == answer["meta_info"]["completion_tokens"]
        if logprobs:
            listed = [entry[1] for entry in told["output_token_logprobs"]]
            assert listed == answers[-1]["output_ids"]
        if request is ends:
            assert told["finish_reason"]["matched"] == answers[-1]["output_ids"][-1]


async def test_an_answer_shows_special_tokens_as_its_own_request_says(engine: Engine) -> None:
    shown = (True, False, True, False)
    each = [{**real.ENDLESS, "max_new_tokens": 24, "skip_special_tokens": not one} for one in shown]
    request = {"text": ["a", "b", "c", "d"], "sampling_params": each, "stream": True}
    last = {piece["index"]: piece["text"] async for piece in engine.answers.generate(request)}
    assert ["<|end|>" in last[index] for index in range(4)] == list(shown)


async def test_two_clients_may_choose_the_same_id(engine: Engine) -> None:
    async def one() -> tuple[str, list[int]]:
        request = {"text": "hi", "rid": "same", "sampling_params": real.GREEDY}
        return real.said([answer async for answer in engine.answers.generate(request)][-1])

    first, second = await asyncio.gather(one(), one())
    assert first == second


@pytest.mark.parametrize(
    "request_body",
    [
        {"input_ids": [10**6]},
        {"input_ids": []},
        {"text": ""},
        {"text": "x" * 507},
        {"text": "x", "sampling_params": {"max_new_tokens": 512}},
        {"text": "x", "sampling_params": {"temperature": -1}},
        {"text": "x", "sampling_params": {"top_p": 5}},
        {"text": ["x", "y"], "sampling_params": [{}, {"top_p": 5}]},
    ],
)
async def test_a_refused_request_leaves_nothing_in_the_engine(
    engine: Engine, request_body: dict[str, Any]
) -> None:
    with pytest.raises(BadRequest):
        [answer async for answer in engine.answers.generate(request_body)]
    assert engine.answers.under_way == 0
    await idle(engine)
    assert (await real.ask(engine))["text"] == "served by step 1"


async def test_what_this_version_cannot_do_is_refused_by_name(
    engine: Engine, folders: real.Folders
) -> None:
    if engine.answers.capabilities.logprobs:
        pytest.skip("this version has log-probabilities")
    with pytest.raises(BadRequest, match="return_logprob"):
        [a async for a in engine.answers.generate({"text": "x", "return_logprob": True})]
    probes = [Probe("x", 16, min_mean_logprob=-1)]
    with pytest.raises(ConfigError, match="no log-probabilities"):
        async with real.engine_of(folders.folder(1), folders.root / "never", probes=probes):
            pass


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("text", ["one", ["one", "two", "three"]])
async def test_a_reader_who_leaves_takes_the_request_out_of_the_engine(
    engine: Engine, stream: bool, text: Any
) -> None:
    request = {"text": text, "sampling_params": real.ENDLESS, "stream": stream}

    async def read() -> None:
        async with aclosing(engine.answers.generate(request)) as answers:
            async for _ in answers:
                if stream:
                    return

    reader = asyncio.create_task(read())
    if not stream:
        await turn_until(lambda: engine.answers.under_way > 0)
        reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    assert engine.answers.under_way == 0
    await idle(engine)


async def test_abort_ends_every_generation_with_what_it_has(engine: Engine) -> None:
    asks = [asyncio.create_task(real.ask(engine, "hi", **real.ENDLESS)) for _ in range(12)]
    # More than run at once: some wait in the queue.
    await turn_until(lambda: engine.answers.under_way == len(asks))
    await engine.answers.abort()
    answers = await asyncio.gather(*asks)
    assert {a["meta_info"]["finish_reason"]["type"] for a in answers} == {"abort"}
    assert engine.answers.under_way == 0


# Swaps


async def test_once_it_is_warm_a_first_batch_of_any_size_compiles_nothing(engine: Engine) -> None:
    """Everybody beside the first four at once waited for seconds."""
    before = engine.recompiles
    await warm(engine, AttemptProgress(Revision("1"), lambda event: None), most=4, within=PATIENCE)
    known = engine.recompiles
    assert known > before
    for count in (1, 2, 3, 4):
        sampling = {"temperature": 0.7, "max_new_tokens": 6}
        prompts = [f"{'why ' * 18 * count}{number}" for number in range(count)]
        request = {"text": prompts, "sampling_params": sampling}
        assert len([answer async for answer in engine.answers.generate(request)]) == 1
    assert engine.recompiles == known


async def test_a_swap_recompiles_nothing(engine: Engine, folders: real.Folders) -> None:
    staged = await engine.weights.stage(folders.checkpoint(2))
    await real.ask(engine)
    before = engine.recompiles
    for _ in range(3):
        staged = await engine.switch.exchange(staged)
        await real.ask(engine)
        await engine.switch.scrub()
        await real.ask(engine)
    assert engine.recompiles == before
    await engine.weights.release(await engine.switch.exchange(staged))


async def test_a_swap_binds_and_nothing_more_on_the_scheduler_thread(
    engine: Engine, folders: real.Folders
) -> None:
    staged = await engine.weights.stage(folders.checkpoint(2))
    times = []
    for _ in range(10):
        staged = await engine.switch.exchange(staged)
        times.append(engine.switch.last_exchange_seconds)
    assert min(times) < 0.001
    await engine.weights.release(staged)


class Unread(list[Any]):
    """Leaves that nobody may look at, one by one or all at once."""

    def _looked_at(self, *args: Any) -> Any:
        raise AssertionError("the flip looks at the leaves")

    __iter__ = __getitem__ = __len__ = __contains__ = __reversed__ = _looked_at


def steps_of(job: Callable[[], Any]) -> int:
    """Each instruction of Python that the job takes in this thread."""
    steps, before = 0, sys.gettrace()

    def count(frame: Any, event: str, argument: Any) -> Any:
        nonlocal steps
        steps += event == "opcode"
        frame.f_trace_opcodes = True
        return count

    sys._getframe().f_trace_opcodes = True  # else the first thing that is counted counts nothing
    sys.settrace(count)
    try:
        job()
    finally:
        sys.settrace(before)
    return steps


async def test_a_flip_and_a_swap_are_no_more_work_for_more_leaves(engine: Engine) -> None:
    thread, measured, live = (
        engine._scheduler,
        engine.weights.live.weights.measured,
        engine.weights.live.weights,
    )

    def made_of(leaves: int) -> tuple[int, int]:
        """Flip to weights of so many leaves, and swap to them; nobody is answered by them."""
        weights = Weights(Unread([object()] * leaves), measured)
        ready = thread.lanes.prepare(weights.leaves, engine.switch.lane_of(None))
        flip = steps_of(partial(engine.switch._flip_on_scheduler, weights, ready))
        lane = thread.lanes._lane(weights.lane)
        thread.lanes._rotation.lanes.remove(lane)
        swap = steps_of(partial(engine.switch._swap_on_scheduler, weights))
        thread.bind(live.leaves)
        return flip, swap

    counts = (30, 30, 3000)  # the first time some import is looked up
    _, few, many = [
        await engine.switch.between.at_a_turn(partial(made_of, count)) for count in counts
    ]
    assert few == many
    assert min(few) > 100


async def test_a_cached_prompt_answers_with_the_new_weights(
    engine: Engine, folders: real.Folders
) -> None:
    await real.ask(engine, "cached prompt")
    again = await real.ask(engine, "cached prompt")
    assert again["meta_info"]["cached_tokens"] > 0
    old = await engine.switch.exchange(await engine.weights.stage(folders.checkpoint(2)))
    answer = await real.ask(engine, "cached prompt")
    assert (answer["text"], answer["meta_info"]["cached_tokens"]) == ("served by step 2", 0)
    await engine.weights.release(await engine.switch.exchange(old))


async def test_without_forgetting_the_caches_a_swap_would_mix_two_generations(
    engine: Engine, folders: real.Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    await real.ask(engine, "cached prompt")
    staged = await engine.weights.stage(folders.checkpoint(2))
    with monkeypatch.context() as broken:
        broken.setattr(weight_switch, "forget_caches", lambda scheduler: None)
        old = await engine.switch.exchange(staged)
    assert (await real.ask(engine, "cached prompt"))["text"] == "served by step 1"
    await engine.weights.release(await engine.switch.exchange(old))


async def test_a_swap_while_something_runs_changes_nothing(
    engine: Engine, folders: real.Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(between, "JOB_SECONDS", 0.05)
    staged, live = await engine.weights.stage(folders.checkpoint(2)), engine.weights.live
    running = asyncio.create_task(real.ask(engine, "hi", **real.ENDLESS))
    await turn_until(lambda: engine.answers.under_way > 0)
    with pytest.raises(DrainTimedOut, match="1 prompts are under way"):
        await engine.switch.exchange(staged)
    answer = await running
    assert engine.weights.live is live
    assert answer["text"].startswith("served by step 1")
    await engine.weights.release(staged)


async def test_nan_in_the_kv_pool_is_gone_after_a_scrub(
    engine: Engine, folders: real.Folders
) -> None:
    before = real.said(await real.ask(engine))
    old = await engine.switch.exchange(await engine.weights.stage(folders.checkpoint(9, "nan")))
    with pytest.raises(ProbeFailed, match="NaN or infinities"):
        await engine.unseen.probe()
    bad = await engine.switch.exchange(old)
    assert await pool_has_nan(engine), "the old weights alone are no rollback"
    await engine.switch.scrub()
    assert not await pool_has_nan(engine)
    assert real.said(await real.ask(engine)) == before
    await engine.weights.release(bad)


async def pool_has_nan(engine: Engine) -> bool:
    import jax.numpy as jnp

    from hotreload.engine.upstream.thread.scheduler import rewrite_pools

    found: list[bool] = []

    def look(buffer: Any) -> Any:
        found.append(bool(jnp.isnan(buffer).any()))
        return buffer

    await engine.switch.between.run(lambda: rewrite_pools(engine._parts.model_runner, look))
    assert found
    return any(found)


@pytest.mark.parametrize("damage", ["gibberish", "zeros", "nan", "inf"])
async def test_the_built_in_probe_tells_nonsense(
    engine: Engine, folders: real.Folders, damage: str
) -> None:
    before = real.said(await real.ask(engine))
    old = await engine.switch.exchange(await engine.weights.stage(folders.checkpoint(8, damage)))
    with pytest.raises(ProbeFailed):
        await engine.unseen.probe()
    await engine.weights.release(await engine.switch.exchange(old))
    await engine.switch.scrub()
    assert real.said(await real.ask(engine)) == before


async def test_checksums_are_of_what_is_live_now(engine: Engine, folders: real.Folders) -> None:
    staged = await engine.weights.stage(folders.checkpoint(2))
    assert await engine.weights.checksums() == engine.weights.live.leaves
    old = await engine.switch.exchange(staged)
    assert await engine.weights.checksums() == staged.leaves != old.leaves
    await engine.weights.release(await engine.switch.exchange(old))


# Staging


async def test_the_plan_names_every_tensor_of_a_checkpoint(
    engine: Engine, folders: real.Folders
) -> None:
    assert engine.weights.expected_tensors() == folders.checkpoint(1).tensors
    assert matches("model.layers.0.self_attn.rotary_emb.inv_freq", engine.weights.plan.ignorable)


def truncate(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 1000)


def flip_a_bit(folder: Path) -> None:
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x55")


def replace_by_another(folder: Path) -> None:
    shutil.copy(folder.parent / "step_1" / "model.safetensors", folder)


@pytest.mark.parametrize("change", [truncate, flip_a_bit, replace_by_another, shutil.rmtree])
async def test_what_is_loaded_is_what_was_checked(
    engine: Engine, folders: real.Folders, change: Callable[[Path], None]
) -> None:
    checkpoint, before = folders.checkpoint(5), await real.device_bytes()
    change(checkpoint.path)
    with pytest.raises(CheckpointChanged, match=r"model\.safetensors") as refused:
        await engine.weights.stage(checkpoint)
    assert refused.value.code == "changed"
    del refused
    await assert_nothing_is_left(folders, before)


async def assert_nothing_is_left(folders: real.Folders, before: int) -> None:
    assert await real.device_bytes() == before
    assert list((folders.root / "spool").glob("*")) == []


@pytest.mark.parametrize(
    ("damage", "code", "named"),
    [
        ("missing-tensor", "missing", "model.layers.0.mlp.up_proj.weight"),
        ("wrong-shape", "shape", "layers.0.mlp.up_proj.weight"),
    ],
)
async def test_a_checkpoint_that_does_not_fit_is_refused_by_name(
    engine: Engine, folders: real.Folders, damage: str, code: str, named: str
) -> None:
    before = await real.device_bytes()
    with pytest.raises(CheckpointRejected, match=named) as refused:
        await engine.weights.stage(folders.checkpoint(6, damage))
    assert refused.value.code == code
    del refused
    await assert_nothing_is_left(folders, before)


async def test_a_tensor_the_checks_overlooked_is_found_after_loading(
    engine: Engine, folders: real.Folders
) -> None:
    checkpoint, whole = folders.checkpoint(6, "missing-tensor"), folders.checkpoint(6)
    believed = replace(checkpoint, tensors=whole.tensors)
    with pytest.raises(CheckpointRejected, match=r"layers\.0\.mlp\.up_proj\.weight") as refused:
        await engine.weights.stage(believed)
    assert refused.value.code == "missing"


async def test_stray_files_are_not_read(engine: Engine, folders: real.Folders) -> None:
    checkpoint = folders.checkpoint(2)
    (checkpoint.path / "half-written.safetensors").write_bytes(b"\xff" * 100)
    try:
        await engine.weights.release(await engine.weights.stage(checkpoint))
    finally:
        (checkpoint.path / "half-written.safetensors").unlink()


async def test_weights_own_their_memory_once_they_are_staged_or_live(
    engine: Engine, folders: real.Folders
) -> None:
    staged = await engine.weights.stage(folders.checkpoint(7))
    for number in (1, 7):
        file = folders.root / f"step_{number}" / "model.safetensors"
        with file.open("r+b") as out:
            out.write(b"\x7f" * file.stat().st_size)  # in place: mappings of it see this
    try:
        assert await engine.weights.checksums() == engine.weights.live.leaves
        old = await engine.switch.exchange(staged)
        assert await engine.weights.checksums() == staged.leaves
        await engine.weights.release(await engine.switch.exchange(old))
    finally:
        folders.folder(1)


@pytest.mark.parametrize("turns", [0, 1, 3, 10, 30])
async def test_a_stage_cancelled_at_any_time_leaves_nothing(
    engine: Engine, folders: real.Folders, turns: int
) -> None:
    await idle(engine)
    checkpoint, before = folders.checkpoint(2), await real.device_bytes()
    staging = asyncio.create_task(engine.weights.stage(checkpoint))
    for _ in range(turns):
        await asyncio.sleep(0.002)  # no event marks the middle of upstream's loading
    staging.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await engine.weights.release(await staging)
    del staging
    await assert_nothing_is_left(folders, before)


async def test_too_little_memory_is_said_in_figures_before_anything_is_read(
    engine: Engine, folders: real.Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "hotreload.engine.weights.memory.headroom.host_bytes_free", lambda: 1_000_000
    )
    with pytest.raises(NotEnoughMemory, match=r"host memory has 0\.00 GB free.*0\.01 GB"):
        await engine.weights.stage(folders.checkpoint(2))


# The process around it


async def test_an_idle_engine_uses_under_three_percent_of_a_core(engine: Engine) -> None:
    await idle(engine)
    before = resource.getrusage(resource.RUSAGE_SELF)
    await asyncio.sleep(2)  # the measurement itself
    after = resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used / 2 < 0.03


async def test_child_processes_of_ours_disturb_nothing(engine: Engine) -> None:
    answering = asyncio.create_task(real.ask(engine, "hi", max_new_tokens=100, ignore_eos=True))
    for code in (0, 3):
        child = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", f"exit({code})"])
        assert child.returncode == code
    assert (await answering)["meta_info"]["completion_tokens"] == 100


async def test_another_engine_can_be_started_and_closed_beside_it(
    engine: Engine, folders: real.Folders
) -> None:
    await idle(engine)
    before, threads = await real.device_bytes(), threading.active_count()
    files = len(os.listdir("/proc/self/fd"))
    texts = await texts_of_two(engine, folders)
    assert texts == ["served by step 2", "served by step 1"]
    await idle(engine)
    assert await real.device_bytes() == before
    assert threading.active_count() <= threads + 1  # the executor's own
    assert len(os.listdir("/proc/self/fd")) <= files


async def texts_of_two(engine: Engine, folders: real.Folders) -> list[str]:
    other_place = folders.root / "other"
    async with real.engine_of(folders.folder(3), other_place, warm_batches=AT_ONCE) as other:
        await nobody_waits_for_the_compiler(other, folders.checkpoint(2), clients=8)
        return [(await real.ask(each))["text"] for each in (other, engine)]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"args": {"colour": 1}}, r"\[engine.args\] colour"),
        ({"args": {"tp_size": 2}}, r"use \[engine\] tp"),
        ({"tp": 2, "first_device": 3}, r"tp = 2 from device 3 on needs 5 devices"),
        ({"tp": 4}, r"tp = 4: the model has 2 attention heads .* set it to one of 1, 2$"),
        ({"args": {"mem_fraction_static": "much"}}, "does not start on"),
        ({"probes": [Probe("x" * 600, 16)]}, r"\[\[probe\]\]"),
    ],
)
async def test_a_setting_the_engine_cannot_have_is_named(
    folders: real.Folders, settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        async with real.engine_of(folders.folder(1), folders.root / "never", **settings):
            pass


async def test_a_model_of_a_fifth_of_a_cpus_free_memory_starts(
    folders: real.Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folders.folder(1)
    one = sum(each.nbytes for each in load_file(folder / "model.safetensors").values())
    started_with = bytes_of_arrays()

    def free() -> int:
        return 5 * one - (bytes_of_arrays() - started_with)

    machine = psutil.virtual_memory()
    monkeypatch.setattr("psutil.virtual_memory", lambda: machine._replace(available=free()))
    for ours in ("host_bytes_free", "machine_bytes_free"):
        monkeypatch.setattr(f"hotreload.engine.memory_plan.{ours}", free)
    args = {**real.ONE_SIZE, "max_total_tokens": 256}
    async with real.engine_of(folder, folders.root / "fifth", args=args) as engine:
        assert engine.facts()["max_total_tokens"] == 256


def bytes_of_arrays() -> int:
    return sum(each.nbytes for each in jax.live_arrays())  # type: ignore[no-untyped-call]


@pytest.mark.skipif(versions.installed_version("sglang-jax") == "0.0.2", reason="it has no buckets")
async def test_more_at_once_than_its_largest_batch_holds_is_named(folders: real.Folders) -> None:
    """The first such batch would end the engine, and the daemon with it."""
    args = {"max_running_requests": 128, "chunked_prefill_size": 64}
    named = r"max_running_requests = 128 is more than chunked_prefill_size = 64"
    with pytest.raises(ConfigError, match=named):
        async with real.engine_of(folders.folder(1), folders.root / "never", args=args):
            pass


@pytest.mark.parametrize(
    ("unlike", "named", "upstreams"),
    [
        ({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}, "it serves", "PyTorch"),
        ({}, "there is no tokenizer in", "LLaMA V1"),
    ],
    ids=["architecture", "tokenizer"],
)
async def test_what_an_engine_cannot_be_made_of_is_told_in_words_that_help(
    tmp_path: Path, unlike: dict[str, Any], named: str, upstreams: str
) -> None:
    model = write_tiny(tmp_path / "model")
    config = model / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **unlike}))
    if not unlike:
        (model / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=named) as caught:
        async with real.engine_of(model, tmp_path / "spool"):
            pass
    assert upstreams not in str(caught.value)


@pytest.mark.alike  # by day the release refuses; at night the newer one answers
async def test_with_pages_of_several_tokens_a_batch_is_answered_right_or_the_start_refuses(
    tmp_path: Path,
) -> None:
    refuses = versions.installed_version("sglang-jax") == "0.0.2"
    model = write_tiny(tmp_path / "model", steps=None if refuses else 36)
    start = real.engine_of(model, tmp_path / "spool", args={"page_size": 4})
    if refuses:
        with pytest.raises(ConfigError, match=r"page_size = 4: .* leave page_size out"):
            await start.__aenter__()
        return
    words = [*TUNED_TEXT][:5]
    async with start as engine:
        alone = [await real.ask(engine, word) for word in words]
        together = await asyncio.gather(*(real.ask(engine, word) for word in words))
        assert list(map(real.said, together)) == list(map(real.said, alone))


async def test_what_is_read_off_the_engines_source_is_what_it_has() -> None:
    from sgl_jax.srt.models.registry import ModelRegistry
    from sgl_jax.srt.server_args import ServerArgs

    assert set(versions.models()) == set(ModelRegistry.get_supported_archs())
    assert versions.arguments() == {each.name for each in dataclasses.fields(ServerArgs)}


async def test_a_model_folder_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=str(tmp_path)):
        async with real.engine_of(tmp_path / "nothing", tmp_path / "spool"):
            pass


# By day the newer engine has qwen3 alone: how it reads other shapes test_own_loader.py sees.
@pytest.mark.alike
@pytest.mark.parametrize("arch", ["llama", "qwen2"])
async def test_other_architectures_swap_as_well(tmp_path: Path, arch: str) -> None:
    for number in (1, 2):
        write_tiny(tmp_path / f"step_{number}", f"served by step {number}", arch=arch, shards=2)
    checkpoint = real.checked(tmp_path / "step_2")
    async with real.engine_of(tmp_path / "step_1", tmp_path / "spool") as engine:
        assert engine.weights.expected_tensors() == checkpoint.tensors
        await engine.switch.exchange(await engine.weights.stage(checkpoint))
        assert (await real.ask(engine))["text"] == "served by step 2"
        await engine.weights.release(
            await says_what_its_network_computes(engine, tmp_path / "a", arch)
        )


@pytest.mark.parametrize("damage", [None, "interleaved-rotary", "swapped-gate-up"])
async def test_a_trained_model_says_what_its_network_computes(
    engine: Engine, tmp_path: Path, damage: str | None
) -> None:
    old = await says_what_its_network_computes(engine, tmp_path / "a", "qwen3", damage)
    await engine.weights.release(await engine.switch.exchange(old))


async def says_what_its_network_computes(
    engine: Engine, folder: Path, arch: str, damage: str | None = None
) -> Any:
    """Tests of wrong conversions believe that network: the engine's greedy tokens are its, too."""
    if damage:
        write_wrong(folder, damage, steps=12, arch=arch)
    else:
        write_tiny(folder, arch=arch, steps=12)
    old = await engine.switch.exchange(await engine.weights.stage(real.checked(folder)))
    network = Network(load_file(folder / "model.safetensors"))
    for word in list(TUNED_TEXT)[::4]:
        said = (await real.ask(engine, word))["output_ids"]
        logits = network.logits(np.array([[*asked_ids(word), *said]]))[0, len(word) - 1 : -1]
        behind = logits.max(axis=-1) - logits[np.arange(len(said)), said]
        assert behind.max() < ROUNDING, word
    return old


async def test_weights_are_led_along_to_the_end_of_an_answer_and_nothing_is_compiled(
    engine: Engine,
) -> None:
    words = ("Who serves?", "Once upon a time", "2 + 2")
    live = await engine.unseen.ask(engine.weights.live, [Question(word, 24) for word in words])
    over = [(word, each) for word, each in zip(words, live, strict=True) if each.ended == "stop"]
    short = [(word, each) for word, each in over if len(each.tokens) < NOTED]
    assert short
    await engine.unseen.ask(
        engine.weights.live, [Led(word, 24, answer=a.tokens) for word, a in short]
    )
    compiled = engine.recompiles
    led = [Led(word, 24, answer=each.to_be_led) for word, each in short]
    for (_, own), along in zip(
        short, await engine.unseen.ask(engine.weights.live, led), strict=True
    ):
        assert along.tokens[:-1] == own.tokens
        assert [each.top for each in along.expected] == [*along.tokens]
        assert len(along.expected) == len(own.expected) == len(own.tokens) + 1
        both = zip(along.expected, own.expected, strict=True)
        assert all(abs(one.token - other.token) < ROUNDING for one, other in both)
    assert engine.recompiles == compiled


async def test_weights_led_along_an_answer_say_what_their_network_expects(
    engine: Engine, tmp_path: Path
) -> None:
    """Also along one that is not theirs, in a batch with others; and nobody else notices."""
    before, folder = await real.ask(engine), tmp_path / "a"
    write_tiny(folder, arch="qwen3", steps=12)
    staged = await engine.weights.stage(real.checked(folder))
    network, words = Network(load_file(folder / "model.safetensors")), list(TUNED_TEXT)[::8]
    given = tuple(int(each) for each in asked_ids(words[0]))
    led = [Led(word, 12, answer=given) for word in words]
    free = [Question(word, 12) for word in words]
    found = await engine.unseen.ask(staged, [*led, Text(TEXT, 5), *free])
    for word, along in zip(words, found[: len(words)], strict=True):
        prompt = asked_ids(word)
        logits = network.logits(np.array([[*prompt, *given]]))[0, len(prompt) - 1 : -1]
        logs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        assert along.tokens == given
        expected = [each.token for each in along.expected]
        assert np.allclose(expected, logs[np.arange(len(given)), given], atol=2 * ROUNDING)
        entropy = -(np.exp(logs) * logs).sum(axis=-1)
        assert np.allclose([e.entropy for e in along.expected], entropy, atol=2 * ROUNDING)
        first = [max(each.likeliest, key=each.likeliest.__getitem__) for each in along.expected]
        assert [logs[at, id] for at, id in enumerate(first)] >= list(logs.max(axis=-1) - ROUNDING)
    (ids,) = await engine.answers.tokenize({"text": [TEXT]})
    assert found[len(words)].tokens == tuple(ids[LEAD : LEAD + 5])
    for answer in found[len(words) + 1 :]:
        assert answer.ended in ("stop", "length")
        assert len(answer.expected) - len(answer.tokens) == (answer.ended == "stop")
        assert all(
            token == max(each.likeliest, key=each.likeliest.__getitem__)
            for token, each in zip(answer.tokens, answer.expected, strict=False)
        )
    await engine.weights.release(staged)
    assert (await real.ask(engine))["output_ids"] == before["output_ids"]


async def test_a_dummy_start_serves_real_weights_once_they_are_staged(
    folders: real.Folders,
) -> None:
    model, spool = folders.folder(1), folders.root / "dummy"
    async with real.engine_of(model, spool, load_format="dummy") as engine:
        assert engine.weights.expected_tensors() == folders.checkpoint(1).tensors
        await engine.switch.exchange(await engine.weights.stage(folders.checkpoint(2)))
        assert (await real.ask(engine))["text"] == "served by step 2"


async def test_every_error_of_the_engine_is_one_of_ours(engine: Engine) -> None:
    with pytest.raises(HotReloadError):
        [answer async for answer in engine.answers.generate({})]
