"""The middleware round the routes, whichever they are: who may ask, how much, how it is told."""

from collections.abc import Collection

from fastapi import FastAPI

from hotreload.server.http.browsers import KnownHost, NamedSites
from hotreload.server.http.keys import KeyCheck, WantsKey
from hotreload.server.http.limits import Limited
from hotreload.server.http.request_log import Exchange
from hotreload.server.ports import Metrics
from hotreload.server_limits import Limits


def put_around(
    app: FastAPI,
    *,
    limits: Limits,
    metrics: Metrics,
    wants: KeyCheck | None,
    hosts: Collection[str],
    origins: Collection[str],
    access_log: bool,
) -> None:
    """Put it round the routes of an app; `wants` checks who comes over TCP."""
    app.add_middleware(Limited, limits=limits, bodies=app.state.bodies)
    if wants is not None:
        app.add_middleware(WantsKey, check=wants)
    app.add_middleware(KnownHost, hosts=hosts)
    app.add_middleware(
        Exchange,
        live=app.state.live,
        metrics=metrics,
        write_seconds=limits.write_seconds,
        access_log=access_log,
    )
    if origins:
        app.add_middleware(NamedSites, origins=origins)
