"""What `hotreload diff` prints: a report on two checkpoints, or what is wrong with one."""

import argparse
import json

import pytest

from hotreload.cli.trial.diff import Steps, fault_text, report_fields, report_text
from hotreload.errors import CheckpointIncompatible, HotReloadError
from hotreload.features.compare.comparison import check_limits
from hotreload.features.compare.evidence import Behaviour, BothAnswers
from hotreload.features.compare.settings import CompareLimits
from hotreload.library import Compared

ASKED = argparse.Namespace(live="./live", new="./next")
BEHAVIOUR = Behaviour(
    questions=6,
    tokens=96,
    agreement=0.375,
    same_first=0.5,
    first_difference=3,
    length_ratio=1.25,
    empty=0,
    endless=2,
    repeating=0,
    live_empty=0,
    live_endless=1,
    live_repeating=0,
    mean_kl=0.25,
    p99_kl=1.5,
    same_top=0.75,
    noise_kl=0.001,
    noise_same_top=1.0,
    perplexity_ratio=1.5,
    worst=(
        BothAnswers("1, 2,", "three", "four", "agreement: 0 of 1 tokens are alike"),
        BothAnswers("Once", "upon", "a", "agreement: 0 of 1 tokens are alike"),
    ),
)
FOUND = Compared("aaaa1111", "bbbb2222", BEHAVIOUR)
SENTENCE = (
    "answers agree 38%, 1.25 times as long, mean KL 0.25 (noise 0.001), same top 75%, "
    "perplexity 1.5 times; of 6 answers 2 endless"
)


def beyond() -> HotReloadError:
    with pytest.raises(HotReloadError) as caught:
        check_limits(BEHAVIOUR, CompareLimits(min_agreement=0.5, max_kl=1.0))
    return caught.value


def test_the_report_is_told_as_the_status_tells_it_with_what_differs_most() -> None:
    assert report_text(ASKED, FOUND, None, has_limits=False).splitlines() == [
        "A            ./live, fingerprint aaaa1111",
        "B            ./next, fingerprint bbbb2222",
        f"B beside A   {SENTENCE}",
        "differ most  '1, 2,': live 'three', new 'four'",
        "             'Once': live 'upon', new 'a'",
    ]


def test_limits_that_are_kept_or_broken_are_said_to_be() -> None:
    kept = report_text(ASKED, FOUND, None, has_limits=True)
    assert kept.splitlines()[-1].split() == ["limits", "kept"]
    broken = report_text(ASKED, FOUND, beyond(), has_limits=True).splitlines()[-1]
    assert broken.endswith("refused: [compare.limits] min_agreement: 0.375 is under 0.5")


def test_equal_weights_are_said_to_be_the_same() -> None:
    same = Compared("aaaa1111", "aaaa1111", BEHAVIOUR)
    assert "aaaa1111, the same weights\n" in report_text(ASKED, same, None, has_limits=False)


def test_as_json_it_has_the_fields_of_the_history_and_those_of_a_reason() -> None:
    told = json.loads(json.dumps(report_fields(ASKED, FOUND, beyond())))
    assert (told["live"], told["new"]) == ("./live", "./next")
    assert (told["live_fingerprint"], told["new_fingerprint"]) == ("aaaa1111", "bbbb2222")
    assert told["behaviour"]["agreement"] == 0.375
    assert told["code"] == "behaviour"
    assert told["findings"][0] == "min_agreement: 0.375 is under 0.5"
    within = report_fields(ASKED, FOUND, None)
    assert (within["reason"], within["code"], within["findings"]) == (None, None, [])


def test_what_is_wrong_is_told_with_the_step_and_each_finding() -> None:
    fault = CheckpointIncompatible("a has shape [1], and 1 more", code="shape", findings=["a", "b"])
    assert fault_text("checking ./next", fault).splitlines() == [
        "hotreload: checking ./next: a has shape [1], and 1 more",
        "  b",
    ]
    told = report_fields(ASKED, None, fault)
    assert (told["code"], told["behaviour"], told["live_fingerprint"]) == ("shape", None, None)


def test_each_step_is_told_as_it_begins_so_that_it_cannot_drive_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps = Steps()
    steps.begin("checking a\x1b[31m")
    assert capsys.readouterr().err == "checking a\\x1b[31m …\n"
    assert steps.current == "checking a\\x1b[31m"
