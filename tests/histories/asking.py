"""Sends one request over the unix socket and records how it ended, whatever way that is."""

import http.client
import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.histories.conversations import KEEP, TURNS
from tests.histories.record import Ended, Fields, Record, Request, Said, attempt_of
from tests.integration.running import PROMPTS, request_for
from tests.waiting import PATIENCE

"""A request that takes longer hangs."""
SAID_IN = 3
"""So many tokens a checkpoint of a history says: a word, a number and its end."""
LONG = (20, 60)
"""How often in a row a long answer says it."""
AGAIN = 0.2
"""A client that was not answered waits so long."""
METRICS = ("hotreload_reloads_total", "hotreload_weights_bytes", "hotreload_generation")


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PATIENCE)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(str(self._path))
        except OSError as error:
            raise _Unreachable from error


class _Unreachable(Exception):
    """Nobody listens."""


class Asking:
    """Asks one daemon and keeps every request in the record."""

    def __init__(self, path: Path, record: Record) -> None:
        self.path = path
        self.record = record

    def ask(
        self,
        method: str,
        route: str,
        asked: Any = None,
        *,
        is_bad: bool = False,
        read_after: float = 0,
        session: str = "",
    ) -> Request:
        """Send it, wait for its end, and return what is recorded of it."""
        start = time.monotonic()
        ended, status, body = self._exchange(method, route, asked, read_after, session)
        known: Fields = {}
        said: tuple[Said, ...] = ()
        if route == "/generate" and ended is not Ended.REFUSED:
            said, known, ended = _answers(body, ended, _times(asked))
        elif body:
            known = _trimmed(route, body)
        fields = asked if isinstance(asked, dict) else {}
        request = Request(
            start, time.monotonic(), route, ended, status, fields, said, known, is_bad, session
        )
        self.record.requests.append(request)
        return request

    def _exchange(
        self, method: str, route: str, asked: Any, read_after: float, session: str
    ) -> tuple[Ended, int | None, bytes]:
        body = asked if asked is None or isinstance(asked, bytes) else json.dumps(asked).encode()
        headers = {"Content-Type": "application/json"} if body is not None else {}
        headers |= {"X-Session-ID": session} if session else {}
        pieces: list[bytes] = []
        status = None
        try:
            with closing(_Connection(self.path)) as connection:
                connection.request(method, route, body, headers)
                time.sleep(read_after)
                response = connection.getresponse()
                status = response.status
                while piece := response.read1(65536):
                    pieces.append(piece)
                if response.length:
                    raise http.client.IncompleteRead(b"")
        except _Unreachable:
            return Ended.UNREACHABLE, None, b""
        except TimeoutError:
            return Ended.HUNG, status, b""
        except (OSError, http.client.HTTPException):
            return Ended.CLOSED, status, b"".join(pieces)
        return Ended.ANSWERED if status < 400 else Ended.REFUSED, status, b"".join(pieces)

    def get(self, route: str) -> Fields:
        """How things are; nothing while nobody answers."""
        request = self.ask("GET", route)
        return request.fields if request.ended is Ended.ANSWERED else {}

    def leave(self, body: bytes, chance: random.Random) -> None:
        """Send a request, or half of it, and go."""
        start = time.monotonic()
        ended = Ended.LEFT
        half = body[: len(body) // chance.choice((1, 2))]
        head = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(self.path))
                connection.sendall(head.encode() + half)
                time.sleep(chance.choice((0, 0.005, 0.05)))
        except OSError:
            ended = Ended.UNREACHABLE
        request = Request(start, time.monotonic(), "/generate", ended, is_bad=True)
        self.record.requests.append(request)

    @contextmanager
    def clients(self, count: int, seed: int) -> Iterator[None]:
        """So many clients that ask one request after the other, with a moment between them."""
        end = threading.Event()
        chances = [random.Random(seed * 1000 + number) for number in range(count)]
        threads = [threading.Thread(target=self._client, args=(end, c)) for c in chances]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            end.set()
            for thread in threads:
                thread.join()

    def _client(self, end: threading.Event, chance: random.Random) -> None:
        newest = 0
        while not end.wait(chance.uniform(0, 0.06)):
            prompt: Any = chance.choice(PROMPTS)
            if is_batch := chance.random() < 0.1:
                prompt = list(PROMPTS[:3])
            wish = request_for(prompt, stream=not is_batch and chance.random() < 0.3)
            if not is_batch and chance.random() < 0.15:
                wish = long_request(prompt, chance.choice(LONG), stream=wish["stream"])
            if newest and chance.random() < 0.1:  # one that was seen, or the one that comes next
                wish["min_generation"] = newest + chance.choice((0, 0, 1))
            asked = self.ask("POST", "/generate", wish)
            newest = max((newest, *(said.generation for said in asked.said)))
            if asked.ended is not Ended.ANSWERED:
                end.wait(AGAIN)
            elif chance.random() < 0.25:
                self._converse(end, chance)
            elif chance.random() < 0.2:  # it must not name an older generation than the answer
                self.ask("GET", "/status")

    def _converse(self, end: threading.Event, chance: random.Random) -> None:
        """A conversation, with pauses in which something may go live, or its time may run out."""
        session = f"{chance.random():.12f}"
        for _ in range(TURNS):
            wish = request_for(chance.choice(PROMPTS), stream=chance.random() < 0.3)
            if chance.random() < 0.3:
                wish = long_request(wish["text"], LONG[0], stream=wish["stream"])
            self.ask("POST", "/generate", wish, session=session)
            if end.wait(chance.choice((0, KEEP / 4, KEEP / 2, KEEP * 1.1))):
                return


def long_request(prompt: str, times: int, *, stream: bool) -> Fields:
    """A request whose answer says the same so often, because it may not stop at its end."""
    sampling = {"temperature": 0, "max_new_tokens": times * SAID_IN, "ignore_eos": True}
    return {"text": prompt, "sampling_params": sampling, "stream": stream}


def _times(asked: Any) -> int:
    """How often the answer says the same."""
    sampling = asked["sampling_params"] if isinstance(asked, dict) else {}
    return sampling["max_new_tokens"] // SAID_IN if sampling.get("ignore_eos") else 1


def _answers(body: bytes, ended: Ended, times: int) -> tuple[tuple[Said, ...], Fields, Ended]:
    """What was said, in one piece or as a stream, which is whole only with its end."""
    if not body.startswith(b"data: "):
        if ended is not Ended.ANSWERED:
            return (), {}, ended
        content = json.loads(body)
        return (
            tuple(_said(item, times) for item in content if item)
            if isinstance(content, list)
            else (_said(content, times),),
            {},
            ended,
        )
    *lines, rest = (line for line in body.split(b"\n\n"))
    chunks = [line.removeprefix(b"data: ") for line in lines]
    is_whole = ended is Ended.ANSWERED and chunks[-1:] == [b"[DONE]"] and not rest
    items = [json.loads(chunk) for chunk in chunks if chunk != b"[DONE]"]
    pieces = (item for item in items if "text" in item)
    said = tuple(_said(item, times, item is items[-1] and is_whole) for item in pieces)
    problem = next((item["error"] for item in items if "error" in item), None)
    if problem is not None:
        return said, problem, Ended.REFUSED
    return said, {}, Ended.ANSWERED if is_whole else Ended.CLOSED


def _said(item: Fields, times: int, whole: bool = True) -> Said:
    meta = item["meta_info"]
    who = meta["generation"], meta["revision"], meta["fingerprint"]
    return Said(*who, item["text"], whole, times)


def _trimmed(route: str, body: bytes) -> Fields:
    """The answer's fields; of long ones what the checks look at."""
    if route == "/metrics":
        lines = (line for line in body.decode().splitlines() if line.startswith(METRICS))
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
    try:
        content = json.loads(body)
    except ValueError:
        return {"body": body[:500].decode(errors="replace")}
    if route == "/status" and "refused" in content:
        del content["replicas"], content["last_attempt"]
        content["refused"] = [
            [each[n] for n in ("revision", "label", "code")] for each in content["refused"]
        ]
    if route == "/history" and "attempts" in content:
        content["attempts"] = [attempt_of(each) for each in content["attempts"]]
    return dict(content)
