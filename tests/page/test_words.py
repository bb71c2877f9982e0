"""The page and the command write the same words for the same numbers."""

import base64
import json
import shutil
import subprocess
from collections.abc import Iterable
from typing import Any

import pytest

from hotreload import figures
from hotreload.json_fields import iso
from hotreload.server.view_routes import PAGE_FOLDER
from hotreload.types import Phase

pytestmark = pytest.mark.skipif(
    not shutil.which("node"), reason="there is no node: apt-get install nodejs"
)

HALVES = [each / 8 for each in range(1, 90)]
SECONDS = [0, *HALVES, 0.0005, 0.0025, 0.9994, 0.9995, 9.95, 99.9, 99.95, 150, 5969, 5970, 9e5]


def in_the_page(expression: str, values: Iterable[Any] = ()) -> Any:
    """What an expression over `words` and `values` is in the page's own module."""
    module = base64.b64encode((PAGE_FOLDER / "words.js").read_bytes()).decode()
    script = (
        f"import * as words from 'data:text/javascript;base64,{module}';"
        f"const values = {json.dumps(list(values))};"
        f"console.log(JSON.stringify({expression}))"
    )
    command = ["node", "--no-warnings", "--input-type=module", "--eval", script]
    return json.loads(subprocess.check_output(command, text=True))


@pytest.mark.parametrize(
    ("name", "ours", "values"),
    [
        ("duration", figures.duration, SECONDS),
    ],
)
def test_a_number_has_the_same_digits_in_the_command_and_on_the_page(
    name: str, ours: Any, values: list[Any]
) -> None:
    assert in_the_page(f"values.map((each) => words.{name}(each))", values) == [
        ours(each) for each in values
    ]


def test_moments_in_the_daemons_words_are_found_to_be_told_in_the_readers_time() -> None:
    said = [f"since {iso(1.7e9)}", "no moment: 2023-11-14"]
    cut = [["since ", "2023-11-14T22:13:20.000Z", ""], [said[1]]]
    assert in_the_page("values.map(words.pieces)", said) == cut


def test_root_has_its_name_and_others_their_numbers() -> None:
    said = ["rollback, uid 0 (pid 7)", "uid 1000 (pid 7)", "the reason says uid 0"]
    assert in_the_page("values.map(words.people)", said) == ["rollback, root (pid 7)", *said[1:]]


def test_what_only_counts_on_is_not_said_anew() -> None:
    said = ["booting: compiling step_7, for 9.5 s, 3 of 8 batches", "412 MB of 1.2 GB, 5 min left"]
    later = [said[0].replace("9.5 s, 3", "10.2 s, 4"), "415 MB of 1.2 GB, 4 min left"]
    other = [each.replace("7", "8").replace("412", "step_1, 412") for each in said]
    same = in_the_page("values.map((each) => words.timeless(each))", [*said, *later, *other])
    assert same[:2] == same[2:4]
    assert [one == another for one, another in zip(same[:2], same[4:], strict=True)] == [
        *(False, False),
    ]


def test_the_charts_know_every_phase() -> None:
    assert set(in_the_page("words.PHASES")) == set(Phase)
