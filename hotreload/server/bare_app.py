"""An app without routes: the middleware round all routes, and the rules that settings give it."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from fastapi import FastAPI
from starlette.exceptions import HTTPException

from hotreload.events import Events
from hotreload.server.answerer import Answerer
from hotreload.server.http.browsers import CorsMiddleware, HostMiddleware
from hotreload.server.http.keys import ApiKeyMiddleware, ApiKeys, KeyCheck
from hotreload.server.http.limits import Bodies, LimitsMiddleware, SharedCounters
from hotreload.server.http.problems import no_route
from hotreload.server.http.request_log import RequestLogMiddleware
from hotreload.server.key_limits import KeyLimits
from hotreload.server.model import Model
from hotreload.server.model_routes import model_routes
from hotreload.server.ports import Metrics
from hotreload.server.sglang.answers import ServedModel
from hotreload.server.view_routes import EventFeeds
from hotreload.server.webhook import Webhook
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
    live: Callable[[], Generation | None],
    counts: SharedCounters,
    feeds: EventFeeds | None = None,
) -> FastAPI:
    """Build the app; `live` returns the live generation. Without `feeds` it has no events."""
    app = FastAPI(title=title, openapi_url=None, redirect_slashes=False)
    app.state.feeds = feeds or EventFeeds(Events(), lambda event: {}, limits)
    app.state.live = live
    app.state.bodies = Bodies(limits, counts.body_bytes)
    app.add_exception_handler(HTTPException, no_route)
    app.add_middleware(LimitsMiddleware, bodies=app.state.bodies)
    if rules.check_key is not None:
        app.add_middleware(ApiKeyMiddleware, check=rules.check_key)
    app.add_middleware(HostMiddleware, hosts=rules.hosts)
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
