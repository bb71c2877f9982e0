"""One engine over two real processes: what one of them does to its weights, both do."""

from collections.abc import Iterator

import pytest

from tests.hosts.engine_member import PATIENCE, Pair, Refused, pair

pytestmark = pytest.mark.real_engine

LONG = 40
FAR_LONGER = 120


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Ranks that build for the third time: one that fails and one that is closed come before."""
    with pair(tmp_path_factory.mktemp("ranks")) as started:
        failed = started.fail("build", 1, "model.safetensors")
        assert all("ConfigError: the engine does not start" in each for each in failed), failed
        started.do("build", 2)
        assert started.leader.does("ask", "Who serves?") == saying(2)
        started.do("close")
        started.do("build", 1)
        yield started


def saying(number: int) -> str:
    return f"served by step {number}"


def test_ranks_measure_a_share_each_and_know_the_whole(both: Pair) -> None:
    """What our own loader reads it measures whole: so the shares must add up to that."""
    started = both.do("live")
    staged = both.do("stage", 1)
    both.do("drop")
    assert len({*started, *staged}) == 1
    assert both.leader.does("ask", "Who serves?") == saying(1)


def test_weights_are_exchanged_on_all_ranks_in_the_same_turn(both: Pair) -> None:
    for number in (2, 3, 1):
        both.do("step", f"exchange {number}")
        both.do("stage", number)
        both.do("exchange")
        both.do("release")
        assert both.leader.does("ask", "Who serves?") == saying(number)
        assert both.do("measured") == [True, True]
    assert len({batches for _, batches in both.do("batches")}) == 1


def test_new_weights_are_proven_and_flipped_to_while_older_ones_answer(both: Pair) -> None:
    assert both.do("cannot_overlap") == [None, None]
    for number in (2, 1):
        both.do("step", f"flip {number}")
        old = both.leader.does("ask", "Who serves?")
        both.do("stage", number)
        both.do("prove")
        older = both.leader.ask("ask", "Who goes on?", LONG)
        both.do("flip")
        newer = both.leader.ask("ask", "Who serves now?")
        both.do("retire")
        assert newer.result() == saying(number)
        assert older.result().startswith(old)
        assert saying(number) not in older.result()
    assert len({batches for _, batches in both.do("batches")}) == 1


def test_who_rests_in_which_turn_is_the_same_on_both_ranks(both: Pair) -> None:
    both.do("step", "rest")
    both.do("stage", 2)
    both.do("launched")
    client = both.leader.ask("ask", "Who goes on?", FAR_LONGER)
    both.do("prove")
    assert not client.done()
    assert saying(1) in client.result()
    both.do("drop")
    theirs, others = both.do("launched")
    assert theirs == others
    lanes = [lane for _, lane in theirs]
    steps = "".join("." if lane == lanes[-1] else "p" for lane in lanes).split("p")
    assert len(steps) > 4, "they were proven beside a client"
    assert {len(between) for between in steps[1:-1]} == {4}


def test_nothing_is_flipped_when_one_rank_does_not_come(both: Pair) -> None:
    both.do("step", "late")
    both.leader.does("patience", 1)
    (before, _) = both.do("live")
    both.do("stage", 2)
    with pytest.raises(Refused, match="TryAgain: rank 1 has not come"):
        both.leader.does("exchange")
    both.do("drop")
    assert both.do("live") == [before, before]
    assert both.leader.does("ask", "Who serves?") == saying(1)
    both.leader.does("patience", PATIENCE)


FLIPS = 4


def test_reloads_under_load_mix_no_answer_and_both_ranks_say_the_same(both: Pair) -> None:
    """From here on rank 0 leads, and the other one follows what it puts into the store."""
    both.other.does("follow")
    both.leader.does("lead")
    sayings = {saying(number) for number in (1, 2, 3)}
    for at in range(FLIPS):
        asked = [both.leader.ask("ask", f"Who {at} serves {n}?", 16) for n in range(2)]
        number = at % 3 + 1
        fingerprint = both.leader.does("reload", number)
        assert both.do("live") == [fingerprint] * 2
        for answer in asked:
            heard = answer.result()
            assert len([each for each in sayings if each in heard]) == 1, heard
        assert both.leader.does("ask", "Who serves?") == saying(number)
    assert not both.leader.does("drifted")
    assert len({batches for _, batches in both.do("batches")}) == 1


@pytest.mark.parametrize(
    ("label", "within", "words"),
    [
        ("torn here", PATIENCE, "CheckpointRejected: rank 1: it is torn on this host"),
        ("slow here", 1.0, "TryAgain: rank 1 did not stage in time"),
    ],
)
def test_nothing_is_flipped_against_a_rank_that_says_no_or_is_slow(
    both: Pair, label: str, within: float, words: str
) -> None:
    before = both.do("live")
    with pytest.raises(Refused, match=words):
        both.leader.does("reload", 1, label, within)
    assert both.do("live") == before
    fingerprint = both.leader.does("reload", 3)
    assert both.do("live") == [fingerprint] * 2


def test_no_rank_waits_for_what_rank_0_has_given_up(both: Pair) -> None:
    """The other one has its part ready, which no cancel reaches, when rank 0 waits no longer."""
    before = both.do("live")
    both.leader.does("patience", 0)
    with pytest.raises(Refused, match="TryAgain: rank 1 has not come"):
        both.leader.does("reload", 1)
    both.leader.does("patience", PATIENCE)
    assert both.do("live") == before
    fingerprint = both.leader.does("reload", 1)
    assert both.do("live") == [fingerprint] * 2


def test_a_rank_that_is_killed_is_noticed_though_nobody_asks_anything(both: Pair) -> None:
    both.leader.does("listen", 20)
    lost = both.leader.ask("lost")
    both.other.process.kill()
    assert lost.result(PATIENCE) == "rank 1 has not been heard of for 2 s"
    with pytest.raises(Refused, match="EngineLost"):
        both.leader.does("ask", "Who serves?")
