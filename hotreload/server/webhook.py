"""The hub's webhook: a call with the right secret makes the source look for a checkpoint now.

The body of the call is not trusted and not read.
"""

import hmac
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hotreload.json_fields import Fields
from hotreload.server.api_schema.operation import Operation
from hotreload.server.http.problems import Json, Refused, problem_of

log = logging.getLogger("hotreload.server")

WEBHOOK_PATH = "/webhook/huggingface"
_HEADER = "X-Webhook-Secret"


@dataclass(frozen=True, slots=True)
class Webhook:
    """The secret that the sender must know, and the function to call."""

    secret: str = field(repr=False)
    wake: Callable[[str], None]


def webhook_route(webhook: Webhook | None) -> Route:
    """Build the route; it answers 404 while no secret is configured."""

    @Operation(
        "Look for a new checkpoint now, because the hub has one.",
        Fields,
        (401, 403, 404),
        success=202,
        security=({"WebhookSecret": ()},),
    )
    async def receive_call(request: Request) -> Response:
        refusal = _refusal_of(webhook, request.headers.get(_HEADER))
        if refusal is not None:
            log.info("webhook.refused", extra={"code": refusal.code})
            return problem_of(refusal)
        assert webhook is not None
        webhook.wake("webhook")
        return Json({"ok": True}, 202)

    return Route(WEBHOOK_PATH, receive_call, methods=["POST"])


def _refusal_of(webhook: Webhook | None, given: str | None) -> Refused | None:
    if webhook is None:
        return Refused(404, "no_webhook", "no webhook is configured ([source] webhook)")
    if given is None:
        return Refused(401, "no_secret", f"send the webhook's secret in {_HEADER}")
    if not hmac.compare_digest(given.encode(), webhook.secret.encode()):
        return Refused(403, "wrong_secret", f"{_HEADER} is not the secret of [source] webhook")
    return None
