"""What `hotreload top` shows: one frame as a pure function of what the daemon said.

A line is a row of (text, colour); it is cut to the terminal before it is coloured.
"""

import os
from collections.abc import Iterator, Mapping, Sequence

from hotreload.cli.bar import bar_text
from hotreload.cli.booting_text import boot_text
from hotreload.cli.columns import columns, cut, folded, padded
from hotreload.cli.loading_text import drift_text, loader_text
from hotreload.cli.ranks_text import follows, rank_text
from hotreload.cli.replicas_text import replica_lines
from hotreload.cli.show import (
    COLOURS,
    Fields,
    Now,
    ago,
    asked_by,
    named,
    outcome_word,
    plain,
)
from hotreload.cli.status_text import COLOUR_OF, older_text, summary_of, told
from hotreload.figures import duration

Line = list[tuple[str, str | None]]

USUAL = {
    "overlap": ("fetching", "validating", "staging", "probing", "swapping"),
    "drain": ("fetching", "validating", "staging", "draining", "swapping", "probing"),
}
"""The phases of an attempt that goes well, by mode."""
START = ("fetching", "validating", "staging", "building", "warming", "probing")
"""The phases of a start that goes well."""
PHASE_COLUMNS = 11
HISTORY = ("WHEN", "CHECKPOINT", "OUTCOME", "GEN", "TOOK", "HELD")
LEAST_ROOM = 12
NARROW = 100
"""Below this many columns the history shows only when, of what and how an attempt ended."""


def frame(
    status: Fields | None,
    attempts: Sequence[Fields],
    leaves: Fields | None = None,
    *,
    width: int,
    height: int,
    now: Now,
    fault: tuple[str, str] | None = None,
) -> list[Line]:
    """Compose at most `height` lines; `fault` says why what is shown is old, if it is."""
    top: list[Line] = []
    if fault is not None:
        what, why = fault
        top = [[(f"hotreload: {what}", "bad")], [(plain(why), "dim")]]
    if status is not None:
        weights = [*_moved(leaves), *_loaded(status)]
        top += [*_now(status, now, width), *weights, [], *_attempt(status, now, width), []]
        top += _history(attempts[: max(0, height - len(top))], now, width)
    foot: Line = [("q quits", "dim")]
    return [_cut(line, width) for line in [*top[: height - 1], foot]]


def written(line: Line, colour: bool) -> str:
    """Return a line as it goes to the terminal."""
    if not colour:
        return "".join(text for text, _ in line)
    return "".join(f"\033[{COLOURS[how]}m{text}\033[0m" if how else text for text, how in line)


def may_colour() -> bool:
    """Whether the environment allows colours."""
    return not os.environ.get("NO_COLOR")


def _cut(line: Line, width: int) -> Line:
    fitting: Line = []
    for text, how in line:
        room = width - sum(columns(each) for each, _ in fitting)
        fitting.append((cut(text, room), how))
    return fitting


def _now(status: Fields, now: Now, width: int) -> Iterator[Line]:
    """How it is; what is wrong stands above all that may be cut off."""
    said = summary_of(status)
    yield from _folded(told(said), said["tone"], width)
    for each in said["findings"]:
        short = {**each, "words": cut(each["words"], 3 * width)}
        yield from _folded(f"{plain(each['code'])}: {told(short)}", each["tone"], width)
    yield _state(status, now)
    yield [("   ".join(_weights_and_gate(status)), None)]
    if rank := status.get("rank"):
        yield [(f"rank {rank_text(rank)}", None)]
    if older := status.get("answering", [])[1:]:
        yield [(f"fading out: {older_text(older)}", "wait")]
    yield from ([line] for line in replica_lines(status, now))
    if boot := status.get("boot"):
        yield [(boot_text(boot), "wait")]
    elif status["waiting_for"]:
        yield from _folded(f"waits for {plain(status['waiting_for'])}", None, width)


def _folded(text: str, colour: str | None, width: int) -> Iterator[Line]:
    return ([(line, colour)] for line in folded(text, width))


def _state(status: Fields, now: Now) -> Line:
    """The state in a word, what operators chose, and since when what is live."""
    state = plain(status["state"])
    line: Line = [(state, COLOUR_OF.get(state))]
    if status["pinned"]:
        line.append(("  pinned", "wait"))
    if status.get("overruled"):
        line.append(("  source overruled", "wait"))
    if status["generation"] is None:
        return [*line, ("  nothing is live yet", "bold")]
    since = f"  live since {ago(status['live_since'], now)}"
    return [*line, (f"  {named(status)}", "bold"), (since, None)]


def _weights_and_gate(status: Fields) -> Iterator[str]:
    """Who is at the gate, of which a rank that follows has none, and by what they are answered."""
    gate = status["gate"]
    if not follows(status):
        yield f"gate {plain(gate['state'])}, {gate['inside']} inside, {gate['held']} held"
    if status.get("mode"):
        yield f"mode {plain(status['mode'])}"
    yield f"fingerprint {plain(status['fingerprint'] or 'none')}"


def _moved(leaves: Fields | None) -> Iterator[Line]:
    """Say how many leaves the last swap changed; after a start there was none yet."""
    if leaves and leaves["previous"]:
        count = f"{len(leaves['changed'])} of {len(leaves['leaves'])}"
        yield [(f"leaves changed at the last swap: {count}", None)]


def _loaded(status: Fields) -> Iterator[Line]:
    if loading := status.get("loading"):
        yield [(f"loaded {loader_text(loading)}: {drift_text(loading)}", None)]


def _attempt(status: Fields, now: Now, width: int) -> Iterator[Line]:
    attempt, last = status["attempt"], status["last_attempt"]
    if attempt is not None:
        yield [("attempt in progress: ", None), (named(attempt), "bold")]
        usual = START if status.get("boot") else USUAL.get(status.get("mode") or "", USUAL["drain"])
        names = [name for name in usual if name not in attempt["phases"]]
        yield from _phases(attempt["phases"], [*attempt["phases"], *names], status["phase"], width)
    elif last is not None:
        outcome = outcome_word(last)
        yield [
            (f"last attempt: {named(last)} ", None),
            (outcome, COLOUR_OF.get(last["outcome"])),
            (f", {ago(last['finished_at'], now)}", None),
        ]
        yield from _phases(last["phases"], list(last["phases"]), None, width)
        yield from _folded(cut(plain(last["reason"] or ""), 3 * width), None, width)
    elif not follows(status):
        yield [("no attempt yet", "dim")]
    if status["progress"]:
        yield [(bar_text(status["progress"]), "wait")]


def _phases(
    spent: Mapping[str, float], names: Sequence[str], current: str | None, width: int
) -> Iterator[Line]:
    """Phases over the time they took, as many beside each other as there is room for."""
    in_a_row = max(1, width // PHASE_COLUMNS)
    for first in range(0, len(names), in_a_row):
        row = names[first : first + in_a_row]
        hues = ["wait" if name == current else None for name in row]
        shown = [">" + plain(name) if name == current else plain(name) for name in row]
        took = [duration(spent[name]) if name in spent else "-" for name in row]
        for cells in (shown, took):
            fitted = [padded(cell.replace("rolling_", ""), PHASE_COLUMNS - 1) for cell in cells]
            yield [(f"{cell} ", hue) for cell, hue in zip(fitted, hues, strict=True)]


def _history(attempts: Sequence[Fields], now: Now, width: int) -> Iterator[Line]:
    """Each column as wide as need be, within bounds; the reason has what is left."""
    head = HISTORY[:3] if width < NARROW else HISTORY
    rows = [_cells(attempt, now)[: len(head)] for attempt in attempts]
    most = max(LEAST_ROOM, width // 4)
    rooms = [min(most, max(map(columns, column))) for column in zip(head, *rows, strict=True)]
    if rows:
        yield [("  ".join([*_fitted(head, rooms), "REASON"]), "dim")]
    for attempt, row in zip(attempts, rows, strict=True):
        when, what, outcome, *rest = _fitted(row, rooms)
        yield [
            (f"{when}  {what}  ", None),
            (outcome, COLOUR_OF.get(attempt["outcome"])),
            ("  ".join(["", *rest, _why(attempt)]), None),
        ]


def _why(attempt: Fields) -> str:
    """Why it failed, and who asked for it and why."""
    by = attempt.get("by")
    asked = [asked_by(by), plain(by["reason"])] if by else []
    return "; ".join(filter(None, [plain(attempt["reason"] or ""), *asked]))


def _fitted(cells: Sequence[str], rooms: Sequence[int]) -> list[str]:
    return [padded(cell, room) for cell, room in zip(cells, rooms, strict=True)]


def _cells(attempt: Fields, now: Now) -> tuple[str, ...]:
    generation, held = attempt["generation"], attempt["pause_seconds"]
    return (
        ago(attempt["finished_at"], now),
        plain(attempt["label"] or attempt["revision"][:12]),
        outcome_word(attempt),
        "-" if generation is None else str(generation),
        duration(sum(attempt["phases"].values())),
        duration(held) if held else "-",
    )
