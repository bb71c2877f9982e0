"""The read-only routes: health, status, history, leaves, metrics, events, and the status page.

The page lies in the folder page/. It asks these routes for all that it shows. It loads nothing from
another host and runs nothing but its own files; the browser holds it to that.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypedDict

from fastapi import FastAPI, Query
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hotreload.events import Event, Events
from hotreload.json_fields import Fields
from hotreload.picture.checkpoints import ListingFields
from hotreload.picture.history import HistoryFields
from hotreload.picture.picture import VerdictFields
from hotreload.picture.status import Documents, LeavesFields, Status, StatusFields
from hotreload.server.api_schema.kinds import STRING, whole_number
from hotreload.server.api_schema.operation import EVENTS, TEXT, TO_ALL, Operation, Parameter
from hotreload.server.http.keys import AdminCheck, key_name
from hotreload.server.http.problems import Json, Refused
from hotreload.server.http.request_log import while_connected
from hotreload.server.http.senders import Peer, check_same_site
from hotreload.server.http.sse import EventWriter
from hotreload.server.ports import MetricsPage
from hotreload.server_limits import Limits

LISTED, MOST_LISTED = 100, 10_000
MostListed = Annotated[int, Query(ge=1, le=MOST_LISTED)]
MOST_ENTRIES = whole_number(1, MOST_LISTED)
HTML = "text/html"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class KeysFields(TypedDict):
    """The name of the request's key, and whether it opens admin routes."""

    name: str | None
    may_change: bool
    admin_keys: bool


def add_view_routes(
    app: FastAPI, documents: Documents, metrics: MetricsPage, admission: AdminCheck
) -> None:
    """Add the routes, which need no rights and never wait for a swap."""

    @app.get("/livez")
    @Operation("Whether the process runs.", Fields, security=TO_ALL)
    async def livez() -> Response:
        return Json({"alive": True})

    @app.get("/readyz")
    @Operation("Whether requests are answered.", Fields, (503,), security=TO_ALL)
    async def readyz() -> Response:
        _check_ready(documents.status)
        return Json({"ready": True})

    @app.get("/health")
    @Operation("/readyz under sglang's name.", None, (503,), security=TO_ALL)
    async def health() -> Response:
        _check_ready(documents.status)
        return Response(status_code=200)  # empty, as the engine's own server answers

    @app.get("/gate")
    @Operation(
        "Whether the last wanted revision is live and its bake is over.",
        VerdictFields,
        parameters=[
            Parameter("revision", STRING, "A revision, by its id or label; the last wanted one.")
        ],
        others={409: VerdictFields},
    )
    async def gate(revision: str | None = None) -> Response:
        verdict = documents.status.verdict(revision)
        return Json(verdict, 200 if verdict["pass"] else 409)

    @app.get("/status")
    @Operation("What is live, wanted and under way.", StatusFields)
    async def status() -> Response:
        return Json(documents.status.snapshot())

    @app.get("/history")
    @Operation(
        "Attempts, newest first.",
        HistoryFields,
        parameters=[Parameter("most", MOST_ENTRIES, "The most entries; all.")],
    )
    async def history(most: MostListed = MOST_LISTED) -> Response:
        past = documents.history.snapshot()
        return Json({**past, "attempts": past["attempts"][:most]})

    @app.get("/checkpoints")
    @Operation(
        "The checkpoints of the source, and why each is not live.",
        ListingFields,
        parameters=[Parameter("most", MOST_ENTRIES, "The most entries; 100.")],
    )
    async def checkpoints(most: MostListed = LISTED) -> Response:
        return Json(await documents.checkpoints.snapshot(most))

    @app.get("/leaves")
    @Operation("Checksums of the live leaves.", LeavesFields)
    async def leaves() -> Response:
        return Json(documents.status.leaves())

    @app.get("/metrics")
    @Operation("Prometheus metrics; over TCP those for gateways.", media=[TEXT], security=TO_ALL)
    async def page(request: Request) -> Response:
        if "peer" not in request.scope.get("extensions", {}):  # it comes over TCP
            return Response(documents.status.page_for_gateways(), media_type=METRICS_TYPE)
        made = asyncio.wrap_future(metrics.latest())
        return Response(await asyncio.shield(made), media_type=METRICS_TYPE)

    @app.get("/keys")
    @Operation("What the request's key opens.", KeysFields)
    async def keys(request: Request) -> Response:
        may_change = admission.opens(request)
        has_keys = admission.keys is not None
        name = key_name(request.scope) or None
        return Json({"name": name, "may_change": may_change, "admin_keys": has_keys})


def _check_ready(status: Status) -> None:
    is_ready, reasons = status.picture.ready()
    if not is_ready:
        words = "; ".join(reasons) or "not serving"
        raise Refused(503, "not_ready", words, findings=reasons, retry_after=2)


Put = Callable[[Fields | None], None]
"""Puts an event, or None for the end, into a client's queue."""


@dataclass(slots=True)
class EventFeeds:
    """The clients of /events. Events are published on the loop's own thread."""

    events: Events
    to_fields: Callable[[Event], Fields]
    limits: Limits
    _feeds: dict[Put, Peer | None] = field(default_factory=dict)
    _is_over: bool = False

    @contextmanager
    def subscribe(
        self, peer: Peer | None, drop: Callable[[], None]
    ) -> Iterator[AsyncIterator[Fields | None]]:
        """Yield all events from now on; `drop` is called if the client reads too late."""
        self._check_place(peer)
        queue: asyncio.Queue[Fields | None] = asyncio.Queue(self.limits.listener_queue)

        def put(fields: Fields | None) -> None:
            try:
                queue.put_nowait(fields)
            except asyncio.QueueFull:
                drop()

        unsubscribe = self.events.subscribe(lambda event: put(self.to_fields(event)))
        self._feeds[put] = peer
        if self._is_over:
            put(None)
        try:
            yield _events_in(queue, self.limits.heartbeat_seconds)
        finally:
            unsubscribe()
            del self._feeds[put]

    def _check_place(self, peer: Peer | None) -> None:
        """Raise Refused if all places are taken.

        One user may have half of them, and so may all clients over TCP together.
        """
        uid = peer and peer.uid
        same = sum((each and each.uid) == uid for each in self._feeds.values())
        most = self.limits.listeners
        if len(self._feeds) >= most or same >= max(1, most // 2):
            words = f"{len(self._feeds)} clients read /events already, {same} of them yours"
            raise Refused(503, "too_many_listeners", words, retry_after=5)

    def end(self) -> None:
        """End every feed after its pending events."""
        self._is_over = True
        for put in self._feeds:
            put(None)


async def _events_in(
    queue: asyncio.Queue[Fields | None], heartbeat_seconds: float
) -> AsyncIterator[Fields | None]:
    """Yield events, and None after each `heartbeat_seconds` without one."""
    while True:
        try:
            fields = await asyncio.wait_for(queue.get(), heartbeat_seconds)
        except TimeoutError:
            yield None
            continue
        if fields is None:
            return
        yield fields


@Operation("A stream of all events.", None, (403, 503), media=[EVENTS])
@dataclass(frozen=True)
class EventStream:
    """GET /events, as an ASGI app."""

    feeds: EventFeeds
    origins: Collection[str] = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        check_same_site(Headers(scope=scope), self.origins)
        out = EventWriter(scope, send)
        if scope["method"] == "HEAD":  # send the headers of the endless answer alone
            await out.end()
            return
        extensions = scope.get("extensions", {})
        drop = extensions.get("hang_up", lambda: None)
        with self.feeds.subscribe(extensions.get("peer"), drop) as events:
            async with while_connected(receive):
                await out.write_comment("listening")  # from here on nothing is missed
                async for fields in events:
                    await (out.write_comment("still here") if fields is None else out.write(fields))
            await out.end()


PAGE_FOLDER = Path(__file__).parent / "page"
PAGE_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
PAGE_HEADERS = {
    "Content-Security-Policy": PAGE_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # after an upgrade the page is the new one
}


def add_page_routes(app: FastAPI) -> None:
    """Add the routes of the page; its files are read once, now."""
    files = {
        path.name: path.read_bytes() for path in PAGE_FOLDER.iterdir() if path.suffix in PAGE_TYPES
    }

    @app.get("/page/{name}")
    @Operation(
        "A file of the status page.",
        None,
        (404,),
        media=[HTML, "text/css", "text/javascript", "image/svg+xml"],
        parameters=[Parameter("name", STRING, "A file of the status page.", "path")],
        security=TO_ALL,
    )
    async def file(name: str) -> Response:
        if name not in files:
            raise HTTPException(404)
        kind = PAGE_TYPES[Path(name).suffix]
        return Response(files[name], media_type=kind, headers=PAGE_HEADERS)

    @app.get("/")
    @Operation("The status page.", media=[HTML], security=TO_ALL)
    async def front() -> Response:
        return await file("index.html")
