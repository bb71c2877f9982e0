"""The files of a tiny checkpoint, and every way to spoil them."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file
from transformers import AutoConfig, GenerationConfig

from hotreload.checkpoint.known_names import INDEX
from hotreload.tiny import ARCHS, UNSOUND, write_tiny
from hotreload.tiny.sayings import END_ID

KINDS = [damage.kind for damage in UNSOUND]
SPOILT = "model.layers.0.mlp.up_proj.weight"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def entries(file: Path) -> list[tuple[str, Any]]:
    """The header's pairs, a name that stands twice included."""
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    pairs: list[tuple[str, Any]] = json.loads(raw[8 : 8 + length], object_pairs_hook=list)
    return [(name, dict(entry)) for name, entry in pairs if name != "__metadata__"]


def tensors(folder: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Dtype, shape and bytes of every tensor, checked against the safetensors library."""
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        raw = file.read_bytes()
        data = raw[8 + int.from_bytes(raw[:8], "little") :]
        with safe_open(file, framework="numpy") as library:  # type: ignore[no-untyped-call]
            assert set(library.keys()) == {name for name, _ in entries(file)}
        for name, entry in entries(file):
            start, end = entry["data_offsets"]
            found[name] = (entry["dtype"], tuple(entry["shape"]), data[start:end])
    return found


def values(folder: Path) -> Iterator[np.ndarray[Any, Any]]:
    for dtype, _, raw in tensors(folder).values():
        assert dtype == "BF16"
        yield (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("arch", ARCHS)
def test_transformers_reads_the_config(tmp_path: Path, arch: str) -> None:
    config = AutoConfig.from_pretrained(write_tiny(tmp_path / "a", arch=arch))
    generation = GenerationConfig.from_pretrained(tmp_path / "a")
    assert config.model_type == arch
    assert config.eos_token_id == generation.eos_token_id == END_ID
    assert tensors(tmp_path / "a")["lm_head.weight"][1] == (config.vocab_size, config.hidden_size)
    assert all(dtype == "BF16" for dtype, _, _ in tensors(tmp_path / "a").values())


def test_the_same_text_gives_the_same_bytes(tmp_path: Path) -> None:
    assert contents(write_tiny(tmp_path / "a")) == contents(write_tiny(tmp_path / "b"))


def test_all_checkpoints_share_one_tokenizer(tmp_path: Path) -> None:
    one, other = write_tiny(tmp_path / "a"), write_tiny(tmp_path / "b", "good night 5", "llama", 2)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes()


@pytest.mark.parametrize("shards", [2, 3, 25])
def test_shards_hold_the_same_tensors_as_one_file(tmp_path: Path, shards: int) -> None:
    whole, parts = write_tiny(tmp_path / "a"), write_tiny(tmp_path / "b", shards=shards)
    assert tensors(whole) == tensors(parts)
    assert not (whole / INDEX).exists()
    index = json.loads((parts / INDEX).read_bytes())
    held = {n: f.name for f in parts.glob("model-*-of-*.safetensors") for n, _ in entries(f)}
    assert index["weight_map"] == held
    assert len(set(held.values())) == shards
    assert index["metadata"]["total_size"] == sum(len(raw) for _, _, raw in tensors(parts).values())


def test_a_checkpoint_is_written_in_well_under_a_second_of_work(tmp_path: Path) -> None:
    start = time.thread_time()
    write_tiny(tmp_path / "a")
    assert time.thread_time() - start < 1


def test_importing_it_brings_no_engine_and_no_transformers() -> None:
    code = "import sys, hotreload.tiny; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"jax", "transformers", "safetensors", "torch", "flax"} & set(run.stdout.split())


def test_nothing_is_left_beside_the_folder(tmp_path: Path) -> None:
    assert write_tiny(tmp_path / "deep" / "a") == tmp_path / "deep" / "a"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a"]


def test_by_force_a_tiny_checkpoint_is_replaced_and_other_files_stay(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "a", shards=3)
    (folder / "notes.txt").write_text("mine")
    write_tiny(folder, "good night 5", force=True)
    fresh = contents(write_tiny(tmp_path / "b", "good night 5"))
    assert contents(folder) == {**fresh, "notes.txt": b"mine"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_spoiled_one_is_known_as_our_own(tmp_path: Path, kind: str) -> None:
    folder = write_tiny(tmp_path / "a", shards=2, damage=kind)
    assert contents(write_tiny(folder, force=True)) == contents(write_tiny(tmp_path / "b"))


def written(folder: Path) -> dict[Path, tuple[int, ...]]:
    """All that a writer would change; who only reads moves the time of the last reading."""
    found = {path: path.stat() for path in (folder, *folder.iterdir())}
    return {path: (at.st_ino, at.st_size, at.st_mtime_ns) for path, at in found.items()}


def as_it_is(folder: Path) -> None:
    pass


def trained(folder: Path) -> None:
    """Saved as transformers does it: the config keeps what it does not know, the weights do not."""
    for file in folder.glob("*.safetensors"):
        save_file(load_file(file), file, {"format": "pt"})


def half_trained(folder: Path) -> None:
    last = max(folder.glob("*.safetensors"))
    save_file(load_file(last), last, {"format": "pt"})


def of_pickles(folder: Path) -> None:
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"weights")


def cut_in_the_header(folder: Path) -> None:
    os.truncate(max(folder.glob("*.safetensors")), 40)


def with_a_pipe(folder: Path) -> None:
    os.mkfifo(folder / "z.safetensors")


def of_something_else(folder: Path) -> None:
    shutil.rmtree(folder)
    (folder / "step_1").mkdir(parents=True)


@pytest.mark.parametrize(
    ("change", "force"),
    [
        (as_it_is, False),
        (trained, True),
        (half_trained, True),
        (of_pickles, True),
        (cut_in_the_header, True),
        (with_a_pipe, True),
        (of_something_else, True),
    ],
)
def test_what_is_in_a_folder_is_not_touched(
    tmp_path: Path, change: Callable[[Path], None], force: bool
) -> None:
    folder = write_tiny(tmp_path / "a", shards=2)
    change(folder)
    before = written(folder)
    with pytest.raises(ValueError, match=r"a is not empty \(.*\): name a new folder"):
        write_tiny(folder, "good night 5", force=force)
    assert written(folder) == before
    assert list(tmp_path.iterdir()) == [folder]


def test_an_empty_folder_that_exists_is_filled(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert contents(write_tiny(tmp_path / "a")) == contents(write_tiny(tmp_path / "b"))


@pytest.mark.parametrize(
    ("asked", "advice"),
    [
        ({"arch": "qwen"}, "no architecture is called 'qwen': did you mean 'qwen[23]'"),
        ({"arch": "gpt"}, "use qwen3, qwen2, llama"),
        ({"shards": 0}, "0 shards: choose from 1 to 25"),
        ({"shards": 26}, "26 shards: choose from 1 to 25"),
        ({"damage": "truncate"}, "no damage is called 'truncate': did you mean 'truncated'"),
        ({"damage": "fire"}, "choose from truncated, missing-tensor"),
        ({"say": "hello"}, "must end in a number"),
    ],
)
def test_a_wrong_wish_writes_nothing_and_says_what_to_change(
    tmp_path: Path, asked: dict[str, Any], advice: str
) -> None:
    with pytest.raises(ValueError, match=advice):
        write_tiny(tmp_path / "a", **asked)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(ValueError, match="is a file: name a folder"):
        write_tiny(tmp_path / "a")


def test_the_kinds_of_damage_are_those_of_the_contract() -> None:
    kinds = (
        "truncated missing-tensor extra-tensor wrong-shape wrong-dtype nan inf zeros gibberish "
        "bad-index traversal duplicate-key"
    )
    assert kinds.split() == KINDS
    assert all(damage.meaning for damage in UNSOUND)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_damage_changes_weight_files_or_index_and_nothing_else(
    tmp_path: Path, kind: str, shards: int
) -> None:
    sound = contents(write_tiny(tmp_path / "a", shards=shards))
    spoilt = contents(write_tiny(tmp_path / "b", shards=shards, damage=kind))
    changed = {name for name in sound | spoilt if sound.get(name) != spoilt.get(name)}
    assert changed
    assert all("safetensors" in name for name in changed)


@pytest.mark.parametrize("shards", [1, 3])
def test_truncated_cannot_be_read(tmp_path: Path, shards: int) -> None:
    folder = write_tiny(tmp_path / "a", shards=shards, damage="truncated")
    with pytest.raises(SafetensorError):
        tensors(folder)


def test_a_missing_tensor_is_in_no_file(tmp_path: Path) -> None:
    sound, spoilt = write_tiny(tmp_path / "a"), write_tiny(tmp_path / "b", damage="missing-tensor")
    assert tensors(sound).keys() - tensors(spoilt).keys() == {SPOILT}


def test_an_extra_tensor_is_of_no_layer(tmp_path: Path) -> None:
    sound, spoilt = write_tiny(tmp_path / "a"), write_tiny(tmp_path / "b", damage="extra-tensor")
    assert tensors(spoilt).keys() - tensors(sound).keys() == {SPOILT.replace(".0.", ".99.")}


@pytest.mark.parametrize(
    ("kind", "part", "was", "now"),
    [("wrong-shape", 1, (256, 256), (255, 256)), ("wrong-dtype", 0, "BF16", "F32")],
)
def test_one_tensor_has_the_wrong_signature(
    tmp_path: Path, kind: str, part: int, was: object, now: object
) -> None:
    sound, spoilt = (write_tiny(tmp_path / str(k), damage=k) for k in (None, kind))
    assert tensors(sound)[SPOILT][part] == was
    assert tensors(spoilt)[SPOILT][part] == now
    others = tensors(sound).keys() - {SPOILT}
    assert all(tensors(sound)[name] == tensors(spoilt)[name] for name in others)


@pytest.mark.parametrize("kind", ["nan", "inf"])
def test_one_value_is_not_finite(tmp_path: Path, kind: str) -> None:
    folder = write_tiny(tmp_path / "a", damage=kind)
    bad = [value for tensor in values(folder) for value in tensor[~np.isfinite(tensor)]]
    assert len(bad) == 1
    assert (np.isnan if kind == "nan" else np.isinf)(bad[0])


def test_zeros_are_all_zero(tmp_path: Path) -> None:
    assert not any(tensor.any() for tensor in values(write_tiny(tmp_path / "a", damage="zeros")))


@pytest.mark.parametrize("shards", [1, 3])
def test_a_bad_index_names_a_file_that_is_not_there(tmp_path: Path, shards: int) -> None:
    folder = write_tiny(tmp_path / "a", shards=shards, damage="bad-index")
    index = json.loads((folder / INDEX).read_bytes())["weight_map"]
    assert [name for name, file in index.items() if not (folder / file).exists()] == [
        "lm_head.weight"
    ]


@pytest.mark.parametrize("shards", [1, 3])
def test_traversal_leads_out_of_the_folder(tmp_path: Path, shards: int) -> None:
    folder = write_tiny(tmp_path / "a", shards=shards, damage="traversal")
    index = json.loads((folder / INDEX).read_bytes())["weight_map"]
    assert index["lm_head.weight"].startswith("../")
    assert sum(".." in file for file in index.values()) == 1


@pytest.mark.parametrize("shards", [1, 3])
def test_a_duplicate_key_is_read_without_complaint_by_the_library(
    tmp_path: Path, shards: int
) -> None:
    folder = write_tiny(tmp_path / "a", shards=shards, damage="duplicate-key")
    assert "lm_head.weight" in tensors(folder)
    names = [name for file in folder.glob("*.safetensors") for name, _ in entries(file)]
    assert [name for name in set(names) if names.count(name) > 1] == ["lm_head.weight"]
