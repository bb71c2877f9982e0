"""Our own loader makes what upstream's makes, of the checked bytes; what is equal is shared."""

import asyncio
import json
import math
import os
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import pytest_asyncio
from safetensors.numpy import load_file, save_file

from hotreload import failpoints, threads
from hotreload.checkpoint import first_read
from hotreload.checkpoint.check import check_checkpoint
from hotreload.checkpoint.content import OneTensor
from hotreload.checkpoint.digests import Digests, content_id, unread_id
from hotreload.checkpoint.file_reader import OpenFile
from hotreload.checkpoint.fit import Policy
from hotreload.checkpoint.survey import survey
from hotreload.engine.versions import installed_version
from hotreload.engine.weights.leaf import on_device
from hotreload.engine.weights.leaf.differences import same_bits
from hotreload.engine.weights.leaf.leaf_rules import Ingredient, Rule
from hotreload.engine.weights.leaf.measures import join_measures, measure_leaf
from hotreload.engine.weights.leaf.on_device import can_turn
from hotreload.engine.weights.load import extra_reads, loaders, own, trust
from hotreload.engine.weights.load.extra_reads import SameLeaves
from hotreload.engine.weights.load.first_load import FirstLoad, NotByOurs
from hotreload.engine.weights.load.own import Reader
from hotreload.engine.weights.load.trust import read_mark
from hotreload.engine.weights.memory import headroom, host_arrays, page_locked
from hotreload.engine.weights.weights import Destination, Weights, sources_of
from hotreload.errors import (
    CheckpointChanged,
    CheckpointRejected,
    NotEnoughMemory,
    SourceUnavailable,
)
from hotreload.quiet import Quiet
from hotreload.tiny import write_tiny
from hotreload.types import Checkpoint, HowFar, Revision
from tests.engine import real
from tests.waiting import turn_until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.real_engine]

import jax  # noqa: E402

Engine = Any
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> real.Folders:
    return real.Folders(tmp_path_factory.mktemp("checkpoints"))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engine(folders: real.Folders) -> AsyncIterator[Engine]:
    trust = folders.root / "own_loader"
    async with real.engine_of(folders.folder(1), folders.root / "spool", trust=trust) as engine:
        yield engine


def changed(folder: Path, *names: str) -> Path:
    """Give these tensors other values, in a file of the same size."""
    tensors = load_file(folder / WEIGHTS)
    for name in names:
        tensors[name] = (tensors[name].astype(np.float32) * 1.5).astype(tensors[name].dtype)
    save_file(tensors, folder / WEIGHTS)
    return folder


# --- what it makes ----------------------------------------------------------------------------


async def test_each_leaf_is_the_one_that_upstreams_loader_makes(
    engine: Engine, folders: real.Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = await engine.weights.stage(folders.checkpoint(2))
    monkeypatch.setattr(loaders.Loaders, "why_upstream", "the test wants it")
    theirs = await engine.weights.stage(folders.checkpoint(2))
    assert (ours.loading.loader, ours.loading.why) == ("own", "")
    assert (theirs.loading.loader, theirs.loading.why) == ("upstream", "the test wants it")
    for place in engine.weights.layout.places:
        assert same_bits(ours.weights.leaves[place], theirs.weights.leaves[place])
    assert ours.fingerprint == theirs.fingerprint
    assert ours.leaves == theirs.leaves
    for staged in (ours, theirs):
        await engine.weights.release(staged)


PADS = installed_version("sglang-jax") == "0.0.2"
"""It loads short heads into longer leaves than its models describe: ours cannot foresee them."""


async def test_leaves_that_are_turned_on_the_device_answer_and_nothing_recompiles(
    engine: Engine, folders: real.Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await engine.weights.stage(folders.checkpoint(9))
    expected.weights.sources = {}  # else its leaves are shared, and none is made
    await real.ask(engine)
    compiled = engine.recompiles
    monkeypatch.setattr(own, "SMALL", 0)  # each leaf by itself, as large ones are
    monkeypatch.setattr(own, "pays_on_device", can_turn)
    rings, ring_for = list[Any](), page_locked.ring_for

    def noted(*of: Any) -> Any:
        rings.append(ring_for(*of))
        return rings[-1]

    monkeypatch.setattr(own, "ring_for", noted)
    staged = await engine.weights.stage(folders.checkpoint(9))
    assert None not in rings
    assert rings
    assert staged.fingerprint == expected.fingerprint
    assert staged.leaves == expected.leaves
    for place in engine.weights.layout.places:
        assert same_bits(staged.weights.leaves[place], expected.weights.leaves[place])
    await engine.weights.release(expected)
    first = await engine.switch.exchange(staged)
    assert (await real.ask(engine))["text"] == "served by step 9"
    assert engine.recompiles == compiled
    await engine.weights.release(await engine.switch.exchange(first))


ODD = {
    "fewer key heads than devices": ({"num_key_value_heads": 1}, 2),
    "short heads, which 0.0.2 pads": ({"head_dim": 64}, 1),
    "both": ({"head_dim": 64, "num_key_value_heads": 1}, 2),
}


@pytest.mark.parametrize("arch", ["qwen3", pytest.param("qwen2", marks=pytest.mark.alike)])
@pytest.mark.parametrize("odd", ODD)
async def test_heads_are_made_as_upstreams_loader_makes_them(
    tmp_path: Path, arch: str, odd: str
) -> None:
    sizes, tp = ODD[odd]
    folder = with_heads(write_tiny(tmp_path / "model", arch=arch), **sizes)
    trust = tmp_path / "own_loader"
    async with real.engine_of(folder, tmp_path / "spool", tp=tp, trust=trust) as engine:
        assert engine.weights.loaders.comparison.is_tried
        assert engine.weights.loaders.why_upstream is None
        checkpoint = real.checked(folder)
        assert engine.weights.expected_tensors() == checkpoint.tensors
        filling = FirstLoad(checkpoint, str(read_mark(trust)), within=60)
        bare = without_weights(folder, tmp_path / "bare")
        with pytest.raises(NotByOurs) if "head_dim" in sizes and PADS else nullcontext():
            async with real.engine_of(bare, tmp_path, tp=tp, filling=filling) as fresh:
                assert fresh.weights.structure() == engine.weights.structure()
                assert fresh.weights.live.leaves == engine.weights.live.leaves


def with_heads(folder: Path, **sizes: int) -> Path:
    """The model with other heads, and random weights that fit."""
    config = json.loads((folder / "config.json").read_text()) | sizes
    (folder / "config.json").write_text(json.dumps(config))
    dim, hidden = config["head_dim"], config["hidden_size"]
    rows = {
        "q_proj": config["num_attention_heads"] * dim,
        "k_proj": config["num_key_value_heads"] * dim,
        "v_proj": config["num_key_value_heads"] * dim,
        "q_norm": dim,
        "k_norm": dim,
    }
    tensors = load_file(folder / WEIGHTS)
    chance = np.random.default_rng(0)
    for name, tensor in tensors.items():
        shape = list(tensor.shape)
        for part, count in rows.items():
            if part in name:
                shape[0] = count
        if "o_proj" in name:
            shape = [hidden, config["num_attention_heads"] * dim]
        tensors[name] = chance.normal(size=shape).astype(ml_dtypes.bfloat16)
    save_file(tensors, folder / WEIGHTS)
    return folder


async def test_experts_are_stacked(tmp_path: Path) -> None:
    experts = np.random.default_rng(0).normal(size=(3, 4, 6)).astype(np.float32)
    save_file({f"e{at}": each for at, each in enumerate(experts)}, tmp_path / WEIGHTS)
    parts = [Ingredient(f"e{at}", Rule((4, 6), axes=(1, 0)), at) for at in range(3)]
    live = jax.device_put(np.zeros((3, 6, 4), np.float32))
    reader = Reader(real.checked(tmp_path), asyncio.Event(), lambda size: None)  # type: ignore[arg-type]
    (made,) = reader.make_leaves([(parts, live)])
    assert np.array_equal(np.asarray(made.leaf), experts.transpose(0, 2, 1))
    assert made.one.sums.keys() == {"e0", "e1", "e2"}


async def test_experts_that_are_all_there_are_shared_in_their_first_reading(tmp_path: Path) -> None:
    experts = np.random.default_rng(0).normal(size=(3, 4, 6)).astype(np.float32)
    save_file({f"e{at}": each for at, each in enumerate(experts)}, tmp_path / WEIGHTS)
    parts = [Ingredient(f"e{at}", Rule((4, 6), axes=(1, 0)), at) for at in range(3)]
    checked, told = real.checked(tmp_path), list[int]()
    live = jax.numpy.zeros((3, 6, 4), np.float32)
    (made,) = Reader(checked, threading.Event(), told.append).make_leaves([(parts, live)])
    there = Weights([made.leaf], join_measures({"experts": made.one}), sources=sources_of(checked))
    for is_other in (False, True):
        if is_other:
            changed(tmp_path, "e1")
        reader = Reader(first := unread(tmp_path), threading.Event(), told.append)
        reader.there = SameLeaves(first, ["experts"], [there]).find
        (again,) = reader.make_leaves([(parts, made.leaf)])
        assert (again.is_shared, again.leaf is made.leaf) == (not is_other, not is_other)


async def test_experts_that_a_part_leaves_out_stay_what_they_are(tmp_path: Path) -> None:
    whole, given = np.random.default_rng(0).normal(size=(2, 3, 4, 6)).astype(ml_dtypes.bfloat16)
    parts = [Ingredient(f"e{at}", Rule((4, 6), axes=(1, 0)), at) for at in range(3)]
    mixed = np.stack([whole[0], given[1], whole[2]])
    live = jax.device_put(whole.transpose(0, 2, 1))
    save_file({"e1": given[1]}, tmp_path / WEIGHTS)
    part = replace(real.checked(tmp_path), is_part=True)
    made = [
        Reader(part, asyncio.Event(), lambda size: None).make_leaves([(parts, live)])[0],  # type: ignore[arg-type]
        Reader(part, asyncio.Event(), lambda size: None).make_on_host([(parts, live)])[0],  # type: ignore[arg-type]
    ]
    wanted = jax.device_put(mixed.transpose(0, 2, 1))
    expected = measure_leaf(wanted, parts)
    for each in made:
        assert same_bits(each.leaf, wanted)
        assert each.one == expected


async def test_on_the_host_a_part_makes_a_whole_set(engine: Engine, folders: real.Folders) -> None:
    await engine.weights.release(
        await engine.switch.exchange(await engine.weights.stage(folders.checkpoint(8)))
    )
    folder = changed(folders.folder(8), "model.norm.weight")
    whole = real.checked(folder)
    part = real.part_of(whole, "model.norm.weight")
    place, live = Destination(is_host=True), engine.weights.live.weights
    load = engine.weights.loaders.load
    made, how = load(part, live, place, threading.Event(), lambda total: None)
    assert (how.leaves_staged, how.leaves_shared) == (1, len(engine.weights.layout.places) - 1)
    assert sorted(made.host) == list(engine.weights.layout.places)
    expected, _ = load(whole, live, place, threading.Event(), lambda total: None)
    assert made.measured == expected.measured
    assert all(same_bits(made.host[at], expected.host[at]) for at in engine.weights.layout.places)
    assert not any(np.may_share_memory(made.host[at], live.leaves[at]) for at in made.host)


# --- whose memory it is -----------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(8, 16), (1, 64), (64, 1), (64,)])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("stored", [np.float32, ml_dtypes.bfloat16])
async def test_no_leaf_lies_in_memory_that_the_next_tensor_is_read_into(
    tmp_path: Path, shape: tuple[int, ...], turned: bool, stored: Any
) -> None:
    values = np.random.default_rng(0).normal(size=shape).astype(stored)
    save_file({"one": values, "two": np.zeros(shape, stored)}, tmp_path / WEIGHTS)
    axes = tuple(reversed(range(len(shape)))) if turned and len(shape) > 1 else None
    expected = values.astype(np.float32)
    expected = expected if axes is None else expected.transpose(axes)
    live = jax.device_put(np.zeros(expected.shape, np.float32))
    reader = Reader(real.checked(tmp_path), asyncio.Event(), lambda size: None)  # type: ignore[arg-type]
    first, second = (
        reader.make_leaves([((Ingredient(name, Rule(shape, axes=axes)),), live)])[0].leaf
        for name in ("one", "two")
    )
    read_into = reader._scratch
    assert not any(np.may_share_memory(np.asarray(leaf), read_into) for leaf in (first, second))
    assert np.array_equal(np.asarray(first), expected)
    assert not np.asarray(second).any()


async def test_what_is_live_does_not_change_with_its_file(
    engine: Engine, folders: real.Folders
) -> None:
    checkpoint = folders.checkpoint(3)
    staged = await engine.weights.stage(checkpoint)
    file = checkpoint.path / WEIGHTS
    with file.open("r+b") as overwritten:
        overwritten.write(b"\0" * file.stat().st_size)
    assert engine.weights.loaders.measure(staged.weights.leaves) == staged.weights.measured
    await engine.weights.release(staged)


# --- what changed meanwhile -------------------------------------------------------------------


async def test_bytes_that_were_not_checked_are_refused(
    engine: Engine, folders: real.Folders
) -> None:
    checkpoint = real.checked(changed(folders.folder(4)))
    changed(checkpoint.path, "model.layers.1.mlp.up_proj.weight")
    before = await real.device_bytes()
    with pytest.raises(CheckpointChanged, match=r"up_proj\.weight are different now") as refused:
        await engine.weights.stage(checkpoint)
    assert refused.value.code == "changed"
    del refused
    assert await real.device_bytes() == before


async def test_a_file_that_is_only_touched_while_it_is_read_is_what_was_checked(
    engine: Engine, folders: real.Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = folders.checkpoint(5)
    placed = own._place

    def touching(arrays: Any, lives: Any) -> Any:
        (checkpoint.path / WEIGHTS).touch()
        return placed(arrays, lives)

    monkeypatch.setattr(own, "_place", touching)
    staged = await engine.weights.stage(checkpoint)
    assert staged.revision == checkpoint.revision
    await engine.weights.release(staged)


# --- what is shared ---------------------------------------------------------------------------


async def test_leaves_whose_tensors_did_not_change_are_the_live_ones(
    engine: Engine, folders: real.Folders
) -> None:
    base = changed(folders.folder(6))
    live = await engine.weights.stage(real.checked(base))
    first = await engine.switch.exchange(live)
    changed(base, "model.norm.weight", "model.layers.0.mlp.up_proj.weight")
    before = await real.device_bytes()
    staged = await engine.weights.stage(real.checked(base))
    how = staged.loading
    count = len(engine.weights.layout.places)
    assert (how.leaves_staged, how.leaves_shared, how.leaves_changed) == (2, count - 2, 2)
    assert how.largest_change == pytest.approx(0.5, rel=0.02)
    sizes = {name: held.end - held.begin for name, held in real.checked(base).held.items()}
    matrix = sizes["model.layers.0.mlp.up_proj.weight"]
    assert how.bytes_read == sizes["model.norm.weight"] + matrix
    assert await real.device_bytes() - before == matrix
    assert staged.fingerprint != live.fingerprint
    old = await engine.switch.exchange(staged)
    await engine.weights.release(old)
    assert engine.weights.loaders.measure(staged.weights.leaves) == staged.weights.measured
    await engine.weights.release(await engine.switch.exchange(first))


async def test_leaves_that_an_older_set_still_holds_are_not_made_again(
    engine: Engine, folders: real.Folders
) -> None:
    """And each leaf is counted once, as it is held once."""
    base, names = changed(folders.folder(6)), ("model.norm.weight", "lm_head.weight")
    older = await engine.weights.stage(real.checked(base))
    first = await engine.switch.exchange(older)
    await engine.switch.exchange(
        await engine.weights.stage(real.checked(changed(folders.folder(6), *names)))
    )
    back = real.checked(changed(folders.folder(6)))
    before = await real.device_bytes()
    again = await engine.weights.stage(back)
    count = len(engine.weights.layout.places)
    how = again.loading
    assert (how.leaves_staged, how.leaves_shared, how.bytes_read) == (0, count, 0)
    assert how.leaves_changed == 2
    held = zip(again.weights.leaves, older.weights.leaves, strict=True)
    assert all(held_leaf is leaf for held_leaf, leaf in held)
    assert again.fingerprint == older.fingerprint
    assert await real.device_bytes() == before
    own = sum(back.held[name].end - back.held[name].begin for name in names)
    whole = engine.weights.set_bytes
    assert engine.weights.held_bytes([engine.weights.live, older, again, first])[:3] == [
        whole,
        own,
        0,
    ]
    await engine.weights.release(again)
    assert engine.weights.held_bytes([older]) == [whole]
    drifted = engine.weights.live.leaves | {engine.weights.layout.paths[0]: 1}
    engine.weights.note_damage(
        engine.weights.live, drifted
    )  # who knows which set holds what was damaged, too
    assert older.weights.sources == {}
    await engine.weights.release(older)
    await engine.weights.release(await engine.switch.exchange(first))


async def test_what_is_missing_for_one_more_set_is_reckoned_by_what_it_shares(
    engine: Engine, folders: real.Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = await engine.weights.stage(real.checked(folders.folder(6)))
    first = await engine.switch.exchange(live)
    same = real.checked(folders.folder(6))
    little = real.checked(changed(folders.folder(6), "model.norm.weight"))
    kept, buffers = 2**30, engine._shadows.pool.buffers
    reading = max(held.end - held.begin for held in same.held.values()) + sum(
        math.prod(each.shape) * each.dtype.itemsize for each in buffers
    )
    norm = same.held["model.norm.weight"].end - same.held["model.norm.weight"].begin
    monkeypatch.setattr(headroom, "host_bytes", lambda: kept * headroom.KEPT_FREE)
    for free, lacking in ((0, []), (-1, [same, little, None]), (norm - 1, [little, None])):
        there = kept + reading + free
        monkeypatch.setattr(headroom, "host_bytes_free", lambda there=there: there)
        for checkpoint in lacking:
            assert "to spare" in str(await engine.weights.lacks_room(checkpoint))
    assert await engine.weights.lacks_room(same) is None
    await engine.weights.release(await engine.switch.exchange(first))


async def test_on_accelerators_room_is_asked_for_the_rings_of_the_readers(
    engine: Engine, folders: real.Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, checkpoint = engine.weights.live.weights, folders.checkpoint(6)
    (*beside,), on_host = engine.weights.loaders.need(checkpoint, live, Destination())
    monkeypatch.setattr(page_locked, "is_on_host", lambda leaf: False)
    (*still, ring), more = engine.weights.loaders.need(checkpoint, live, Destination())
    size = page_locked.SENT_AT_ONCE * engine.weights.loaders.quiet.threads
    assert (len(still), more - on_host) == (len(beside), page_locked.BUFFERS * size)
    assert [*headroom.shares_of([ring]).values()] == [(page_locked.BUFFERS + 1) * size]
    (needed,) = headroom.shares_of([*still, ring, *engine._shadows.pool.buffers]).values()
    monkeypatch.setattr(headroom, "host_bytes_free", lambda: needed + more - 1)
    with pytest.raises(NotEnoughMemory, match=r": 1 bytes are missing"):
        await engine.weights.stage(checkpoint)


async def test_a_checkpoint_that_is_live_already_is_not_read_again(
    engine: Engine, folders: real.Folders
) -> None:
    live = await engine.weights.stage(folders.checkpoint(7))
    first = await engine.switch.exchange(live)
    staged = await engine.weights.stage(folders.checkpoint(7))
    assert (staged.loading.bytes_read, staged.loading.leaves_staged) == (0, 0)
    assert staged.fingerprint == live.fingerprint
    await engine.weights.release(staged)
    await engine.weights.release(await engine.switch.exchange(first))


# --- trust ------------------------------------------------------------------------------------


async def test_a_loader_that_makes_something_else_is_switched_off_and_told(
    folders: real.Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(Rule, "apply", lambda self, tensor: tensor.reshape(self.leaf_shape))
        async with real.engine_of(folders.folder(1), folders.root / "spool") as engine:
            why = await asyncio.wait_for(engine.weights.wait_for_distrust(), 60)
            assert "ours made another" in why
            staged = await engine.weights.stage(folders.checkpoint(2))
            assert (staged.loading.loader, staged.loading.why) == ("upstream", why)
            await engine.weights.release(await engine.switch.exchange(staged))
            assert (await real.ask(engine))["text"] == "served by step 2"


async def test_without_files_to_compare_with_the_first_checkpoint_is_loaded_both_ways(
    folders: real.Folders,
) -> None:
    async with real.engine_of(folders.folder(1), folders.root / "spool", checkpoint=None) as engine:
        first = await engine.weights.stage(folders.checkpoint(2))
        second = await engine.weights.stage(folders.checkpoint(3))
        assert first.loading.loader == "upstream"
        assert "not been compared" in first.loading.why
        assert second.loading.loader == "own"


async def test_the_operator_may_want_upstreams_loader(folders: real.Folders) -> None:
    spool = folders.root / "spool"
    async with real.engine_of(folders.folder(1), spool, loader="upstream") as engine:
        staged = await engine.weights.stage(folders.checkpoint(2))
        assert staged.loading.why == "[engine] loader = 'upstream'"


# --- at a start -------------------------------------------------------------------------------


def without_weights(folder: Path, to: Path) -> Path:
    """The model as a start has it that fills the weights in: upstream's loader finds none."""
    return Path(shutil.copytree(folder, to, ignore=lambda path, names: [WEIGHTS]))


async def test_a_start_reads_each_byte_once_and_comes_to_what_upstreams_loader_made(
    engine: Engine, folders: real.Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, mark = folders.checkpoint(1), read_mark(folders.root / "own_loader")
    assert mark is not None
    real_read, read = os.preadv, [0]

    def counted(descriptor: int, buffers: Sequence[Any], offset: int) -> int:
        count = real_read(descriptor, buffers, offset)
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(checkpoint.path / WEIGHTS):
            read[0] += count
        return count

    monkeypatch.setattr(os, "preadv", counted)
    filling = FirstLoad(checkpoint, mark, within=60)
    bare = without_weights(checkpoint.path, tmp_path / "bare")
    async with real.engine_of(bare, tmp_path, filling=filling) as fresh:
        size = sum(held.end - held.begin for held in checkpoint.held.values())
        assert read == [size]
        assert filling.so_far == HowFar(size, checkpoint.bytes)
        assert (fresh.facts()["loader"], engine.facts()["loader"]) == ("own", "upstream")
        theirs = await engine.weights.stage(checkpoint)
        assert (fresh.weights.structure(), fresh.weights.plan) == (
            engine.weights.structure(),
            engine.weights.plan,
        )
        for at in engine.weights.layout.places:
            assert same_bits(fresh.weights.live.weights.leaves[at], theirs.weights.leaves[at])
        assert fresh.weights.live.revision == checkpoint.revision
        assert (fresh.weights.live.fingerprint, fresh.weights.live.leaves) == (
            theirs.fingerprint,
            theirs.leaves,
        )
        assert fresh.weights.live.weights.measured == theirs.weights.measured
        assert (await real.ask(fresh))["text"] == "served by step 1"
        again = await fresh.weights.stage(checkpoint)
        assert again.loading.bytes_read == 0  # it is known of which tensors they were made
        new = await fresh.weights.stage(folders.checkpoint(2))
        assert (again.loading.loader, new.loading.loader) == ("own", "own")
        await fresh.weights.release(await fresh.switch.exchange(new))
        assert (await real.ask(fresh))["text"] == "served by step 2"
        await engine.weights.release(theirs)


async def test_a_start_refuses_bytes_that_were_not_checked(
    folders: real.Folders, tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own, "SMALL", 0)  # one by one: some leaves are there when it comes out
    checkpoint, mark = (
        real.checked(changed(folders.folder(1))),
        read_mark(folders.root / "own_loader"),
    )
    bare = without_weights(checkpoint.path, tmp_path / "bare")
    changed(checkpoint.path, "model.layers.1.mlp.up_proj.weight")
    before = await real.device_bytes()
    with pytest.raises(CheckpointChanged, match=r"up_proj\.weight are different now") as refused:
        async with real.engine_of(
            bare, tmp_path, filling=FirstLoad(checkpoint, str(mark), within=60)
        ):
            pass
    assert refused.value.code == "changed"
    leaf = max(held.end - held.begin for held in checkpoint.held.values())
    assert await real.device_bytes() - before <= leaf  # an error holds no more than it was at
    del refused
    assert await real.device_bytes() == before


async def test_a_start_gives_up_files_that_take_too_long_to_read(
    folders: real.Folders, tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, mark = folders.checkpoint(1), read_mark(folders.root / "own_loader")
    bare = without_weights(checkpoint.path, tmp_path / "bare")
    given_up = threading.Event()
    monkeypatch.setattr(failpoints, "reach_in_thread", lambda point: given_up.wait())
    monkeypatch.setattr(threads, "LEAVE_AFTER", 0.0)
    before = await real.device_bytes()
    with pytest.raises(SourceUnavailable, match="stage_timeout") as refused:
        async with real.engine_of(
            bare, tmp_path, filling=FirstLoad(checkpoint, str(mark), within=1)
        ):
            pass
    assert refused.value.code == "timed_out"
    assert threads.left_behind() == "the engine's start"  # no other read begins beside it
    given_up.set()
    await turn_until(lambda: threads.left_behind() is None)
    del refused
    assert await real.device_bytes() == before


async def test_only_what_was_compared_is_filled_in(folders: real.Folders, tmp_path: Path) -> None:
    checkpoint = folders.checkpoint(1)
    bare = without_weights(checkpoint.path, tmp_path / "bare")
    filling = FirstLoad(checkpoint, "of another version", within=60)
    before = await real.device_bytes()
    with pytest.raises(NotByOurs, match="another model, version or device"):
        async with real.engine_of(bare, tmp_path, filling=filling):
            pass
    assert await real.device_bytes() == before


async def test_a_mark_is_that_of_the_versions_our_code_the_leaves_and_how_tensors_are_stored(
    engine: Engine, folders: real.Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, leaves, checkpoint = (
        engine.weights.layout,
        engine.weights.live.weights.leaves,
        folders.checkpoint(1),
    )
    mark = partial(trust.mark_of, layout)
    same = read_mark(folders.root / "own_loader")
    assert mark(leaves, engine.weights.plan, checkpoint) == same
    wide = {name: replace(spec, dtype="F32") for name, spec in checkpoint.tensors.items()}
    others = [mark(leaves, engine.weights.plan, replace(checkpoint, tensors=wide))]
    path, (part,) = next(iter(engine.weights.plan.parts.items()))
    turned = {
        **engine.weights.plan.parts,
        path: (replace(part, rule=Rule(part.rule.shape, axes=(0, 1))),),
    }
    others.append(mark(leaves, replace(engine.weights.plan, parts=turned), checkpoint))
    elsewhere = list(leaves)
    elsewhere[layout.places[0]] = jax.device_put(leaves[layout.places[0]], jax.devices()[1])
    others.append(mark(elsewhere, engine.weights.plan, checkpoint))
    for name in ("installed_version", "_our_code"):
        with monkeypatch.context() as another:
            another.setattr(trust, name, lambda *asked: "another")
            others.append(mark(leaves, engine.weights.plan, checkpoint))
    assert len({same, *others}) == 6


# --- quietly ----------------------------------------------------------------------------------


async def test_several_threads_make_the_same(folders: real.Folders) -> None:
    quiet = Quiet(threads=3)
    async with real.engine_of(folders.folder(1), folders.root / "spool", quiet=quiet) as engine:
        staged = await engine.weights.stage(folders.checkpoint(2))
        assert engine.weights.loaders.measure(staged.weights.leaves) == staged.weights.measured
        await engine.weights.release(await engine.switch.exchange(staged))
        assert (await real.ask(engine))["text"] == "served by step 2"


# --- what nobody has read before --------------------------------------------------------------


def unread(folder: Path) -> Checkpoint:
    """The folder as a checkpoint of which only the head was read; it need not fit."""
    named = Revision(unread_id(survey(folder), Digests()) or "", folder.name)
    return check_checkpoint(named, folder, served=None, policy=Policy(), content_id=named.id)


async def test_one_reading_makes_what_a_second_one_makes(
    engine: Engine, folders: real.Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await engine.weights.stage(folders.checkpoint(12))
    sources, expected.weights.sources = expected.weights.sources, {}  # else its leaves are shared
    folder = folders.root / "step_12"
    monkeypatch.setattr(own, "SMALL", 0)
    for turn in (on_device.pays_on_device, can_turn):
        monkeypatch.setattr(own, "pays_on_device", turn)
        staged = await engine.weights.stage(unread(folder))
        assert staged.revision.id == content_id(survey(folder))
        assert (staged.fingerprint, staged.leaves) == (expected.fingerprint, expected.leaves)
        assert staged.weights.sources == sources
        assert staged.loading.bytes_read == (folder / WEIGHTS).stat().st_size - head_of(folder)
        await engine.weights.release(staged)
    await engine.weights.release(expected)


def head_of(folder: Path) -> int:
    return 8 + int.from_bytes((folder / WEIGHTS).read_bytes()[:8], "little")


async def test_leaves_that_are_there_are_shared_in_one_reading_and_take_no_memory(
    engine: Engine, folders: real.Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the first of each thread: after one that is there the next probably is, too."""
    await engine.weights.release(
        await engine.switch.exchange(await engine.weights.stage(folders.checkpoint(13)))
    )
    folder, taken = changed(folders.folder(13), "model.norm.weight"), list[int]()
    fresh = host_arrays.fresh

    def counted(size: int) -> Any:
        taken.append(size)
        return fresh(size)

    monkeypatch.setattr(own, "fresh", counted)
    staged = await engine.weights.stage(unread(folder))
    assert sum(taken) < engine.weights.set_bytes / 2
    live = engine.weights.live.weights.leaves
    leaves = len(engine.weights.layout.places)
    assert (staged.loading.leaves_staged, staged.loading.leaves_shared) == (1, leaves - 1)
    assert sum(a is not b for a, b in zip(staged.weights.leaves, live, strict=True)) == 1
    again = await engine.weights.stage(real.checked(folder))
    assert again.fingerprint == staged.fingerprint
    for each in (staged, again):
        await engine.weights.release(each)


async def test_what_finds_no_room_as_a_whole_is_read_first_and_shares_what_it_can(
    engine: Engine, folders: real.Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.weights.release(
        await engine.switch.exchange(await engine.weights.stage(folders.checkpoint(14)))
    )
    folder = changed(folders.folder(14), "model.norm.weight")
    really, asked = headroom.check_headroom, list[int]()

    def of_a_few(arrays: Any, **rest: Any) -> None:
        arrays = list(arrays)
        asked.append(len(arrays))
        if len(arrays) > 3:
            raise NotEnoughMemory("room for three leaves")
        really(arrays, **rest)

    for module in (extra_reads, loaders):
        monkeypatch.setattr(module, "check_headroom", of_a_few)
    checkpoint = unread(folder)
    staged = await engine.weights.stage(checkpoint)
    assert (staged.loading.leaves_staged, asked[-1] <= 3) == (1, True)
    assert staged.revision.id == content_id(survey(folder)) == checkpoint.as_read.revision.id
    await engine.weights.release(staged)
    lacks = ["room for three leaves"]
    monkeypatch.setattr(extra_reads, "why_no_further", lambda new, host: lacks[len(new) <= 3 :][:1])
    assert not await engine.weights.lacks_room(unread(folder))


async def test_upstreams_loader_takes_only_what_was_read_first(
    engine: Engine, folders: real.Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await engine.weights.stage(folders.checkpoint(15))
    monkeypatch.setattr(loaders.Loaders, "why_upstream", "the test wants it")
    staged = await engine.weights.stage(unread(folders.root / "step_15"))
    assert (staged.loading.loader, staged.fingerprint) == ("upstream", expected.fingerprint)
    for each in (expected, staged):
        await engine.weights.release(each)


@pytest.mark.parametrize("damage", ["nan", "inf", "zeros"])
async def test_the_first_reading_finds_what_any_reading_finds(
    engine: Engine, folders: real.Folders, damage: str
) -> None:
    folder = folders.folder(16, damage)
    with pytest.raises(CheckpointRejected) as found:
        await engine.weights.stage(unread(folder))
    with pytest.raises(CheckpointRejected) as expected:
        check_checkpoint(None, folder, served=None, policy=Policy())
    assert found.value.reason == expected.value.reason


async def test_values_are_looked_at_where_their_squares_leave_a_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum of squares that is a number other than 0 is made of good values, and not of zeros."""
    good = np.full((64, 64), 3, ml_dtypes.bfloat16)
    tensors = {"good": good, "tiny": good * 0 + ml_dtypes.bfloat16(1e-30)}
    tensors |= {"huge": good * ml_dtypes.bfloat16(1e30), "zeros": good * 0, "bad": good.copy()}
    tensors["bad"][7, 3] = np.nan
    save_file(tensors, tmp_path / WEIGHTS)
    looked, scan = list[str](), OneTensor.look

    def counted(each: OneTensor, piece: memoryview) -> None:
        looked.append(each._run.tensors[0].name)
        scan(each, piece)

    monkeypatch.setattr(first_read, "FIRST_BYTES", 0)
    monkeypatch.setattr(OneTensor, "look", counted)
    reader = Reader(first := unread(tmp_path), threading.Event(), lambda size: None)
    for axes in (None, (1, 0)):
        looked.clear()
        for name, tensor in tensors.items():
            rule = Rule(tensor.shape, axes=axes)
            reader.make_leaves([((Ingredient(name, rule),), jax.device_put(tensor))])
        assert looked == ["tiny", "huge", "zeros", "bad"]
    with pytest.raises(CheckpointRejected, match="'bad' has 1 value NaN or infinite"):
        first.first_read.judge()


@pytest.mark.parametrize("touch", [Path.touch, lambda file: file.chmod(0o600)])
async def test_what_is_touched_before_its_first_reading_is_over_is_put_off(
    engine: Engine, folders: real.Folders, touch: Callable[[Path], None]
) -> None:
    folder = folders.folder(17)
    checkpoint = unread(folder)
    touch(folder / WEIGHTS)
    with pytest.raises(CheckpointChanged, match=f"{WEIGHTS}: it was (touched|replaced)"):
        await engine.weights.stage(checkpoint)


async def test_of_slow_storage_more_is_read_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where each read has its latency, two mebibytes at a time take most of the time."""
    tensors = {f"{at}": np.zeros(8 << 20, np.uint8).view(np.float32) for at in range(3)}
    save_file(tensors, tmp_path / "model.safetensors")
    reads, read = list[int](), OpenFile._read_once

    def slow(file: OpenFile, buffer: memoryview, offset: int) -> int:
        reads.append(len(buffer))
        time.sleep(2 * own.LONG_READ)
        return read(file, buffer, offset)

    checkpoint = real.checked(tmp_path)
    monkeypatch.setattr(OpenFile, "_read_once", slow)
    with closing(Reader(checkpoint, threading.Event(), lambda count: None)) as reader:
        for name in tensors:
            reader.check(name)
    assert reads == [2 << 20] * 4 + [8 << 20] * 2
