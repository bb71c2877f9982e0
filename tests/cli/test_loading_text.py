"""How weights were loaded, and whether they are whole, in the words of status, history and top."""

import json
from dataclasses import replace
from typing import Any

import pytest

from hotreload.cli.client.texts import outcome_text
from hotreload.events import AttemptFinished, LiveDrifted, LoaderDistrusted
from hotreload.json_fields import attempt_fields, loading_fields
from hotreload.picture.words import damage_text, drift_text, loader_text
from hotreload.types import Outcome, Reason
from tests.cli.conftest import Command
from tests.cli.test_top_frame import shown
from tests.observe.test_status import BOOTED, Pages
from tests.observe.things import OWN, STEP_7, UPSTREAM, went_live
from tests.server.world import SECOND, World, attempt

CHANGE = "12 of 30 leaves changed, most: layers.3.down_proj by 4 %"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (0.04, "by 4 %"),
        (0.0123, "by 1.2 %"),
        (0.1234, "by 12 %"),
        (3.5, "by 350 %"),
        (1.125, "by 113 %"),
        (2e-5, "by 0.002 %"),
        (2e-7, "by less than 0.001 %"),
        (None, "layers.3.down_proj"),
    ],
)
def test_a_change_is_a_share_of_what_was_there(change: float | None, words: str) -> None:
    assert drift_text({**loading_fields(OWN), "largest_change": change}).endswith(words)


def test_where_nothing_changed_no_leaf_is_named() -> None:
    unchanged = replace(OWN, leaves_changed=0, largest_change=0.0, most_changed="")
    assert drift_text(loading_fields(unchanged)) == "0 of 30 leaves changed"


def test_the_loader_is_named_with_why_it_is_not_our_own() -> None:
    assert loader_text(loading_fields(OWN)) == "by our own loader"
    assert loader_text(loading_fields(UPSTREAM)) == "by upstream's loader (it is fp8)"


def test_of_many_damaged_leaves_the_others_are_counted() -> None:
    assert damage_text({"leaves": ["a", "b"], "leaves_total": 2}) == "a, b"
    assert damage_text({"leaves": ["a", "b"], "leaves_total": 9}) == "a, b, and 7 more"


async def test_what_changed_in_a_refused_checkpoint_is_told_with_the_attempt(
    world: World, hotreload: Command
) -> None:
    nonsense = replace(attempt(Outcome.REJECTED, Reason("probe", "nonsense")), loading=OWN)
    world.events.publish(AttemptFinished(nonsense, SECOND))
    assert CHANGE in (await hotreload("status")).out
    _, told = (await hotreload("history")).out.splitlines()
    assert told.endswith(f"  own     source  probe: nonsense; {CHANGE}")
    as_json = json.loads((await hotreload("history", "--json")).out)
    assert as_json["attempts"][0]["most_changed"] == "layers.3.down_proj"


def test_a_reload_that_was_waited_for_says_what_changed() -> None:
    fields = attempt_fields(replace(went_live(), loading=OWN))
    assert outcome_text(fields, "4").endswith(f"\n  {CHANGE}")
    unloaded: dict[str, Any] = attempt_fields(went_live())
    assert "changed" not in outcome_text(unloaded, "4")


def test_top_says_so_too() -> None:
    first = shown(*BOOTED, LiveDrifted(SECOND, ("a",)), LoaderDistrusted("b"), width=140)[0]
    assert "2 troubles: LiveWeightsDrifted, LoaderDistrusted" in first
    history = [replace(went_live(3, STEP_7), loading=OWN)]
    said = shown(*BOOTED, pages=Pages(history=history), width=140)
    assert f"loaded by our own loader: {CHANGE}" in said
