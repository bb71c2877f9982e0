"""Which files beside the weights outlive a start; no engine is needed for that."""

import os
from pathlib import Path

import pytest

from hotreload.life.start.model_files import copy_side_files, keep_model, kept_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model of a hub"
    (folder / "more").mkdir(parents=True)
    beside = ("config.json", "tokenizer.model", "chat_template.jinja", "modeling.py")
    weights = ("model.safetensors", "model.safetensors.index.json", "optimizer.pt")
    for name in (*beside, *weights):
        (folder / name).write_text(name)
    return folder


SIDE_FILES = ["chat_template.jinja", "config.json", "modeling.py", "tokenizer.model"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_all_but_weights_is_copied(model: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    copy_side_files(model, tmp_path / "copy")
    assert names(tmp_path / "copy") == SIDE_FILES


async def test_what_an_engine_was_started_with_is_kept_and_replaced_whole(
    model: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    assert kept_model(state) is None
    await keep_model(model, state, is_configured=False)
    kept = kept_model(state)
    assert kept is not None
    assert names(kept) == SIDE_FILES
    (model / "modeling.py").unlink()
    await keep_model(model, state, is_configured=False)
    assert names(kept) == [name for name in SIDE_FILES if name != "modeling.py"]
    await keep_model(kept, state, is_configured=False)  # as every later start does
    assert kept_model(state) == kept
    assert names(state) == ["model"]


async def test_a_model_that_is_configured_takes_the_place_of_what_was_kept(
    model: Path, tmp_path: Path
) -> None:
    await keep_model(model, tmp_path / "state", is_configured=False)
    await keep_model(model, tmp_path / "state", is_configured=True)
    assert kept_model(tmp_path / "state") is None


async def test_a_disk_that_refuses_is_told_and_keeps_nobody_from_serving(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state").write_text("no folder")
    await keep_model(model, tmp_path / "state", is_configured=False)
    assert "boot.model_not_kept" in caplog.text
    assert kept_model(tmp_path / "state") is None


async def test_a_copy_that_was_cut_short_is_no_model(model: Path, tmp_path: Path) -> None:
    os.makedirs(tmp_path / "state" / "model.new")
    (tmp_path / "state" / "model.new" / "config.json").write_text("{}")
    assert kept_model(tmp_path / "state") is None
    await keep_model(model, tmp_path / "state", is_configured=False)
    assert names(tmp_path / "state") == ["model"]
