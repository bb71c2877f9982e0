"""The address at which a command asks the new weights and the live ones before it decides.

It speaks OpenAI's API to a client that sends its token. The model `candidate` is the new weights,
which are not live yet; `live` is the weights that answer clients.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, closing, contextmanager

from fastapi import APIRouter, FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from hotreload.core.way_in.admission import UNCONDITIONAL, Conditions
from hotreload.errors import NotServing
from hotreload.server.answerer import Answerer
from hotreload.server.bare_app import AppRules, make_bare_app
from hotreload.server.http.http_server import HttpServer
from hotreload.server.http.keys import ApiKeys, KeyCheck
from hotreload.server.http.problems import Json
from hotreload.server.http.server_sockets import bind_tcp
from hotreload.server.http.shared_counters import SharedCounters
from hotreload.server.http.socket_paths import SocketPaths
from hotreload.server.model import LocalModel
from hotreload.server.openai.routes import DIALECTS, OpenAIRoute, model_fields, route_to_model
from hotreload.server.ports import Admitter, AnsweringEngine
from hotreload.server_limits import UNNAMED, Limits
from hotreload.threads import run_to_end
from hotreload.types import Generation, Lease

CANDIDATE_MODEL, LIVE_MODEL = "candidate", "live"
LOOPBACK = "127.0.0.1"


class SingleLease[P]:
    """Admits every request to one lease: weights that serve no other client need no gate."""

    lets_in = False
    """False: no other engine could answer a retry."""

    def __init__(self, lease: Lease[AnsweringEngine[P]]) -> None:
        self._lease = lease

    @contextmanager
    def lend_engine(self) -> Iterator[AnsweringEngine[P]]:
        """Lend the lease's engine."""
        yield self._lease.engine

    @asynccontextmanager
    async def admit(
        self, asked: Conditions = UNCONDITIONAL
    ) -> AsyncIterator[Lease[AnsweringEngine[P]]]:
        """Yield the lease, whatever weights the request asks for."""
        yield self._lease


class NoMetrics:
    """Metrics that count nothing: a command's requests are not clients' requests."""

    def request_finished(self, route: str, code: int, seconds: float) -> None:
        """Count nothing."""

    def first_token(self, seconds: float) -> None:
        """Record nothing."""

    def tokens(self, count: int) -> None:
        """Count nothing."""

    def latest(self) -> Future[bytes]:
        """Raise NotServing: there is no metrics page here."""
        raise NotServing("there is no metrics page here")


class ModelSwitch:
    """A path of several models: each request goes to the route of the model that it names."""

    def __init__(self, routes: Mapping[str, OpenAIRoute]) -> None:
        """The first route answers requests that name none of the models; it refuses them."""
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        body = await request.body()
        try:
            asked = (await request.json()).get("model")
        except (ValueError, AttributeError, RecursionError):  # the route says what is wrong
            asked = None
        first = next(iter(self._routes.values()))
        route = self._routes.get(asked, first) if isinstance(asked, str) else first
        await route(scope, _replay_body(body, receive), send)


def _replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that yields the body again, and then the client's further messages."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return left.pop() if left else await receive()

    return next_message


def create_candidate_app[P](
    candidate: Lease[AnsweringEngine[P]], live: Admitter[P], *, limits: Limits, token: str
) -> FastAPI:
    """Build the app; it answers 401 to a request without the token."""
    metrics = NoMetrics()
    rules = AppRules(check_key=KeyCheck(ApiKeys({token: UNNAMED}), kind="token"))
    app = make_bare_app(
        "hotreload, for a command",
        rules,
        limits=limits,
        metrics=metrics,
        live=lambda: None,
        counts=SharedCounters(),
    )
    ways: dict[str, Admitter[P]] = {CANDIDATE_MODEL: SingleLease(candidate), LIVE_MODEL: live}
    models = {name: LocalModel(way, metrics, limits) for name, way in ways.items()}
    answerers = {
        name: Answerer(model=each, metrics=metrics, limits=limits) for name, each in models.items()
    }
    for path in DIALECTS:
        routes = {name: route_to_model(path, each, name) for name, each in answerers.items()}
        app.router.routes.append(Route(path, ModelSwitch(routes), methods=["POST"]))
    app.include_router(_models(candidate.generation, live))
    return app


def _models[P](candidate: Generation, live: Admitter[P]) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/models")
    async def models() -> Response:
        async with live.admit() as lease:
            each = {CANDIDATE_MODEL: candidate, LIVE_MODEL: lease.generation}
        data = [model_fields(name, generation) for name, generation in each.items()]
        return Json({"object": "list", "data": data})

    return router


@asynccontextmanager
async def serve_at_loopback(app: FastAPI, limits: Limits) -> AsyncIterator[str]:
    """Serve the app on a free port of 127.0.0.1 until the block ends; yield its URL."""
    with closing(bind_tcp(f"{LOOPBACK}:0")) as listener:
        port = listener.getsockname()[1]
        server = HttpServer(
            app,
            socket_paths=SocketPaths(lambda event: None),
            limits=limits,
            graceful_seconds=0.0,
            linger_seconds=0.0,
        )
        serving = asyncio.create_task(server.serve([listener]), name="answer a command")
        try:
            yield f"http://{LOOPBACK}:{port}"
        finally:
            server.stop()
            await run_to_end(_wait_for(serving))


async def _wait_for(serving: asyncio.Task[None]) -> None:
    await serving
