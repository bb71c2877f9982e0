"""Writes the daemon's status for people: a sentence, and a block of rows."""

from hotreload.cli.bar import bar
from hotreload.cli.client import show
from hotreload.cli.client.show import TIED, Now, for_here, paint
from hotreload.picture.words import Fields, plain


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
