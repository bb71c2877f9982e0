import json
import os
import socket
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from hotreload.checkpoint.file_reader import OpenFile
from hotreload.checkpoint.findings import Unfit, with_file
from hotreload.checkpoint.safetensors import (
    MAX_HEADER,
    Header,
    parse_header,
    read_header,
    size_finding,
)
from tests.checkpoint.written import any_json, entry, raw_file, safetensors, some_tensors


def read(path: Path) -> Header:
    def work(file: OpenFile) -> Header:
        header = read_header(file)
        wrong = size_finding(header, file)
        if wrong is not None:
            raise wrong
        return header

    return with_file(path, path.name, work)


def read_raw(tmp_path: Path, raw: bytes) -> Header:
    path = tmp_path / "model.safetensors"
    path.write_bytes(raw)
    return read(path)


def refusal(tmp_path: Path, raw: bytes) -> Unfit:
    with pytest.raises(Unfit) as caught:
        read_raw(tmp_path, raw)
    assert caught.value.finding.file == "model.safetensors"
    return caught.value


def test_a_sound_file_is_read(tmp_path: Path) -> None:
    header = read_raw(tmp_path, safetensors(some_tensors()))
    assert {t.name: (t.shape, t.dtype) for t in header.tensors} == {
        "embed": ((16, 64), "BF16"),
        "up": ((64, 128), "BF16"),
        "norm": ((64,), "BF16"),
    }


def test_what_the_upstream_library_writes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensors: dict[str, Any] = {"a": np.ones((2, 3), "f4"), "empty": np.ones((0, 3), "f2")}
    save_file(tensors, path, metadata={"format": "np"})
    header = read(path)
    assert header.metadata == {"format": "np"}
    assert {t.name: t.shape for t in header.tensors} == {"a": (2, 3), "empty": (0, 3)}


@pytest.mark.parametrize("size", range(8))
def test_a_file_too_short_for_its_length_field_is_truncated(tmp_path: Path, size: int) -> None:
    unfit = refusal(tmp_path, bytes(size))
    assert (unfit.finding.code, unfit.unfinished) == ("truncated", True)


@pytest.mark.parametrize("length", [MAX_HEADER + 1, 2**32, 2**63, 2**64 - 1])
def test_a_huge_length_field_is_refused_and_nothing_allocated_for_it(
    tmp_path: Path, length: int
) -> None:
    tracemalloc.start()
    unfit = refusal(tmp_path, length.to_bytes(8, "little") + b"{}")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (unfit.finding.code, unfit.unfinished) == ("bad_header", False)
    assert peak < 2**20


def test_a_header_longer_than_the_file_is_truncated(tmp_path: Path) -> None:
    assert refusal(tmp_path, (1000).to_bytes(8, "little") + b"{").finding.code == "truncated"


def test_data_shorter_than_the_header_says_is_truncated(tmp_path: Path) -> None:
    unfit = refusal(tmp_path, safetensors(some_tensors())[:-1])
    assert (unfit.finding.code, unfit.unfinished) == ("truncated", True)


def test_bytes_behind_the_last_tensor_are_refused(tmp_path: Path) -> None:
    unfit = refusal(tmp_path, safetensors(some_tensors()) + b"xy")
    assert unfit.finding.code == "bad_header"
    assert "2 bytes behind the last tensor" in unfit.finding.message


SIX = bytes(24)


@pytest.mark.parametrize(
    ("header", "code", "words"),
    [
        ({"a": entry([2], 0, 8), "b": entry([3], 12, 24)}, "bad_header", "hole"),
        ({"a": entry([3], 0, 12), "b": entry([4], 8, 24)}, "bad_header", "overlap"),
        ({"a": entry([6], 4, 28)}, "bad_header", "begins at 4"),
        ({"a": entry([6], 24, 0)}, "bad_header", "24"),
        ({"a": entry([5], 0, 24)}, "bad_header", "takes 20 bytes; its offsets span 24"),
        ({"a": entry([6], 0, 24, "F31")}, "dtype", "unknown dtype 'F31'"),
        ({"a": entry([6], 0, 24, ["F32"])}, "dtype", "unknown dtype"),
        ({"a": entry([-6], 0, 24)}, "bad_header", "no valid shape"),
        ({"a": entry([6.0], 0, 24)}, "bad_header", "no valid shape"),
        ({"a": entry([True], 0, 4)}, "bad_header", "no valid shape"),
        ({"a": entry([2**63], 0, 24)}, "bad_header", "no valid shape"),
        ({"a": entry([2**62, 2**62, 0], 0, 24)}, "bad_header", "takes 0 bytes"),
        ({"a": entry([1] * 33, 0, 4)}, "bad_header", "no valid shape"),
        ({"a": entry("6", 0, 24)}, "bad_header", "no valid shape"),
        ({"a": entry([6], "0", 24)}, "bad_header", "no valid data_offsets"),
        ({"a": entry([6], -1, 24)}, "bad_header", "no valid data_offsets"),
        ({"a\0b": entry([6], 0, 24)}, "bad_header", "NUL"),
        ({"a": {"dtype": "F32", "shape": [6]}}, "bad_header", "must state"),
        ({"a": 7}, "bad_header", "must state"),
        ({"__metadata__": {"a": 1}}, "bad_header", "__metadata__"),
        ({"__metadata__": []}, "bad_header", "__metadata__"),
        ("[]", "bad_header", "no JSON object"),
        (b"{\xff}", "bad_header", "not valid JSON"),
        ('{"a": NaN}', "bad_header", "NaN is no JSON number"),
        ('{"a":' + "[" * 100_000, "bad_header", "nested too deep"),
        ('{"a": ' + "9" * 5000 + "}", "bad_header", "not valid JSON"),
        ('{"a":1,"a":1}', "duplicate", "'a' appears twice"),
        ('{"a":{"dtype":"F32","dtype":"F16"}}', "duplicate", "'dtype' appears twice"),
    ],
)
def test_a_malformed_header_is_refused(
    tmp_path: Path, header: object, code: str, words: str
) -> None:
    finding = refusal(tmp_path, raw_file(header, SIX)).finding
    assert finding.code == code
    assert words in finding.message


def test_names_are_shown_escaped_and_cut(tmp_path: Path) -> None:
    name = "\x1b[2J" + "x" * 10_000
    finding = refusal(tmp_path, raw_file({name: 7})).finding
    assert finding.message.isprintable()
    assert len(finding.message) < 500


def test_a_94_mb_header_is_refused_by_its_length_alone(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes((94 * 2**20).to_bytes(8, "little"))
    os.truncate(path, 95 * 2**20)
    with pytest.raises(Unfit, match="no more than 16777216 are accepted"):
        read(path)


def test_300_000_tensors_are_refused_in_bounded_time_and_memory(tmp_path: Path) -> None:
    header = {f"{n:x}": {"data_offsets": [0, 0]} for n in range(300_000)}
    raw = raw_file(json.dumps(header, separators=(",", ":")))
    assert len(raw) < MAX_HEADER
    path = tmp_path / "model.safetensors"
    path.write_bytes(raw)
    os.truncate(path, 300 * 2**20)  # of data, which is nobody's business here
    del header, raw
    started = time.thread_time()
    tracemalloc.start()
    with pytest.raises(Unfit) as caught:
        read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert time.thread_time() - started < 10
    assert peak < 100 * 2**20
    finding = caught.value.finding
    assert "more than 100000 tensors" in finding.message


def test_a_fifo_a_socket_and_a_folder_are_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for name in ("fifo", "folder", "socket"):
            with pytest.raises(Unfit) as caught:
                read(tmp_path / name)
            assert caught.value.finding.code == "unsafe_path"


def test_a_fifo_put_in_a_files_place_after_the_look_blocks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").touch()
    looked_like = (tmp_path / "file").stat()
    monkeypatch.setattr("os.lstat", lambda _: looked_like)
    with pytest.raises(Unfit, match="is a named pipe"):
        read(tmp_path / "fifo")


@given(st.binary(max_size=200))
def test_any_bytes_make_a_header_or_a_finding(raw: bytes) -> None:
    for text in (raw, b"{" + raw + b"}"):
        with suppress(Unfit):
            assert parse_header(text, "f").data_start == 8 + len(text)


@settings(max_examples=40)  # each makes four documents
@given(st.dictionaries(st.text(max_size=5), any_json | st.builds(entry, *[any_json] * 4)))
def test_any_json_makes_a_header_or_a_finding(header: dict[str, object]) -> None:
    with suppress(Unfit):
        parsed = parse_header(json.dumps(header).encode(), "f")
        assert sum(t.end - t.begin for t in parsed.tensors) == parsed.data_bytes
