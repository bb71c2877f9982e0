"""What must hold for what the daemon tells of itself: its views agree with its events."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from hotreload.observe.metrics_page import PAGE_SECONDS
from tests.histories.record import OUTCOMES, START, Life, Record, attempt_of

COMPARED = 100
"""So many attempts of a history; it keeps 200."""


def _attempts(record: Record, life: Life) -> list[tuple[float, list[Any]]]:
    """How attempts of a life ended, and when we heard of it."""
    ended = {f"reload.{outcome}" for outcome in OUTCOMES}
    own = (each for each in record.heard if each.life == life.number)
    over = (each for each in own if each.fields["event"] in ended)
    return [(each.at, attempt_of(each.fields)) for each in over]


def check_history(record: Record) -> Iterator[str]:
    """/history shows what /events told, in the same order; it may be a little ahead of us."""
    for life, look in record.looks_by_life("/history"):
        attempts = _attempts(record, life)
        shown = look.fields["attempts"]
        before = [fields for at, fields in attempts if at < look.start]
        later = [fields for at, fields in attempts if at >= look.start]
        wanted = before[-COMPARED:][::-1]
        for ahead in range(len(later) + (3 if life.was_killed else 1)):
            is_told = shown[:ahead][::-1] == later[:ahead] or life.was_killed
            if is_told and shown[ahead : ahead + len(wanted)] == wanted:
                break
        else:
            yield f"life {life.number}: /history at {look.start:.3f} is not what /events told"


def check_metrics(record: Record) -> Iterator[str]:
    """Attempts are counted as they were told; no set takes more than what is live.

    A leaf that several sets hold is counted once. The page may be a second old.
    """
    sizes, unheard = set(), _unheard(record)
    for life, look in record.looks_by_life("/metrics"):
        attempts = _attempts(record, life)
        for outcome in OUTCOMES:
            told = [at for at, fields in attempts if fields[2] == outcome]
            least = sum(at < look.start - PAGE_SECONDS for at in told)
            most = len(told) + unheard[outcome]
            count = look.fields[f'hotreload_reloads_total{{outcome="{outcome}"}}']
            if count < least or (count > most and not life.was_killed):
                words = f"{count:g} attempts {outcome}, {least} to {most} told"
                yield f"life {life.number}: {words}"
        held = [
            look.fields[f'hotreload_weights_bytes{{place="{place}",replica="0"}}']
            for place in PLACES
        ]
        sizes |= {held[0]} - {0.0}
        if held[0] and max(held) > held[0]:
            yield f"life {life.number}: a set takes more than what is live: {held}"
        is_leaving = life.told_at is not None and look.end >= life.told_at
        if look.fields["hotreload_generation"] and not held[0] and not is_leaving:
            yield f"life {life.number}: something is live, and holds no bytes"
    if len(sizes) > 1:
        yield f"weights of several sizes are live: {sorted(sizes)}"


def _unheard(record: Record) -> Counter[str]:
    """Attempts of starts, by outcome, that ended before /events had a reader: history has them."""
    told = Counter(tuple(fields) for life in record.lives for _, fields in _attempts(record, life))
    shown: Counter[tuple[Any, ...]] = Counter()
    for _, look in record.looks_by_life("/history"):
        shown |= Counter(map(tuple, look.fields["attempts"]))
    missed = (shown - told).items()
    return Counter({fields[2]: count for fields, count in missed if fields[-1] == START})


PLACES = ("live", "previous", "staged")


def check_remembered(record: Record) -> Iterator[str]:
    """What was refused stays in /status until it goes live; a start forgets nothing of it."""
    refused: dict[str, float] = {}
    lifted: dict[str, list[float]] = {}
    for heard in record.heard:
        event, revision = heard.fields["event"], heard.fields.get("revision", "")
        if event == "reload.rejected":
            refused.setdefault(revision, heard.at)
        elif event == "generation.live":
            lifted.setdefault(revision, []).append(heard.at)
    for revision, since in refused.items():
        if revision not in lifted:
            yield from _forgotten(record, revision, since)


def _forgotten(record: Record, revision: str, since: float) -> Iterator[str]:
    looks = [look for look in record.looks("/status") if look.start > since]
    shown = [(look, any(each[0] == revision for each in look.fields["refused"])) for look in looks]
    if any(is_there and not later for (_, is_there), (_, later) in pairwise(shown)):
        yield f"{revision} was refused, and later it was no more"
