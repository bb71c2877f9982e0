"""The middleware round all routes: limits, API keys, known hosts, the request log and CORS."""

from collections.abc import Collection

from fastapi import FastAPI

from hotreload.server.http.browsers import CorsMiddleware, HostMiddleware
from hotreload.server.http.keys import ApiKeyMiddleware, KeyCheck
from hotreload.server.http.limits import LimitsMiddleware
from hotreload.server.http.request_log import RequestLogMiddleware
from hotreload.server.ports import Metrics
from hotreload.server_limits import Limits


def add_middleware(
    app: FastAPI,
    *,
    limits: Limits,
    metrics: Metrics,
    check_key: KeyCheck | None,
    hosts: Collection[str],
    origins: Collection[str],
    access_log: bool,
) -> None:
    """Add the middleware to an app; `check_key` checks the API key of requests over TCP."""
    app.add_middleware(LimitsMiddleware, limits=limits, bodies=app.state.bodies)
    if check_key is not None:
        app.add_middleware(ApiKeyMiddleware, check=check_key)
    app.add_middleware(HostMiddleware, hosts=hosts)
    app.add_middleware(
        RequestLogMiddleware,
        live=app.state.live,
        metrics=metrics,
        write_seconds=limits.write_seconds,
        access_log=access_log,
    )
    if origins:
        app.add_middleware(CorsMiddleware, origins=origins)
