"""Composes a frame of `hotreload top`, a pure function of the daemon's answers.

A line is a row of (text, colour); it is cut to the terminal before it is coloured.
"""

import os
from collections.abc import Iterator, Mapping, Sequence

from hotreload.cli.bar import bar
from hotreload.cli.client.show import BELOW, COLOURS, Now, ago, columns, cut, fold, for_here, pad
from hotreload.cli.client.texts import (
    figures_of,
    rows_of,
    summary_of,
    words_of,
    words_of_judges,
    write_words,
)
from hotreload.figures import duration
from hotreload.picture.words import Fields, drift_text, name_revision, plain, short_name

Line = list[tuple[str, str | None]]

Rows = Mapping[str, Fields]
"""The daemon's rows by name."""

PHASE_COLUMNS = 11
TOP_HEAD = ("WHEN", "CHECKPOINT", "OUTCOME", "GEN", "TOOK", "HELD")
LEAST_ROOM = 12
COMPARED_BEFORE = 5
"""The number of earlier comparisons, of which only the agreement is shown."""
NARROW = 100
"""Below this many columns the history shows only an attempt's time, checkpoint and end."""


def frame(
    status: Fields | None,
    attempts: Sequence[Fields],
    *,
    width: int,
    height: int,
    now: Now,
    fault: tuple[str, str] | None = None,
) -> list[Line]:
    """Return at most `height` lines; `fault` is the reason why the frame is old, if any."""
    top: list[Line] = []
    if fault is not None:
        what, why = fault
        top = [[(f"hotreload: {what}", "bad")], [(plain(why), "dim")]]
    if status is not None:
        rows = {row["name"]: {**row, "words": _here(row["words"], now)} for row in rows_of(status)}
        top += [*_wrong(status, width), *_now(status, rows, width)]
        top += [*_describe_loading(rows, width), *_comparison_line(attempts, width)]
        top += [[], *_attempt(status, rows, width), []]
        shown = attempts[: max(0, height - len(top))]
        ended = (each for each in shown if not each.get("dry_run"))
        top += _history(
            shown, now, width, shown_above=None if status["attempt"] else next(ended, None)
        )
    foot: Line = [("q quits", "dim")]
    return [_cut(line, width) for line in [*top[: height - 1], foot]]


def write_line(line: Line, colour: bool) -> str:
    """Return a line as text for the terminal."""
    if not colour:
        return "".join(text for text, _ in line)
    return "".join(f"\033[{COLOURS[how]}m{text}\033[0m" if how else text for text, how in line)


def may_colour() -> bool:
    """Return whether the environment allows colours."""
    return not os.environ.get("NO_COLOR")


def _cut(line: Line, width: int) -> Line:
    fitting: Line = []
    for text, how in line:
        room = width - sum(columns(each) for each, _ in fitting)
        fitting.append((cut(text, room), how))
    return fitting


def _here(words: str, now: Now) -> str:
    return for_here(words, now, ago)


def _wrong(status: Fields, width: int) -> Iterator[Line]:
    """Return the lines of the sentence and of each fault, which stand above all others."""
    said = summary_of(status)
    yield from _fold(write_words(said), said["tone"], width)
    for each in said["findings"]:
        short = {**each, "words": cut(each["words"], 3 * width)}
        yield from _fold(f"{plain(each['code'])}: {write_words(short)}", each["tone"], width)


def _fold(text: str, colour: str | None, width: int) -> Iterator[Line]:
    return ([(line, colour)] for line in fold(text, width))


def _now(status: Fields, rows: Rows, width: int) -> Iterator[Line]:
    """Return the lines of the gate and the requests; a follower has no gate."""
    yield _state(status, rows)
    beside = (rows[name] for name in ("gate", "fingerprint", "mode") if name in rows)
    yield [("   ".join(f"{row['name']} {row['words']}" for row in beside), None)]
    still_answer = ["answering"] if status.get("answering", [])[1:] else []
    replicas = [name for name in rows if name.startswith("replica ")]
    doing = "boot" if "boot" in rows else "waiting for"
    yield from _show_rows(rows, width, "rank", "paused", *still_answer, *replicas, doing)


def _state(status: Fields, rows: Rows) -> Line:
    """Return the line of the state, the operators' choices, and the live revision with its age."""
    line: Line = [(rows["state"]["words"], rows["state"]["tone"])]
    line += [(f"  {name}", "wait") for name in ("pinned", "held") if name in rows]
    if status.get("overruled"):
        line.append(("  source overruled", "wait"))
    if "revision" not in rows:
        return [*line, ("  nothing is live yet", "bold")]
    since = f"  live since {rows['live since']['words']}"
    return [*line, (f"  {rows['revision']['words']}", "bold"), (since, None)]


def _show_rows(rows: Rows, width: int, *names: str) -> Iterator[Line]:
    """Return the lines of the rows that have these names."""
    for row in (rows[name] for name in names if name in rows):
        yield from _fold(f"{row['name']} {row['words']}", row["tone"], width)


def _describe_loading(rows: Rows, width: int) -> Iterator[Line]:
    """Return the line on the load of the live weights, and on their changes."""
    if row := rows.get("loaded"):
        yield [(cut(f"loaded {row['words']}", width), row["tone"])]


def _comparison_line(attempts: Sequence[Fields], width: int) -> Iterator[Line]:
    """Return the line on the last comparison, and on the agreement of earlier ones."""
    found = [each for each in attempts if each.get("behaviour")][: 1 + COMPARED_BEFORE]
    if found:
        last, *before = found
        words = f"compared {short_name(last)}: {words_of(last)['behaviour']}"
        agreed = ", ".join(f"{each['behaviour']['agreement']:.0%}" for each in before)
        before_it = f"; before it {agreed}" if agreed else ""
        yield [(cut(words, width - columns(before_it)) + before_it, None)]


def _attempt(status: Fields, rows: Rows, width: int) -> Iterator[Line]:
    if (attempt := status["attempt"]) is not None:
        yield [("attempt in progress: ", None), (name_revision(attempt), "bold")]
        names = [*attempt["phases"], *attempt.get("expected", ())]
        yield from _phases(attempt["phases"], names, status["phase"], width)
    elif last := rows.get("last attempt"):
        first, *others = last["words"].split("\n")
        yield from _fold(f"last attempt: {first}", last["tone"], width)
        for line in (each for each in others if each not in _find_judges_lines(status)):
            yield from _fold(cut(line, 3 * width), None, width)
    elif "wanted" in rows:
        yield [("no attempt yet", "dim")]
    for row in rows.values():
        if "share" in row:
            yield [(f"{bar(row['share'])}  {row['words']}", "wait")]


def _find_judges_lines(status: Fields) -> Sequence[str]:
    """Return lines of the last attempt that have a row of their own, or are too long for one."""
    found = words_of_judges(status["last_attempt"], at_length=True)
    return [line for each in found for line in each.all_lines]


def _phases(
    spent: Mapping[str, float], names: Sequence[str], current: str | None, width: int
) -> Iterator[Line]:
    """Return the phases above their times, as many beside each other as fit."""
    in_a_row = max(1, width // PHASE_COLUMNS)
    for first in range(0, len(names), in_a_row):
        row = names[first : first + in_a_row]
        hues = ["wait" if name == current else None for name in row]
        shown = [">" + plain(name) if name == current else plain(name) for name in row]
        took = [duration(spent[name]) if name in spent else "-" for name in row]
        for cells in (shown, took):
            fitted = [pad(cell.replace("rolling_", ""), PHASE_COLUMNS - 1) for cell in cells]
            yield [(f"{cell} ", hue) for cell, hue in zip(fitted, hues, strict=True)]


def _history(
    attempts: Sequence[Fields], now: Now, width: int, *, shown_above: Fields | None
) -> Iterator[Line]:
    """Return the lines of the history, with columns as wide as needed; the reason has the rest.

    A failure's reason that does not fit stands on the next line. For the attempt `shown_above`,
    whose reason stands above in full, only the code is shown.
    """
    head = TOP_HEAD[:3] if width < NARROW else TOP_HEAD
    rows = [_cells(attempt, now)[: len(head)] for attempt in attempts]
    most = max(LEAST_ROOM, width // 4)
    rooms = [min(most, max(map(columns, column))) for column in zip(head, *rows, strict=True)]
    if rows:
        yield [("  ".join([*_fit(head, rooms), "REASON"]), "dim")]
    for attempt, row in zip(attempts, rows, strict=True):
        when, what, outcome, *rest = _fit(row, rooms)
        first: Line = [(f"{when}  {what}  ", None), (outcome, words_of(attempt)["tone"])]
        why = _here(str(attempt["code"] or "") if attempt is shown_above else _why(attempt), now)
        beside = "  ".join(["", *rest, why])
        room = width - sum(columns(text) for text, _ in first)
        if columns(beside) <= room or not attempt["reason"]:
            yield [*first, (beside, None)]
        else:
            yield [*first, ("  ".join(["", *rest]), None)]
            room = width - len(BELOW)
            for line in fold(cut(why, 2 * room), room)[:2]:
                yield [(BELOW + line, None)]


def _why(attempt: Fields) -> str:
    """Return an attempt's failure, caller and reason; changes of the live weights stand above."""
    words = words_of(attempt)
    change = drift_text(attempt) if attempt.get("loader") else None
    notes = (note for note in words["notes"] if note != change)
    return "; ".join(filter(None, [attempt["reason"], words["by"], *notes]))


def _fit(cells: Sequence[str], rooms: Sequence[int]) -> list[str]:
    return [pad(cell, room) for cell, room in zip(cells, rooms, strict=True)]


def _cells(attempt: Fields, now: Now) -> tuple[str, ...]:
    return ago(attempt["finished_at"], now), short_name(attempt), *figures_of(attempt)
