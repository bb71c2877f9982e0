"""The address at which a command asks the new weights and the live ones before it decides.

It speaks OpenAI's API to a client that sends its token. The model `candidate` is the new weights,
which are not live yet; `live` is the weights that answer clients.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass

from fastapi import FastAPI
from starlette.responses import Response

from hotreload.core.way_in.admission import UNCONDITIONAL, Conditions
from hotreload.server.answerer import Answerer
from hotreload.server.app import AppRules, make_bare_app
from hotreload.server.http.http_server import HttpServer
from hotreload.server.http.keys import ApiKeys, KeyCheck
from hotreload.server.http.problems import OPENAI_PATHS, Json
from hotreload.server.http.server_sockets import bind_tcp
from hotreload.server.model import LocalModel
from hotreload.server.model_routes import DIALECTS, model_fields
from hotreload.server.ports import Admitter, AnsweringEngine
from hotreload.server_limits import UNNAMED, Limits
from hotreload.threads import run_to_end
from hotreload.types import Lease

CANDIDATE_MODEL, LIVE_MODEL = "candidate", "live"
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class SingleLease[P]:
    """Admits every request to one lease: weights that serve no other client need no gate."""

    lease: Lease[AnsweringEngine[P]]
    lets_in = False
    """False: no other engine could answer a retry."""

    @contextmanager
    def lend_engine(self) -> Iterator[AnsweringEngine[P]]:
        """Lend the lease's engine."""
        yield self.lease.engine

    @asynccontextmanager
    async def admit(
        self, asked: Conditions = UNCONDITIONAL
    ) -> AsyncIterator[Lease[AnsweringEngine[P]]]:
        """Yield the lease, whatever weights the request asks for."""
        yield self.lease


class NoMetrics:
    """Metrics that count nothing: a command's requests are not clients' requests."""

    def request_finished(self, route: str, code: int, seconds: float) -> None:
        """Count nothing."""

    def first_token(self, seconds: float) -> None:
        """Record nothing."""

    def tokens(self, count: int) -> None:
        """Count nothing."""


def create_candidate_app[P](
    candidate: Lease[AnsweringEngine[P]], live: Admitter[P], *, limits: Limits, token: str
) -> FastAPI:
    """Build the app; it answers 401 to a request without the token."""
    metrics = NoMetrics()
    rules = AppRules(check_key=KeyCheck(ApiKeys({token: UNNAMED}), kind="token"))
    app = make_bare_app("hotreload, for a command", rules, limits=limits, metrics=metrics)
    model = LocalModel(SingleLease(candidate), metrics, limits)
    others = {LIVE_MODEL: LocalModel(live, metrics, limits)}
    answerer = Answerer(model, metrics, limits, others=others)
    app.router.routes += [
        dialect.route(path, answerer, CANDIDATE_MODEL)
        for path, dialect in DIALECTS.items()
        if path.startswith(OPENAI_PATHS)
    ]

    @app.get("/v1/models")
    async def models() -> Response:
        async with live.admit() as lease:
            each = {CANDIDATE_MODEL: candidate.generation, LIVE_MODEL: lease.generation}
        data = [model_fields(name, generation) for name, generation in each.items()]
        return Json({"object": "list", "data": data})

    return app


@asynccontextmanager
async def serve_at_loopback(app: FastAPI, limits: Limits) -> AsyncIterator[str]:
    """Serve the app on a free port of 127.0.0.1 until the block ends; yield its URL."""
    with closing(bind_tcp(f"{LOOPBACK}:0")) as listener:
        port = listener.getsockname()[1]
        server = HttpServer(app, limits=limits, graceful_seconds=0.0, linger_seconds=0.0)
        serving = asyncio.create_task(server.serve([listener]), name="answer a command")
        try:
            yield f"http://{LOOPBACK}:{port}"
        finally:
            server.stop()
            await run_to_end(_wait_for(serving))


async def _wait_for(serving: asyncio.Task[None]) -> None:
    await serving
