"""What the server shows of the observers."""

from hotreload.core.ledger import Ledger
from hotreload.events import Progress
from hotreload.joints import View
from hotreload.observe.history import History
from hotreload.observe.status import Status
from hotreload.types import Phase, Revision


def test_an_event_of_a_download_has_the_pace_that_the_status_knows() -> None:
    now = [100.0]
    status = Status(ledger_view=Ledger, clock=lambda: now[0])
    view = View(status, History())
    for done in (250, 350):
        status.observe(told := Progress(Revision("new"), Phase.FETCHING, done, 1000))
        fields = view.event(told)
        now[0] += 2
    assert (fields["bytes_per_second"], fields["seconds_left"]) == (50, 13.0)
