"""What the verbs that look print where the terminal is narrow, and where there is none."""

import asyncio
import fcntl
import os
import struct
import termios
from dataclasses import replace

import pytest

from hotreload.attempts import By, Refusal
from hotreload.cli.client import show
from hotreload.cli.client.show import columns, fold
from hotreload.events import AttemptFinished, OperatorAsked, RevisionWanted, TroubleNews
from hotreload.facts.listed import Listed, ListedState
from hotreload.troubles import FILES_GONE
from hotreload.types import Outcome, Reason, Revision
from tests.cli.conftest import Command
from tests.observe.things import OWN
from tests.server.world import SECOND, World, attempt
from tests.waiting import PATIENCE

LONG = Revision("cccc3333", "global_step_1000/actor/huggingface")
WHY = Reason("config_mismatch", "num_hidden_layers is 36, and the served model has 28; " * 3)
GONE = TroubleNews(FILES_GONE, "the files of generation 1 are gone from /mnt/runs/a", "copy back")


@pytest.fixture
def busy(world: World) -> World:
    """A daemon with long names and long reasons."""
    by = By("rollback", 0, 77, 1.7e9, "too many words in each answer since step 900")
    world.view.ledger.refused[LONG.id] = Refusal(LONG, WHY, 1.7e9)
    world.events.publish(RevisionWanted(LONG))
    world.events.publish(AttemptFinished(replace(attempt(), by=by, loading=OWN), SECOND))
    refused = replace(attempt(Outcome.REJECTED, WHY), revision=LONG)
    world.events.publish(AttemptFinished(refused, SECOND))
    world.events.publish(OperatorAsked(By("pin", 0, 77, 1.7e9 + 200, "it holds a paper's numbers")))
    world.events.publish(GONE)
    world.view.listed += [
        Listed(str(LONG), ListedState.NEWEST, revision=LONG, step=(0, 1000), bytes=1_240_000_000),
        Listed("notes_of_the_run", ListedState.ODD, "holds no *.safetensors", "missing"),
    ]
    return world


async def on_a_terminal(hotreload: Command, width: int, *args: str) -> list[str]:
    """The lines that a verb writes to a terminal so wide."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    hotreload.environ["NO_COLOR"] = "1"
    process = await hotreload.start(*args, stdout=theirs)
    os.close(theirs)
    async with asyncio.timeout(PATIENCE):
        said = await asyncio.to_thread(_all_on, ours)
        await process.wait()
    os.close(ours)
    return said.replace("\r\n", "\n").splitlines()


def _all_on(terminal: int) -> str:
    said = b""
    while True:
        try:
            said += os.read(terminal, 65536)
        except OSError:  # nobody writes any more
            return said.decode()


@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize("verb", ["history", "log", "ls", "status"])
async def test_nothing_falls_off_a_narrow_terminal_and_no_word_is_broken(
    busy: World, hotreload: Command, verb: str, width: int
) -> None:
    lines = await on_a_terminal(hotreload, width, verb)
    assert max(map(columns, lines)) <= width
    text = " ".join(" ".join(lines).split())
    is_whole = verb != "log"  # which is short: all words stand in the history
    assert WHY.message.strip()[: None if is_whole else 60] in text
    assert {"history": "rollback", "log": "rolled back"}.get(verb, "") in text
    whole = (await hotreload(verb)).out.split()
    names = {*whole, "global_step_", "1000/", "1000/actor/", "global_step_1000/", "actor/"}
    names |= {"global_step_1000/actor/", "huggingface", "actor/huggingface", "by", "ago"}
    said = {word.rstrip(";") for line in lines for word in line.split()}
    assert {word for word in said - {word.rstrip(";") for word in names} if word.isalpha()} == set()


async def test_where_there_is_no_terminal_each_row_is_one_whole_line(
    busy: World, hotreload: Command
) -> None:
    head, *rows = (await hotreload("history")).out.splitlines()
    assert head.split()[-4:] == ["LOADER", "BY", "REASON,", "CHANGE"]
    assert len(rows) == 3
    assert any(WHY.message.strip() in row for row in rows)
    sentence, empty, *_ = (await hotreload("status")).out.splitlines()
    assert sentence.startswith(
        f"generation 2, step-2, answers; {LONG.label} is wanted and was refused (config_mismatch), "
    )
    assert sentence.endswith(" h ago; 1 trouble: files_gone: hotreload status --check")
    assert empty == ""


def table(monkeypatch: pytest.MonkeyPatch, room: int) -> list[str]:
    monkeypatch.setattr(show, "room", lambda: room)
    rows = [("a name", "3", "some words that say why"), ("b", "14", "-")]
    return show.table(("NAME", "N", "WHY"), rows).splitlines()


def test_the_words_stand_beside_the_columns_or_below_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert table(monkeypatch, 80) == [
        "NAME    N   WHY",
        "a name  3   some words that say why",
        "b       14  -",
    ]
    assert table(monkeypatch, 20) == [
        "NAME    N",
        "    WHY",
        "a name  3",
        "    some words that",
        "    say why",
        "b       14",
    ]


@pytest.mark.parametrize(
    ("text", "room", "lines"),
    [
        ("one two three", 7, ["one two", "three"]),
        ("one averylongword two", 5, ["one", "averylongword", "two"]),
        ("\033[31mone two\033[0m", 7, ["\033[31mone two\033[0m"]),
        ("so: hotreload\N{NO-BREAK SPACE}status", 16, ["so:", "hotreload status"]),
        ("", 5, [""]),
    ],
)
def test_text_is_folded_between_words(text: str, room: int, lines: list[str]) -> None:
    assert fold(text, room) == lines


def test_a_name_that_is_longer_than_its_column_is_broken_after_its_parts() -> None:
    assert fold("runs/step_100", 6, breaking=True) == ["runs/", "step_", "100"]
    assert fold("検査点検査", 4, breaking=True) == ["検査", "点検", "査"]
