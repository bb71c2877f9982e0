"""All features of one daemon together."""

from pathlib import Path
from typing import Any

from hotreload.daemon import Daemon
from hotreload.events import Event, StopRequested
from hotreload.feature import AllFeatures, Feature, FeatureParts
from hotreload.features import FEATURES
from hotreload.settings.load import load
from tests.features.given import given


def settings(folder: Path, *sets: str) -> Any:
    usual = [f"source.path={folder}", f"state.directory={folder / 'state'}", "metrics.address=''"]
    return load(None, [*usual, f"server.socket={folder / 's'}", *sets], {}, FEATURES).settings


def test_who_takes_long_is_asked_last(tmp_path: Path) -> None:
    a_daemons = given(settings(tmp_path, "command.run=['true']"))
    judges = AllFeatures([each.begin(a_daemons) for each in FEATURES]).judges()
    assert [each.takes_long for each in judges] == [False, True]


def test_each_takes_in_what_happens_in_its_daemon(tmp_path: Path) -> None:
    seen: list[Event] = []
    watching = Feature(name="watching", begin=lambda given: FeatureParts(observe=seen.append))
    daemon = Daemon(settings(tmp_path), features=(watching,))
    daemon.events.publish(StopRequested())
    assert seen == [StopRequested()]
