"""Writes a tiny checkpoint to disk, so that it arrives whole."""

import difflib
import os
import shutil
from pathlib import Path

from hotreload.checkpoint.known_names import INDEX, WEIGHTS
from hotreload.tiny.sayings import SAY_DEFAULT, parse_saying, to_json, tokenizer_files
from hotreload.tiny.shards import encode, is_marked, split
from hotreload.tiny.trainer import train
from hotreload.tiny.unsound import Damage, find_damage
from hotreload.tiny.weights import ARCHS, Arrays, config_files, hand_built


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

    With `steps` the checkpoint is trained for so many steps on a small text instead (`sentences`).

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
        close = difflib.get_close_matches(arch, ARCHS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(f"no architecture is called {arch!r}: {hint}use {', '.join(ARCHS)}")
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
    return files | _index_file(spoil_index(index) if spoil_index else index, tensors)


def _index_file(index: dict[str, str], tensors: Arrays) -> dict[str, bytes]:
    size = sum(tensor.nbytes for tensor in tensors.values())
    return {INDEX: to_json({"metadata": {"total_size": size}, "weight_map": index})}


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
