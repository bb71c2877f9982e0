"""What systemd is told, read from a real notify socket."""

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hotreload.attempts import Attempt
from hotreload.core.ledger import Ledger
from hotreload.events import (
    AttemptFinished,
    Event,
    GateChanged,
    GenerationEnded,
    GenerationLive,
    ModeChosen,
    PhaseEntered,
    Progress,
    ReplicaMoved,
    StopRequested,
    Wait,
)
from hotreload.features import FEATURES
from hotreload.observe.systemd import (
    LONGEST_STATUS,
    PROGRESS_STATUS_SECONDS,
    Notifier,
    Systemd,
)
from hotreload.picture.picture import Picture, Rank, Setup
from hotreload.settings.load import load
from hotreload.types import (
    GateState,
    Generation,
    Mode,
    Outcome,
    Phase,
    Reason,
    ReplicaState,
    Revision,
)
from tests.waiting import PATIENCE

STEP_1, STEP_2 = Revision("aaaa", "step_1"), Revision("bbbb", "step_2")
FIRST = Generation(7, STEP_1, "fp", 1.0)
SECOND = Generation(8, STEP_2, "fp2", 2.0)
EXTEND = "EXTEND_TIMEOUT_USEC=60000000"


class Listener:
    """Stands where systemd listens."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.settimeout(PATIENCE)
        shown = "@" + address[1:] if address.startswith("\0") else address
        self.environ = {"NOTIFY_SOCKET": shown}

    def heard(self) -> list[str]:
        return self.socket.recv(65536).decode().split("\n")

    def nothing(self) -> bool:
        self.socket.setblocking(False)
        try:
            self.socket.recv(65536)
        except BlockingIOError:
            return True
        return False


@pytest.fixture(params=["path", "abstract"])
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Listener]:
    name = f"\0hotreload-test-{os.getpid()}" if request.param == "abstract" else ""
    made = Listener(name or str(tmp_path / "notify"))
    with made.socket:
        yield made


class Seen(Systemd):
    """Tells systemd of a picture that hears of events here, before it does as in a daemon."""

    def __init__(
        self,
        notifier: Notifier,
        *,
        setup: Setup | None = None,
        is_alive: Callable[[float], bool] = lambda within: True,
        **more: float,
    ) -> None:
        self.picture = Picture(Ledger(), setup=setup or Setup())
        super().__init__(self.picture, notifier, is_alive=is_alive, **more)

    def observe(self, event: Event) -> None:
        self.picture.observe(event)
        super().observe(event)


def told(listener: Listener, *, is_alive: bool = True, **more: str) -> Systemd:
    notifier = Notifier({**listener.environ, **more})
    return Seen(notifier, is_alive=lambda within: is_alive)


def serving(listener: Listener) -> Systemd:
    systemd = told(listener)
    systemd.observe(GenerationLive(FIRST))
    systemd.observe(GateChanged(GateState.OPEN, 0, 0))
    assert listener.heard() == ["READY=1", "STATUS=serving generation 7 (step_1)"]
    return systemd


def attempt(outcome: Outcome, reason: Reason | None = None) -> Attempt:
    return Attempt(STEP_2, outcome, reason, {}, 0.0, 1.0)


def test_ready_comes_when_the_gate_opens_and_only_once(listener: Listener) -> None:
    systemd = told(listener)
    systemd.observe(Wait("a checkpoint that can be served", "start"))
    waiting = "STATUS=starting: waiting for a checkpoint that can be served"
    assert listener.heard() == [EXTEND, waiting]
    systemd.observe(PhaseEntered(FIRST.revision, Phase.STAGING))
    assert listener.heard() == [EXTEND, "STATUS=starting: staging step_1"]
    systemd.observe(GateChanged(GateState.OPEN, 0, 0))
    assert listener.nothing()
    systemd.observe(GenerationLive(FIRST))
    assert listener.heard() == ["READY=1", "STATUS=serving generation 7 (step_1)"]
    systemd.observe(GateChanged(GateState.HOLDING, 3, 0))
    systemd.observe(GateChanged(GateState.OPEN, 0, 3))
    assert listener.nothing()


def test_an_attempt_is_a_reload_from_its_first_phase_to_its_end(listener: Listener) -> None:
    systemd = serving(listener)
    systemd.observe(PhaseEntered(STEP_2, Phase.FETCHING))
    reloading, since, extend, status = listener.heard()
    assert (reloading, extend) == ("RELOADING=1", EXTEND)
    assert int(since.removeprefix("MONOTONIC_USEC=")) > 0
    assert status == "STATUS=serving generation 7 (step_1), reloading: fetching step_2"
    systemd.observe(PhaseEntered(STEP_2, Phase.STAGING))
    assert listener.heard() == ["STATUS=serving generation 7 (step_1), reloading: staging step_2"]
    systemd.observe(PhaseEntered(STEP_2, None))
    systemd.observe(GenerationLive(SECOND))
    systemd.observe(AttemptFinished(attempt(Outcome.LIVE), SECOND))
    assert listener.heard() == ["READY=1", "STATUS=serving generation 8 (step_2)"]


def overlapping(listener: Listener) -> Systemd:
    """Generation 8 went live over 7, whose requests go on."""
    systemd = serving(listener)
    systemd.observe(ModeChosen(Mode.OVERLAP))
    systemd.observe(GenerationLive(SECOND))
    systemd.observe(AttemptFinished(attempt(Outcome.LIVE), SECOND))
    fading = "STATUS=serving generation 8 (step_2), still holding 7"
    assert listener.heard() == ["READY=1", fading]
    return systemd


def test_an_old_generation_is_told_until_it_has_ended(listener: Listener) -> None:
    systemd = overlapping(listener)
    systemd.observe(AttemptFinished(attempt(Outcome.POSTPONED, Reason("drain", "busy")), SECOND))
    _, status = listener.heard()
    assert status.endswith("still holding 7; put off step_2: drain: busy")
    systemd.observe(GenerationEnded(FIRST))
    after = "STATUS=serving generation 8 (step_2); put off step_2: drain: busy"
    assert listener.heard() == [after]
    systemd.observe(GenerationEnded(FIRST))
    assert listener.nothing()


def test_the_end_of_an_old_generation_leaves_what_is_under_way(listener: Listener) -> None:
    systemd = overlapping(listener)
    systemd.observe(PhaseEntered(Revision("cccc", "step_3"), Phase.DRAINING))
    *_, status = listener.heard()
    assert "still holding 7, reloading: waiting for requests to end" in status
    systemd.observe(GenerationEnded(FIRST))
    doing = "reloading: waiting for requests to end before the swap to step_3"
    assert listener.heard() == [f"STATUS=serving generation 8 (step_2), {doing}"]


def test_weights_that_a_rollback_made_live_again_do_not_end(listener: Listener) -> None:
    systemd = overlapping(listener)
    again = Generation(9, FIRST.revision, FIRST.fingerprint, 3.0)
    systemd.observe(GenerationLive(again))
    systemd.observe(AttemptFinished(attempt(Outcome.LIVE), again))
    *_, status = listener.heard()
    assert status == "STATUS=serving generation 9 (step_1), still holding 8"


def test_an_old_generation_that_ends_in_a_stop_does_not_hide_the_stop(listener: Listener) -> None:
    systemd = overlapping(listener)
    systemd.observe(StopRequested())
    assert listener.heard()[0] == "STOPPING=1"
    systemd.observe(GenerationEnded(FIRST))
    assert listener.nothing()


def test_a_download_or_a_loading_says_how_far_it_is_once_a_second(listener: Listener) -> None:
    systemd = serving(listener)
    systemd.observe(PhaseEntered(STEP_2, Phase.FETCHING))
    listener.heard()
    how_far = Progress(STEP_2, Phase.FETCHING, 3_100_000_000, 8_000_000_000)
    systemd.observe(how_far)
    assert listener.nothing()
    listener.socket.settimeout(PATIENCE)
    systemd._told_at -= PROGRESS_STATUS_SECONDS
    systemd.observe(how_far)
    (status,) = listener.heard()
    assert status.endswith("reloading: fetching step_2 (3.1 GB of 8.0 GB)")
    systemd._told_at -= PROGRESS_STATUS_SECONDS
    systemd.observe(Progress(STEP_2, Phase.STAGING, 600_000_000, 8_000_000_000))
    (status,) = listener.heard()
    assert status.endswith("reloading: staging step_2 (600 MB of 8.0 GB)")


def test_every_phase_and_outcome_has_words(listener: Listener) -> None:
    for phase in Phase:
        systemd = serving(listener)
        systemd.observe(PhaseEntered(STEP_2, phase))
        assert " step_2" in listener.heard()[-1]
    for outcome in Outcome:
        systemd = serving(listener)
        systemd.observe(AttemptFinished(attempt(outcome), FIRST))
        assert listener.heard()[-1].startswith("STATUS=serving generation 7 (step_1)")


def test_a_rejection_is_ready_again_and_says_why(listener: Listener) -> None:
    systemd = serving(listener)
    reason = Reason("shape", "lm_head is [2, 4], the engine serves [4, 2]")
    systemd.observe(AttemptFinished(attempt(Outcome.REJECTED, reason), FIRST))
    assert listener.heard() == [
        "READY=1",
        "STATUS=serving generation 7 (step_1); rejected step_2: shape: lm_head is [2, 4], "
        "the engine serves [4, 2]",
    ]


def test_a_start_that_is_rejected_is_not_ready_and_says_why(listener: Listener) -> None:
    systemd = told(listener)
    systemd.observe(AttemptFinished(attempt(Outcome.REJECTED, Reason("nan", "all NaN")), None))
    assert listener.heard() == [EXTEND, "STATUS=starting; rejected step_2: nan: all NaN"]


def test_who_leaves_says_so_while_others_are_answered(listener: Listener) -> None:
    systemd = serving(listener)
    systemd.observe(StopRequested())
    assert listener.heard() == ["STOPPING=1", "STATUS=stopping: answering the last requests"]


def test_a_sealed_gate_is_a_stop(listener: Listener) -> None:
    systemd = serving(listener)
    systemd.observe(GateChanged(GateState.SEALED, 0, 0, "the engine hangs", "engine_lost"))
    assert listener.heard() == ["STOPPING=1", "STATUS=stopping: the engine hangs"]


def test_one_of_several_engines_that_is_lost_is_no_stop(listener: Listener) -> None:
    systemd = Seen(Notifier(listener.environ), setup=Setup(replicas=2))
    systemd.observe(GateChanged(GateState.OPEN, 0, 0))
    systemd.observe(GenerationLive(FIRST))
    one = "STATUS=serving generation 7 (step_1) on 1 of 2 replicas"
    assert listener.heard() == ["READY=1", one]
    systemd.observe(GateChanged(GateState.OPEN, 0, 0, replica=1))
    systemd.observe(GenerationLive(FIRST, 1))
    systemd.observe(ReplicaMoved(1, ReplicaState.SERVING))
    assert listener.heard() == ["STATUS=serving generation 7 (step_1)"]
    systemd.observe(GateChanged(GateState.SEALED, 0, 0, "it hangs", "engine_lost", 0))
    systemd.observe(ReplicaMoved(0, ReplicaState.LOST, "it hangs", 5.0))
    assert listener.heard() == [one]
    systemd.observe(GateChanged(GateState.SEALED, 0, 0, "it hangs", "engine_lost", 1))
    assert listener.heard() == ["STOPPING=1", "STATUS=stopping: it hangs"]


def test_while_a_reload_goes_from_one_engine_to_the_next_the_old_generation_is_told(
    listener: Listener,
) -> None:
    systemd = Seen(Notifier(listener.environ), setup=Setup(replicas=2))
    for replica in (0, 1):
        systemd.observe(ModeChosen(Mode.OVERLAP, replica=replica))
        systemd.observe(GateChanged(GateState.OPEN, 0, 0, replica=replica))
        systemd.observe(GenerationLive(FIRST, replica))
    listener.heard()
    systemd.observe(GenerationLive(SECOND, 0))
    systemd.observe(PhaseEntered(STEP_2, Phase.SWAPPING, 1))
    status = "STATUS=serving generation 7 (step_1), reloading: swapping to step_2"
    assert listener.heard()[-1] == status
    systemd.observe(GenerationLive(SECOND, 1))
    systemd.observe(AttemptFinished(attempt(Outcome.LIVE), SECOND))
    fading = "STATUS=serving generation 8 (step_2), still holding 7"
    assert listener.heard() == ["READY=1", fading]


def on_two_hosts(listener: Listener, own: int) -> Systemd:
    rank = Rank(own, 2, "tpu-0:8000")
    return Seen(Notifier(listener.environ), setup=Setup(rank=rank))


def test_rank_0_says_that_it_serves_for_several_hosts(listener: Listener) -> None:
    systemd = on_two_hosts(listener, own=0)
    systemd.observe(GateChanged(GateState.OPEN, 0, 0))
    systemd.observe(GenerationLive(FIRST))
    status = "STATUS=serving as rank 0 of 2: generation 7 (step_1)"
    assert listener.heard() == ["READY=1", status]


def test_a_rank_that_follows_is_ready_again_after_each_step_that_rank_0_asks_for(
    listener: Listener,
) -> None:
    systemd = on_two_hosts(listener, own=1)
    systemd.observe(PhaseEntered(FIRST.revision, Phase.VALIDATING))
    assert listener.heard() == [EXTEND, "STATUS=starting: checking step_1"]
    systemd.observe(PhaseEntered(FIRST.revision, None))
    systemd.observe(GateChanged(GateState.OPEN, 0, 0))
    assert listener.nothing()
    systemd.observe(GenerationLive(FIRST))
    following = "STATUS=following as rank 1 of 2: generation 7 (step_1)"
    assert listener.heard() == ["READY=1", following]
    systemd.observe(PhaseEntered(STEP_2, Phase.FETCHING))
    assert listener.heard()[-1] == f"{following}, reloading: fetching step_2"
    systemd.observe(PhaseEntered(STEP_2, None))
    assert listener.heard() == ["READY=1", following]
    systemd.observe(GenerationLive(SECOND))
    following = "STATUS=following as rank 1 of 2: generation 8 (step_2)"
    assert listener.heard() == ["READY=1", following]


def test_a_rank_that_is_asked_to_stop_in_a_step_is_not_ready_again(listener: Listener) -> None:
    systemd = on_two_hosts(listener, own=1)
    systemd.observe(GateChanged(GateState.OPEN, 0, 0))
    systemd.observe(GenerationLive(FIRST))
    systemd.observe(StopRequested())
    for _ in range(2):
        listener.heard()
    systemd.observe(PhaseEntered(STEP_2, None))
    assert listener.nothing()


def test_names_from_elsewhere_cannot_speak_for_us(listener: Listener) -> None:
    systemd = serving(listener)
    evil = Revision("cccc", "step_3\nWATCHDOG=trigger\nMAINPID=1" + "x" * 5000)
    systemd.observe(PhaseEntered(evil, Phase.FETCHING))
    lines = listener.heard()
    assert {line.partition("=")[0] for line in lines} == {
        "RELOADING",
        "MONOTONIC_USEC",
        "EXTEND_TIMEOUT_USEC",
        "STATUS",
    }
    assert len(lines[-1]) <= LONGEST_STATUS + len("STATUS=")


async def test_signs_of_life_end_when_the_engine_is_not_seen(
    listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    watchdog = {"WATCHDOG_USEC": "30000", "WATCHDOG_PID": str(os.getpid())}
    alive, looked_thrice = [True], asyncio.Event()
    asked: list[float] = []

    def is_alive(within: float) -> bool:
        asked.append(within)
        if not alive[0] and len(asked) > looks + 3:
            looked_thrice.set()
        return alive[0]

    systemd = Seen(Notifier({**listener.environ, **watchdog}), is_alive=is_alive)
    systemd.observe(GateChanged(GateState.OPEN, 0, 0))
    systemd.observe(GenerationLive(FIRST))
    listener.heard()
    beating = asyncio.create_task(systemd.beat())
    assert await asyncio.to_thread(listener.heard) == ["WATCHDOG=1"]
    assert await asyncio.to_thread(listener.heard) == ["WATCHDOG=1"]
    looks, alive[0] = len(asked), False
    async with asyncio.timeout(PATIENCE):
        await looked_thrice.wait()
    while not listener.nothing():  # what was sent before
        pass
    looked_thrice.clear()
    async with asyncio.timeout(PATIENCE):
        await looked_thrice.wait()
    assert listener.nothing()
    beating.cancel()
    assert set(asked) == {0.03}
    assert caplog.text.count("systemd.engine_silent") == 1


async def test_a_start_and_an_attempt_ask_for_more_time(listener: Listener) -> None:
    systemd = told(listener)
    beating = asyncio.create_task(systemd.beat())
    assert await asyncio.to_thread(listener.heard) == [EXTEND]
    beating.cancel()
    systemd.observe(GateChanged(GateState.OPEN, 0, 0))
    systemd.observe(GenerationLive(FIRST))
    listener.heard()
    systemd._tick()
    assert listener.nothing()
    listener.socket.settimeout(PATIENCE)
    systemd.observe(PhaseEntered(STEP_2, Phase.STAGING))
    listener.heard()
    systemd._tick()
    assert listener.heard() == [EXTEND]


def test_a_start_is_vouched_for_as_long_as_it_was_given(listener: Listener) -> None:
    systemd = Seen(Notifier(listener.environ), longest_boot=0.0)
    systemd._tick()
    assert listener.nothing()


def test_a_start_that_waits_for_somebody_is_vouched_for_as_long_as_it_waits(
    listener: Listener,
) -> None:
    systemd = Seen(Notifier(listener.environ), longest_boot=0.0)
    systemd.observe(Wait("its files", "start"))
    listener.heard()
    systemd._tick()
    assert listener.heard() == [EXTEND]
    systemd.observe(PhaseEntered(STEP_1, Phase.BUILDING))
    listener.heard()
    systemd._tick()
    assert listener.nothing()


def test_a_start_from_a_hub_is_given_the_time_of_a_download_beside_the_usual() -> None:
    hub = ["source.kind=huggingface", "source.repo=a/b"]
    folder = load(None, ["reload.fetch_timeout=2h"], {}, FEATURES).settings
    far = load(None, [*hub, "reload.fetch_timeout=2h"], {}, FEATURES).settings
    assert folder.longest_download == 0
    assert far.longest_download == 7200


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "60000000"}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
    ],
)
def test_a_watchdog_is_ours_only_if_it_says_so(
    environ: dict[str, str], seconds: float | None
) -> None:
    assert Notifier({"NOTIFY_SOCKET": "/run/x", **environ}).watchdog == seconds


@pytest.mark.parametrize("address", ["", "/no/such/socket", "\0", "relative", "x" * 300])
def test_a_systemd_that_does_not_listen_harms_nothing(address: str) -> None:
    systemd = Seen(Notifier({"NOTIFY_SOCKET": address}))
    systemd.observe(PhaseEntered(STEP_2, Phase.STAGING))
    systemd.observe(GateChanged(GateState.SEALED, 0, 0, "why"))
