"""The daemon's status as people read it: its sentence, and a block of its rows."""

from hotreload.cli.bar import bar
from hotreload.cli.client import show
from hotreload.cli.client.show import TIED, Now, for_here, paint
from hotreload.picture.words import Fields, plain


def status_text(status: Fields, now: Now | None = None) -> str:
    """Write /status as one sentence, and a block of names and values."""
    now = now or show.now()
    rows = [(plain(row["name"]), _value(row, now)) for row in rows_of(status)]
    return f"{headline(status)}\n\n{show.pairs(rows)}"


def _value(row: Fields, now: Now) -> str:
    words = for_here(row["words"], now)
    if "share" in row:
        words = f"{bar(row['share'])}  {words}"
    return paint(words, row["tone"])


def headline(status: Fields) -> str:
    """Write how things are in one sentence, with the command to type next."""
    said = summary_of(status)
    return paint(show.paragraph(write_words(said)), said["tone"])


def check_text(status: Fields) -> str:
    """Write a line for each thing that is wrong, with the command to type next."""
    said = summary_of(status)
    nobody = [write_words(said)] if status["reasons"] else []
    lines = [*nobody, *(f"{plain(each['code'])}: {write_words(each)}" for each in said["findings"])]
    return "\n".join(show.paragraph(line, show.BELOW) for line in lines)


def summary_of(status: Fields) -> Fields:
    """Return the sentence; of a daemon that is older than this command it is made here."""
    if "summary" in status:
        return dict(status["summary"])
    from hotreload.picture.summary import summed_up

    return summed_up(status)


def rows_of(status: Fields) -> list[Fields]:
    """Return the rows; of a daemon that is older than this command they are made here."""
    if "rows" in status:
        return list(status["rows"])
    from hotreload.picture import rows

    return rows.rows_of(status)


def write_words(part: Fields) -> str:
    """Write the words, and the command to type next, which stands on one line."""
    words = plain(part["words"])
    return f"{words}: {plain(part['next']).replace(' ', TIED)}" if part["next"] else words
