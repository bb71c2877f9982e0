"""The state file's schema: what is written, what is forgotten, and what cannot be read."""

import json
import math
import os
from dataclasses import fields, replace

import pytest

from hotreload.core.ledger import Ledger, PastGeneration, ServedBy
from hotreload.judgements import Behaviour, BothAnswers
from hotreload.life.state_json import VERSION, Memory, NewerState, from_json, to_json
from hotreload.types import Attempt, By, Generation, Loading, Outcome, Phase, Reason, Revision

A, B = Revision("a", "step_1"), Revision("b", "step_2")

FORGOTTEN = {
    "live",  # what answers is known when the start has loaded it
    "wanted",
    "wished",  # the source says it anew
    "failures",
    "not_before",  # times of a clock that begins anew with the process
    "rest_until",
    "superseded_last",
    "probes",  # the settings say it anew
    "promised",  # it stands in `number`
}


def test_each_field_of_a_ledger_is_written_or_is_forgotten_on_purpose() -> None:
    written = {field.name for field in fields(Memory)} - {"version"}
    assert not written & FORGOTTEN
    assert written | FORGOTTEN == {field.name for field in fields(Ledger)}


def test_what_must_survive_a_restart_does() -> None:
    ledger = Ledger()
    ledger.went_live(Generation(1, A, "fp-a", 1.0), "/checkpoints/a")
    ledger.set_pinned(True, By("pin", 1, 2, 3.5, "why"))
    reason = Reason("shape", "words", ("one", "two"))
    refused = Attempt(B, Outcome.REJECTED, reason, {Phase.STAGING: 0.5}, 0.01, 7.0)
    ledger.finish(refused, now=0.0, backoff=lambda failures: 10.0, rest=0.0)
    again = from_json(to_json(ledger))
    assert (again.pinned, again.pins) == (True, ledger.pins)
    assert again.refused == ledger.refused
    assert list(again.history) == list(ledger.history)
    assert again.history[0].revision.label == "step_2"
    assert again.last_good == ledger.last_good
    assert again.live is None


@pytest.mark.parametrize("change", [0.04, math.inf])
def test_how_an_attempt_was_loaded_survives_a_restart(change: float) -> None:
    loading = Loading("own", leaves_staged=3, largest_change=change, most_changed="leaf")
    ledger = Ledger()
    ledger.history.append(Attempt(A, Outcome.LIVE, None, {}, 0.0, 7.0, 1, loading=loading))
    assert from_json(to_json(ledger)).history[0].loading == loading


def test_an_attempt_from_before_loading_was_told_is_read() -> None:
    ledger = Ledger()
    ledger.history.append(Attempt(A, Outcome.LIVE, None, {}, 0.0, 7.0, 1))
    memory = json.loads(to_json(ledger))
    del memory["history"][0]["loading"], memory["checksum"]
    assert from_json(json.dumps(memory).encode()).history == ledger.history


def test_answers_that_an_older_version_wrote_as_words_are_left_out() -> None:
    found = Behaviour(6, 90, 0.75, 1.0, 3, 1.25, 0, 0, 0, 0, 0, 0)
    worst = (BothAnswers("?", "yes", "no", "agreement: 0 of 1 tokens are alike"),)
    ledger, told = Ledger(), replace(found, worst=worst)
    ledger.history.append(Attempt(A, Outcome.LIVE, None, {}, 0.0, 7.0, 1, behaviour=told))
    ledger.history.append(Attempt(B, Outcome.LIVE, None, {}, 0.0, 7.0, 2))
    assert from_json(to_json(ledger)) == ledger
    older = json.loads(to_json(ledger)) | {"version": 8}
    older["history"][0]["behaviour"]["worst"] = ["'?': live 'yes', new 'no'"]
    del older["checksum"]
    assert from_json(json.dumps(older).encode()).history[0].behaviour == found


ODD_PATHS = [
    "/c/step\u3000\u30001",  # an ideographic space, which `str.isprintable` does not like
    "/c/no\xa0break",
    "/c/zero\u200bwidth",
    "/c/soft\xadhyphen",
    "/c/tab\tand\nline",
    "/c/escape\x1b[31m",
    "/c/\U0001f600",
    os.fsdecode(b"/c/no text \xff\xfe"),
    '/c/"quoted"\\udcff',
]


@pytest.mark.parametrize("path", ODD_PATHS)
def test_every_path_that_a_file_system_allows_survives_a_restart_as_it_is(path: str) -> None:
    ledger = Ledger()
    ledger.went_live(Generation(1, A, "fp-a", 1.0), path)
    ledger.refuse(B, Reason("gone", f"{path} is gone"), 1.0)
    again = from_json(to_json(ledger))
    assert again.last_good is not None
    assert os.fsencode(again.last_good.path) == os.fsencode(path)
    assert again.refused == ledger.refused


def test_what_was_written_before_there_was_a_checksum_is_read() -> None:
    ledger = Ledger(numbers_given=5)
    memory = json.loads(to_json(ledger))
    del memory["checksum"]
    assert from_json(json.dumps(memory, indent=1).encode()) == ledger


def test_what_was_refused_because_it_changed_while_it_was_read_may_be_tried_again() -> None:
    """Older versions refused it for good: a chmod at the wrong moment was enough."""
    ledger = Ledger()
    ledger.refuse(A, Reason("changed", "model.safetensors: it was written to"), 1.0)
    ledger.refuse(B, Reason("shape", "words"), 2.0)
    assert [*from_json(to_json(ledger)).refused] == [B.id]


def test_what_served_and_what_is_missed_survive_a_restart_and_version_4_knew_neither() -> None:
    ledger = Ledger(served_by=ServedBy("0.0.2", "0.8.3", "auto", 1, "args", "files", "/model"))
    ledger.missed = PastGeneration(7, A, "fp-a", "/checkpoints/a", 1.0)
    again = from_json(to_json(ledger))
    assert again == ledger
    assert again.served_by is not None
    assert again.served_by.model == "/model"
    older = json.loads(to_json(ledger)) | {"version": 4}
    del older["served_by"], older["missed"], older["damage"], older["checksum"]
    assert from_json(json.dumps(older).encode()) == Ledger()


def test_what_was_lost_of_it_is_known_after_the_next_start_too_and_version_5_did_not_know() -> None:
    ledger = Ledger(damage="state.json is damaged")
    assert from_json(to_json(ledger)) == ledger
    older = json.loads(to_json(ledger)) | {"version": 5}
    del older["damage"], older["checksum"]
    assert from_json(json.dumps(older).encode()) == Ledger()


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"version": 1}', b"\xff\xfe"])
def test_data_that_is_no_ledger_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever the words, it is caught as one
        from_json(data)


@pytest.mark.parametrize(("version", "fault"), [(99, NewerState), (0, ValueError)])
def test_a_state_of_another_version_is_named(version: int, fault: type[ValueError]) -> None:
    ours = b'"version": %d' % VERSION
    data = to_json(Ledger()).replace(ours, b'"version": %d' % version)
    with pytest.raises(fault, match=f"version {version}"):
        from_json(data)
