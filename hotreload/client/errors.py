"""The errors that only a client of the daemon raises."""

from hotreload.errors import Busy, EngineLost, HotReloadError
from hotreload.picture.words import Fields


class Unreachable(HotReloadError):
    """No daemon answers there."""

    code = "unreachable"

    def __init__(self, message: str, *, may_come: bool = False) -> None:
        """`may_come` if a daemon may be starting, which does not answer yet."""
        super().__init__(message)
        self.may_come = may_come


class NotReady(HotReloadError):
    """The daemon boots: it answers no request yet, and nothing is wrong."""

    code = "not_ready"


class TimedOut(HotReloadError):
    """The daemon did not answer, or the attempt did not end, in the given time."""

    code = "timed_out"


def error_of(status: int, problem: Fields, hint: str = "") -> HotReloadError:
    """Return the error for a problem that the daemon sent."""
    kinds = {409: Busy, 504: TimedOut}
    code = problem.get("code")
    by_code = {"engine_lost": EngineLost, "booting": NotReady}
    kind = by_code.get(str(code)) or kinds.get(status, HotReloadError)
    words = problem.get("detail", f"the daemon answered {status}")
    return kind(f"{words}{hint}", code=code, findings=problem.get("reasons", ()))
