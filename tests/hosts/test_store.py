"""What every store of ranks does: the one of tests, and the one that jax.distributed keeps."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import pytest

from hotreload.hosts.upstream.ranks import Store
from tests.hosts.member import in_processes
from tests.hosts.memory import in_memory

KINDS: Mapping[str, Callable[[], AbstractContextManager[Sequence[Store]]]] = {
    "in memory": in_memory,
    "in two processes": in_processes,
}


@pytest.fixture(scope="module", params=KINDS)
def stores(request: pytest.FixtureRequest) -> Iterator[list[Store]]:
    with KINDS[request.param]() as made:
        yield list(made)


def test_what_one_puts_the_other_gets(stores: list[Store]) -> None:
    one, other = stores
    one.put("plain/a", "first")
    assert other.get("plain/a", 5) == "first"
    other.put("plain/a", "sécond\n")
    assert one.get("plain/a", 5) == "sécond\n"


def test_who_asks_before_it_is_there_waits_for_it(stores: list[Store]) -> None:
    one, other = stores
    late = threading.Timer(0.2, lambda: one.put("late/a", "here"))
    late.start()
    assert other.get("late/a", 30) == "here"
    late.join()


def test_what_is_not_there_in_time_is_none(stores: list[Store]) -> None:
    _, other = stores
    began = time.monotonic()
    assert other.get("never", 0.2) is None
    assert time.monotonic() - began > 0.15


def test_several_wait_at_once(stores: list[Store]) -> None:
    one, other = stores
    got: dict[str, str | None] = {}

    def wait(key: str) -> None:
        got[key] = other.get(key, 30)

    keys = [f"many/{number}" for number in range(4)]
    waiting = [threading.Thread(target=wait, args=(key,)) for key in keys]
    for thread in waiting:
        thread.start()
    for key in reversed(keys):
        one.put(key, key)
    for thread in waiting:
        thread.join(30)
    assert got == {key: key for key in keys}


def test_what_is_forgotten_goes_with_all_below_it_and_nothing_beside_it(
    stores: list[Store],
) -> None:
    one, other = stores
    for key in ("gone/1", "gone/1/ready/1", "gone/1/done/1", "gone/11"):
        one.put(key, key)
    one.forget("gone/1")
    left = [other.get(key, 0.01) for key in ("gone/1", "gone/1/ready/1", "gone/1/done/1")]
    assert left == [None] * 3
    assert other.get("gone/11", 5) == "gone/11"
    one.forget("gone/1")  # twice is once
