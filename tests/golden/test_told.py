"""What is told of a life: status, history, leaves, metrics, events, log and systemd's words."""

import io
import json
from collections.abc import Awaitable, Callable, Iterable

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.event_kinds import KINDS
from tests.golden.blanks import blanked
from tests.golden.compare import Golden, sections
from tests.golden.layout import Deltas, flat
from tests.golden.lives import LIVES
from tests.golden.observed import Observed, logging_to, systemd_hears_all_progress

Told = Callable[[Observed], Iterable[str] | Awaitable[Iterable[str]]]


def nothing_more(observed: Observed) -> None:
    """Nobody else looks."""


async def told_of(
    tell: Callable[[], Told], begun: Callable[[Observed], None] = nothing_more
) -> str:
    """What is told of each life after each scene; `tell` makes what tells of one life."""
    texts: dict[str, str] = {}
    for life, (scenes, begin) in LIVES.items():
        observed, told = begin(), tell()
        begun(observed)
        for scene in scenes:
            observed.play(scene)
            lines = told(observed)
            lines = lines if isinstance(lines, Iterable) else await lines
            texts[f"{life}: {scene.name}"] = "\n".join(lines)
    return sections(texts)


def what_changed(document: Callable[[Observed], object]) -> Callable[[], Told]:
    """Tell after each scene what changed in a JSON document since the one before."""

    def tell() -> Told:
        deltas = Deltas(lambda line: line.partition(" = ")[0])
        return lambda observed: [deltas.of(flat(document(observed)))]

    return tell


def test_a_life_holds_every_event_there_is() -> None:
    seen = {type(e) for scenes, _ in LIVES.values() for scene in scenes for e in scene.events}
    assert seen == KINDS


async def test_status(golden: Golden) -> None:
    golden("status.txt", await told_of(what_changed(lambda observed: observed.status.snapshot())))


async def test_leaves(golden: Golden) -> None:
    golden("leaves.txt", await told_of(what_changed(lambda observed: observed.status.leaves())))


async def test_readiness(golden: Golden) -> None:
    golden("ready.txt", await told_of(lambda: lambda seen: [json.dumps(seen.status.ready())]))


async def test_checkpoints(golden: Golden) -> None:
    def tell() -> Told:
        deltas = Deltas(lambda line: line.partition(" = ")[0])

        async def told(observed: Observed) -> list[str]:
            return [deltas.of(flat(await observed.checkpoints.snapshot(100)))]

        return told

    golden("checkpoints.txt", await told_of(tell))


async def test_history(golden: Golden) -> None:
    """At the end of each life: each attempt before has its line there."""
    texts: dict[str, str] = {}
    for life, (scenes, begin) in LIVES.items():
        observed = begin()
        for scene in scenes:
            observed.play(scene)
        texts[life] = "\n".join(flat(observed.history.snapshot()))
    golden("history.txt", sections(texts))


async def test_events(golden: Golden) -> None:
    def tell() -> Told:
        seen: list[str] = []

        def told(observed: Observed) -> list[str]:
            if not seen:
                observed.events.subscribe(
                    lambda event: seen.append(json.dumps(observed.told(event), sort_keys=True))
                )
                return ["(it begins to listen here)"]
            return take(seen)

        return told

    golden("events.txt", await told_of(tell))


def take(lines: list[str]) -> list[str]:
    taken, lines[:] = lines[:], []
    return taken


async def test_systemd(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    systemd_hears_all_progress(monkeypatch)
    told = await told_of(lambda: lambda observed: take(observed.listener.heard))
    golden("systemd.txt", blanked(told))


def in_order(line: str) -> str:
    """A line of JSON, its fields by name."""
    return json.dumps(json.loads(line), sort_keys=True)


@pytest.mark.parametrize("format", ["json", "console"])
async def test_log(golden: Golden, format: str) -> None:
    stream = io.StringIO()

    def told(observed: Observed) -> list[str]:
        lines = stream.getvalue().splitlines()
        stream.seek(stream.truncate(0))
        return [in_order(line) for line in lines] if format == "json" else lines

    with logging_to(stream, format):
        golden(f"log-{format}.txt", blanked(await told_of(lambda: told, Observed.is_logged)))


OF_US = "hotreload_"
BY_THE_MACHINES_CLOCK = {"hotreload_fetch_remaining_seconds"}


def page(observed: Observed) -> list[str]:
    """Our families on the page of the metrics: what each is, and its series, by name."""
    families = text_string_to_metric_families(observed.metrics.render().decode())
    lines: list[str] = []
    for family in sorted(families, key=lambda each: each.name):
        if family.name.startswith(OF_US):
            lines.append(f"# {family.name} ({family.type}) {family.documentation}")
            lines += sorted(series(sample) for sample in family.samples)
    return lines


def series(sample: Sample) -> str:
    value = "SOME" if sample.name in BY_THE_MACHINES_CLOCK else sample.value
    said = ",".join(f'{key}="{text}"' for key, text in sorted(sample.labels.items()))
    return f"{sample.name}{{{said}}} {value}" if said else f"{sample.name} {value}"


async def test_metrics(golden: Golden) -> None:
    """A page is long: each but the first is told by what differs from the one before."""
    deltas = Deltas(lambda line: line if line.startswith("#") else line.rpartition(" ")[0])
    golden("metrics.txt", blanked(await told_of(lambda: lambda seen: [deltas.of(page(seen))])))
