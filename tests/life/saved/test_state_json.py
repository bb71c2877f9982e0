"""The state file's schema: what is written, what is forgotten, and what cannot be read."""

import json
import math
import os
from dataclasses import asdict, fields, replace
from typing import Any

import pytest
from pydantic import TypeAdapter

from hotreload.attempts import NOT_PROBED, Attempt, By, Evidence
from hotreload.cli.client.texts import history_text
from hotreload.core.ledger import Ledger, PastGeneration, ServedBy
from hotreload.features.bake.evidence import Bake, bake_fields, bake_of
from hotreload.features.compare.evidence import Behaviour, BothAnswers, behaviour_fields
from hotreload.life.saved.state_json import VERSION, Memory, NewerState, from_json, to_json
from hotreload.picture.history import History
from hotreload.types import Generation, LoadFacts, Outcome, Phase, Reason, Revision
from tests.evidence import BLANK, in_json, judged

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
    "source",  # the settings say it anew
}


def test_each_field_of_a_ledger_is_written_or_is_forgotten_on_purpose() -> None:
    written = {field.name for field in fields(Memory)} - {"version", "history"} | {"attempts"}
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
    assert list(again.attempts) == list(ledger.attempts)
    assert again.attempts[0].revision.label == "step_2"
    assert again.last_good == ledger.last_good
    assert again.live is None


@pytest.mark.parametrize("change", [0.04, math.inf])
def test_how_an_attempt_was_loaded_survives_a_restart(change: float) -> None:
    loading = LoadFacts("own", leaves_staged=3, largest_change=change, most_changed="leaf")
    ledger = Ledger()
    ledger.attempts.append(Attempt(A, Outcome.LIVE, None, {}, 0.0, 7.0, 1, loading=loading))
    assert from_json(to_json(ledger)).attempts[0].loading == loading


def test_an_attempt_from_before_loading_was_told_is_read() -> None:
    ledger = Ledger()
    ledger.attempts.append(Attempt(A, Outcome.LIVE, None, {}, 0.0, 7.0, 1))
    memory = json.loads(to_json(ledger))
    del memory["history"][0]["loading"], memory["checksum"]
    assert from_json(json.dumps(memory).encode()).attempts == ledger.attempts


NOON = 1_700_000_000.0
BAKED: dict[str, Any] = {
    **{"outcome": "convicted", "since": NOON, "until": NOON + 300.0, "answers": 100},
    **{"against": 6, "old_answers": 1000, "words": "they are worse"},
    "signals": [
        {"signal": "empty", "hits": 40, "low": 0.2, "high": 0.5}
        | {"old_hits": 20, "old_low": 0.007, "old_high": 0.04, "finds": None}
    ],
}
WORST = {"prompt": "?", "live": "yes", "new": "no", "why": "agreement: 0 of 1 tokens are alike"}
FOUND = Behaviour(6, 90, 0.75, 1.0, 3, 1.25, 0, 0, 0, 0, 0, 0)
OF_JUDGES = {
    "unproven": "it has no lanes",
    "bake": BAKED,
    "behaviour": {**asdict(FOUND), "worst": [WORST]},
    "not_compared": "cut short after 2 s",
    "command_said": ["188 of 200 solved", "refused"],
}
"""The fields that judges had in an attempt until version 10."""


def written_by(version: int, **of_judges: Any) -> bytes:
    """A state file of an older version, with an attempt that has these fields of judges."""
    ledger = Ledger()
    ledger.attempts.append(Attempt(A, Outcome.LIVE, None, {}, 0.0, 7.0, 1))
    memory = json.loads(to_json(ledger)) | {"version": version}
    (attempt,) = memory["history"]
    del memory["contents"], memory["checksum"]
    if version < 11:
        del attempt["evidence"]
    attempt |= of_judges
    return json.dumps(memory).encode()


def test_the_fields_that_judges_had_in_version_10_are_evidence() -> None:
    ledger = from_json(written_by(10, **OF_JUDGES))
    (attempt,) = ledger.attempts
    assert [(each.name, each.outcome) for each in attempt.evidence] == [
        ("probe", "unproven"),
        ("bake", "convicted"),
        ("compare", "cut_short"),
        ("command", "asked"),
    ]
    assert attempt.evidence[1].words == "bake convicted: they are worse"
    told = bake_of(attempt.facts)
    spelled = {"hits": "answers", "old_hits": "old_answers"}
    signals = [{spelled.get(name, name): each[name] for name in each} for each in BAKED["signals"]]
    assert told == TypeAdapter(Bake).validate_python({**BAKED, "signals": signals})
    found = behaviour_fields(replace(FOUND, worst=(BothAnswers(**WORST),)))
    facts = {**OF_JUDGES, "bake": told and bake_fields(told), "behaviour": found}
    assert in_json(attempt.facts) == in_json(facts)
    again = from_json(to_json(ledger))
    assert again.attempts[0].evidence[:2] == attempt.evidence[:2]
    assert again.attempts[0].facts == in_json(facts)


@pytest.mark.parametrize("version", range(1, 11))
def test_where_no_judge_was_asked_an_attempt_of_any_version_has_blank_evidence(
    version: int,
) -> None:
    (attempt,) = from_json(written_by(version)).attempts
    assert attempt.evidence == (NOT_PROBED, *BLANK)


def test_answers_that_an_older_version_wrote_as_words_are_left_out() -> None:
    words = {**asdict(FOUND), "worst": ["'?': live 'yes', new 'no'"]}
    (attempt,) = from_json(written_by(8, behaviour=words)).attempts
    assert in_json(attempt.facts["behaviour"]) == in_json(behaviour_fields(FOUND))


def test_evidence_of_a_judge_that_is_gone_is_kept_and_shown() -> None:
    gone = Evidence("gone", "bad", "it forbids this", {"seen": {"by": [1, None]}})
    ledger = Ledger()
    attempt = judged(Attempt(A, Outcome.LIVE, None, {}, 0.0, 7.0, 1))
    ledger.attempts.append(attempt.with_evidence(gone))
    again = from_json(to_json(from_json(to_json(ledger))))
    assert again == ledger
    (shown,) = History(again.attempts).snapshot()["attempts"]
    assert shown["seen"] == {"by": [1, None]}
    assert shown["told"]["notes"] == ["it forbids this"]
    assert shown["told"]["notes"] == ["it forbids this"]
    assert "it forbids this" in history_text([shown])


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


def test_what_a_stat_stood_for_survives_and_version_11_knew_none() -> None:
    ledger = Ledger(contents={"unread-1": "1"})
    assert from_json(to_json(ledger)).contents == {"unread-1": "1"}
    assert from_json(written_by(11)).contents == {}


def test_the_source_of_each_generation_survives_and_version_12_knew_none() -> None:
    ledger = Ledger(source="/checkpoints")
    ledger.went_live(Generation(1, A, "fp-a", 1.0), "/checkpoints/a")
    again = from_json(to_json(ledger))
    assert [each.source for each in again.generations] == ["/checkpoints"]
    older = json.loads(to_json(ledger)) | {"version": 12}
    del older["generations"][0]["source"], older["checksum"]
    again = from_json(json.dumps(older).encode())
    assert [each.source for each in again.generations] == [""]
