"""One engine over two real processes: what one of them does to its weights, both do."""

from collections.abc import Iterator

import pytest

from tests.ranks.engine_member import Pair, Refused, pair

pytestmark = pytest.mark.real_engine

LONG = 40


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with pair(tmp_path_factory.mktemp("ranks")) as started:
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
        (staged, _) = both.do("stage", number)
        both.do("exchange")
        both.do("release")
        assert both.leader.does("ask", "Who serves?") == saying(number)
        assert both.do("measured", f"exchanged {number}") == [staged, staged]
    assert len({batches for _, batches in both.do("batches")}) == 1


def test_new_weights_are_proven_and_flipped_to_while_older_ones_answer(both: Pair) -> None:
    assert both.do("cannot_overlap") == [None, None]
    for number in (2, 3, 1):
        both.do("step", f"flip {number}")
        old = both.leader.does("ask", "Who serves?")
        both.do("stage", number)
        assert both.do("prove", "Who will serve?") == [saying(number), None]
        older = both.leader.ask("ask", "Who goes on?", LONG)
        both.do("flip")
        newer = both.leader.ask("ask", "Who serves now?")
        both.do("retire")
        assert newer.result() == saying(number)
        assert older.result().startswith(old)
        assert saying(number) not in older.result()
    assert len({batches for _, batches in both.do("batches")}) == 1


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
    both.leader.does("patience", 60)


def test_a_rank_that_is_killed_is_noticed_at_the_next_step(both: Pair) -> None:
    lost = both.leader.ask("lost")
    both.other.process.kill()
    answer = both.leader.ask("ask", "Who serves?")
    assert "failed" in lost.result()
    with pytest.raises(Refused, match="EngineLost"):
        answer.result()
