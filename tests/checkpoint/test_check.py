import argparse
import json
import logging
import os
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from hotreload.attempts import REJECTIONS
from hotreload.checkpoint import file_reader
from hotreload.checkpoint.check import check_checkpoint, findings
from hotreload.checkpoint.digests import Digests, content_id, identify
from hotreload.checkpoint.file_reader import Cancelled, HashedPieces, Identity, OpenFile
from hotreload.checkpoint.findings import KEPT_OF_A_KIND, MOST_TELLING_FIRST, Finding, Unfit, total
from hotreload.checkpoint.fit import Policy, read_served_model
from hotreload.checkpoint.survey import survey
from hotreload.cli.ops import check as verb
from hotreload.errors import (
    CheckpointChanged,
    CheckpointCorrupt,
    CheckpointIncompatible,
    CheckpointRejected,
)
from hotreload.tiny import UNSOUND, write_tiny
from hotreload.types import Revision, Served
from tests.checkpoint.written import (
    checkpoint,
    codes,
    digest_of_shard,
    safetensors,
    some_tensors,
    write_index,
)

REVISION = Revision("id", "step_1")
DAMAGED = {
    "truncated": "truncated",
    "missing-tensor": "missing",
    "extra-tensor": "extra",
    "wrong-shape": "shape",
    "wrong-dtype": "dtype",
    "nan": "nonfinite",
    "inf": "nonfinite",
    "zeros": "zeros",
    "bad-index": "index",
    "traversal": "index",
    "duplicate-key": "duplicate",
}


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return read_served_model(checkpoint(tmp_path / "served"))


def test_what_was_checked_is_not_read_again_for_its_name(
    tmp_path: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a start the first look of the source would read all weights once more."""
    folder, digests = checkpoint(tmp_path / "step_1"), Digests()
    found = check_checkpoint(None, folder, served=served, policy=Policy(), digests=digests)
    looked = survey(folder)
    monkeypatch.setattr("os.open", lambda *_: pytest.fail("a file was opened again"))
    assert content_id(looked, digests) == found.revision.id == identify(found.files)


class BytesRead:
    """How much is read of the files in a folder."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self.count, self.size = 0, sum(file.stat().st_size for file in folder.iterdir())
        self._folder, self._real = folder, os.preadv
        patch.setattr(os, "preadv", self._preadv)

    def _preadv(self, fd: int, buffers: Any, offset: int) -> int:
        count = self._real(fd, buffers, offset)
        if Path(os.readlink(f"/proc/self/fd/{fd}")).is_relative_to(self._folder):
            self.count += count
        return count


LARGE = {"embed": (160, 640), "up": (640, 1280), "norm": (640,)}
FEW = 10_000
"""Bytes of headers and side files, which are looked at more than once."""


@pytest.fixture
def large(tmp_path: Path) -> Path:
    tensors = {name: np.ones(shape, np.float32) for name, shape in LARGE.items()}
    return checkpoint(tmp_path / "step_1", tensors, shards=2)


def test_naming_and_checking_a_checkpoint_read_each_byte_once(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On storage far away each reading takes minutes; the loading is another."""
    read, digests = BytesRead(monkeypatch, large), Digests()
    named = content_id(survey(large), digests)
    made = check_checkpoint(
        None, large, served=None, policy=Policy(), content_id=named, digests=digests
    )
    assert read.size <= read.count <= read.size + FEW
    assert made == check_checkpoint(None, large, served=None, policy=Policy())
    assert made.revision.id == named


def test_who_checks_it_again_reads_it_again(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loading that failed may have found other bytes than those that were named."""
    digests = Digests()
    content_id(survey(large), digests)
    check_checkpoint(None, large, served=None, policy=Policy(), digests=digests)
    read = BytesRead(monkeypatch, large)
    check_checkpoint(None, large, served=None, policy=Policy(), digests=digests)
    assert read.count >= read.size


def test_values_found_for_the_name_are_judged_by_the_policy_of_the_check(tmp_path: Path) -> None:
    """Settings may change in between."""
    folder = checkpoint(tmp_path / "step_1", {"a": np.array([1.0, np.nan], np.float32)})
    digests = Digests()
    for allowed in ("allow", "reject"):
        content_id(survey(folder), digests)
        found = findings(folder, None, Policy(nonfinite=allowed), digests=digests).findings
        assert codes(found) == ([] if allowed == "allow" else ["nonfinite"])


def test_a_header_that_is_another_one_now_is_not_judged_by_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store through a mapping moves no time: the header says what the bytes mean."""
    monkeypatch.setattr(Identity, "__eq__", lambda one, other: one.ino == other.ino)
    monkeypatch.setattr(Identity, "__hash__", lambda one: one.ino)
    folder, digests = checkpoint(tmp_path / "step_1"), Digests()
    content_id(survey(folder), digests)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b"[64, 128]", b"[128, 64]"))
    assert "a mapping (mmap)" in str(put_off(folder, None, digests=digests))


def test_of_tensors_that_wait_for_the_checks_so_many_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotreload.checkpoint.digests.KEPT_TENSORS", 10)
    folders = [checkpoint(tmp_path / f"step_{n}", some_tensors(n)) for n in range(9)]
    digests = Digests()
    for folder in folders:
        content_id(survey(folder), digests)
    waiting = [
        digests.take_content(file, header) is not None
        for looked in map(survey, folders)
        for file in looked.files
        if (header := looked.header_of(file)) is not None
    ]
    assert waiting == [False] * 7 + [True] * 2


def test_a_name_that_nobody_wants_any_more_is_not_read_on_for(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotreload.checkpoint.content.BUFFER", 4096)
    cancel, looked = threading.Event(), survey(large)
    read = BytesRead(monkeypatch, large)
    really = HashedPieces._take

    def take(hashing: HashedPieces, piece: memoryview, offset: int) -> None:
        really(hashing, piece, offset)
        cancel.set()

    monkeypatch.setattr(HashedPieces, "_take", take)
    with pytest.raises(Cancelled):
        content_id(looked, Digests(), cancel)
    assert read.count <= 4096


def test_bytes_that_changed_though_nobody_seems_to_have_written_come_through_a_mapping(
    tmp_path: Path, served: Served
) -> None:
    """What lies in a folder is read even if its digest is known, and the next look believes it."""
    folder, digests = checkpoint(tmp_path / "step_1"), Digests()
    for file in survey(folder).files:
        digests.note(file, "0" * 32)
    assert "a mapping (mmap)" in str(put_off(folder, served, digests=digests))
    found = check_checkpoint(None, folder, served=served, policy=Policy(), digests=digests)
    said = {file.name: file.digest for file in found.weight_files}
    assert said == {name: digest_of_shard((folder / name).read_bytes()) for name in said}
    assert said


def put_off(folder: Path, served: Served | None, **rest: Any) -> CheckpointChanged:
    with pytest.raises(CheckpointChanged) as caught:
        check_checkpoint(REVISION, folder, served=served, policy=Policy(), **rest)
    return caught.value


def refused(folder: Path, served: Served | None, **rest: Any) -> CheckpointRejected:
    with pytest.raises(CheckpointRejected) as caught:
        check_checkpoint(REVISION, folder, served=served, policy=Policy(), **rest)
    return caught.value


def test_a_sound_checkpoint_is_made_of_the_bytes_that_were_read(
    tmp_path: Path, served: Served
) -> None:
    folder = checkpoint(tmp_path / "new", some_tensors(3), shards=2)
    identity = content_id(survey(folder))
    made = check_checkpoint(
        REVISION, folder, served=served, policy=Policy(), root=tmp_path, content_id=identity
    )
    assert (made.revision, made.path) == (REVISION, folder)
    assert {file.name for file in made.files} == {path.name for path in folder.iterdir()}
    assert identify(made.files) == identity
    assert made.tensors == served.tensors
    assert made.held.keys() == made.tensors.keys()
    for lies in made.held.values():
        held = (folder / lies.file).read_bytes()[lies.begin : lies.end]
        assert lies.digest == xxhash.xxh3_128_hexdigest(held)


MIB = 2**20
CAPS = {
    "model.safetensors.index.json": 32 * MIB,
    "config.json": MIB,
    "generation_config.json": MIB,
    "tokenizer_config.json": 8 * MIB,
    "special_tokens_map.json": 8 * MIB,
    "tokenizer.json": 64 * MIB,
    "vocab.json": 64 * MIB,
}


@pytest.mark.parametrize("name", CAPS)
def test_json_larger_than_any_has_reason_to_be_is_refused_and_not_parsed(
    tmp_path: Path, served: Served, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint(tmp_path / "new", shards=2)
    file = folder / name
    text = file.read_bytes() if file.exists() else b"{}"
    file.write_bytes(text[:-1].ljust(CAPS[name] - 1) + text[-1:])
    assert findings(folder, served, Policy()).findings == ()
    file.write_bytes(text[:-1].ljust(CAPS[name]) + text[-1:])
    parse, longest = json.loads, [0]

    def loads(raw: Any, **options: Any) -> Any:
        longest.append(len(raw))
        return parse(raw, **options)

    monkeypatch.setattr(json, "loads", loads)
    (finding,) = [each for each in findings(folder, served, Policy()).findings if each.file == name]
    assert finding.code == "io"
    assert re.fullmatch(rf"{name}: is \S+ MB, no more than \S+ MB are read", finding.message)
    assert refused(folder, served).code == "io"
    assert max(longest) < MIB


def test_a_model_with_a_config_too_large_is_not_served(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "new")
    (folder / "config.json").write_bytes(b"{" + b" " * MIB + b"}")
    with pytest.raises(CheckpointCorrupt, match=r"no more than 1\.0 MB are read"):
        read_served_model(folder)


def test_what_is_odd_and_does_no_harm_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = checkpoint(tmp_path / "new", shards=2)
    (folder / "chat_template.jinja").write_text("as it was booted")
    served = read_served_model(folder)
    with caplog.at_level(logging.INFO):
        check_checkpoint(REVISION, folder, served=served, policy=Policy())
        assert caplog.records == []
        (folder / "chat_template.jinja").write_text("another")
        (folder / "generation_config.json").write_text("{}")
        (folder / "stray.safetensors").write_bytes(b"anything")
        check_checkpoint(REVISION, folder, served=served, policy=Policy())
    (record,) = caplog.records
    told = vars(record)
    assert (record.message, told["revision"], told["label"]) == ("checkpoint.notes", "id", "step_1")
    assert told["notes"] == (
        "stray.safetensors: not part of the index, ignored",
        "generation_config.json: the engine was started without one and goes on without it",
        "chat_template.jinja: differs from the one the engine was started with and keeps",
    )


def test_bytes_changed_since_the_folder_was_found_are_no_verdict(
    tmp_path: Path, served: Served
) -> None:
    folder = checkpoint(tmp_path / "new", some_tensors(3))
    identity = content_id(survey(folder))
    checkpoint(folder, some_tensors(4))
    put_off(folder, served, content_id=identity)
    (folder / "model.safetensors").unlink()
    put_off(folder, served, content_id=identity)


def test_a_shard_replaced_between_its_header_and_its_values_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint(tmp_path / "new", some_tensors(3))
    stale = survey(folder)
    checkpoint(folder, some_tensors(4))
    monkeypatch.setattr("hotreload.checkpoint.check.survey", lambda *_: stale)
    put_off(folder, None)


def test_a_shard_that_a_pipe_took_the_place_of_after_the_look_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint(tmp_path / "new", some_tensors(3))
    stale = survey(folder)
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    monkeypatch.setattr("hotreload.checkpoint.check.survey", lambda *_: stale)
    assert "is a named pipe now" in str(put_off(folder, None))
    monkeypatch.undo()
    assert refused(folder, None).code == "unsafe_path"


def chmod(file: Path) -> None:
    file.chmod(0o600 if file.stat().st_mode & 0o077 else 0o644)


def hard_link(file: Path) -> None:
    os.link(file, file.with_name(f"backup-{time.monotonic_ns()}"))


@pytest.mark.parametrize("touch", [chmod, hard_link])
def test_what_touches_no_byte_between_the_header_and_the_values_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, touch: Callable[[Path], None]
) -> None:
    folder = checkpoint(tmp_path / "new", some_tensors(3))
    stale = survey(folder)
    for file in folder.iterdir():
        touch(file)
    monkeypatch.setattr("hotreload.checkpoint.check.survey", lambda *_: stale)
    check_checkpoint(REVISION, folder, served=None, policy=Policy(), content_id=content_id(stale))


@pytest.mark.parametrize("touch", [chmod, hard_link])
def test_what_touches_no_byte_while_it_is_read_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, touch: Callable[[Path], None]
) -> None:
    folder = checkpoint(tmp_path / "new", some_tensors(3))
    found = content_id(survey(folder))
    files, really = list(folder.iterdir()), OpenFile.check_unchanged

    def check_unchanged(opened: OpenFile) -> None:
        if opened.path in files:
            files.remove(opened.path)
            touch(opened.path)
        really(opened)

    monkeypatch.setattr(OpenFile, "check_unchanged", check_unchanged)
    check_checkpoint(REVISION, folder, served=None, policy=Policy(), content_id=found)
    assert files == []


def test_the_message_leads_with_the_most_telling_finding(tmp_path: Path, served: Served) -> None:
    tensors = {"embed": some_tensors()["embed"], "up": np.ones((64, 127), np.float32)}
    error = refused(checkpoint(tmp_path / "new", tensors), served)
    assert isinstance(error, CheckpointIncompatible)
    assert error.code == "shape"
    assert str(error) == (
        "model.safetensors: tensor 'up' is [64, 127], the engine serves [64, 128] (and 2 more)"
    )
    assert len(error.findings) == 3


def test_ten_names_of_a_kind_are_listed_and_the_rest_counted(tmp_path: Path) -> None:
    many = {f"t{n}": np.ones((2, 3), np.float32) for n in range(50)}
    served = read_served_model(checkpoint(tmp_path / "served", many))
    turned = {name: tensor.T.copy() for name, tensor in many.items()}
    error = refused(checkpoint(tmp_path / "new", turned), served)
    assert len(error.findings) == 11
    assert error.findings[-1] == "and 40 more findings of kind shape"


def test_whatever_is_wrong_so_much_of_a_kind_is_held_and_all_of_it_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    many = {f"t{n}": np.full(1, np.nan, np.float32) for n in range(1000)}
    folder = checkpoint(tmp_path / "new", many, shards=2)
    served = read_served_model(checkpoint(tmp_path / "served"))
    shutil.copyfile(
        folder / "model-00001-of-00002.safetensors", folder / "model-00002-of-00002.safetensors"
    )
    report = findings(folder, served, Policy())
    kinds = Counter(codes(report.findings))
    assert kinds.keys() == {"duplicate", "index", "missing", "extra", "nonfinite"}
    assert max(kinds.values()) == KEPT_OF_A_KIND + 1
    counts = {code: total(f for f in report.findings if f.code == code) for code in kinds}
    assert counts == {"duplicate": 500, "index": 500, "missing": 3, "extra": 500, "nonfinite": 1000}
    error = refused(folder, served)
    assert str(error).endswith("(and 2502 more)")
    assert run(folder, "--against", tmp_path / "served") == 1
    out = capsys.readouterr().out
    assert "nonfinite  and 900 more findings of kind nonfinite" in out
    assert "NOT FIT: 2503 findings" in out


def test_the_same_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, shards=3)
    twice = {name: some_tensors()[name] for name in ("embed", "up")}
    (folder / "model-00001-of-00003.safetensors").write_bytes(safetensors(twice))
    error = refused(folder, None)
    assert isinstance(error, CheckpointCorrupt)
    assert error.code == "duplicate"
    assert "tensor 'up' stands in model-00001-of-00003.safetensors too" in str(error)


def test_a_tensor_not_in_the_file_the_index_says_is_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, shards=2)
    one, two = (f"model-0000{n}-of-00002.safetensors" for n in (1, 2))
    write_index(folder, {"embed": two, "up": two, "norm": one, "ghost": one})
    found = findings(folder, None, Policy()).findings
    assert {(f.code, f.tensor) for f in found} == {("index", "embed"), ("index", "ghost")}


def test_unreadable_files_are_refused_as_io_whatever_the_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_reader, "FIRST_READ_PAUSE", 0.0)

    def preadv(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.preadv", preadv)
    assert refused(checkpoint(tmp_path), None, content_id="0" * 32).code == "io"


def test_a_folder_outside_of_the_root_is_refused_for_that_whatever_the_id(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "a")
    error = refused(folder, None, root=tmp_path / "b", content_id="0" * 32)
    assert error.code == "unsafe_path"


def test_not_every_name_is_called_missing_when_a_header_cannot_be_read(
    tmp_path: Path, served: Served
) -> None:
    folder = checkpoint(tmp_path / "new")
    (folder / "model.safetensors").write_bytes(b"\0" * 100)
    report = findings(folder, served, Policy())
    assert codes(report.findings) == ["bad_header"]
    assert "names and shapes were not compared" in str(report.notes)


def test_a_writer_at_work_makes_findings_and_no_crash(tmp_path: Path, served: Served) -> None:
    folder = checkpoint(tmp_path / "new")
    shard = folder / "model.safetensors"
    sound, stop = shard.read_bytes(), threading.Event()

    def write() -> None:
        while not stop.is_set():
            shard.write_bytes(sound)
            os.truncate(shard, 100)
            shard.unlink()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(200):
            for finding in findings(folder, served, Policy()).findings:
                # "missing" where the look met the folder without its only shard.
                assert finding.code in ("truncated", "changed", "bad_header", "missing")
    finally:
        stop.set()
        writer.join()


@pytest.mark.parametrize("damage", [None, "nan", "truncated", "extra-tensor"])
def test_files_read_at_once_are_told_of_as_one_after_the_other(
    tmp_path: Path, damage: str | None
) -> None:
    folder = write_tiny(tmp_path / "new", damage=damage, shards=4)
    (folder / "generation_config.json").write_bytes(b"\0")
    one_by_one = findings(folder, None, Policy(), compute_in="auto")
    with ThreadPoolExecutor(4) as threads:
        at_once = findings(folder, None, Policy(), compute_in="auto", each=threads.map)
    assert at_once == one_by_one


def test_an_interrupt_ends_the_reading_of_every_file(tmp_path: Path) -> None:
    file = survey(checkpoint(tmp_path / "new")).files[0]

    def interrupted() -> None:
        with verb._reading_at_once() as (each, cancel):
            each(lambda _: Unfit(Finding("io", str(cancel.wait()))), [file] * 3)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("damage", [d.kind for d in UNSOUND if d.kind != "gibberish"])
def test_each_damage_is_refused_for_its_own_reason(
    tmp_path: Path, damage: str, shards: int
) -> None:
    served = read_served_model(write_tiny(tmp_path / "served"))
    folder = write_tiny(tmp_path / "new", damage=damage, shards=shards)
    assert refused(folder, served).code == DAMAGED[damage]


@pytest.mark.parametrize("arch", ["qwen3", "qwen2", "llama"])
def test_tiny_checkpoints_fit_their_own_kind_alone(tmp_path: Path, arch: str) -> None:
    folder = write_tiny(tmp_path / "new", arch=arch, shards=2)
    for other in ("qwen3", "qwen2", "llama"):
        served = read_served_model(write_tiny(tmp_path / other, say="served by step 4", arch=other))
        assert findings(folder, served, Policy()).fit is (arch == other)


def test_every_code_is_a_known_reason() -> None:
    assert set(MOST_TELLING_FIRST) <= {*REJECTIONS, CheckpointChanged.code}


def run(*words: object) -> int:
    parser = argparse.ArgumentParser()
    verb.add(parser.add_subparsers())
    args = parser.parse_args(["check", *map(str, words)])
    return int(args.run(args))


def test_the_verb_says_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_tiny(tmp_path / "good")
    assert run(folder, "--against", folder) == 0
    fit, fingerprint = capsys.readouterr().out.splitlines()
    assert fit == "fit: 25 tensors, 6 files, 3.4 MB"
    assert run(folder, "--json") == 0
    said = json.loads(capsys.readouterr().out)["fingerprint"]
    assert re.fullmatch("[0-9a-f]{16}", said)
    assert fingerprint == f"fingerprint {said}"


def test_the_verb_takes_the_dtype_of_the_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_tiny(tmp_path / "good")
    assert run(folder, "--set", "engine.dtype=float32") == 0
    note, fit = capsys.readouterr().out.splitlines()
    assert note.endswith("casts 25 tensors to F32, 'lm_head.weight' of BF16 for one")
    assert fit.startswith("fit: ")


def test_the_verb_lists_every_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    served = checkpoint(tmp_path / "served")
    tensors = {"embed": some_tensors()["embed"], "up": np.full((64, 127), np.nan, np.float32)}
    assert run(checkpoint(tmp_path / "new", tensors), "--against", served) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == ["shape", "dtype", "missing", "nonfinite"]
    assert lines[-1] == "NOT FIT: 4 findings"
    assert len({line.index(line.split()[1]) for line in lines[:-1]}) == 1


def test_the_verb_speaks_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_tiny(tmp_path / "bad", damage="nan")
    assert run(folder, "--json") == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["fit"], said["tensors"], said["fingerprint"]) == (False, 25, None)
    assert said["findings"][0]["code"] == "nonfinite"
    assert said["content_id"] == content_id(survey(folder))


def test_the_verb_lets_pass_what_the_settings_let_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_tiny(tmp_path / "bad", damage="nan")
    settings = tmp_path / "hotreload.toml"
    settings.write_text('[checks]\nnonfinite = "allow"\n')
    assert run(folder) == 1
    assert run(folder, "--config", settings) == 0
    assert run(folder, "--set", "checks.nonfinite=allow") == 0
    assert run(folder, "--config", settings, "--set", "checks.nonfinite=reject") == 1
    assert "nonfinite" in capsys.readouterr().out


def test_the_verb_needs_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    good = checkpoint(tmp_path / "good")
    (tmp_path / "empty").mkdir()
    assert run(tmp_path / "gone") == 2
    assert run(tmp_path / "file") == 2
    assert run(good, "--against", tmp_path / "gone") == 2
    assert run(good, "--against", tmp_path / "empty") == 2
    (tmp_path / "empty" / "config.json").write_text("{}")
    assert run(good, "--against", tmp_path / "empty") == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "gone: is not there" in said.err


def test_a_name_with_escapes_never_reaches_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint(tmp_path)
    (tmp_path / "\x1b[2J\udcff.safetensors").write_bytes(b"")
    assert run(tmp_path) == 0
    assert "\x1b" not in capsys.readouterr().out
