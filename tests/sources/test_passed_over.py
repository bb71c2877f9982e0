"""What could be meant as a checkpoint and is none is named with the reason, and refused in time."""

import asyncio
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hotreload.checkpoint.digests import Digests, content_id
from hotreload.checkpoint.survey import Survey
from hotreload.errors import CheckpointRejected, SourceUnavailable
from hotreload.events import FoldersPassedOver
from hotreload.sources import seen_revisions
from hotreload.sources.passed_over import MOST_PASSED_OVER
from tests.clock import Clock
from tests.sources.watching import Watching, arrive, forget, watching, write

PICKLE = (
    "step_900 holds pytorch_model.bin, which hotreload does not read: save as safetensors "
    "(save_pretrained(folder, safe_serialization=True))"
)
FAR = {"settle": 1.0, "patience": 50.0, "rescan": 30.0}


def hold(folder: Path, *names: str) -> Path:
    """A folder with such files; those whose name ends in a slash are folders."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = folder / name
        path.mkdir(parents=True) if name.endswith("/") else path.write_text(name)
    return folder


def old(folder: Path) -> Path:
    """A checkpoint that was written an hour ago."""
    then = time.time() - 3600
    for file in folder.iterdir():
        os.utime(file, (then, then))
    return folder


async def later(watch: Watching, clock: Clock, seconds: float) -> None:
    clock.now += seconds
    await watch.look()


async def refused(watch: Watching, label: str, code: str) -> str:
    """What was wished under this label is refused for this reason, before anything is read."""
    revision = next(wish for wish in watch.wishes if wish.label == label)
    with pytest.raises(CheckpointRejected) as caught:
        await watch.source.fetch(revision)
    assert caught.value.code == code
    return str(caught.value)


# --- formats -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["config.json", "pytorch_model.bin", "tokenizer.json"], "pytorch_model.bin"),
        (["pytorch_model-00001-of-00002.bin"], "pytorch_model-00001-of-00002.bin"),
        (["consolidated.00.pth", "params.json"], "consolidated.00.pth"),
        (["optimizer.pt"], "optimizer.pt"),
        (["model.ckpt"], "model.ckpt"),
        (["_METADATA", "_sharding", "d/"], "_METADATA"),
        (["manifest.ocdbt", "ocdbt.process_0/"], "manifest.ocdbt"),
        (["mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"], "mp_rank_"),
        (["config.json", "latest", "zero_to_fp32.py", "global_step900/"], "zero_to_fp32.py"),
        (["mp_rank_00/"], "mp_rank_00"),
        ([".metadata", "__0_0.distcp"], "__0_0.distcp"),
        (["model-q4.gguf"], "model-q4.gguf"),
        (["flax_model.msgpack"], "flax_model.msgpack"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
async def test_a_format_that_is_not_read_is_named_and_after_patience_refused(
    root: Path, names: list[str], told: str
) -> None:
    clock = Clock()
    write(root / "step_1")
    async with watching(root, clock=clock, **FAR) as watch:
        await later(watch, clock, 1)
        await watch.wished("step_1")
        hold(root / "step_900", *names)
        await watch.look()
        assert watch.passed_over == {}
        await later(watch, clock, 1)
        await watch.passes_over(step_900="format")
        (words,) = watch.passed_over_words
        assert words.startswith(f"step_900 holds {told}")
        assert "which hotreload does not read: save as safetensors (" in words
        await later(watch, clock, 48)
        assert watch.labels == ["step_1"]
        await later(watch, clock, 1)
        await watch.wished("step_1", "step_900")
        assert await refused(watch, "step_900", "format") == words
        await later(watch, clock, 30)
        await watch.wished("step_1", "step_900", "step_1")
        await later(watch, clock, 1000)
        assert len(watch.wishes) == 3


async def test_what_lies_below_a_newer_one_that_was_refused_is_named_too(root: Path) -> None:
    clock, refusals = Clock(), set[str]()
    write(root / "step_1")
    hold(root / "step_0", "pytorch_model.bin")
    far = {**FAR, "is_refused": refusals.__contains__}
    async with watching(root, clock=clock, **far) as watch:
        await later(watch, clock, 1)
        await watch.wished("step_1")
        hold(root / "step_900", "pytorch_model.bin")
        write(root / "step_908", "damaged")
        await watch.look()
        await later(watch, clock, 1)
        await watch.wished("step_1", "step_908")
        assert watch.passed_over == {}
        refusals.add(watch.wishes[-1].id)
        await later(watch, clock, 1)
        await watch.passes_over(step_900="format")
        await later(watch, clock, 1000)
        assert watch.labels == ["step_1", "step_908"]


async def test_it_says_which_file_and_what_to_change(root: Path) -> None:
    hold(root / "step_900", "config.json", "pytorch_model.bin")
    async with watching(root) as watch:
        await watch.passes_over(step_900="format")
        assert watch.passed_over_words == [PICKLE]
        assert watch.waiting is None
        with pytest.raises(SourceUnavailable, match=r"step_900 holds pytorch_model\.bin"):
            await watch.source.resolve(None)


async def test_it_is_the_same_refusal_after_a_restart_and_another_once_its_files_change(
    root: Path,
) -> None:
    hold(root / "step_900", "pytorch_model.bin")
    ids = []
    for content in ("as it was", "as it was", "other"):
        (root / "step_900" / "notes.txt").write_text("written beside it")
        if content == "other":
            (root / "step_900" / "pytorch_model.bin").write_text(content)
        async with watching(root, patience=0.1) as watch:
            await watch.wished("step_900")
            ids.append(watch.wishes[0].id)
    assert ids[0] == ids[1] != ids[2]


async def test_whoever_names_it_is_told_the_same(root: Path) -> None:
    write(root / "step_1")
    hold(root / "step_900", "config.json", "pytorch_model.bin")
    async with watching(root) as watch:
        await watch.passes_over(step_900="format")
        revision = await watch.source.resolve("step_900")
        with pytest.raises(CheckpointRejected, match=r"step_900 holds pytorch_model\.bin"):
            await watch.source.fetch(revision)


async def test_once_it_is_saved_as_safetensors_it_is_wished_and_no_longer_named(root: Path) -> None:
    folder = hold(root / "step_900", "config.json", "pytorch_model.bin")
    async with watching(root, patience=0.1) as watch:
        await watch.wished("step_900")
        write(folder)
        await watch.until(lambda: len(watch.wishes) == 2)
        await watch.passes_over()
        assert await watch.source.fetch(watch.wishes[-1]) == folder


async def test_what_arrived_whole_is_refused_without_more_patience(root: Path) -> None:
    async with watching(root, patience=1000.0) as watch:
        aside = hold(root.parent / "aside", "pytorch_model.bin")
        aside.rename(root / "step_900")
        await watch.wished("step_900")


async def test_only_the_newest_of_many_is_refused(root: Path) -> None:
    for step in range(5):
        hold(root / f"step_{step}", "pytorch_model.bin")
    async with watching(root, patience=0.1) as watch:
        await watch.wished("step_4")
        await watch.look()
        assert watch.labels == ["step_4"]
        assert watch.passed_over_counts == {"format": 5}


async def test_a_checkpoint_with_other_formats_in_and_beside_it_is_none_of_this(root: Path) -> None:
    write(hold(root / "checkpoint-9", "optimizer.pt", "rng_state.pth", "global_step9/"))
    hold(root / "checkpoint-9" / "global_step9", "mp_rank_00_model_states.pt")
    hold(root / "data", "train.bin")
    hold(root / "logs" / "events", "scalars.txt")
    hold(root / "checkpoint-8", "pytorch_model.bin")
    hold(root / "checkpoint-9-torch", "pytorch_model.bin")
    async with watching(root, patience=0.1) as watch:
        await watch.wished("checkpoint-9")
        await watch.look()
        assert watch.passed_over == {}


async def test_weights_of_ours_below_make_the_rest_of_a_folder_harmless(root: Path) -> None:
    hold(root / "global_step_9" / "actor", "model_world_size_8_rank_0.pt")
    write(root / "global_step_9" / "actor" / "huggingface")
    hold(root / "global_step_10" / "actor", "model_world_size_8_rank_0.pt")
    async with watching(root) as watch:
        await watch.wished("huggingface")
        await watch.until(lambda: watch.passed_over == {"global_step_10/actor": "format"})


async def test_a_file_in_place_of_a_folder_is_named(root: Path) -> None:
    write(root / "step_1")
    hold(root, "epoch=3-step=200.ckpt", "metrics_step_7.json", "step_8.partial", "train.bin")
    async with watching(root) as watch:
        await watch.wished("step_1")
        await watch.until(lambda: watch.passed_over == {"epoch=3-step=200.ckpt": "format"})
        assert watch.passed_over_words[0].startswith("epoch=3-step=200.ckpt is a file that")


async def test_what_a_models_own_folder_gets_below_it_is_named(root: Path) -> None:
    write(root, "model")
    async with watching(root) as watch:
        await watch.wished("root")
        hold(root / "step_900", "pytorch_model.bin")
        await watch.passes_over(step_900="format")
        assert watch.labels == ["root"]


async def test_both_forms_in_one_folder_are_one_checkpoint(root: Path) -> None:
    hold(root / "step_900", "pytorch_model.bin")
    write(root / "step_900" / "hf")
    async with watching(root) as watch:
        await watch.wished("hf")
        await watch.look()
        assert watch.passed_over == {}


async def test_a_broken_one_is_not_handed_over_while_a_newer_one_settles(root: Path) -> None:
    clock = Clock()
    async with watching(root, clock=clock, settle=10.0, patience=50.0) as watch:
        hold(root / "step_1", "pytorch_model.bin")
        await watch.look()
        await later(watch, clock, 49)
        write(root / "step_2")
        await watch.look()
        await later(watch, clock, 5)
        assert watch.wishes == []
        await later(watch, clock, 5)
        await watch.look()
        await watch.wished("step_2")


async def test_a_root_of_another_format_is_named(root: Path) -> None:
    hold(root, "config.json", "pytorch_model.bin")
    async with watching(root) as watch:
        await watch.passes_over(root="format")


# --- names and places --------------------------------------------------------------------


async def test_a_newer_one_without_a_step_is_named_and_after_patience_refused(root: Path) -> None:
    clock = Clock()
    os.utime(write(root / "base") / "model.safetensors", (1e9, 1e9))
    old(write(root / "step_900"))
    write(root / "final")
    async with watching(root, clock=clock, **FAR) as watch:
        await later(watch, clock, 1)
        await watch.wished("step_900")
        await later(watch, clock, 1)
        await watch.passes_over(final="no_step")
        (words,) = watch.passed_over_words
        assert words.startswith("final has no step in its name, so step_900 counts as newer")
        assert "rename it as step_N" in words
        await later(watch, clock, 50)
        await watch.wished("step_900", "final")
        assert await refused(watch, "final", "no_step") == words
        content = await watch.source.resolve("final")
        assert content.id != watch.wishes[-1].id
        (root / "final").rename(root / "step_901")
        await watch.wishes_for("step_901")
        assert watch.wishes[-1].id == content.id
        await watch.passes_over()


async def test_half_of_one_without_a_step_is_named_after_patience(root: Path) -> None:
    clock = Clock()
    old(write(root / "step_900"))
    async with watching(root, clock=clock, **FAR) as watch:
        await later(watch, clock, 1)
        os.truncate(write(root / "final") / "model.safetensors", 100)
        await watch.look()
        await later(watch, clock, 49)
        assert watch.passed_over == {}
        await later(watch, clock, 1)
        await watch.passes_over(final="no_step")


async def test_a_copy_of_a_known_checkpoint_needs_no_step(root: Path) -> None:
    old(write(root / "step_900", "the best"))
    write(root / "best", "the best")
    async with watching(root, patience=0.1) as watch:
        await watch.wished("step_900")
        await watch.look()
        assert watch.passed_over == {}
        write(root / "best", "another")
        await watch.passes_over(best="no_step")


async def test_the_best_is_wished_before_one_without_a_step_is_read(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old(write(root / "step_900"))
    write(root / "final")
    wished_when_read: dict[str, int] = {}

    def identify(looked: Survey, digests: Digests, cancel: threading.Event | None) -> str:
        wished_when_read.setdefault(looked.folder.name, len(watch.wishes))
        return content_id(looked, digests, cancel)

    monkeypatch.setattr(seen_revisions, "content_id", identify)
    watch = Watching(root)
    running = asyncio.create_task(watch.run())
    await watch.passes_over(final="no_step")
    assert wished_when_read == {"step_900": 0, "final": 1}
    await watch.source.close()
    await running


async def test_to_ask_for_the_newest_at_all_says_nothing_else_of_the_others(root: Path) -> None:
    write(root / "step_1")
    hold(root / "step_2", "pytorch_model.bin")
    write(root / "step_3")
    async with watching(root) as watch:
        await watch.wished("step_3")
        forget(root / "step_3")
        await watch.look()
        assert (await watch.source.resolve(None)).label == "step_1"
        assert [event for event in watch.happened if isinstance(event, FoldersPassedOver)] == []


@pytest.mark.parametrize("order", ["time", "name"])
async def test_by_another_order_names_need_no_step(root: Path, order: str) -> None:
    old(write(root / "step_900"))
    write(root / "the_final_one")
    async with watching(root, order=order, patience=0.1) as watch:
        await watch.wished("the_final_one")
        await watch.look()
        assert watch.passed_over == {}


async def test_a_link_that_leads_outside_is_named_and_refused_and_hides_no_other(
    tmp_path: Path, root: Path
) -> None:
    write(tmp_path / "elsewhere" / "a")
    write(root / "step_1")
    (root / "step_900").symlink_to(tmp_path / "elsewhere" / "a")
    async with watching(root, rescan=0.05) as watch:
        await watch.wishes_for("step_900")
        await watch.passes_over(step_900="unsafe_path")
        words = await refused(watch, "step_900", "unsafe_path")
        assert words.startswith("step_900 is a link that leads out of the watched folder, to ")
        assert set(watch.labels) == {"step_1", "step_900"}
        await watch.until(lambda: watch.labels[-1] == "step_1")


async def test_what_lies_too_deep_is_named(root: Path) -> None:
    write(root / "a" / "b" / "c" / "step_8")
    write(root / "a" / "b" / "c" / "other")
    (root / "run").symlink_to("a/b/c")
    async with watching(root, patience=0.1) as watch:
        await watch.until(lambda: watch.passed_over == {"a/b/c/step_8": "too_deep"})
        assert watch.wishes == []


async def test_a_link_to_a_run_outside_is_named(tmp_path: Path, root: Path) -> None:
    write(tmp_path / "elsewhere" / "step_1")
    (root / "run").symlink_to(tmp_path / "elsewhere")
    async with watching(root) as watch:
        await watch.until(lambda: set(watch.passed_over) == {"run"})
        assert watch.passed_over == {"run": "unsafe_path"}
        assert watch.wishes == []


async def test_a_link_into_another_allowed_folder_is_no_link_outside(
    tmp_path: Path, root: Path
) -> None:
    write(tmp_path / "models" / "base")
    (root / "step_1").symlink_to(tmp_path / "models" / "base")
    async with watching(root, roots=[tmp_path / "models"]) as watch:
        await watch.until(lambda: bool(watch.wishes))
        assert watch.passed_over == {}


@pytest.mark.parametrize("has_config", [False, True])
async def test_a_stray_file_makes_no_checkpoint_of_a_root_that_has_some(
    root: Path, has_config: bool
) -> None:
    old(write(root / "step_1"))
    write(root, "stray")
    if has_config:
        (root / "config.json").write_text("{}")
    async with watching(root, order="time", patience=0.1, rescan=0.05) as watch:
        await watch.wishes_for("root")
        words = await refused(watch, "root", "stray")
        assert watch.labels[:2] == ["step_1", "root"]
        await watch.passes_over(root="stray")
        assert words.startswith("root holds model.safetensors beside folders that are checkpoints")


async def test_a_stray_copy_of_a_known_checkpoint_is_not_worth_a_word(root: Path) -> None:
    old(write(root / "checkpoint-500", "final"))
    write(root, "final")
    async with watching(root, patience=0.1) as watch:
        await watch.wished("checkpoint-500")
        for _ in range(3):
            await watch.look()
        assert [event for event in watch.happened if isinstance(event, FoldersPassedOver)] == []
        write(root, "another")
        await watch.passes_over(root="stray")


async def test_a_stray_file_is_judged_only_beside_a_good_checkpoint(root: Path) -> None:
    clock = Clock()
    write(root, "the same")
    async with watching(root, clock=clock, settle=10.0) as watch:
        await later(watch, clock, 9)
        write(root / "step_1", "the same")
        await watch.look()
        await later(watch, clock, 5)
        write(root / "step_1", "the same")
        await watch.look()
        await later(watch, clock, 9)
        assert watch.wishes == []
        await later(watch, clock, 1)
        await watch.wished("step_1")
        await watch.look()
        assert [event for event in watch.happened if isinstance(event, FoldersPassedOver)] == []


async def test_a_config_in_the_root_is_no_checkpoint_where_others_are(root: Path) -> None:
    write(hold(root, "config.json") / "step_1")
    async with watching(root, patience=0.1) as watch:
        await watch.wished("step_1")
        await watch.look()
        assert watch.passed_over == {}


async def test_a_models_own_folder_stays_one_whatever_form_it_holds_below(root: Path) -> None:
    write(hold(root, "config.json"), "model")
    write(root / "original")
    hold(root / "onnx", "model.onnx")
    async with watching(root, patience=0.1) as watch:
        await watch.wished("root")
        await watch.look()
        assert watch.labels == ["root"]
        assert watch.passed_over == {}


# --- what is begun, and never comes --------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: folder.mkdir(), "step_900 is empty"),
        (lambda folder: hold(folder, "README.md"), "step_900 holds no *.safetensors"),
        (lambda folder: hold(folder, "config.json"), "step_900 holds config.json and no *.saf"),
        (lambda folder: folder.symlink_to("gone"), "step_900 is a link that leads nowhere: gone"),
    ],
)
async def test_what_brings_no_weights_is_named_after_patience_and_never_refused(
    root: Path, make: Callable[[Path], object], words: str
) -> None:
    clock = Clock()
    write(root / "step_1")
    async with watching(root, clock=clock, **FAR) as watch:
        await later(watch, clock, 1)
        make(root / "step_900")
        await watch.look()
        await later(watch, clock, 49)
        assert watch.passed_over == {}
        await later(watch, clock, 1)
        await watch.passes_over(step_900="missing")
        assert watch.passed_over_words[0].startswith(words)
        await later(watch, clock, 1000)
        assert watch.labels == ["step_1"]
        (root / "step_900").unlink() if (root / "step_900").is_symlink() else forget(
            root / "step_900"
        )
        await watch.look()
        assert watch.passed_over == {}


async def test_until_then_it_is_what_is_waited_for(root: Path) -> None:
    clock = Clock()
    (root / "step_900").mkdir()
    async with watching(root, clock=clock, **FAR) as watch:
        await watch.waits_for("step_900 is empty")
        await later(watch, clock, 50)
        await watch.passes_over(step_900="missing")
        assert watch.waiting is None


async def test_a_folder_without_its_marker_is_named_after_patience_of_all_of_it(
    root: Path,
) -> None:
    clock = Clock()
    async with watching(root, marker="_SUCCESS", clock=clock, **FAR) as watch:
        folder = write(root / "step_900")
        await watch.look()
        await later(watch, clock, 40)
        (folder / "optimizer.pt").write_text("still at it")
        await watch.look()
        await later(watch, clock, 40)
        assert watch.passed_over == {}
        await later(watch, clock, 10)
        await watch.passes_over(step_900="no_marker")
        assert watch.passed_over_words[0].startswith("step_900 looks complete and has no _SUCCESS")
        assert watch.wishes == []
        (folder / "_SUCCESS").touch()
        await watch.wished("step_900")
        assert watch.passed_over == {}


@pytest.mark.parametrize("name", ["step_900.tmp", ".step_900", "900.orbax-checkpoint-tmp-7"])
async def test_what_is_called_unfinished_is_under_way_until_it_is_old(
    root: Path, name: str
) -> None:
    clock = Clock()
    write(root / "step_1")
    async with watching(root, clock=clock, **FAR) as watch:
        await later(watch, clock, 1)
        hold(root / name, "model.safetensors")
        await watch.look()
        await later(watch, clock, 499)
        assert watch.passed_over == {}
        (root / name / "more").touch()
        await watch.look()
        await later(watch, clock, 499)
        assert watch.passed_over == {}
        await later(watch, clock, 1)
        assert watch.passed_over == {name: "unfinished"}
        assert watch.labels == ["step_1"]


async def test_hidden_folders_that_mean_nothing_are_never_named(root: Path) -> None:
    hold(root / ".cache" / "x", "model.bin")
    hold(root / ".ipynb_checkpoints", "a")
    hold(root / "lost+found")
    hold(root / "tensorboard")
    clock = Clock()
    async with watching(root, clock=clock, **FAR) as watch:
        await later(watch, clock, 1e6)
        assert watch.passed_over == {}


@pytest.mark.parametrize("name", ["step_900", "run"])
async def test_a_folder_that_cannot_be_read_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    really = os.scandir

    def scandir(path: str | bytes | Path) -> object:
        if Path(os.fsdecode(path)).name in (name, "lost+found"):
            raise PermissionError(13, "Permission denied")
        return really(path)

    monkeypatch.setattr("os.scandir", scandir)
    old(write(root / "step_1"))
    hold(root / name)
    hold(root / "lost+found")
    async with watching(root) as watch:
        await watch.wished("step_1")
        await watch.until(lambda: watch.passed_over == {name: "io"})
        assert watch.passed_over_words[0].startswith(f"{name} cannot be read: Permission denied")


# --- how much is said ------------------------------------------------------------------


async def test_some_are_named_and_the_others_counted(root: Path) -> None:
    for step in range(MOST_PASSED_OVER + 30):
        hold(root / f"step_{step}", "pytorch_model.bin")
    hold(root / "step_1000", "_METADATA")
    async with watching(root) as watch:
        await watch.until(lambda: watch.passed_over_counts == {"format": MOST_PASSED_OVER + 31})
        assert len(watch.passed_over) == MOST_PASSED_OVER
        assert next(iter(watch.passed_over)) == "step_1000"
        assert "step_0" not in watch.passed_over


async def test_nothing_is_said_again_as_long_as_nothing_changes(root: Path) -> None:
    hold(root / "step_900", "pytorch_model.bin")
    async with watching(root) as watch:
        await watch.passes_over(step_900="format")
        for _ in range(3):
            await watch.look()
        told = [event for event in watch.happened if isinstance(event, FoldersPassedOver)]
        assert len(told) == 1
        arrive(root / "step_901")
        await watch.wishes_for("step_901")
        await watch.passes_over()
        shutil.rmtree(root / "step_901")
        await watch.look()
        assert watch.passed_over == {}


@pytest.mark.parametrize("name", ["step_9\n", "step_9\udcff", "step_9" + "x" * 200])
async def test_strange_names_are_shown_on_one_line(root: Path, name: str) -> None:
    hold(root / name, "pytorch_model.bin")
    async with watching(root) as watch:
        await watch.until(lambda: bool(watch.passed_over))
        (words,) = watch.passed_over_words
        assert words.isprintable()
        assert words.encode()
