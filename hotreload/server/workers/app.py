"""The app of a worker: the routes to the model and the middleware; no other routes."""

from collections.abc import Callable, Collection

from fastapi import FastAPI
from starlette.exceptions import HTTPException

from hotreload.events import Events
from hotreload.server.answerer import Answerer
from hotreload.server.http.keys import KeyCheck
from hotreload.server.http.limits import Bodies
from hotreload.server.http.middleware import add_middleware
from hotreload.server.http.shared_counters import SharedCounters
from hotreload.server.model import Model
from hotreload.server.model_routes import model_routes
from hotreload.server.ports import Metrics
from hotreload.server.sglang.not_served import no_route
from hotreload.server.view_routes import EventFeeds
from hotreload.server_limits import Limits
from hotreload.types import Generation


def create_worker_app(
    *,
    model: Model,
    name: str,
    metrics: Metrics,
    limits: Limits,
    counts: SharedCounters,
    live: Callable[[], Generation | None],
    check_key: KeyCheck | None,
    hosts: Collection[str],
    origins: Collection[str],
    access_log: bool,
) -> FastAPI:
    """Build the app; `name` is the model's name to clients, `live` returns the live generation."""
    app = FastAPI(title="hotreload, a worker", openapi_url=None, redirect_slashes=False)
    app.state.feeds = EventFeeds(Events(), lambda event: {}, limits)
    app.state.live = live
    app.state.bodies = Bodies(limits, counts.body_bytes)
    answerer = Answerer(model=model, metrics=metrics, limits=limits, running=counts.running)
    app.router.routes += model_routes(answerer, name)
    app.add_exception_handler(HTTPException, no_route)
    add_middleware(
        app,
        limits=limits,
        metrics=metrics,
        check_key=check_key,
        hosts=hosts,
        origins=origins,
        access_log=access_log,
    )
    return app
