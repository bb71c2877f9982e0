"""`python -m tests.bench.streams SOCKET ROUTE STREAMS ANSWERS TOKENS PROMPT`: cheap clients.

A prompt has so many characters, each of which is a token of a tiny model.

Each stream asks again on its connection when it has an answer. Nothing of what comes is parsed but
where events and answers end. Prints what was seen, as JSON.
"""

import asyncio
import json
import sys
import time
from typing import Any, cast

import uvloop

PROMPT = "So which? "
ENDS_AN_EVENT, ENDS_AN_ANSWER = b"\n\n", b"\r\n0\r\n\r\n"
LAST = len(ENDS_AN_ANSWER) - 1


def request_of(route: str, tokens: int, prompt: int) -> bytes:
    """A request for a stream of so many tokens."""
    text = (PROMPT * (1 + prompt // len(PROMPT)))[:prompt]
    asked: dict[str, Any] = {"model": "tiny", "stream": True}
    if route == "/generate":
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        asked |= {"text": text, "sampling_params": sampling}
    else:
        chat = {"messages": [{"role": "user", "content": text}]}
        asked |= chat if "chat" in route else {"prompt": text}
        asked |= {"temperature": 0, "max_tokens": tokens, "ignore_eos": True}
    body = json.dumps(asked).encode()
    head = f"POST {route} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Stream(asyncio.Protocol):
    """One connection, on which answers are asked for one after the other."""

    def __init__(self, request: bytes, answers: int) -> None:
        self._request = request
        self._left = answers
        self._seen = b""
        self._asked_at = 0.0
        self._has_begun = False
        self.events = 0
        self.first: list[float] = []
        """Seconds until the first event of each answer."""
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's says that it is none
        self._ask()

    def data_received(self, data: bytes) -> None:
        seen = self._seen + data
        events = seen.count(ENDS_AN_EVENT) - self._seen.count(ENDS_AN_EVENT)
        self.events += events
        if events and not self._has_begun:
            self._has_begun = True
            self.first.append(time.perf_counter() - self._asked_at)
        self._seen = seen[-LAST:]
        if seen.endswith(ENDS_AN_ANSWER):
            self._left -= 1
            self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(exc or EOFError("the server hung up"))

    def _ask(self) -> None:
        self._seen = b""
        if not self._left:
            self.ended.set_result(None)
            self._transport.close()
            return
        self._has_begun, self._asked_at = False, time.perf_counter()
        self._transport.write(self._request)


async def streamed(path: str, request: bytes, streams: int, answers: int) -> Any:
    """What all of them saw."""
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    made = [
        await loop.create_unix_connection(lambda: Stream(request, answers), path)
        for _ in range(streams)
    ]
    await asyncio.gather(*(stream.ended for _, stream in made))
    return {
        "seconds": time.perf_counter() - began,
        "events": sum(stream.events for _, stream in made) - streams * answers,  # but [DONE]
        "first": [seconds for _, stream in made for seconds in stream.first],
    }


if __name__ == "__main__":
    asked_path, asked_route, *counts = sys.argv[1:]
    asked_streams, asked_answers, asked_tokens, asked_prompt = map(int, counts)
    sent = request_of(asked_route, asked_tokens, asked_prompt)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        told = runner.run(streamed(asked_path, sent, asked_streams, asked_answers))
    print(json.dumps(told))
