"""Checkpoints as large as one likes that take no room on the disk, and what a look at one costs."""

import json
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from hotreload.checkpoint.check import findings
from hotreload.checkpoint.fit import Policy, read_served_model, tensor_findings, tensors_by_name
from hotreload.checkpoint.survey import survey
from hotreload.tiny.write import encode_header
from tests.checkpoint.written import CONFIG, entry, write_index

ROW = 1024
ONE = b"\x80\x3f"
"""As bfloat16."""


def sparse(folder: Path, *, shards: int, tensors: int, size: int, of: int | None = None) -> Path:
    """A sharded checkpoint of `tensors` zeros, but for each shard's first value, in sparse files.

    With `of` these are only the first shards of so many, as a checkpoint of its own.
    """
    folder.mkdir()
    parts = of or shards
    rows = size // tensors // (2 * ROW)
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        names = [f"model.layers.{n}.mlp.up_proj.weight" for n in range(shard, tensors, parts)]
        _write_shard(folder / file, names, rows)
        weight_map |= dict.fromkeys(names, file)
    write_index(folder, weight_map)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "torch_dtype": "bfloat16"}))
    return folder


def _write_shard(path: Path, names: list[str], rows: int) -> None:
    size = rows * ROW * 2
    entries = [
        (name, entry([rows, ROW], n * size, (n + 1) * size, "BF16")) for n, name in enumerate(names)
    ]
    header = encode_header(entries)
    with path.open("wb") as file:
        file.write(header + ONE)
        file.truncate(len(header) + len(names) * size)


def look_at_headers(folder: Path) -> None:
    """All that is known of a checkpoint before a byte of its weights is read."""
    served, looked = read_served_model(folder), survey(folder)
    found, duplicates = tensors_by_name(looked)
    assert looked.waiting_for is None
    assert not duplicates
    assert not list(tensor_findings(found, served, Policy()))


def read_it_all(folder: Path) -> None:
    """Every check there is."""
    report = findings(folder, read_served_model(folder), Policy())
    assert report.fit, report.findings
    assert report.held.keys() == report.tensors.keys()


def fingerprint_it(folder: Path) -> None:
    """Every check, and the fingerprint."""
    assert findings(folder, None, Policy(), compute_in="auto").fingerprint


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one look at a checkpoint in a process of its own."""

    seconds: float
    on_the_cpu: float
    more_memory: int
    """By how many bytes the process grew at most."""


def cost_of(look: Callable[[Path], None], folder: Path) -> Cost:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
        return processes.submit(_cost, look, folder).result()


def _cost(look: Callable[[Path], None], folder: Path) -> Cost:
    before, began, busy = _memory("VmRSS"), time.perf_counter(), time.process_time()
    look(folder)
    seconds, on_the_cpu = time.perf_counter() - began, time.process_time() - busy
    return Cost(seconds, on_the_cpu, _memory("VmHWM") - before)


def _memory(row: str) -> int:
    """Of this process; `getrusage` counts what its parent took, too."""
    status = Path("/proc/self/status").read_text()
    [line] = (line for line in status.splitlines() if line.startswith(f"{row}:"))
    return int(line.split()[1]) * 1024
