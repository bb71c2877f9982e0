"""What is told of a life: a file for each chapter, and in it for each scene what differs now.

Each scene says what the log has, what systemd hears, the status in its words, the fields and the
metrics that changed. A field that only repeats another is left out; that it does is tested.
"""

import io
import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from hotreload.events import Progress, event_fields
from tests.event_kinds import KINDS
from tests.golden.blanks import blanked
from tests.golden.compare import Golden, sections
from tests.golden.layout import Deltas, flat
from tests.golden.lives import LIVES, Life, Moment, all_moments, moments
from tests.golden.observed import Observed, logging_to, systemd_hears_all_progress

Document = dict[str, Any]
IN_WORDS = {"rows", "summary"}
ELSEWHERE = {
    "last_attempt": "the newest attempt of the history that was no dry run",
    "reasons": "what readiness says",
}
"""Parts of a status that say what stands elsewhere in the file, too."""
OF_US = "hotreload_"
BY_THE_MACHINES_CLOCK = {"hotreload_fetch_remaining_seconds"}


def test_a_life_holds_every_event_there_is() -> None:
    scenes = (s for life in LIVES for chapter in life.chapters.values() for s in chapter)
    assert {type(event) for scene in scenes for event in scene.events} == KINDS


# --- how each scene is told --------------------------------------------------------------------


def path(line: str) -> str:
    return line.partition(" = ")[0]


def name_of(line: str) -> str:
    return line.rpartition(" ")[0]


def row_name(line: str) -> str:
    return line.partition(":")[0]


def fields_of(observed: Observed) -> list[str]:
    """The fields of a status but for its words, and for those that stand elsewhere."""
    status: Document = observed.status.snapshot()
    return [*flat({k: v for k, v in status.items() if k not in IN_WORDS | ELSEWHERE.keys()})]


def words_of(observed: Observed) -> Iterator[str]:
    """The sentences and the rows of a status: each with its tone."""
    status, ready = observed.status.snapshot(), observed.status.picture.ready()
    said = status["summary"]
    yield f"ready: {json.dumps(ready)}"
    yield f"sentence: {toned(said)}"
    yield f"at work: {said['doing']}"
    yield f"next: {said['next']}"
    for finding in said["findings"]:
        yield f"finding {finding['code']}: {finding['words']}; {finding['next']}"
    seen: Counter[str] = Counter()
    for row in status["rows"]:
        seen[row["name"]] += 1
        nth = f" ({seen[row['name']]})" if seen[row["name"]] > 1 else ""
        more = {k: v for k, v in row.items() if k not in ("name", "words", "tone", "whole")}
        yield f"row {row['name']}{nth}: {toned(row)}{f' {json.dumps(more)}' if more else ''}"


def toned(said: Document) -> str:
    words = said["words"].replace("\n", " / ")
    return f"{{{said['tone']}: {words}}}" if said["tone"] else words


def samples(observed: Observed) -> Iterator[str]:
    """Our series by name; of a histogram only its count and its sum."""
    for family in families(observed):
        yield from sorted(s for s in map(series, family.samples) if "_bucket{" not in s)


def families(observed: Observed) -> list[Any]:
    page = observed.metrics.render().decode()
    ours = (each for each in text_string_to_metric_families(page) if each.name.startswith(OF_US))
    return sorted(ours, key=lambda each: str(each.name))


def series(sample: Sample) -> str:
    value = "SOME" if sample.name in BY_THE_MACHINES_CLOCK else sample.value
    said = ",".join(f'{key}="{text}"' for key, text in sorted(sample.labels.items()))
    name = sample.name.removeprefix(OF_US)
    return f"{name}{{{said}}} {value}" if said else f"{name} {value}"


def logged(line: str) -> str:
    """A line of the log, shortly: its level, its event, and its fields that say something."""
    fields: Document = json.loads(line)
    level, event = fields.pop("level"), fields.pop("event")
    usual = {"timestamp": fields["timestamp"], "logger": "hotreload"}
    said = {
        key: value
        for key, value in sorted(fields.items())
        if value not in (None, "", [], {}, False, 0) and usual.get(key) != value
    }
    return " ".join([level, event, *(f"{k}={json.dumps(v)}" for k, v in said.items())])


class Teller:
    """Tells of one life, scene by scene."""

    def __init__(self, life: Life, log: io.StringIO) -> None:
        blank = life.begin()
        self._log = log
        self._fields = Deltas(path, fields_of(blank))
        self._words = Deltas(row_name, words_of(blank))
        self._leaves = Deltas(path, flat(blank.status.leaves()))
        self._samples = Deltas(name_of, samples(blank))

    def of(self, moment: Moment) -> str:
        seen = moment.observed
        lines = self._log.getvalue().splitlines()
        self._log.seek(self._log.truncate(0))
        heard, seen.listener.heard = seen.listener.heard, []
        parts = {
            "log": map(logged, lines),
            "systemd": map(blanked, heard),
            "words": self._words.of(words_of(seen)),
            "status": self._fields.of(fields_of(seen)),
            "leaves": self._leaves.of(flat(seen.status.leaves())),
            "metric": self._samples.of(samples(seen)),
        }
        return "\n".join(f"{part:8}{line}" for part, lines in parts.items() for line in lines)


def file_of(chapter: str) -> str:
    return f"life-{chapter.replace(',', '').replace(' ', '-')}.txt"


@pytest.mark.parametrize("life", LIVES, ids=lambda life: next(iter(life.chapters)))
def test_a_life_is_told(golden: Golden, monkeypatch: pytest.MonkeyPatch, life: Life) -> None:
    systemd_hears_all_progress(monkeypatch)
    log, texts = io.StringIO(), dict[str, dict[str, str]]()
    with logging_to(log, "json"):
        teller = Teller(life, log)
        for moment in moments(life, is_logged=True):
            texts.setdefault(moment.chapter, {})[moment.scene.name] = teller.of(moment)
    for chapter, scenes in texts.items():
        golden(file_of(chapter), sections(scenes))


# --- what the files leave out --------------------------------------------------------------------


def test_the_parts_that_are_left_out_repeat_others() -> None:
    for moment in all_moments():
        status, history = moment.observed.status.snapshot(), moment.observed.history.snapshot()
        tried = [each for each in history["attempts"] if not each["dry_run"]]
        assert itself(status["last_attempt"]) == itself(tried[0] if tried else None), moment.title
        assert status["reasons"] == moment.observed.status.picture.ready()[1], moment.title


def itself(attempt: Document | None) -> Document:
    """An attempt without what the history adds, from those before."""
    return {k: v for k, v in (attempt or {}).items() if k not in ("replaced", "told")}


def test_events_are_told_to_clients_by_their_fields() -> None:
    for moment in all_moments():
        for event in moment.scene.events:
            said, fields = moment.observed.told(event), event_fields(event)
            more = {"at"} | (PACE if isinstance(event, Progress) else set())
            assert fields.items() <= said.items(), moment.title
            assert said.keys() - fields.keys() <= more, moment.title


def test_a_log_for_people_has_the_fields_of_the_one_for_programs() -> None:
    names = {"timestamp": "", "level": "[", "event": " ", "logger": "["}
    for life in LIVES:
        both = []
        for format in ("json", "console"):
            stream = io.StringIO()
            with logging_to(stream, format):
                for _ in moments(life, is_logged=True):
                    pass
            both.append(stream.getvalue().splitlines())
        for as_json, as_text in zip(*both, strict=True):
            fields = json.loads(as_json)
            assert f" {fields['event']} " in as_text
            assert f"[{fields['level']}" in as_text
            assert f"[{fields['logger']}]" in as_text
            for name in fields.keys() - names.keys():
                assert f" {name}=" in as_text, as_text


def test_which_fields_each_event_has(golden: Golden) -> None:
    names: dict[str, set[str]] = {}
    for moment in all_moments():
        for event in moment.scene.events:
            fields = event_fields(event)
            names.setdefault(fields.pop("event"), set()).update(fields)
    lines = [f"{event}: {', '.join(sorted(fields))}" for event, fields in sorted(names.items())]
    golden("events.txt", "\n".join(lines))


PACE = {"bytes_per_second", "seconds_left"}
INDEX = re.compile(r"\[\d+\]")


def test_which_fields_a_status_has(golden: Golden) -> None:
    found: set[str] = set()
    for moment in all_moments():
        status = moment.observed.status.snapshot()
        found |= {INDEX.sub("[]", path(line)) for line in flat(status)}
    golden("status.txt", "\n".join(sorted(found)))


def test_which_metrics_there_are_before_anything_happens(golden: Golden) -> None:
    """What each means stands in the docs, whose table has them all."""
    lines = []
    for family in families(Observed()):
        labels = sorted({label for sample in family.samples for label in sample.labels})
        values = sorted({sample.value for sample in family.samples})
        named = f"{{{','.join(labels)}}}" if labels else ""
        said = f"{len(family.samples)} series of {values}" if values else "none yet"
        lines.append(f"{family.name}{named} {family.type}: {said}")
    golden("metrics.txt", "\n".join(lines))


def test_history(golden: Golden) -> None:
    """At the end of each life: what each attempt says that is not empty."""
    texts: dict[str, str] = {}
    for life in LIVES:
        *_, last = moments(life)
        attempts = last.observed.history.snapshot()["attempts"]
        said = [line for line in flat(attempts) if not line.endswith(EMPTY)]
        texts[last.chapter] = "\n".join(said)
    golden("history.txt", sections(texts))


EMPTY = (" = null", " = []", ' = ""', " = false")


async def test_checkpoints(golden: Golden) -> None:
    texts: dict[str, str] = {}
    for life in LIVES:
        deltas = Deltas(path)
        for moment in moments(life):
            lines = deltas.of(flat(await moment.observed.checkpoints.snapshot(100)))
            if lines:
                texts[moment.title] = "\n".join(lines)
    golden("checkpoints.txt", sections(texts))
