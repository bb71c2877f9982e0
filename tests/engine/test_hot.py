"""An engine in a program of one's own, this test: new weights from memory while it answers."""

import gc
import inspect
import threading
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotreload
from hotreload import HotEngine, Probe
from hotreload.checkpoint.fit import Policy
from hotreload.engine.weights.load.loaders import Loaders
from hotreload.errors import (
    BadRequest,
    Busy,
    CheckpointChanged,
    CheckpointCorrupt,
    CheckpointIncompatible,
    HotReloadError,
    NotServing,
    ProbeFailed,
    Superseded,
)
from hotreload.tiny import parse_saying, write_tiny
from hotreload.tiny.weights import hand_built
from hotreload.types import LoadFacts
from tests.docs.pages import PAGES, ROOT, blocks
from tests.engine import real
from tests.hot.on_accelerators import forbid_hashing, forbid_reading, take_for_accelerators

pytestmark = pytest.mark.real_engine

import jax  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

Tensors = dict[str, Any]
SAYS = Probe("Who?", 12, contains="policy")
[FIRST] = blocks("python", PAGES["docs/train.md"])
WATCHED = (ROOT / "examples/staged_update.py").read_text()
LOOP = (ROOT / "examples/rl_loop.py").read_text()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("hot") / "model", "policy 0")


@pytest.fixture(scope="module")
def hot(model: Path) -> Iterator[HotEngine]:
    before = threading.active_count()
    with HotEngine(model, device="cpu", dtype="bfloat16", args=real.ARGS, probes=[SAYS]) as hot:
        yield hot
    hot.close()  # twice is once
    with pytest.raises(NotServing):
        hot.generate("Who?")
    assert threading.active_count() <= before


def saying(number: int, words: str = "policy") -> Tensors:
    return dict(hand_built(parse_saying(f"{words} {number}"), "qwen3"))


def said(hot: HotEngine) -> str:
    return str(hot.generate("Who serves?", real.GREEDY)["text"])


def example(block: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(block, "an example", "exec"), names)
    return names


# --- what the page shows ----------------------------------------------------------------------


# Half a minute; that flips keep to their weights on the newer one the contracts and others show.
@pytest.mark.alike
def test_fifty_updates_while_it_samples_and_each_sample_is_by_the_weights_it_names(
    hot: HotEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    live, samples = example(LOOP)["train"](hot, updates=50)
    assert len(live) == 51
    assert [text for _, text in samples] == [f"policy {live[number]}" for number, _ in samples]
    assert len({number for number, _ in samples}) > 10
    assert (hot.generation.number, hot.generation.revision.label) == (51, "step 50")
    assert said(hot) == "policy 50"
    *steps, last = capsys.readouterr().out.splitlines()
    assert steps[0] == "step 10 is generation 11, reward 10"
    assert last.startswith(f"{len(samples)} samples by ")


def test_an_answer_that_began_before_ends_under_the_weights_before(hot: HotEngine) -> None:
    before = hot.generation.number
    watched = example(WATCHED)["watched"](hot.asynchronous, saying(60))
    generation, made_by = hot._loop.run(watched)
    assert made_by == [before, before, generation.number]


def test_the_first_lines_of_the_page_print_what_it_says(
    hot: HotEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The engine is that of the other tests: to start another takes seconds."""

    def started(model: str, **given: Any) -> Any:
        inspect.signature(HotEngine).bind(model, **given)
        assert given["args"].keys() == real.ARGS.keys()
        hot.update(model)
        return nullcontext(hot)

    for number, name in enumerate(("model", "step_2"), start=1):
        write_tiny(tmp_path / name, f"policy {number}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hotreload, "HotEngine", started, raising=False)
    example(FIRST)
    first, second, last = capsys.readouterr().out.splitlines()
    number = hot.generation.number
    assert (first, second) == ("policy 1", f"{number - 1} policy 2")
    assert last.startswith(f"<HotEngine: answers by generation {number}, model (")


# --- arrays in memory -------------------------------------------------------------------------


def test_the_fingerprint_is_that_of_a_file_with_the_same_tensors(
    hot: HotEngine, tmp_path: Path
) -> None:
    folder = write_tiny(tmp_path / "step_61", "policy 61")
    told = hot.fingerprint_of(saying(61))
    with hot.stage(folder) as staged:
        of_file = staged.fingerprint
    hot.update(saying(61))
    assert told == hot.fingerprint_of(folder) == of_file == hot.fingerprint


def of_jax(tensors: Tensors) -> Tensors:
    return {name: jax.device_put(tensor) for name, tensor in tensors.items()}


def over_two_devices(tensors: Tensors) -> Tensors:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("x",))
    along = jax.sharding.NamedSharding(mesh, P("x"))  # type: ignore[no-untyped-call]
    return {name: jax.device_put(tensor, along) for name, tensor in tensors.items()}


def turned(tensors: Tensors) -> Tensors:
    return {name: np.asfortranarray(tensor) for name, tensor in tensors.items()}


@pytest.mark.parametrize("held", [of_jax, over_two_devices, turned])
def test_it_does_not_matter_how_the_arrays_are_held(hot: HotEngine, held: Any) -> None:
    wanted = hot.fingerprint_of(saying(62))
    with hot.stage(held(saying(62))) as staged:
        assert staged.fingerprint == wanted


def test_what_is_live_does_not_change_with_the_arrays_it_was_made_of(hot: HotEngine) -> None:
    arrays = saying(63)
    live = hot.update(arrays)
    for array in arrays.values():
        array[...] = 0
    engine = hot.asynchronous._replica.engine
    assert hot._loop.run(engine.weights.checksums()) == live.leaves
    assert said(hot) == "policy 63"


def test_arrays_that_are_written_to_while_they_are_read_are_refused(hot: HotEngine) -> None:
    inside, arrays = hot.asynchronous, saying(64)
    checkpoint = hot._loop.run(inside._new_weights.checks.check(arrays))
    arrays["model.norm.weight"][0] += 1
    with pytest.raises(CheckpointChanged, match=r"the bytes of model\.norm\.weight are different"):
        hot._loop.run(inside._changes.stage(checkpoint))
    assert hot.staged is None


def test_what_equals_the_live_weights_is_read_again_too(hot: HotEngine) -> None:
    inside, arrays = hot.asynchronous, saying(64)
    hot.update(arrays)
    arrays["lm_head.weight"][0] += 1
    checkpoint = hot._loop.run(inside._new_weights.checks.check(arrays))
    arrays[NORM][0] += 1  # a step while it is checked: what was checked is of two
    with pytest.raises(CheckpointChanged, match=r"the bytes of model\.norm\.weight") as refused:
        hot._loop.run(inside._changes.stage(checkpoint))
    assert refused.value.code == "changed"
    assert hot.staged is None


def test_a_model_that_our_loader_does_not_understand_goes_through_upstreams(
    hot: HotEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = hot.fingerprint_of(saying(65))
    monkeypatch.setattr(Loaders, "why_upstream", "the test wants it")
    with hot.stage(saying(65)) as staged:
        assert staged.loading is not None
        assert (staged.loading.loader, staged.fingerprint) == ("upstream", wanted)


def test_a_trainers_float32_is_cast_where_that_is_allowed(
    hot: HotEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = hot.fingerprint_of(saying(66))
    wide = {name: tensor.astype(np.float32) for name, tensor in saying(66).items()}
    with pytest.raises(CheckpointIncompatible, match="is F32, the engine serves BF16"):
        hot.update(wide)
    monkeypatch.setattr(hot.asynchronous._new_weights.checks, "policy", Policy(dtype_change="cast"))
    assert hot.fingerprint_of(wide) is None
    with hot.stage(wide) as staged:
        assert staged.fingerprint == wanted


NORM = "model.norm.weight"
NAN = saying(67)[NORM] * saying(67)[NORM].dtype.type("nan")
BAD: Mapping[str, tuple[Tensors, type[HotReloadError]]] = {
    "shape": (saying(67) | {NORM: NAN[:8]}, CheckpointIncompatible),
    "nonfinite": (saying(67) | {NORM: NAN}, CheckpointCorrupt),
    "probe": (saying(67, "hello"), ProbeFailed),
}


@pytest.mark.parametrize("code", BAD)
def test_what_is_unfit_changes_nothing_and_leaves_nothing(hot: HotEngine, code: str) -> None:
    tensors, kind = BAD[code]
    live, held = hot.generation, real.bytes_of_arrays(real.MATRIX_BYTES)
    with pytest.raises(kind) as refused:
        hot.update(tensors)
    assert refused.value.code == code
    assert hot.generation == live
    assert hot.staged is None
    assert real.bytes_of_arrays(real.MATRIX_BYTES) <= held


# --- a part of the tensors --------------------------------------------------------------------


COUNTS = "model.layers.0.self_attn.v_proj.weight"
"""The tensor that carries the number."""


def part_of(number: int) -> Tensors:
    """As few tensors as say this number, and one more."""
    whole = saying(number)
    return {name: whole[name] for name in (NORM, COUNTS)}


def test_a_part_makes_what_the_whole_set_would_and_shares_all_else(hot: HotEngine) -> None:
    hot.update(saying(80))
    engine, part = hot.asynchronous._replica.engine, part_of(81)
    before = list(engine.weights.live.weights.leaves)
    told = hot.fingerprint_of(part)
    with hot.stage(part) as staged:
        live, how = staged.flip(), staged.loading
    assert how is not None
    assert (how.leaves_staged, how.leaves_shared) == (2, engine.weights.leaf_count - 2)
    assert how.bytes_read == sum(tensor.nbytes for tensor in part.values())
    pairs = zip(before, engine.weights.live.weights.leaves, strict=True)
    assert sum(old is not new for old, new in pairs) == 2
    assert said(hot) == "policy 81"
    assert hot._loop.run(engine.weights.checksums()) == live.leaves
    whole = saying(80) | part
    assert told == live.fingerprint == hot.fingerprint_of(whole, complete=True)
    hot.update(saying(82))  # so that nothing is shared with what the part made
    hot.update(saying(83))
    again = hot.update(whole, complete=True)
    assert (again.fingerprint, again.leaves) == (live.fingerprint, live.leaves)


def test_what_is_known_of_a_part_and_of_what_stayed_holds_for_the_next_set(hot: HotEngine) -> None:
    hot.update(saying(80))
    hot.update(part_of(82))
    with hot.stage(saying(80) | part_of(82)) as staged:  # told by its tensors that all is there
        assert staged.loading is not None
        assert staged.loading.leaves_staged == 0
    with hot.stage(saying(80)) as staged:
        assert staged.loading is not None
        assert (staged.loading.leaves_staged, staged.loading.leaves_changed) == (2, 2)


OLDEST = 2
"""The garbage collector's generation of all that has been there for long."""


@pytest.fixture
def collected() -> Iterator[list[int]]:
    """The generations that the garbage collector looks at because somebody asked it to."""
    generations: list[int] = []

    def note(phase: str, about: dict[str, int]) -> None:
        if phase == "start":
            generations.append(about["generation"])

    gc.disable()
    gc.callbacks.append(note)
    yield generations
    gc.callbacks.remove(note)
    gc.enable()


def test_nobody_is_stopped_for_a_look_at_every_object(hot: HotEngine, collected: list[int]) -> None:
    hot.update(part_of(81), probes=())
    assert collected
    assert OLDEST not in collected


def test_nobody_need_know_of_what_the_live_leaves_were_made(hot: HotEngine) -> None:
    hot.update(saying(80))
    hot.asynchronous._replica.engine.weights.live.weights.sources = {}  # as once damage was found
    with hot.stage(part_of(85)) as staged:
        assert staged.loading is not None
        assert staged.loading.leaves_staged == 2
        assert staged.fingerprint == hot.fingerprint_of(saying(80) | part_of(85))


def test_a_part_upon_weights_that_went_is_refused(
    hot: HotEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = hot.asynchronous._changes  # with two sets there is no way back while one is staged
    monkeypatch.setattr(inside, "rules", replace(inside.rules, sets=3))
    hot.update(saying(80))
    live = hot.update(saying(83))
    with hot.stage(part_of(84)) as staged:
        hot.rollback()
        with pytest.raises(Superseded, match=f"those of generation {live.number}, and generation"):
            staged.flip()
        assert staged.is_held
    assert said(hot) == "policy 80"
    hot.update(part_of(84))
    assert said(hot) == "policy 84"
    hot.rollback()
    assert said(hot) == "policy 80"


def test_who_insists_on_the_whole_set_hears_what_is_missing(hot: HotEngine) -> None:
    live, part = hot.generation, part_of(81)
    others = len(saying(80)) - len(part) - 1
    words = rf"is missing, the engine serves .*\(and {others} more\)"
    with pytest.raises(CheckpointIncompatible, match=words):
        hot.update(part, complete=True)
    with pytest.raises(CheckpointIncompatible, match=r"'model\.nrom\.weight' is not used"):
        hot.update({"model.nrom.weight": part[NORM]})
    with pytest.raises(BadRequest, match="no tensor that the model takes"):
        hot.update({})
    assert hot.generation == live


def test_a_part_is_refused_where_upstreams_loader_loads(
    hot: HotEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Loaders, "why_upstream", "the test wants it")
    with pytest.raises(BadRequest, match=r"the test wants it\): give all of them"):
        hot.update(part_of(81))


# --- arrays of JAX ----------------------------------------------------------------------------


ACCELERATORS, HOST = "on accelerators", "in the host's memory"


@pytest.fixture(params=[ACCELERATORS, HOST])
def lying(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where arrays lie: the engine takes its CPU for an accelerator, or for what it is."""
    if request.param == ACCELERATORS:
        take_for_accelerators(monkeypatch)
    return str(request.param)


@pytest.fixture
def never_read(lying: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have arrays be taken from where they lie: on accelerators nobody sees a value of them."""
    (forbid_reading if lying == ACCELERATORS else forbid_hashing)(monkeypatch)


def checksums(hot: HotEngine) -> Mapping[str, int]:
    sums: Mapping[str, int] = hot._loop.run(hot.asynchronous._replica.engine.weights.checksums())
    return sums


def how_of(hot: HotEngine, tensors: Tensors) -> LoadFacts:
    with hot.stage(tensors) as staged:
        staged.flip()
        assert staged.loading is not None
        return staged.loading


@pytest.mark.parametrize(
    ("lying", "held"),
    [(ACCELERATORS, of_jax), (ACCELERATORS, over_two_devices), (HOST, of_jax)],
    indirect=["lying"],
)
def test_arrays_make_what_a_file_would_from_where_they_lie(
    hot: HotEngine, never_read: None, held: Any
) -> None:
    hot.update(of_jax(saying(70)))
    wanted = hot.fingerprint_of(saying(71))
    how = how_of(hot, held(saying(71)))
    every = hot.asynchronous._replica.engine.weights.leaf_count
    assert (how.loader, how.leaves_staged, how.leaves_changed) == ("own", every, every)
    assert how.bytes_read == sum(tensor.nbytes for tensor in saying(71).values())
    assert (hot.fingerprint, said(hot)) == (wanted, "policy 71")
    assert checksums(hot) == hot.generation.leaves
    how = how_of(hot, held(saying(71) | part_of(70)))  # what equals the live leaf is shared
    assert (how.leaves_staged, how.leaves_changed, how.leaves_shared) == (2, 2, every - 2)
    assert (checksums(hot), said(hot)) == (hot.generation.leaves, "policy 70")


def test_a_trainer_may_delete_or_donate_its_arrays_as_soon_as_they_are_staged(
    hot: HotEngine, never_read: None
) -> None:
    deleted, donated = of_jax(saying(72)), of_jax(saying(73))
    live = hot.update(deleted)
    for array in deleted.values():
        array.delete()
    with hot.stage(donated) as staged:
        jax.jit(lambda arrays: jax.tree.map(lambda each: each * 0, arrays), donate_argnums=0)(
            donated
        )
        assert all(array.is_deleted() for array in donated.values())
        assert (checksums(hot), said(hot)) == (live.leaves, "policy 72")
        live = staged.flip()
    assert (checksums(hot), said(hot)) == (live.leaves, "policy 73")


def test_parts_that_nobody_read_are_told_apart(hot: HotEngine, never_read: None) -> None:
    hot.update(of_jax(saying(80)))
    revisions = []
    for number in (81, 82, 81):
        how = how_of(hot, of_jax(part_of(number)))
        assert (how.leaves_staged, said(hot)) == (2, f"policy {number}")
        revisions.append(hot.generation.revision)
    assert revisions[0] == revisions[2] != revisions[1]  # named by what they are
    with hot.stage(of_jax(part_of(81))) as staged:
        assert staged.loading is not None
        assert (staged.loading.leaves_staged, staged.loading.leaves_changed) == (0, 0)
        assert staged.fingerprint == hot.fingerprint


def test_what_was_never_read_is_not_taken_for_what_is_read_later(
    hot: HotEngine, lying: str
) -> None:
    hot.update(saying(80))
    hot.update(of_jax(part_of(82)))
    how = how_of(hot, saying(80))
    assert (how.leaves_changed, said(hot)) == (2, "policy 80")
    hot.update(of_jax(saying(83)))
    every = hot.asynchronous._replica.engine.weights.leaf_count
    assert (how_of(hot, saying(80)).leaves_changed, said(hot)) == (every, "policy 80")
    assert checksums(hot) == hot.generation.leaves


@pytest.mark.parametrize("code", BAD)
def test_what_is_unfit_where_it_lies_is_refused_in_the_same_words(
    hot: HotEngine, lying: str, code: str
) -> None:
    tensors, kind = BAD[code]
    told = []
    for given in (tensors, of_jax(tensors)):
        with pytest.raises(kind) as refused:
            hot.update(given)
        told.append(refused.value.reason)
    assert told[0] == told[1]
    assert told[0].code == code
    assert hot.staged is None


def test_a_trainers_float32_is_cast_where_it_lies(
    hot: HotEngine, never_read: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    hot.update(of_jax(saying(66)))
    wide = {name: tensor.astype(np.float32) for name, tensor in saying(67).items()}
    checks = hot.asynchronous._new_weights.checks
    monkeypatch.setattr(checks, "policy", Policy(dtype_change="cast"))
    hot.update(of_jax(wide))
    assert (checksums(hot), said(hot)) == (hot.generation.leaves, "policy 67")


def test_an_array_that_was_donated_before_is_named(hot: HotEngine, lying: str) -> None:
    arrays = of_jax(saying(68))
    arrays[NORM].delete()
    with pytest.raises(CheckpointChanged, match=r"model\.norm\.weight cannot be read"):
        hot.update(arrays)


# --- the way back -----------------------------------------------------------------------------


def test_a_rollback_needs_no_loading_and_what_has_files_can_always_come_back(
    hot: HotEngine, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_files = hot.update(model)
    first, second = hot.update(saying(68)), hot.update(saying(69))
    monkeypatch.setattr(Loaders, "load", None)
    back = hot.rollback()
    assert (back.number, back.fingerprint) == (second.number + 1, first.fingerprint)
    assert said(hot) == "policy 68"
    monkeypatch.undo()
    again = hot.rollback(of_files.number)
    assert (again.number, said(hot)) == (back.number + 1, "policy 0")


def test_a_rollback_that_cannot_have_the_generation_before_says_what_there_is(
    hot: HotEngine, model: Path
) -> None:
    of_files = hot.update(model, name="from files")
    before, live = hot.update(saying(71), name="step 71"), hot.update(saying(72))
    with hot.stage(saying(73)):  # which needs the room of the one before
        pass
    words = rf"generation {before.number} \(step 71\), the one before, is no longer in memory"
    there = rf"there is still .*{of_files.number} \(from files, from {model}\): name it"
    with pytest.raises(BadRequest, match=f"{words}.*{there}"):
        hot.rollback()
    assert (hot.generation, said(hot)) == (live, "policy 72")
    hot.rollback(of_files.number)
    assert said(hot) == "policy 0"


def test_what_was_staged_and_dropped_makes_way(hot: HotEngine) -> None:
    with hot.stage(saying(73)):
        held = real.bytes_of_arrays(real.MATRIX_BYTES)
    for number in (74, 75):
        hot.stage(saying(number))
    assert hot.staged is None
    with hot.stage(saying(76)):
        # Fewer, where a set of the test before was not yet freed when they were counted first.
        assert real.bytes_of_arrays(real.MATRIX_BYTES) <= held
    kept = hot.stage(saying(77), name="step 77")
    with pytest.raises(Busy, match=r"step 77 is staged .*hot\.staged\.release\(\)"):
        hot.stage(saying(78))
    assert hot.staged is not None
    hot.staged.release()
    assert not kept.is_held


def test_prompts_may_be_a_tuple_and_each_answer_lists_its_tokens(hot: HotEngine) -> None:
    answers = hot.generate(("Who serves?", "Who?"), real.GREEDY)
    ids: list[dict[str, Any]] = hot.generate([(72, 73), (74,)], real.GREEDY)
    for answer in [*answers, *ids]:
        assert len(answer["output_ids"]) == answer["meta_info"]["completion_tokens"]


def test_each_piece_of_a_stream_says_who_made_it(hot: HotEngine) -> None:
    *_, last = hot.stream("Who serves?", real.GREEDY)
    stamp = {name: last["meta_info"][name] for name in hot.generation.stamp}
    assert (last["text"], stamp) == (said(hot), hot.generation.stamp)


def test_upstreams_own_engine_can_be_looked_at(hot: HotEngine, model: Path) -> None:
    assert hot.engine.server_args.model_path == str(model)


def test_a_prompt_is_answered_as_often_as_is_asked(hot: HotEngine) -> None:
    answers: Any = hot.generate("Who serves?", {**real.GREEDY, "n": 2})
    assert [each["text"] for each in answers] == [said(hot)] * 2
    assert {each["meta_info"]["generation"] for each in answers} == {hot.generation.number}


def test_a_seed_that_the_engine_would_ignore_is_refused(hot: HotEngine) -> None:
    with pytest.raises(BadRequest, match="sampling_seed: this engine ignores it without"):
        hot.generate("Who?", {"temperature": 1.0, "max_new_tokens": 4, "sampling_seed": 7})


def test_an_answer_under_way_is_ended_by_its_name(hot: HotEngine) -> None:
    one, other = (hot.stream("Who serves?", real.ENDLESS, rid=rid) for rid in ("one", "other"))
    next(one), next(other)
    assert hot.abort("one") == 1
    *_, last = one
    assert last["meta_info"]["finish_reason"]["code"] == "asked"
    assert hot.abort() == 1
    assert list(other)[-1]["meta_info"]["finish_reason"]["type"] == "abort"
    assert hot.abort() == 0


def test_an_update_may_go_live_unproven(hot: HotEngine) -> None:
    hot.update(saying(90, "hello"), probes=())
    assert said(hot) == "hello 90"
    hot.update(saying(91))
