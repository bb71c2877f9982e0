"""What the scheduler thread tells, on its way to the loop."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import zmq

from hotreload.engine.upstream.outlet import Outlet
from tests.waiting import PATIENCE


@pytest.fixture
def outlet() -> Outlet:
    return Outlet()


async def test_messages_come_as_they_are_and_in_their_order(outlet: Outlet) -> None:
    heard: list[object] = []
    told, all_heard = [object() for _ in range(100)], asyncio.Event()

    def hear(message: object) -> None:
        heard.append(message)
        if len(heard) == len(told):
            all_heard.set()

    outlet.begin(hear)

    def tell() -> None:
        for each in told:
            outlet.send_pyobj(each)

    thread = threading.Thread(target=tell)
    thread.start()
    await asyncio.wait_for(all_heard.wait(), PATIENCE)
    thread.join()
    assert all(one is other for one, other in zip(heard, told, strict=True))


async def test_nothing_is_heard_after_the_end_though_it_was_on_its_way(outlet: Outlet) -> None:
    heard: list[Any] = []
    outlet.begin(heard.append)
    outlet.send_pyobj("on its way")
    outlet.end()
    outlet.send_pyobj("late")
    await asyncio.sleep(0)
    assert heard == []


def test_a_scheduler_that_outlives_its_loop_is_not_stopped_by_that(outlet: Outlet) -> None:
    async def begin() -> None:
        outlet.begin(lambda message: None)

    outlet.send_pyobj("nobody listens yet")
    asyncio.run(begin())
    outlet.send_pyobj("the loop is closed")


def test_it_takes_the_place_of_sockets_alone(outlet: Outlet) -> None:
    with zmq.Context() as context:
        socket = context.socket(zmq.PUSH)
        rank_0 = SimpleNamespace(send_to_detokenizer=socket, send_to_tokenizer=socket)
        outlet.replace_sockets(rank_0)
        assert socket.closed
    assert rank_0.send_to_detokenizer is rank_0.send_to_tokenizer is outlet
    deaf: Any = SimpleNamespace(send_pyobj=lambda message: None)
    another_rank = SimpleNamespace(send_to_detokenizer=deaf, send_to_tokenizer=deaf)
    outlet.replace_sockets(another_rank)
    assert another_rank.send_to_detokenizer is deaf
