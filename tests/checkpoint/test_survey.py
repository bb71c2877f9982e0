import errno
import json
import os
import socket
import tracemalloc
from pathlib import Path

import pytest

from hotreload.checkpoint import file_reader
from hotreload.checkpoint import survey as files
from hotreload.checkpoint.digests import Digests, content_id
from hotreload.checkpoint.file_reader import OpenFile
from hotreload.checkpoint.findings import KEPT_OF_A_KIND, SHOWN_OF_A_KIND, total
from hotreload.checkpoint.known_names import INDEX, MAX_SHARDS
from hotreload.checkpoint.safetensors import Header, read_header
from hotreload.checkpoint.survey import survey
from hotreload.errors import CheckpointChanged, CheckpointCorrupt
from tests.checkpoint.written import checkpoint, codes, some_tensors, write_index

SHARD_2 = "model-00002-of-00003.safetensors"


def names(folder: Path) -> list[str]:
    return [file.name for file in survey(folder).files]


@pytest.mark.parametrize("shards", [1, 3])
def test_a_sound_checkpoint_is_complete(tmp_path: Path, shards: int) -> None:
    looked = survey(checkpoint(tmp_path, shards=shards), tmp_path)
    assert (looked.waiting_for, looked.findings, looked.notes) == (None, (), ())
    assert len(looked.shards) == shards
    assert looked.whole


def test_weights_alone_are_complete(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    (tmp_path / "config.json").unlink()
    (tmp_path / "tokenizer.json").unlink()
    assert survey(tmp_path).waiting_for is None


def test_an_absent_shard_is_waited_for_by_name(tmp_path: Path) -> None:
    checkpoint(tmp_path, shards=3)
    (tmp_path / SHARD_2).unlink()
    looked = survey(tmp_path)
    assert looked.waiting_for == f"waiting for {SHARD_2}"
    assert codes(looked.findings) == ["index"]


def test_numbered_shards_without_an_index_wait_for_the_rest(tmp_path: Path) -> None:
    checkpoint(tmp_path, shards=3)
    (tmp_path / INDEX).unlink()
    assert survey(tmp_path).waiting_for is None
    (tmp_path / SHARD_2).unlink()
    assert survey(tmp_path).waiting_for == f"waiting for {SHARD_2}"


def test_names_that_speak_of_shards_without_end_cost_one_finding_and_no_memory(
    tmp_path: Path,
) -> None:
    for number in range(16):
        (tmp_path / f"a{number}-00001-of-99999.safetensors").write_bytes(bytes(16))
    tracemalloc.start()
    looked = survey(tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (looked.waiting_for is None, codes(looked.findings), looked.shards) == (
        True,
        ["index"],
        (),
    )
    assert looked.findings[0].message == (
        f"its shards' names speak of more than {MAX_SHARDS} shards, which are not read"
    )
    assert peak < 2**20


def test_as_many_shards_as_are_ever_read_are_waited_for_in_bounded_words(tmp_path: Path) -> None:
    (tmp_path / f"a-00001-of-{MAX_SHARDS:05d}.safetensors").write_bytes(bytes(16))
    looked = survey(tmp_path)
    assert looked.waiting_for is not None
    assert len(looked.shards) == MAX_SHARDS
    assert len(looked.findings) <= 2 * (KEPT_OF_A_KIND + 1)
    assert total(looked.findings) == MAX_SHARDS


def test_an_index_of_too_many_shards_is_judged_at_once(tmp_path: Path) -> None:
    shards = {f"t{n}": f"m-{n}.safetensors" for n in range(MAX_SHARDS + 1)}
    write_index(checkpoint(tmp_path), shards)
    looked = survey(tmp_path)
    assert (looked.waiting_for is None, codes(looked.findings)) == (True, ["index"])
    assert "the index speaks of more than" in looked.findings[0].message


def test_files_that_are_ignored_are_noted_in_few_words(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    for number in range(SHOWN_OF_A_KIND + 90):
        (tmp_path / f"stray-{number}.safetensors").touch()
    looked = survey(tmp_path)
    assert len(looked.notes) == SHOWN_OF_A_KIND + 1
    assert looked.notes[-1] == "and 90 more such files"


def test_a_shard_being_written_says_how_far_it_is(tmp_path: Path) -> None:
    shard = checkpoint(tmp_path) / "model.safetensors"
    whole = shard.stat().st_size
    os.truncate(shard, whole - 10)
    words = "model.safetensors: 18.8 kB written, 10 bytes are missing"
    assert survey(tmp_path).waiting_for == words
    os.truncate(shard, whole // 2)
    looked = survey(tmp_path)
    assert looked.waiting_for == "model.safetensors: 9.4 kB of 18.8 kB written"
    assert codes(looked.findings) == ["truncated"]
    os.truncate(shard, 4)
    assert survey(tmp_path).waiting_for == "model.safetensors: 4 B written, no whole header yet"


def test_a_file_written_in_place_from_zeros_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(4096))
    assert survey(tmp_path).waiting_for is not None


@pytest.mark.parametrize("name", [INDEX, "config.json", "tokenizer.json"])
def test_half_written_json_is_waited_for(tmp_path: Path, name: str) -> None:
    path = checkpoint(tmp_path, shards=3) / name
    path.write_text(path.read_text()[:-3])
    assert name in str(survey(tmp_path).waiting_for)


def test_an_empty_folder_waits_for_weights(tmp_path: Path) -> None:
    assert survey(tmp_path).waiting_for == "no *.safetensors or index yet"
    assert survey(tmp_path / "gone").waiting_for is not None


def test_a_file_the_index_does_not_name_is_ignored_with_a_note(tmp_path: Path) -> None:
    checkpoint(tmp_path, shards=3)
    (tmp_path / "stray.safetensors").write_bytes(b"anything")
    looked = survey(tmp_path)
    assert looked.waiting_for is None
    assert looked.notes == ("stray.safetensors: not part of the index, ignored",)
    assert "stray.safetensors" not in names(tmp_path)


@pytest.mark.parametrize(
    "shard",
    [
        "../a.safetensors",
        "/a.safetensors",
        "b/a.safetensors",
        "\\a.safetensors",
        "a\0.safetensors",
        "a\n.safetensors",
        "\ud800.safetensors",
        "x" * 300 + ".safetensors",
        "..",
        "",
        7,
        None,
    ],
)
def test_an_index_that_names_no_plain_file_is_judged_at_once(tmp_path: Path, shard: object) -> None:
    write_index(checkpoint(tmp_path), {"up": shard, "norm": "model.safetensors"})
    looked = survey(tmp_path)
    assert looked.waiting_for is None
    assert codes(looked.findings) == ["index"]
    assert looked.findings[0].message.isprintable()


@pytest.mark.parametrize("index", [[], {}, {"weight_map": []}, {"weight_map": {}}, 3])
def test_an_index_without_a_map_is_judged_at_once(tmp_path: Path, index: object) -> None:
    (checkpoint(tmp_path) / INDEX).write_text(json.dumps(index))
    looked = survey(tmp_path)
    assert (looked.waiting_for is None, codes(looked.findings)) == (True, ["index"])


@pytest.mark.parametrize("kind", ["fifo", "folder", "socket", "device"])
def test_what_is_no_regular_file_is_named_and_never_opened(tmp_path: Path, kind: str) -> None:
    shard = checkpoint(tmp_path) / "model.safetensors"
    shard.unlink()
    listener = socket.socket(socket.AF_UNIX)
    match kind:
        case "fifo":
            os.mkfifo(shard)
        case "folder":
            shard.mkdir()
        case "socket":
            listener.bind(str(shard))
        case "device":
            shard.symlink_to("/dev/zero")
    looked = survey(tmp_path)
    listener.close()
    assert (looked.waiting_for is None, codes(looked.findings)) == (True, ["unsafe_path"])


def test_a_link_out_of_the_root_is_unsafe_and_one_within_it_is_fine(tmp_path: Path) -> None:
    root, folder = tmp_path / "root", tmp_path / "root" / "snapshots" / "a"
    checkpoint(folder)
    (root / "blobs").mkdir()
    (folder / "model.safetensors").rename(root / "blobs" / "sha")
    (folder / "model.safetensors").symlink_to("../../blobs/sha")
    assert survey(folder, root).findings == ()
    assert survey(folder).findings == ()
    assert codes(survey(folder, folder).findings) == ["unsafe_path"]
    assert codes(survey(folder, [folder, root / "blobs"]).findings) == []


def test_a_folder_outside_of_the_root_is_unsafe(tmp_path: Path) -> None:
    checkpoint(tmp_path / "elsewhere")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "latest").symlink_to(tmp_path / "elsewhere")
    looked = survey(tmp_path / "root" / "latest", tmp_path / "root")
    assert (looked.waiting_for is None, codes(looked.findings), looked.files) == (
        True,
        ["unsafe_path"],
        (),
    )


def test_a_loop_of_links_and_a_dangling_one_are_waited_for(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to("model.safetensors")
    assert survey(tmp_path).waiting_for is not None
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").symlink_to("nowhere")
    assert survey(tmp_path).waiting_for == "waiting for model.safetensors"


def test_a_link_flipped_between_two_shards_leads_to_one_checkpoint_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = checkpoint(tmp_path / "old", some_tensors(1), shards=2)
    new = checkpoint(tmp_path / "new", some_tensors(2), shards=2)
    (tmp_path / "latest").symlink_to(old)
    (tmp_path / "next").symlink_to(new)
    identity = content_id(survey(old))

    def read_and_flip(file: OpenFile) -> Header:
        if (tmp_path / "next").is_symlink():
            (tmp_path / "next").rename(tmp_path / "latest")
        return read_header(file)

    monkeypatch.setattr(files, "read_header", read_and_flip)
    looked = survey(tmp_path / "latest")
    assert {file.path.parent for file in looked.files} == {old}
    assert content_id(looked) == identity


def test_touching_and_renaming_leave_the_id_and_a_changed_byte_does_not(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "a", shards=2)
    first = content_id(survey(folder))
    assert len(first) == 32
    for file in folder.iterdir():
        os.utime(file, (1, 1))
    moved = folder.rename(tmp_path / "b")
    assert content_id(survey(moved)) == first
    (moved / "trainer_state.json").write_text("{}")
    assert content_id(survey(moved)) == first
    with (moved / "model-00001-of-00002.safetensors").open("r+b") as shard:
        shard.seek(-1, os.SEEK_END)
        shard.write(b"\x00")
    assert content_id(survey(moved)) != first


def test_swapping_two_files_gives_another_id(tmp_path: Path) -> None:
    checkpoint(tmp_path / "a")
    checkpoint(tmp_path / "b")
    a, b = (tmp_path / "b" / name for name in ("merges.txt", "vocab.json"))
    (tmp_path / "a" / "merges.txt").write_text("{}")
    (tmp_path / "a" / "vocab.json").write_text("[]")
    a.write_text("[]")
    b.write_text("{}")
    assert content_id(survey(tmp_path / "a")) != content_id(survey(tmp_path / "b"))


def test_digests_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked, digests = survey(checkpoint(tmp_path)), Digests()
    first = content_id(looked, digests)
    monkeypatch.setattr("os.open", lambda *_: pytest.fail("a file was opened again"))
    assert content_id(looked, digests) == first


def test_a_file_replaced_since_the_survey_is_changed(tmp_path: Path) -> None:
    looked = survey(checkpoint(tmp_path, some_tensors(1)))
    checkpoint(tmp_path, some_tensors(2))
    with pytest.raises(CheckpointChanged):
        content_id(looked)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointChanged):
        content_id(looked)


def test_a_file_written_to_while_it_is_read_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = survey(checkpoint(tmp_path))
    really, shard = os.preadv, tmp_path / "model.safetensors"

    def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
        if os.path.samestat(os.fstat(fd), shard.stat()):
            os.utime(shard)
        return really(fd, buffers, offset)

    monkeypatch.setattr("os.preadv", preadv)
    with pytest.raises(CheckpointChanged, match=r"model\.safetensors: it was "):
        content_id(looked)


@pytest.mark.parametrize("fault", [errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("times", [1, 1000])
def test_a_fault_of_the_storage_is_tried_again_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: int, times: int
) -> None:
    monkeypatch.setattr(file_reader, "FIRST_READ_PAUSE", 0.0)
    looked = survey(checkpoint(tmp_path))
    whole = content_id(looked)
    really, faults = os.preadv, iter(range(times))

    def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
        if next(faults, None) is not None:
            raise OSError(fault, os.strerror(fault))
        return really(fd, buffers, offset)

    monkeypatch.setattr("os.preadv", preadv)
    if times == 1:
        assert content_id(looked) == whole
    else:
        with pytest.raises(CheckpointCorrupt, match="cannot be read") as caught:
            content_id(looked)
        assert caught.value.code == "io"
