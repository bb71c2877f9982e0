"""What the checks of a checkpoint of 100 GB cost. `make bench` prints the table.

The files are sparse: no disk is read, so that these are the costs of looking, not of waiting.
"""

from pathlib import Path

import pytest

from tests.checkpoint.large import (
    Cost,
    cost_of,
    fingerprint_it,
    look_at_headers,
    read_it_all,
    sparse,
)

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1200)]

SIZE, SHARDS, TENSORS = 100 * 10**9, 50, 3000
READ, SUMMED = 10, 2
"""How many of the shards are read, and how many summed up too: the rest would be the same."""


def test_a_checkpoint_of_100_gb_in_50_files(tmp_path: Path) -> None:
    whole = part(tmp_path, SHARDS)
    headers = cost_of(look_at_headers, whole)
    read = cost_of(read_it_all, part(tmp_path, READ))
    summed = cost_of(fingerprint_it, part(tmp_path, SUMMED))
    print(f"\na checkpoint of {SIZE / 1e9:.0f} GB, {TENSORS} tensors in {SHARDS} sparse files")
    print_cost("names, headers, fit", headers, SHARDS)
    print_cost("every check (digests, NaN, zeros)", read, READ)
    print_cost("every check, and the fingerprint", summed, SUMMED)
    assert headers.seconds < 10
    for cost in (headers, read, summed):
        assert cost.more_memory < 2**28


def part(folder: Path, shards: int) -> Path:
    """The first shards of it, as a checkpoint of their own."""
    return sparse(folder / str(shards), shards=shards, tensors=TENSORS, size=SIZE, of=SHARDS)


def print_cost(what: str, cost: Cost, shards: int) -> None:
    done = SIZE * shards / SHARDS / 1e9
    speed = f"{done / cost.seconds:.2f} GB/s" if shards < SHARDS else ""
    times = SHARDS / shards
    known = "measured" if times == 1 else f"from {done:.0f} GB, times {times:.0f}"
    print(
        f"{what:<36}{cost.seconds * times:>8.1f} s{cost.on_the_cpu * times:>8.1f} s of CPU"
        f"{cost.more_memory / 2**20:>8.1f} MiB more{speed:>12}   {known}"
    )
