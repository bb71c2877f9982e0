import os
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

from hotreload.checkpoint import content
from hotreload.checkpoint.content import Content, examine
from hotreload.checkpoint.file_reader import Cancelled, OpenFile
from hotreload.checkpoint.findings import Unfit, with_file
from hotreload.checkpoint.safetensors import read_header
from hotreload.quiet import LITTLE, LOUD, QUIET, Quiet
from tests.checkpoint.written import digest_of_shard, safetensors

FLOATS = [
    ml_dtypes.bfloat16,
    np.float16,
    np.float32,
    np.float64,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
]


def look(tmp_path: Path, tensors: dict[str, Any]) -> Content:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors(tensors))
    found = with_file(path, path.name, lambda file: examine(file, read_header(file)))
    written = path.read_bytes()
    assert found.digest == digest_of_shard(written)
    assert found.held.keys() == tensors.keys()
    for name, lies in found.held.items():
        held = written[lies.begin : lies.end]
        assert (lies.file, held) == (path.name, tensors[name].tobytes())
        assert lies.digest == xxhash.xxh3_128_hexdigest(held)
    return found


@pytest.fixture(params=[16, 64, content.BUFFER])
def buffer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small buffers, so that a tensor is cut in pieces and a piece holds several."""
    monkeypatch.setattr(content, "BUFFER", request.param)


@given(
    piece=st.integers(1, 40).map(lambda words: 8 * words),
    sizes=st.lists(st.integers(0, 90), max_size=12),
    dtypes=st.lists(st.sampled_from([*FLOATS, np.int8, np.int64]), min_size=1, max_size=3),
)
@example(piece=8, sizes=[0, 0], dtypes=[np.int8])
@example(piece=16, sizes=[16, 0, 16, 0], dtypes=[np.int8])
def test_each_tensors_bytes_are_digested_wherever_the_pieces_end(
    tmp_path_factory: pytest.TempPathFactory, piece: int, sizes: list[int], dtypes: list[Any]
) -> None:
    tensors = {
        f"t{number}": np.arange(size).astype(dtypes[number % len(dtypes)])
        for number, size in enumerate(sizes)
    }
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(content, "BUFFER", piece)
        look(tmp_path_factory.getbasetemp(), tensors)


@pytest.mark.usefixtures("buffer")
@pytest.mark.parametrize("dtype", FLOATS)
def test_every_bit_pattern_is_judged_as_its_dtype_would(tmp_path: Path, dtype: Any) -> None:
    width = np.dtype(dtype).itemsize
    bits = np.arange(2 ** (8 * min(width, 2)), dtype=np.uint64) << np.uint64(8 * max(width - 2, 0))
    values = bits.astype(f"u{width}").view(dtype)
    with np.errstate(invalid="ignore"):  # ml_dtypes warns of its signalling NaNs
        bad = ~np.isfinite(values)
    found = look(tmp_path, {"before": values[~bad][:3], "all": values, "after": values[~bad][:5]})
    (finding,) = found.nonfinite
    assert finding.tensor == "all"
    assert finding.got is not None
    assert finding.got.startswith(f"{bad.sum()} values NaN or infinite, the first at index ")
    assert f"at index {bad.argmax()} of" in finding.got


@pytest.mark.usefixtures("buffer")
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 1, 31, 32, 33, 99])
def test_a_single_bad_value_is_found_wherever_it_lies(
    tmp_path: Path, value: float, at: int
) -> None:
    tensor = np.ones(100, ml_dtypes.bfloat16)
    tensor[at] = value
    ones = np.ones(7, ml_dtypes.bfloat16)
    (finding,) = look(tmp_path, {"a": ones, "b": tensor, "c": ones}).nonfinite
    assert (finding.code, finding.tensor) == ("nonfinite", "b")
    assert f"has 1 value NaN or infinite, the first at index {at} of [100]" in finding.message


def test_unaligned_tensors_are_read_right(tmp_path: Path) -> None:
    bad = np.array([1.0, np.nan], np.float32)
    found = look(tmp_path, {"odd": np.ones(3, np.int8), "bad": bad})
    assert [finding.tensor for finding in found.nonfinite] == ["bad"]


@pytest.mark.parametrize("dtype", [*FLOATS, np.int8, np.int64])
def test_all_zeros_are_told_from_a_single_value(tmp_path: Path, dtype: Any) -> None:
    zeros = np.zeros(50, dtype)
    one = zeros.copy()
    one[-1] = -1
    assert not look(tmp_path, {"a": zeros, "b": -zeros}).any_nonzero
    assert look(tmp_path, {"a": zeros, "b": one}).any_nonzero


def test_a_file_that_shrinks_while_it_is_read_is_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors({"a": np.ones(10_000, np.float32)}))

    def work(file: OpenFile) -> Content:
        header = read_header(file)
        os.truncate(path, 1000)
        return examine(file, header)

    with pytest.raises(Unfit) as caught:
        with_file(path, path.name, work)
    assert caught.value.finding.code == "changed"


def test_a_large_file_of_bad_values_takes_no_more_than_the_buffer(tmp_path: Path) -> None:
    tensors = {"a": np.full(24 * 2**20, np.nan, np.float32)}
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors(tensors))
    del tensors
    tracemalloc.start()
    found = with_file(path, path.name, lambda f: examine(f, read_header(f)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.nonfinite[0].message.count(str(24 * 2**20)) == 2
    assert peak < 3 * content.BUFFER  # half of the file


def test_a_reading_that_nobody_wants_any_more_stops_at_the_next_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On slow storage the rest would take hours, and nothing else is read meanwhile."""
    monkeypatch.setattr(content, "BUFFER", 64)
    cancel, real, pieces = threading.Event(), os.preadv, 0

    def slow(*arguments: Any) -> int:
        nonlocal pieces
        pieces += 1
        if pieces == 3:
            cancel.set()
        return real(*arguments)

    def work(file: OpenFile) -> Content:
        header = read_header(file)
        monkeypatch.setattr(os, "preadv", slow)
        return examine(file, header, cancel=cancel)

    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors({"w": np.ones(4096, np.float32)}))
    with pytest.raises(Cancelled):
        with_file(path, path.name, work)
    assert pieces == 3


def test_it_is_read_by_threads_that_give_way_where_they_are_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Piece by piece, so that threads of another priority can go on with it."""
    path, seen = tmp_path / "model.safetensors", list[int]()
    path.write_bytes(safetensors({"a": np.arange(32.0), "b": np.zeros(3, np.int8)}))
    monkeypatch.setattr(content, "BUFFER", 64)
    into = OpenFile.read_into

    def noting(file: OpenFile, memory: memoryview, offset: int) -> None:
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        into(file, memory, offset)

    def read(quiet: Quiet) -> Content:
        return with_file(
            path, path.name, lambda file: examine(file, read_header(file), quiet=quiet)
        )

    expected = read(LOUD)
    monkeypatch.setattr(OpenFile, "read_into", noting)
    assert read(QUIET) == expected
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert (len(seen) > 4, {*seen[-4:]}) == (True, {max(LITTLE, own)})
