"""The hub's webhook: a call with its secret makes the source look now. What it says is not trusted,
so its body is not even read.
"""

import hmac
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hotreload.server.http.problems import Json, Refused, problem_of

log = logging.getLogger("hotreload.server")

WEBHOOK_PATH = "/webhook/huggingface"
_HEADER = "X-Webhook-Secret"


@dataclass(frozen=True, slots=True)
class Webhook:
    """The secret that its sender must know, and the call that it sets off."""

    secret: str = field(repr=False)
    wake: Callable[[str], None]


def webhook_route(webhook: Webhook | None) -> Route:
    """Build the route; 404 while no secret is configured."""

    async def called(request: Request) -> Response:
        refusal = _refusal(webhook, request.headers.get(_HEADER))
        if refusal is not None:
            log.info("webhook.refused", extra={"code": refusal.code})
            return problem_of(refusal)
        assert webhook is not None
        webhook.wake("webhook")
        return Json({"ok": True}, 202)

    return Route(WEBHOOK_PATH, called, methods=["POST"])


def _refusal(webhook: Webhook | None, given: str | None) -> Refused | None:
    if webhook is None:
        return Refused(404, "no_webhook", "no webhook is configured ([source] webhook)")
    if given is None:
        return Refused(401, "no_secret", f"a webhook shows its secret in {_HEADER}")
    if not hmac.compare_digest(given.encode(), webhook.secret.encode()):
        return Refused(403, "wrong_secret", f"{_HEADER} is not what [source] webhook says")
    return None
