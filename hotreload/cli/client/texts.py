"""A daemon as people read it: its status, the end of an attempt, a dry run, a log, and a table."""

from collections.abc import Iterator, Sequence

from hotreload.cli.bar import bar
from hotreload.cli.client import show
from hotreload.cli.client.show import TIED, Now, ago, for_here, moment, paint
from hotreload.figures import duration
from hotreload.picture.words import (
    BY_ANSWERS,
    AttemptWords,
    Fields,
    attempt_words,
    drift_text,
    loader_text,
    name_revision,
    outcome_word,
    plain,
    short_name,
    was_unasked,
    who,
)

LOST_WORDS = "killed the engine; a new one is starting"
VERDICTS = {
    "passed": "would go live",
    "rejected": "would be refused",
    "postponed": "could not be tried now",
    "superseded": "was let go",
    "lost": LOST_WORDS,
}
AFTER_CHECKS = ("staging", "probing", "comparing")
"""The phases after all checks of the files."""
ENDED_SO = {
    "rejected": "was refused",
    "postponed": "was put off",
    "superseded": "was let go",
    "lost": "cost the engine",
}
LONGEST_NOTE = 160
"""The most columns of the line below a sentence; `history` shows all of it."""
HeadAndRows = tuple[Sequence[str], Sequence[Sequence[str]]]
"""The head and the rows of a table."""
HISTORY_HEAD = ("WHEN", "REVISION", "OUTCOME", "GEN", "TOOK", "HELD", "REASON, CHANGE")


def outcome_text(attempt: Fields, generation: str | None) -> str:
    """Return the end of an attempt in words; `generation` is the one that answers now."""
    name, outcome = name_revision(attempt), attempt["outcome"]
    if outcome == "live":
        return _live(attempt)
    words = {
        "rejected": "was rejected",
        "postponed": "was put off (what the source wishes is tried again by itself)",
        "superseded": "was let go for a newer one",
        "lost": LOST_WORDS,
    }
    reason = str(attempt["reason"])
    lines = [f"{name} {words.get(outcome, outcome)}: {plain(reason)}"]
    lines += [f"  {plain(finding)}" for finding in attempt["findings"] if finding not in reason]
    if generation and outcome != "lost":
        lines.append(f"  generation {plain(generation)} goes on answering")
    return "\n".join(lines)


def _live(attempt: Fields) -> str:
    name, number = name_revision(attempt), attempt["generation"]
    if not attempt["phases"]:
        return f"{name} is live already, as generation {number}"
    took = duration(sum(attempt["phases"].values()))
    held = duration(attempt["pause_seconds"])
    went = "rolled back to {} as" if outcome_word(attempt) == "rolled back" else "{} is live as"
    said = f"{went.format(name)} generation {number}; it took {took}, requests were held {held}"
    return f"{said}\n  {drift_text(attempt)}" if attempt.get("loader") else said


def dry_run_text(attempt: Fields, generation: str | None) -> str:
    """Return the report of a dry run: whether the revision would go live, and the findings."""
    verdict = VERDICTS.get(attempt["outcome"], attempt["outcome"])
    unsure = (
        " as far as can be told" if attempt["outcome"] == "passed" and attempt["unproven"] else ""
    )
    why = f": {plain(attempt['reason'])}" if attempt["reason"] else ""
    lines = [f"dry run: {name_revision(attempt)} {verdict}{unsure}{why}"]
    lines += [f"  {line}" for line in show.pairs(list(_rows(attempt))).splitlines()]
    if generation and attempt["outcome"] != "lost":
        lines.append(f"  nothing has changed: generation {plain(generation)} goes on answering")
    return "\n".join(lines)


def _rows(attempt: Fields) -> Iterator[tuple[str, str]]:
    yield "checks", _checks(attempt)
    if attempt["loader"]:
        yield "loaded", loader_text(attempt)
        yield "change", drift_text(attempt)
    yield "probes", _probes(attempt)
    if compared := [*_comparison_lines(attempt)]:
        yield "compared", "\n".join(compared)
    if attempt["phases"]:
        spent = (f"{plain(name)} {duration(took)}" for name, took in attempt["phases"].items())
        yield "times", ", ".join(spent)


def _checks(attempt: Fields) -> str:
    if any(phase in attempt["phases"] for phase in AFTER_CHECKS):
        return "passed"
    found = [plain(finding) for finding in attempt["findings"]]
    return "\n".join(found) or "not done to the end"


def _probes(attempt: Fields) -> str:
    if attempt["unproven"]:
        return f"not asked, so their answers are not known: {plain(attempt['unproven'])}"
    if "probing" not in attempt["phases"]:
        return "not asked"
    if attempt["outcome"] == "passed" or "comparing" in attempt["phases"]:
        return "passed"
    return "\n".join(plain(finding) for finding in attempt["findings"]) or "not answered"


def _comparison_lines(attempt: Fields) -> Iterator[str]:
    """Return the differences of the new weights from the live ones, and the limits they break."""
    is_refused = attempt["outcome"] == "rejected"  # the findings have the answers, too
    found = words_of_judges(attempt, at_length=True)
    if any(compared := [words for each in found for words in each.told.values()]):
        yield from filter(None, compared)
        lines = (line for each in found for line in each.lines)
        yield from map(plain, attempt["findings"]) if is_refused else lines


def log_text(past: Fields) -> str:
    """Return a sentence on an attempt, a pin or an unpin; the next line has reason or changes."""
    now = show.now()
    if "verb" in past:
        tone, said, notes = None, f"{plain(past['verb'])}ned by {who(past)}", [past["reason"]]
    else:
        words = words_of(past)
        why = str(past["reason"] or "").removeprefix(f"{past['code']}: ")
        tone, said, notes = words["tone"], _sentence(past, words), [why, *words["notes"]]
    at = show.local(end_time(past))
    first = show.paragraph(f"{at}  {for_here(said, now)}", show.BELOW)
    below = show.cut(for_here("; ".join(plain(each) for each in notes if each), now), LONGEST_NOTE)
    lines = show.fold(below, max(show.LEAST_WORDS, show.room() - len(show.BELOW)))
    return "\n".join([paint(first, tone), *(show.BELOW + each for each in lines if each)])


def _sentence(attempt: Fields, words: Fields) -> str:
    """Return a sentence with an attempt's end and time, and with its caller if that was a user."""
    name, by = short_name(attempt), attempt.get("by")
    number = attempt["generation"]
    end = ENDED_SO.get(attempt["outcome"], attempt["outcome"])
    if attempt.get("dry_run"):
        said = f"dry run: {name} {VERDICTS.get(attempt['outcome'], end)}, known"
    elif outcome_word(attempt) == "rolled back":
        said = f"rolled back to {name} as generation {number}"
    elif attempt["outcome"] == "live":
        said = f"{name} is live as generation {number}"
    else:
        said = f"{name} {end}"
    code = f": {plain(attempt['code'])}" if attempt["code"] else ""
    held = f", requests were held {words['held']}" if words["held"] else ""
    requester = _asked_for(by) if by else ""
    return f"{said} after {words['took']}{held}{requester and ', '}{requester}{code}"


def _asked_for(by: Fields) -> str:
    if by["verb"] == "start":
        return "at the start"
    return BY_ANSWERS if was_unasked(by["verb"]) else f"by {who(by)}"


def history_text(past: Sequence[Fields], now: Now | None = None) -> str:
    """Return a table of attempts and pins, with fewer columns on a narrow terminal."""
    now = now or show.now()
    forms = [_wide(past, now), _narrow(past, now)]
    return show.table(*next((form for form in forms if show.fits(*form)), forms[-1]))


def words_of(attempt: Fields) -> Fields:
    """Return the words for an attempt; an older daemon sends none, and they are made here."""
    if told := attempt.get("told"):
        return dict(told)
    was_refused = attempt["outcome"] == "rejected"
    return attempt_words(attempt, words_of_judges(attempt, at_length=was_refused))


def words_of_judges(attempt: Fields, *, at_length: bool) -> list[AttemptWords]:
    """Return the features' findings in words; their modules are imported only here."""
    from hotreload.features import FEATURES

    return [each.words(attempt, at_length) for each in FEATURES if each.words]


def _wide(past: Sequence[Fields], now: Now) -> HeadAndRows:
    rows = [
        (
            moment(end_time(each), now),
            "-" if "verb" in each else name_revision(each),
            *figures_of(each),
            plain(each.get("loader") or "-"),
            for_here(_asker(each) or "source", now),
            for_here("; ".join(_notes(each)) or "-", now),
        )
        for each in past
    ]
    return (*HISTORY_HEAD[:-1], "LOADER", "BY", HISTORY_HEAD[-1]), rows


def _narrow(past: Sequence[Fields], now: Now) -> HeadAndRows:
    """Return fewer columns: a caller that was a user stands among the words."""
    rows = []
    for each in past:
        requester = _asker(each)
        notes = [*_notes(each), *([f"by {requester}"] if requester else [])]
        what = "-" if "verb" in each else short_name(each)
        words = for_here("; ".join(notes) or "-", now)
        rows.append((ago(end_time(each), now), what, *figures_of(each), words))
    return HISTORY_HEAD, rows


def end_time(past: Fields) -> str:
    """Return an entry's moment; all have one spelling and zone, and sort as texts."""
    return str(past["at"] if "verb" in past else past["finished_at"])


def figures_of(past: Fields) -> tuple[str, ...]:
    """Return an attempt's end, generation, time, and the time that it held requests."""
    if "verb" in past:
        return f"{plain(past['verb'])}ned", *"---"
    words, number = words_of(past), past["generation"]
    made = "-" if number is None else str(number)
    return plain(words["outcome"]), made, plain(words["took"]), plain(words["held"] or "-")


def _asker(past: Fields) -> str | None:
    """Return the name of the attempt's user; None if the source caused the attempt."""
    return who(past) if "verb" in past else words_of(past)["by"]


def _notes(past: Fields) -> list[str]:
    """Return an attempt's failure, its user's reason, its changes, and the judges."""
    words = {"notes": []} if "verb" in past else words_of(past)
    notes = [past["reason"], *words["notes"], *words.get("judged", ())]
    return [plain(note) for note in notes if note]


# --- the status ---------------------------------------------------------------------------------


def status_text(status: Fields, now: Now | None = None) -> str:
    """Return /status as one sentence, and a block of names and values."""
    now = now or show.now()
    rows = [(plain(row["name"]), _value(row, now)) for row in rows_of(status)]
    return f"{headline(status)}\n\n{show.pairs(rows)}"


def _value(row: Fields, now: Now) -> str:
    words = for_here(row["words"], now)
    if "share" in row:
        words = f"{bar(row['share'])}  {words}"
    return paint(words, row["tone"])


def headline(status: Fields) -> str:
    """Return the status in one sentence, with the command to type next."""
    said = summary_of(status)
    return paint(show.paragraph(write_words(said)), said["tone"])


def check_text(status: Fields) -> str:
    """Return a line for each fault, with the command to type next."""
    said = summary_of(status)
    nobody = [write_words(said)] if status["reasons"] else []
    lines = [*nobody, *(f"{plain(each['code'])}: {write_words(each)}" for each in said["findings"])]
    return "\n".join(show.paragraph(line, show.BELOW) for line in lines)


def summary_of(status: Fields) -> Fields:
    """Return the status's sentence; an older daemon sends none, and it is made here."""
    if "summary" in status:
        return dict(status["summary"])
    from hotreload.picture.summary import summed_up

    return summed_up(status)


def rows_of(status: Fields) -> list[Fields]:
    """Return the status's rows; an older daemon sends none, and they are made here."""
    if "rows" in status:
        return list(status["rows"])
    from hotreload.picture import rows

    return rows.rows_of(status)


def write_words(part: Fields) -> str:
    """Return the words, and the command to type next on a line of its own."""
    words = plain(part["words"])
    return f"{words}: {plain(part['next']).replace(' ', TIED)}" if part["next"] else words
