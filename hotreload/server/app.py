"""Builds the app from its routes. Their dependencies are parameters; see ports.py."""

from collections.abc import Callable, Sequence

from fastapi import APIRouter, Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hotreload.core.operator import Operator
from hotreload.core.way_in.admission import Listener
from hotreload.errors import BadRequest
from hotreload.events import Events
from hotreload.picture.status import Documents
from hotreload.server.admin import add_admin_routes
from hotreload.server.answerer import Answerer
from hotreload.server.api_schema.openapi import add_schema_route
from hotreload.server.bare_app import AppRules, make_bare_app
from hotreload.server.http.keys import AdminCheck, KeyCheck
from hotreload.server.http.limits import SharedCounters
from hotreload.server.http.problems import problem_of
from hotreload.server.model import LocalModel
from hotreload.server.model_routes import add_models_routes, model_routes
from hotreload.server.orders import TrainerOrders
from hotreload.server.ports import Entrance, FeatureRoutes, MetricsPage
from hotreload.server.sglang.routes import (
    add_engine_routes,
    add_health_probe,
    add_info_routes,
    add_tokenizer_routes,
)
from hotreload.server.sglang.update_routes import add_sglang_update_routes, add_vllm_routes
from hotreload.server.view_routes import (
    EventFeeds,
    EventStream,
    add_page_routes,
    add_view_routes,
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
    metrics: MetricsPage,
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
    local_model = app.state.model = LocalModel(
        entrance, metrics, limits, listeners, rules.replay, rules.key_limits
    )
    answerer = Answerer(local_model, metrics, limits, counts.running)
    app.router.routes += model_routes(answerer, model.name)
    app.router.routes.append(Route("/events", EventStream(feeds, rules.origins), methods=["GET"]))
    app.router.routes.append(webhook_route(rules.webhook))
    keys = rules.admin_keys
    by_key = KeyCheck(keys, kind="admin key") if keys is not None else None
    admission = AdminCheck(rules.admin_group, by_key)
    guarded = APIRouter(dependencies=[Depends(admission)])
    """The routes that require an administrator's rights."""
    add_models_routes(app, model.name, live)
    add_view_routes(app, documents, metrics, admission)
    add_page_routes(app)
    add_schema_route(app, routes)
    add_info_routes(app, entrance, status, model)
    add_tokenizer_routes(app, limits, entrance)
    add_engine_routes(guarded, entrance)
    add_health_probe(app, entrance, lambda: local_model.last_token_at)
    for each in routes:
        app.include_router(each.make(entrance, admission))
    orders = TrainerOrders(operator, entrance)
    add_sglang_update_routes(app, guarded, orders, status)
    add_vllm_routes(app, guarded, orders, entrance)
    add_admin_routes(guarded, entrance, operator, status)
    app.include_router(guarded)
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
