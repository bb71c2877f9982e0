"""A whole server round an engine and a control that do what the test says."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import httpx
from starlette.routing import Route

from hotreload.attempts import Attempt, By
from hotreload.core.ledger import Ledger
from hotreload.core.way_in.admission import Admission
from hotreload.core.way_in.entrance import Entrance
from hotreload.core.way_in.gate import Gate
from hotreload.errors import HotReloadError
from hotreload.events import Events, GenerationLive
from hotreload.facts.listed import Listed
from hotreload.feature import AllFeatures
from hotreload.features import FEATURES
from hotreload.observe.metrics_page import Fresh
from hotreload.picture.checkpoints import Checkpoints
from hotreload.picture.picture import Readings, ReplicaFigures
from hotreload.picture.status import Documents, Status
from hotreload.server.api_schema.operation import Operation
from hotreload.server.app import AppRules, create_app
from hotreload.server.http.http_server import HttpServer
from hotreload.server.http.keys import ApiKeys, Webhook, key_check
from hotreload.server.http.server_sockets import TlsPair, bind_tcp, bind_unix
from hotreload.server.http.socket_paths import SocketPaths
from hotreload.server_limits import Limits
from hotreload.settings.load import load
from hotreload.types import (
    AnsweringGeneration,
    EngineLoad,
    Generation,
    Lease,
    Noise,
    Outcome,
    Phase,
    Reason,
    Revision,
)
from tests.evidence import judged
from tests.fakes import FakeEngine, Steps
from tests.features.admissions import admission_of, listener_of
from tests.features.given import given, parts_of
from tests.observe.things import picture_of
from tests.server.workers import WorkerInLoop
from tests.waiting import PATIENCE, turn_until

Fields = dict[str, Any]

BY_A_WORKER = False
"""True while a worker answers what asks the model; tests/server/conftest.py says where."""


def _described() -> dict[tuple[str, str], Operation]:
    parts: Any = MagicMock()
    routes = [routes for each in FEATURES if (routes := parts_of(each).routes)]
    app = create_app(
        entrance=parts,
        operator=parts,
        documents=parts,
        events=parts,
        metrics=parts,
        routes=routes,
    )
    return {
        (method, route.path_format): route.endpoint.operation  # type: ignore[attr-defined]
        for route in app.routes
        if isinstance(route, Route)
        for method in (route.methods or {"ANY"}) - {"HEAD"}  # answered wherever GET is
    }


DESCRIBED = _described()
"""What is said of every route of a server."""
LEAVES = {"lm_head": 11, "model.embed": 7}
FIRST = Generation(1, Revision("aaaa1111", "step-1"), "fp-1", 1_700_000_000.0, LEAVES)
SECOND = Generation(2, Revision("bbbb2222", "step-2"), "fp-2", 1_700_000_100.0)


class FakeControl:
    """Accepts every wish and keeps it, unless told to refuse."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any, bool]] = []
        self.refusal: HotReloadError | None = None
        self.outcome: Attempt | None = None
        self.promise: asyncio.Future[Attempt] | None = None
        self.may_accept = asyncio.Event()
        """Until then it is still finding out what is meant, as with a hub that takes its time."""
        self.may_accept.set()
        self.came = 0
        self.by: list[By] = []
        """Who asked."""
        self.holds: list[bool] = []
        """Whether rollbacks were to hold what they make live."""
        self.others: list[str] = []
        """Generations that can be had."""
        self.versions: list[str] = []
        """What those who asked call the weights."""

    async def reload(
        self, name: str | None, *, by: By, force: bool, version: str
    ) -> asyncio.Future[Attempt]:
        self.by.append(by)
        self.versions.append(version)
        await self._find_out()
        return self._accept("reload", name, force)

    async def rehearse(self, name: str | None, *, by: By) -> asyncio.Future[Attempt]:
        self.by.append(by)
        await self._find_out()
        return self._accept("rehearse", name, False)

    async def rollback(self, number: int | None, *, by: By, holds: bool) -> asyncio.Future[Attempt]:
        self.by.append(by)
        self.holds.append(holds)
        await self._find_out()
        return self._accept("rollback", number, False)

    async def list_rollback_targets(self) -> list[str]:
        return self.others

    async def perturb(self, noise: Noise, *, by: By) -> asyncio.Future[Attempt]:
        self.by.append(by)
        return self._accept("perturb", noise, False)

    async def name_live(self, version: str, *, by: By) -> Generation:
        self.by.append(by)
        self._accept("version", version, False)
        return replace(FIRST, version=version)

    async def pin(self, *, by: By) -> Generation:
        return await self._set_pinned("pin", by)

    async def unpin(self, *, by: By) -> Generation:
        return await self._set_pinned("unpin", by)

    async def _set_pinned(self, verb: str, by: By) -> Generation:
        self.by.append(by)
        await self._find_out()
        if self.refusal is not None:
            raise self.refusal
        self.asked.append((verb, None, False))
        return FIRST

    async def _find_out(self) -> None:
        self.came += 1
        await self.may_accept.wait()

    def _accept(self, verb: str, name: Any, force: bool) -> asyncio.Future[Attempt]:
        if self.refusal is not None:
            raise self.refusal
        self.asked.append((verb, name, force))
        self.promise = asyncio.get_running_loop().create_future()
        if self.outcome is not None:
            self.promise.set_result(self.outcome)
        return self.promise


def attempt(outcome: Outcome = Outcome.LIVE, reason: Reason | None = None) -> Attempt:
    """An attempt at step-2 that ended so."""
    ended = Attempt(
        revision=SECOND.revision,
        outcome=outcome,
        reason=reason,
        phases={Phase.VALIDATING: 0.2, Phase.STAGING: 1.0, Phase.SWAPPING: 0.004},
        pause_seconds=0.005,
        finished_at=1_700_000_100.0,
        generation=2 if outcome is Outcome.LIVE else None,
    )
    return judged(ended)


class View:
    """The real documents, so that what clients read here is what they read from a daemon."""

    def __init__(self, events: Events, gate: Gate[FakeEngine]) -> None:
        self.ledger = Ledger()
        self.older: list[AnsweringGeneration] = []
        """Generations from before the live one that still answer."""
        picture = picture_of(
            self.ledger,
            readings=Readings(
                replicas=lambda: [
                    ReplicaFigures(
                        inside=gate.inside,
                        held=gate.held,
                        answering=gate.list_answering(),
                        load=gate.lease.engine.load if gate.lease else EngineLoad(),
                    )
                ],
                answering=lambda: [*gate.list_answering(), *self.older],
            ),
        )
        self.listed: list[Listed] = []
        """What the source sees."""
        self.documents = Documents(
            Status(picture), picture.history, Checkpoints(picture, lambda: self.listed)
        )
        events.subscribe(picture.observe)

    def status(self) -> Fields:
        """The document of /status."""
        return self.documents.status.snapshot()


@dataclass
class FakeMetrics:
    """Remembers what was counted."""

    finished: list[tuple[str, int]] = field(default_factory=list)
    first_tokens: int = 0
    counts: list[int] = field(default_factory=list)
    """How many tokens were counted each time."""

    def __post_init__(self) -> None:
        self._fresh = Fresh(lambda: self.render())  # noqa: PLW0108 a test may put another in its place

    def request_finished(self, route: str, code: int, seconds: float) -> None:
        assert seconds >= 0
        self.finished.append((route, code))

    def first_token(self, seconds: float) -> None:
        self.first_tokens += 1

    def tokens(self, count: int) -> None:
        self.counts.append(count)

    @property
    def counted(self) -> int:
        return sum(self.counts)

    def render(self) -> bytes:
        return b"hotreload_generation 1.0\n"

    def latest(self) -> Future[bytes]:
        return self._fresh.latest()


class World:
    """Everything a test of the server may turn and look at."""

    def __init__(
        self,
        path: Path,
        limits: Limits,
        admin_group: int | None,
        replay: bool = False,
        *,
        webhook: str | None = None,
        view: View | None = None,
        sets: Sequence[str] = (),
        keys: ApiKeys | None = None,
        admin_keys: ApiKeys | None = None,
        **more: Any,
    ) -> None:
        """`sets` are settings of features, such as "compare.replay=8"."""
        self.path = path
        self.server_limits = limits
        self.events = Events()
        self.entrance = Entrance[FakeEngine](self.events.publish, replicas=2)
        settings = load(None, sets, {}, FEATURES).settings
        to_each = given(settings, self.entrance, self.events.publish)
        self.features = AllFeatures([each.begin(to_each) for each in FEATURES])
        self.entrance.admissions = self.features.admissions
        self.gate = self.entrance.gates[0]
        """That of the first engine; another one answers only where a test opens its gate."""
        self.engine = self.another_engine("served by step 1")
        self.control = FakeControl()
        self.view = view or View(self.events, self.gate)
        self.metrics = FakeMetrics()
        self.worker = WorkerInLoop() if BY_A_WORKER else None
        self.woken: list[str] = []
        """What woke the source."""
        self.rules = AppRules(
            check_key=key_check(keys, admin_keys),
            admin_keys=admin_keys,
            admin_group=admin_group,
            webhook=Webhook(webhook, self.woken.append) if webhook else None,
            replay=replay,
            **more,
        )
        self.app = create_app(
            entrance=self.entrance,
            operator=self.operator,
            documents=self.view.documents,
            events=self.events,
            metrics=self.metrics,
            listeners=self.features.listeners,
            routes=self.features.routes,
            limits=limits,
            rules=self.rules,
            counts=self.worker.counts if self.worker else None,
        )
        self.socket_paths = SocketPaths(self.events.publish)
        self.server = HttpServer(
            self.app,
            socket_paths=self.socket_paths,
            limits=limits,
            graceful_seconds=1.0,
            linger_seconds=0.0,
            counts=self.worker.counts if self.worker else None,
            other_process=self.worker,
        )
        self.tcp_port = 0
        self._writers: list[asyncio.StreamWriter] = []

    def admission[A: Admission](self, kind: type[A]) -> A:
        """That of a feature."""
        return admission_of(self.entrance, kind)

    def listener[L](self, kind: type[L]) -> L:
        """That of a feature."""
        return listener_of(self.features.listeners, kind)

    def operator(self) -> Any:
        """Who takes orders."""
        return self.control

    def another_engine(self, words: str) -> FakeEngine:
        """An engine that says this."""
        engine = FakeEngine(Steps(), FIRST.revision, LEAVES)
        engine.words = words.split()
        engine.inside = lambda: self.gate.inside
        return engine

    def go_live(self, generation: Generation) -> None:
        """Let this generation answer, as the daemon does."""
        self.events.publish(GenerationLive(generation))
        self.open(generation)

    def open(self, generation: Generation) -> None:
        """Let requests in, to be answered by it."""
        self.gate.open(Lease(generation, self.engine))

    @property
    def connections(self) -> set[Any]:
        """All that are answered here, or by its worker."""
        ours = set(self.server.server_state.connections)
        return ours | (self.worker.connections if self.worker else set())

    async def settle(self) -> None:
        """Wait until a worker, if there is one, has told all that it did."""
        if self.worker is not None:
            await self.worker.settle()

    def client(self) -> httpx.AsyncClient:
        """A client of the socket; the caller closes it."""
        transport = httpx.AsyncHTTPTransport(uds=str(self.path))
        return httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=PATIENCE)

    async def ask_raw(self, fields: Fields) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A bare connection on which POST /generate has been sent."""
        reader, writer = await self.raw()
        self.send(writer, fields)
        return reader, writer

    def send(self, writer: asyncio.StreamWriter, fields: Fields, head: bytes = b"") -> None:
        """Send POST /generate on a bare connection, with more of a head."""
        body = json.dumps(fields).encode()
        head += b"Content-Length: %d\r\n" % len(body)
        writer.write(b"POST /generate HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n" + body)

    async def raw(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A bare connection; it is closed with the world, if not before."""
        reader, writer = await asyncio.open_unix_connection(str(self.path))
        self._writers.append(writer)
        return reader, writer

    def hang_up(self) -> None:
        """Close what bare connections are still open."""
        for writer in self._writers:
            writer.close()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Let the loop turn until something holds that no event tells of."""
        await turn_until(holds)


async def answer_on(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], Any]:
    """The status, headers and JSON of an answer on a bare connection."""
    async with asyncio.timeout(PATIENCE):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        pairs = (line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
        headers = {name.lower(): value for name, value in pairs}
        body = await reader.readexactly(int(headers["content-length"]))
    return int(head.split()[1]), headers, json.loads(body)


@asynccontextmanager
async def serve(
    folder: Path,
    *,
    limits: Limits | None = None,
    booted: bool = True,
    admin_group: int | None = None,
    tcp: bool = False,
    tls: TlsPair | None = None,
    replay: bool = False,
    webhook: str | None = None,
    **more: Any,
) -> AsyncIterator[World]:
    """A server on a socket in `folder`, in this loop, until the block ends.

    `more` are rules of the app (hosts, origins, keys, access_log), but for `view`, what is to be
    seen there in place of what happens here, and `sets`.
    """
    path = folder / "hotreload.sock"
    world = World(path, limits or Limits(), admin_group, replay, webhook=webhook, **more)
    if booted:
        world.go_live(FIRST)
    sockets = [bind_unix(world.path, 0o666)]
    if tcp:
        sockets.append(bind_tcp("127.0.0.1:0"))
        world.tcp_port = sockets[1].getsockname()[1]
    task = asyncio.create_task(world.server.serve(sockets, tls))
    await world.until(lambda: world.server.started)
    async with _with_its_worker(world):
        try:
            yield world
        finally:
            world.hang_up()
            world.server.stop()
            await task


@asynccontextmanager
async def _with_its_worker(world: World) -> AsyncIterator[None]:
    """Have its worker answer, if it has one, with the same round its routes."""
    if (worker := world.worker) is None:
        yield
        return
    status = world.view.documents.status
    world.events.subscribe(lambda event: worker.send_live(status.picture.live))
    async with worker.run_for(
        world.server,
        model=world.app.state.model,
        metrics=world.metrics,
        limits=world.server_limits,
        live=status.picture.live,
        rules=world.rules,
    ):
        yield
