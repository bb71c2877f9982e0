"""How an answer's next piece is waited for, in the place of upstream's way."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from hotreload.engine.upstream.patches import wait_without_timers

STREAM, WHOLE = SimpleNamespace(stream=True), SimpleNamespace(stream=False)


def piece(text: str, ended: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"text": text, "meta_info": {"finish_reason": ended}}


class Waited:
    """One request under way, and those who wait for it as upstream's manager would have them."""

    def __init__(self) -> None:
        self.state = SimpleNamespace(event=asyncio.Event(), out_list=[], finished=False)
        self.manager: Any = SimpleNamespace()
        wait_without_timers(self.manager)

    def told(self, asked: object) -> Any:
        return self.manager._wait_one_response(asked, self.state, None)

    def put(self, text: str, ended: dict[str, Any] | None = None) -> None:
        self.state.out_list.append(piece(text, ended))
        self.state.finished = ended is not None
        self.state.event.set()


async def test_the_newest_piece_stands_for_those_before_it() -> None:
    one = Waited()
    pieces = one.told(STREAM)
    one.put("a")
    one.put("a b")
    assert (await anext(pieces))["text"] == "a b"
    one.put("a b c", {"type": "stop"})
    assert [each["text"] async for each in pieces] == ["a b c"]


async def test_who_wants_no_stream_is_told_the_end_alone() -> None:
    one = Waited()
    waiting = asyncio.create_task(anext(one.told(WHOLE)))
    for text in ("a", "a b"):
        one.put(text)
        await asyncio.sleep(0)
    assert not waiting.done()
    one.put("a b c", {"type": "stop"})
    assert (await waiting)["text"] == "a b c"


async def test_what_the_scheduler_refuses_is_raised() -> None:
    one = Waited()
    one.put("", {"type": "abort", "status_code": 400, "message": "too long"})
    with pytest.raises(ValueError, match="too long"):
        await anext(one.told(STREAM))


async def test_no_timer_is_set_for_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    one, loop, timers = Waited(), asyncio.get_running_loop(), []
    monkeypatch.setattr(loop, "call_at", lambda *args, **more: timers.append(args))
    waiting = asyncio.create_task(anext(one.told(STREAM)))
    await asyncio.sleep(0)
    one.put("a")
    assert (await waiting)["text"] == "a"
    assert timers == []
