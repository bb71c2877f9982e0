"""Builds apps: routes, the middleware round them, and the rules that settings give them."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from fastapi import APIRouter, Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hotreload.core.operator import Operator
from hotreload.core.way_in.admission import Listener
from hotreload.errors import BadRequest
from hotreload.events import Events
from hotreload.picture.status import Documents
from hotreload.server import view_routes
from hotreload.server.admin import add_admin_routes
from hotreload.server.answerer import Answerer
from hotreload.server.api_schema.openapi import add_schema_route
from hotreload.server.http.keys import (
    AdminCheck,
    ApiKeys,
    CheckMiddleware,
    KeyCheck,
    Webhook,
    webhook_route,
)
from hotreload.server.http.limits import Bodies, LimitsMiddleware, SharedCounters
from hotreload.server.http.problems import no_route, problem_of
from hotreload.server.http.request_log import RequestLogMiddleware
from hotreload.server.http.senders import CorsMiddleware, HostCheck
from hotreload.server.key_limits import KeyLimits
from hotreload.server.model import LocalModel, Model
from hotreload.server.model_routes import add_models_routes, model_routes
from hotreload.server.ports import Entrance, FeatureRoutes, Metrics, MetricsPage
from hotreload.server.sglang import routes as sglang_routes
from hotreload.server.sglang import update_routes
from hotreload.server.sglang.answers import ServedModel
from hotreload.server_limits import Limits
from hotreload.types import Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class AppRules:
    """The model's names, and the requests that are answered."""

    model: ServedModel = field(default_factory=ServedModel)
    check_key: KeyCheck | None = None
    """Checks the API key of requests over TCP; None if they need none."""
    admin_keys: ApiKeys | None = None
    key_limits: KeyLimits = field(default_factory=KeyLimits)
    """Only of the engine's process."""
    admin_group: int | None = None
    hosts: Collection[str] = ()
    origins: Collection[str] = ()
    webhook: Webhook | None = None
    replay: bool = False
    """True to retry a request that a swap ended before its first token."""
    access_log: bool = False


def make_bare_app(
    title: str,
    rules: AppRules,
    *,
    limits: Limits,
    metrics: Metrics,
    live: Callable[[], Generation | None] = lambda: None,
    counts: SharedCounters | None = None,
    feeds: view_routes.EventFeeds | None = None,
) -> FastAPI:
    """Build an app without routes; `live` returns the live generation.

    Without `feeds` it has no events.
    """
    counts = counts or SharedCounters()
    app = FastAPI(title=title, openapi_url=None, redirect_slashes=False)
    app.state.feeds = feeds or view_routes.EventFeeds(Events(), lambda event: {}, limits)
    app.state.live = live
    app.state.bodies = Bodies(limits, counts.body_bytes)
    app.add_exception_handler(HTTPException, no_route)
    app.add_middleware(LimitsMiddleware, bodies=app.state.bodies)
    by_key = [] if rules.check_key is None else [rules.check_key.check_over_tcp]
    app.add_middleware(CheckMiddleware, checks=[HostCheck(rules.hosts), *by_key])
    app.add_middleware(
        RequestLogMiddleware,
        live=live,
        metrics=metrics,
        write_seconds=limits.write_seconds,
        logs_access=rules.access_log,
    )
    if rules.origins:
        app.add_middleware(CorsMiddleware, origins=rules.origins)
    return app


def create_worker_app(
    rules: AppRules,
    *,
    model: Model,
    metrics: Metrics,
    limits: Limits,
    counts: SharedCounters,
    live: Callable[[], Generation | None],
) -> FastAPI:
    """Build the app of a worker, which has the routes to the model alone."""
    title = "hotreload, a worker"
    app = make_bare_app(title, rules, limits=limits, metrics=metrics, live=live, counts=counts)
    answerer = Answerer(model, metrics, limits, counts.running)
    app.router.routes += model_routes(answerer, rules.model.name)
    return app


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
    rules: AppRules = AppRules(),  # it is frozen
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
        return status.picture.live

    feeds = view_routes.EventFeeds(events, status.event, limits)
    app = make_bare_app(
        "hotreload", rules, limits=limits, metrics=metrics, live=live, counts=counts, feeds=feeds
    )
    local_model = app.state.model = LocalModel(
        entrance, metrics, limits, listeners, rules.replay, rules.key_limits
    )
    answerer = Answerer(local_model, metrics, limits, counts.running)
    app.router.routes += model_routes(answerer, model.name)
    app.router.routes.append(
        Route("/events", view_routes.EventStream(feeds, rules.origins), methods=["GET"])
    )
    app.router.routes.append(webhook_route(rules.webhook))
    keys = rules.admin_keys
    by_key = KeyCheck(keys, kind="admin key") if keys is not None else None
    admission = AdminCheck(rules.admin_group, by_key)
    guarded = APIRouter(dependencies=[Depends(admission)])
    """The routes that require an administrator's rights."""
    add_models_routes(app, model.name, live)
    view_routes.add_view_routes(app, documents, metrics, admission)
    view_routes.add_page_routes(app)
    add_schema_route(app, routes)
    sglang_routes.add_info_routes(app, entrance, status, model, lambda: local_model.last_token_at)
    sglang_routes.add_tokenizer_routes(app, limits, entrance)
    sglang_routes.add_engine_routes(guarded, entrance)
    for each in routes:
        app.include_router(each.make(entrance, admission))
    update_routes.add_update_routes(app, guarded, entrance, operator, status)
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
