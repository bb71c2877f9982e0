"""Puts the routes together. What they stand on is handed in; see ports.py."""

from collections.abc import Collection, Mapping
from functools import partial
from http import HTTPStatus

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hotreload.errors import BadRequest, shown
from hotreload.events import Events
from hotreload.server.admin import Admission, admin_routes
from hotreload.server.answerer import Answerer, ModelRoute
from hotreload.server.browsers import KnownHost
from hotreload.server.exchange import Exchange
from hotreload.server.generate import read_generate
from hotreload.server.limits import Bodies, Limited, Limits
from hotreload.server.openai.routes import openai_routes
from hotreload.server.page import page_routes
from hotreload.server.ports import Control, Gate, Metrics, View
from hotreload.server.problems import OPENAI_PATHS, Refused, problem_of
from hotreload.server.schema import schema_routes
from hotreload.server.watch import EventStream, Feeds, watch_routes
from hotreload.server.webhook import Webhook, webhook_route

ROUTES_OF_NOTE = "POST /generate, GET /status, GET /readyz, POST /admin/reload_weights"
OPENAI_ROUTES = "POST /v1/chat/completions, POST /v1/completions, GET /v1/models"


def create_app[P](
    *,
    gate: Gate[P],
    control: Control,
    view: View,
    events: Events,
    metrics: Metrics,
    limits: Limits | None = None,
    admin_group: int | None = None,
    replay: bool = False,
    webhook: Webhook | None = None,
    model_name: str = "model",
    hosts: Collection[str] = (),
) -> FastAPI:
    """Build the app. `HttpServer` serves it; another server would not know who connects."""
    limits = limits or Limits()
    app = FastAPI(title="hotreload", openapi_url=None, redirect_slashes=False)
    app.state.feeds = Feeds(events, view.event, limits)
    app.state.live = view.live
    app.state.bodies = Bodies(limits)
    answerer = Answerer(gate=gate, metrics=metrics, limits=limits, replay=replay)
    generate = ModelRoute(answerer, partial(read_generate, limits=limits))
    app.router.routes.append(Route("/generate", generate, methods=["POST"]))
    events_route = Route("/events", EventStream(app.state.feeds, limits), methods=["GET"])
    events_route.methods = {"GET"}  # no HEAD: it would never end
    app.router.routes.append(events_route)
    app.include_router(openai_routes(answerer, model_name, view.live))
    app.router.routes.append(webhook_route(webhook))
    app.include_router(watch_routes(view, metrics))
    app.include_router(page_routes())
    app.include_router(schema_routes())
    admission = Admission(admin_group)
    app.include_router(admin_routes(gate=gate, control=control, view=view, admission=admission))
    app.add_exception_handler(HTTPException, _no_such_route)
    app.add_exception_handler(RequestValidationError, _bad_query)
    app.add_middleware(Limited, limits=limits, bodies=app.state.bodies)
    app.add_middleware(KnownHost, hosts=hosts)
    seconds = limits.write_seconds
    app.add_middleware(Exchange, live=view.live, metrics=metrics, write_seconds=seconds)
    return app


async def _no_such_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = error.status_code
    code = HTTPStatus(status).phrase.lower().replace(" ", "_")
    asked = shown(f"{request.method} {request.url.path}")
    words = f"{asked}: {HTTPStatus(status).phrase.lower()}"
    headers: Mapping[str, str] = error.headers or {}
    if status == 404:
        is_openai = request.url.path.startswith(OPENAI_PATHS)
        words += f"; there are for example {OPENAI_ROUTES if is_openai else ROUTES_OF_NOTE}"
    elif status == 405:
        words += f"; allowed: {headers.get('Allow', 'another method')}"
    return problem_of(Refused(status, code, words, headers=headers), request.url.path)


async def _bad_query(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = [f"{fault['loc'][-1]}: {fault['msg']}" for fault in error.errors()]
    return problem_of(BadRequest("; ".join(faults), findings=faults), request.url.path)
