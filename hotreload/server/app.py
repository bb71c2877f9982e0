"""Builds the app from its routes. Their dependencies are parameters; see ports.py."""

from collections.abc import Callable, Sequence

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hotreload.core.operator import Operator
from hotreload.core.way_in.admission import Listener
from hotreload.errors import BadRequest
from hotreload.events import Events
from hotreload.picture.status import Documents
from hotreload.server.admin import admin_routes
from hotreload.server.answerer import Answerer
from hotreload.server.api_schema.openapi import schema_routes
from hotreload.server.bare_app import AppRules, make_bare_app
from hotreload.server.feature_routes import FeatureRoutes
from hotreload.server.http.keys import AdminCheck, KeyCheck
from hotreload.server.http.problems import problem_of
from hotreload.server.http.shared_counters import SharedCounters
from hotreload.server.model import LocalModel
from hotreload.server.model_routes import model_routes
from hotreload.server.openai.routes import models_routes
from hotreload.server.orders import TrainerOrders
from hotreload.server.ports import Entrance, Metrics
from hotreload.server.sglang.routes import sglang_routes
from hotreload.server.sglang.update_routes import sglang_update_routes, vllm_routes
from hotreload.server.view_routes import (
    EventFeeds,
    EventStream,
    key_routes,
    page_routes,
    view_routes,
)
from hotreload.server.webhook import webhook_route
from hotreload.server_limits import Limits
from hotreload.types import Generation


def create_app[P](
    *,
    entrance: Entrance[P],
    operator: Callable[[], Operator],
    documents: Documents,
    events: Events,
    metrics: Metrics,
    listeners: Sequence[Listener] = (),
    routes: Sequence[FeatureRoutes] = (),
    limits: Limits | None = None,
    rules: AppRules = AppRules(),  # noqa: B008  # it is frozen
    counts: SharedCounters | None = None,
) -> FastAPI:
    """Build the app for `HttpServer`, which alone puts the client's identity into the scope.

    `operator` returns the receiver of orders; NotServing while there is none. `listeners` are
    called for each request to the model, `routes` are those of features. Workers share the
    `counts`.
    """
    limits, counts, model = limits or Limits(), counts or SharedCounters(), rules.model
    status = documents.status

    def live() -> Generation | None:
        return status.live

    feeds = EventFeeds(events, status.event, limits)
    app = make_bare_app(
        "hotreload", rules, limits=limits, metrics=metrics, live=live, counts=counts, feeds=feeds
    )
    asked = app.state.model = LocalModel(
        entrance, metrics, limits, listeners, rules.replay, rules.key_limits
    )
    answerer = Answerer(model=asked, metrics=metrics, limits=limits, running=counts.running)
    app.router.routes += model_routes(answerer, model.name)
    events_stream = EventStream(feeds, limits, rules.origins)
    app.router.routes.append(Route("/events", events_stream, methods=["GET"]))
    app.include_router(models_routes(model.name, live))
    app.router.routes.append(webhook_route(rules.webhook))
    app.include_router(view_routes(documents, metrics))
    app.include_router(page_routes())
    app.include_router(schema_routes(routes))
    keys = rules.admin_keys
    by_key = KeyCheck(keys, kind="admin key") if keys is not None else None
    admission = AdminCheck(rules.admin_group, by_key)
    app.include_router(key_routes(admission))
    app.include_router(
        sglang_routes(
            limits,
            entrance=entrance,
            status=status,
            model=model,
            admission=admission,
            last_token_at=lambda: asked.last_token_at,
        )
    )
    for each in routes:
        app.include_router(each.make(entrance, admission))
    orders = TrainerOrders(operator, entrance)
    app.include_router(sglang_update_routes(orders, status=status, admission=admission))
    app.include_router(vllm_routes(orders, entrance=entrance, admission=admission))
    app.include_router(
        admin_routes(entrance=entrance, operator=operator, status=status, admission=admission)
    )
    _answer_head(app)
    app.add_exception_handler(RequestValidationError, _bad_query)
    return app


def _answer_head(app: FastAPI) -> None:
    """Let each route that answers GET answer HEAD too; uvicorn leaves the body out."""
    for route in app.routes:
        if isinstance(route, Route) and route.methods and "GET" in route.methods:
            route.methods.add("HEAD")


async def _bad_query(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = [f"{fault['loc'][-1]}: {fault['msg']}" for fault in error.errors()]
    return problem_of(BadRequest("; ".join(faults), findings=faults), request.url.path)
