"""How checkpoints were loaded: in an attempt, in the status, in the log and in the metrics."""

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from hotreload.attempts import START, Attempt, By
from hotreload.events import AttemptFinished
from hotreload.json_fields import NOT_LOADED, attempt_fields, loading_fields
from hotreload.observe.log import canonical_fields
from hotreload.picture.history import Loads, loading_of
from hotreload.types import LoadFacts
from tests.observe.things import (
    NOON,
    OWN,
    STEP_7,
    STEP_8,
    UPSTREAM,
    generation,
    rejected,
    went_live,
)

OWN_FIELDS = {
    "loader": "own",
    "loader_reason": None,
    "leaves_staged": 12,
    "leaves_shared": 18,
    "bytes_read": 600,
    "leaves_changed": 12,
    "largest_change": 0.04,
    "most_changed": "layers.3.down_proj",
}


def loaded(loading: LoadFacts | None, attempt: Attempt | None = None) -> Attempt:
    return replace(attempt or went_live(4), loading=loading)


# --- the fields ------------------------------------------------------------------------------


def test_an_attempt_says_how_its_weights_were_made() -> None:
    assert attempt_fields(loaded(OWN)).items() >= OWN_FIELDS.items()
    by_upstream = attempt_fields(loaded(UPSTREAM))
    assert (by_upstream["loader"], by_upstream["loader_reason"]) == ("upstream", "it is fp8")
    assert by_upstream["most_changed"] is None


def test_where_nothing_was_staged_each_field_is_null() -> None:
    fields = attempt_fields(rejected())
    assert {name: fields[name] for name in OWN_FIELDS} == dict.fromkeys(OWN_FIELDS)


@pytest.mark.parametrize("change", [math.inf, math.nan])
def test_a_change_beyond_all_numbers_is_json_all_the_same(change: float) -> None:
    fields = loading_fields(replace(OWN, largest_change=change))
    assert fields["largest_change"] is None
    json.dumps(fields, allow_nan=False)


def test_the_line_of_an_attempt_has_them_flat() -> None:
    line = canonical_fields(AttemptFinished(loaded(OWN), generation(4)))
    assert line.items() >= OWN_FIELDS.items()
    assert canonical_fields(AttemptFinished(rejected(), None)).items() >= NOT_LOADED.items()


# --- of the live weights ---------------------------------------------------------------------


LIVE = generation(4, STEP_8)
ROLLBACK = went_live(4)  # nothing is staged for it
BOOT = replace(went_live(4), by=By(START, 0, 1, NOON, "the last good generation"))


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([loaded(OWN)], OWN),
        ([loaded(UPSTREAM), loaded(OWN)], UPSTREAM),
        ([loaded(OWN, went_live(3, STEP_7)), loaded(UPSTREAM)], UPSTREAM),
        ([loaded(OWN, rejected()), loaded(UPSTREAM)], UPSTREAM),
        ([ROLLBACK, loaded(OWN, went_live(3, STEP_7)), loaded(UPSTREAM)], UPSTREAM),
        ([BOOT, loaded(OWN)], None),
        ([loaded(OWN, BOOT)], OWN),
        ([], None),
    ],
)
def test_the_live_weights_were_made_by_the_last_attempt_that_made_any(
    history: Iterable[Attempt], expected: LoadFacts | None
) -> None:
    assert loading_of(LIVE, history) == expected


# --- the metrics -----------------------------------------------------------------------------


def exported(*attempts: Attempt) -> dict[str, Any]:
    loads = Loads()
    for attempt in attempts:
        loads.observe(AttemptFinished(attempt, None))
    series = [(each.name, *of) for each in loads.families() for of in each.series]
    return {(labels[0] if labels else name): value for name, labels, value in series}


def test_checkpoints_are_counted_by_loader_also_those_that_were_refused_then() -> None:
    at_first = exported()
    assert set(at_first.values()) == {0}
    told = exported(loaded(OWN), rejected(), loaded(UPSTREAM), loaded(OWN, rejected()))
    assert (told["own"], told["upstream"]) == (2, 1)
    assert told["hotreload_leaves_shared"] == 36
    assert told["hotreload_largest_change"] == 0.04
    assert told.keys() == at_first.keys()
