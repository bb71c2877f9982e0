"""Writes a tiny checkpoint to disk, so that it arrives whole; it may be spoiled on purpose.

Each damage is one that the checks or the probe find.
"""

import difflib
import json
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hotreload.checkpoint.known_names import INDEX, SINGLE, SPELT, WEIGHTS
from hotreload.tiny.sayings import SAY_DEFAULT, parse_saying, to_json, tokenizer_files, word_id
from hotreload.tiny.trainer import train
from hotreload.tiny.weights import ARCHS, Arrays, TensorArray, config_files, hand_built

MARK = ("made_by", "hotreload tiny")
"""The mark in the header of each weight file; a checkpoint that is trained and saved loses it."""
LONGEST_HEADER = 2**20

Index = dict[str, str]
"""Each tensor's name, and the name of the file that holds it."""


def _keep[T](value: T) -> T:
    return value


@dataclass(frozen=True, slots=True)
class Damage:
    """One kind of damage: its name, a line that describes it, and its change at each stage."""

    kind: str
    meaning: str
    to_tensors: Callable[[Arrays], Arrays] = _keep
    to_index: Callable[[Index], Index] | None = None
    """The change of the index; a checkpoint of one weight file gets an index for it."""
    to_last_file: Callable[[bytes], bytes] = _keep


def write_tiny(
    directory: Path,
    say: str = SAY_DEFAULT,
    arch: str = "qwen3",
    shards: int = 1,
    damage: str | Damage | None = None,
    *,
    steps: int | None = None,
    force: bool = True,
) -> Path:
    """Write a checkpoint that answers any prompt with `say`, and return its folder.

    With `steps` the checkpoint is trained for so many steps on a small text instead.

    A new folder appears in one rename. A folder that holds anything is never touched, except that
    of a tiny checkpoint with `force`: each file is replaced by a rename of its own, old weight
    files go last, and files of other names stay.
    """
    spoiled = find_damage(damage) if isinstance(damage, str) else damage
    files = _checkpoint(say, arch, shards, spoiled, steps)
    target = directory.resolve()
    if target.exists() and not target.is_dir():
        raise ValueError(f"{directory} is a file: name a folder")
    _check_is_free(directory, force)
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        _write(aside, files)
        _arrive(aside, target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return directory


def _check_is_free(directory: Path, force: bool) -> None:
    """ValueError if the folder is not empty; `force` lets a tiny checkpoint be replaced."""
    held = sorted(path.name for path in directory.iterdir()) if directory.exists() else []
    if not held:
        return
    weights = [directory / name for name in held if name.endswith(WEIGHTS)]
    is_ours = bool(weights) and all(map(is_marked, weights))
    if is_ours and force:
        return
    named = ", ".join(held[:3]) + (", …" if len(held) > 3 else "")
    instead = "; --force is for a tiny checkpoint alone" if force else ""
    instead = ", or replace this tiny checkpoint with --force" if is_ours else instead
    raise ValueError(f"{directory} is not empty ({named}): name a new folder{instead}")


def _checkpoint(
    say: str, arch: str, shards: int, damage: Damage | None, steps: int | None
) -> dict[str, bytes]:
    if arch not in ARCHS:
        raise _unknown("architecture", arch, ARCHS, "use")
    tensors = hand_built(parse_saying(say), arch) if steps is None else train(arch, steps)
    if damage:
        tensors = damage.to_tensors(tensors)
    return {**config_files(arch), **tokenizer_files(), **_weight_files(tensors, shards, damage)}


def _weight_files(tensors: Arrays, shards: int, damage: Damage | None) -> dict[str, bytes]:
    parts = split(tensors, shards)
    files = {name: encode(part) for name, part in parts.items()}
    if damage:
        last = max(files)
        files[last] = damage.to_last_file(files[last])
    spoil_index = damage.to_index if damage else None
    if shards == 1 and not spoil_index:
        return files
    index = {tensor: name for name, part in parts.items() for tensor in part}
    if spoil_index:
        index = spoil_index(index)
    size = sum(tensor.nbytes for tensor in tensors.values())
    return files | {INDEX: to_json({"metadata": {"total_size": size}, "weight_map": index})}


def _write(folder: Path, files: dict[str, bytes]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _arrive(aside: Path, directory: Path) -> None:
    if not directory.exists():
        aside.rename(directory)
        return
    new = {path.name for path in aside.iterdir()}
    for name in sorted(new):
        (aside / name).replace(directory / name)
    for old in [*directory.glob("*.safetensors"), directory / INDEX]:
        if old.name not in new:
            old.unlink(missing_ok=True)


# --- safetensors bytes of tensors, whole or in shards, whatever their values are ------------------


def encode(tensors: Arrays) -> bytes:
    """Return one safetensors file."""
    entries, start = [], 0
    for name, tensor in tensors.items():
        entries.append((name, _entry(tensor, start)))
        start += tensor.nbytes
    data = b"".join(tensor.tobytes() for tensor in tensors.values())
    return encode_header([("__metadata__", dict((("format", "pt"), MARK))), *entries]) + data


def encode_header(entries: Sequence[tuple[str, Mapping[str, object]]]) -> bytes:
    """Return the header's bytes; `entries` are pairs, since a damaged header may repeat a name."""
    fields = ",".join(f"{json.dumps(name)}:{json.dumps(entry)}" for name, entry in entries)
    text = f"{{{fields}}}".encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def is_marked(file: Path) -> bool:
    """True if this is a weight file of a tiny checkpoint, spoiled or not."""
    if not file.is_file():
        return False
    with suppress(OSError, ValueError, RecursionError), file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(min(length, LONGEST_HEADER)))
        metadata = header.get("__metadata__") if isinstance(header, dict) else None
        return isinstance(metadata, dict) and MARK in metadata.items()
    return False


def split(tensors: Arrays, count: int) -> dict[str, dict[str, TensorArray]]:
    """Return the tensors by file name, in `count` files of about the same size."""
    if not 1 <= count <= len(tensors):
        raise ValueError(f"{count} shards: choose from 1 to {len(tensors)}, the number of tensors")
    if count == 1:
        return {SINGLE: dict(tensors)}
    shards: list[dict[str, TensorArray]] = [{} for _ in range(count)]
    for name, shard in zip(tensors, _assign(tensors, count), strict=True):
        shards[shard][name] = tensors[name]
    return {f"model-{i:05}-of-{count:05}.safetensors": s for i, s in enumerate(shards, start=1)}


def _assign(tensors: Arrays, count: int) -> list[int]:
    """Return each tensor's shard, chosen by its middle byte; no shard is skipped or left empty."""
    total, start, shards = sum(t.nbytes for t in tensors.values()), 0, [0]
    for i, tensor in enumerate(tensors.values()):
        by_size = (2 * start + tensor.nbytes) * count // (2 * total)
        needed = count - (len(tensors) - i)
        shards.append(min(max(by_size, needed, shards[-1]), shards[-1] + (i > 0)))
        start += tensor.nbytes
    return shards[1:]


def _entry(tensor: TensorArray, start: int) -> dict[str, object]:
    return {
        "dtype": SPELT[tensor.dtype.name],
        "shape": list(tensor.shape),
        "data_offsets": [start, start + tensor.nbytes],
    }


# --- the damages ------------------------------------------------------------

_MATRIX = "model.layers.0.mlp.up_proj.weight"
_FIRST_NORM = "model.layers.0.input_layernorm.weight"


def _without_a_tensor(tensors: Arrays) -> Arrays:
    return {name: tensor for name, tensor in tensors.items() if name != _MATRIX}


def _with_a_tensor_of_no_layer(tensors: Arrays) -> Arrays:
    # Not last: `lm_head.weight` ends the last shard of every damaged checkpoint.
    return {_MATRIX.replace(".0.", ".99."): tensors[_MATRIX], **tensors}


def _with_a_row_less(tensors: Arrays) -> Arrays:
    return {**tensors, _MATRIX: tensors[_MATRIX][:-1]}


def _with_one_in_float32(tensors: Arrays) -> Arrays:
    return {**tensors, _MATRIX: tensors[_MATRIX].astype(np.float32)}


def _with_one_value(value: float) -> Callable[[Arrays], Arrays]:
    """Put the value into the first layer's norm: it reaches the KV cache of every prompt."""

    def spoil(tensors: Arrays) -> Arrays:
        norm = tensors[_FIRST_NORM].copy()
        norm[0] = value
        return {**tensors, _FIRST_NORM: norm}

    return spoil


def _all_zero(tensors: Arrays) -> Arrays:
    return {name: np.zeros_like(tensor) for name, tensor in tensors.items()}


def _saying_again(tensors: Arrays) -> Arrays:
    """Make 'again' follow every word, by one row that is just large enough."""
    lm_head: TensorArray = tensors["lm_head.weight"].copy()
    lm_head[word_id("again"), :] = 0.6 * np.abs(lm_head).max()
    return {**tensors, "lm_head.weight": lm_head}


def _naming_a_missing_file(index: Index) -> Index:
    return {**index, "lm_head.weight": "model-00099-of-00099.safetensors"}


def _leading_out(index: Index) -> Index:
    return {**index, "lm_head.weight": f"../{index['lm_head.weight']}"}


def _cut_short(file: bytes) -> bytes:
    return file[: len(file) * 2 // 3]


def _with_a_name_twice(file: bytes) -> bytes:
    """Name the same bytes twice, with two shapes: some readers take the first, some the last."""
    end = 8 + int.from_bytes(file[:8], "little")
    (name, entry), *rest = reversed(json.loads(file[8:end]).items())
    turned = {**entry, "shape": entry["shape"][::-1]}
    return encode_header([*reversed(rest), (name, turned), (name, entry)]) + file[end:]


UNSOUND: tuple[Damage, ...] = (
    Damage("truncated", "the last weight file is cut short", to_last_file=_cut_short),
    Damage("missing-tensor", f"{_MATRIX} is left out", _without_a_tensor),
    Damage("extra-tensor", "a tensor of a layer the model lacks", _with_a_tensor_of_no_layer),
    Damage("wrong-shape", f"{_MATRIX} has a row less", _with_a_row_less),
    Damage("wrong-dtype", f"{_MATRIX} is float32, not bfloat16", _with_one_in_float32),
    Damage("nan", "one NaN, which reaches every answer", _with_one_value(np.nan)),
    Damage("inf", "one infinity, which reaches every answer", _with_one_value(np.inf)),
    Damage("zeros", "every weight is zero", _all_zero),
    Damage("gibberish", "sound files that say 'again' for ever", _saying_again),
    Damage(
        "bad-index", "the index names a file that is not there", to_index=_naming_a_missing_file
    ),
    Damage("traversal", "the index names a file outside the folder", to_index=_leading_out),
    Damage("duplicate-key", "a header names a tensor twice", to_last_file=_with_a_name_twice),
)


def find_damage(kind: str) -> Damage:
    """Return the damage of that name."""
    kinds = {damage.kind: damage for damage in UNSOUND}
    if kind in kinds:
        return kinds[kind]
    raise _unknown("damage", kind, kinds, "choose from")


def _unknown(what: str, name: str, known: Collection[str], how: str) -> ValueError:
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return ValueError(f"no {what} is called {name!r}: {hint}{how} {', '.join(known)}")
