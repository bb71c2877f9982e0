"""What runs as long as an engine serves, as the settings describe it."""

import os
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, NoReturn

from hotreload.core.fading import close_drained_generations
from hotreload.core.nonfinite import react_to_nonfinite_answers
from hotreload.core.operator import Operator
from hotreload.core.reconcile import Reconciler
from hotreload.core.replica import Replica
from hotreload.core.rules import KeepPrevious
from hotreload.core.verify import tell_of_distrust, verify_live
from hotreload.events import Publish
from hotreload.life.running import RunningEngine
from hotreload.settings.load import Settings
from hotreload.types import By, Generation, Reason

Lasting = Mapping[str, Callable[[], Coroutine[Any, Any, NoReturn]]]
"""Tasks by their names; EngineLost ends them."""


def tasks_of(
    replica: Replica[RunningEngine],
    *,
    settings: Settings,
    reconciler: Reconciler,
    operator: Operator,
    publish: Publish,
) -> Lasting:
    """All that must run as long as this engine serves."""
    keep = KeepPrevious(settings.reload.keep_previous)
    return {
        "heed answers": partial(
            react_to_nonfinite_answers,
            replica,
            publish=publish,
            drain_timeout=lambda: reconciler.rules.drain_timeout,
            leave=_leaving(settings, operator),
        ),
        "close drained generations": partial(
            close_drained_generations, replica, keep=keep, publish=publish
        ),
        **verifying(settings, replica, publish),
    }


def verifying(settings: Settings, replica: Replica[RunningEngine], publish: Publish) -> Lasting:
    """The tasks that look after the weights' integrity."""
    distrusted = replica.engine.distrusted
    tell = partial(tell_of_distrust, replica, distrusted=distrusted, publish=publish)
    every = settings.checks.verify_live_every
    if every is None:
        return {"tell of distrust": tell}
    look = partial(
        verify_live, replica, checksums=replica.engine.checksums, every=every, publish=publish
    )
    return {"tell of distrust": tell, "verify what is live": look}


def _leaving(
    settings: Settings, operator: Operator
) -> Callable[[Reason, Generation], Coroutine[Any, Any, None]] | None:
    """What is done about weights that make NaN of clients' prompts, as the operator decided."""
    if settings.checks.on_nonfinite_answers != "rollback":
        return None

    async def leave(reason: Reason, left: Generation) -> None:
        by = By("rollback", os.getuid(), os.getpid(), time.time(), reason.message)
        await operator.leave(reason, left, by=by)

    return leave
