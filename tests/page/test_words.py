"""The page and the command write the same words for the same numbers."""

import base64
import json
import shutil
import subprocess
from collections.abc import Iterable
from typing import Any

import pytest

from hotreload import figures
from hotreload.json_fields import loading_fields
from hotreload.picture.picture import State
from hotreload.picture.words import COLOUR_OF, boot_text, drift_text
from hotreload.server.page import FOLDER
from hotreload.types import Outcome, Phase
from tests.observe.things import OWN

pytestmark = pytest.mark.skipif(
    not shutil.which("node"), reason="there is no node: apt-get install nodejs"
)

HALVES = [each / 8 for each in range(1, 90)]
SECONDS = [0, *HALVES, 0.0005, 0.0025, 0.9994, 0.9995, 9.95, 99.9, 99.95, 150, 5969, 5970, 9e5]
BYTES = [0, 1, 999, 1000, 1050, 99_450, 99_500, 999_499, 999_500, 4_812_345, 10**9, 3 * 2**30, 8e14]
SHARES = [
    0,
    *HALVES,
    1e-7,
    1e-5,
    0.00123,
    0.0995,
    0.09949,
    0.1,
    1.12,
    1.125,
    77.777,
    9999,
    1e4,
    1e9,
]
BOOT = {"doing": "building the engine", "step_seconds": 130.0, "usual_seconds": 0.25}
BOOTS = [
    {**BOOT, "done": None, "total": None, "unit": None},
    {**BOOT, "usual_seconds": None, "done": 5_000_000, "total": 1.3e9, "unit": "bytes"},
    {**BOOT, "usual_seconds": 0.0, "done": 3, "total": 8, "unit": "batches"},
]
CHANGES = [{**loading_fields(OWN), "largest_change": each} for each in (None, 1.12, 0.04, 1e-8)]


def in_the_page(expression: str, values: Iterable[Any] = ()) -> Any:
    """What an expression over `words` and `values` is in the page's own module."""
    module = base64.b64encode((FOLDER / "words.js").read_bytes()).decode()
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
        ("size", figures.size, BYTES),
        ("percent", figures.percent, SHARES),
        ("booting", boot_text, BOOTS),
        ("drift", drift_text, CHANGES),
    ],
)
def test_a_number_has_the_same_digits_in_the_command_and_on_the_page(
    name: str, ours: Any, values: list[Any]
) -> None:
    assert in_the_page(f"values.map((each) => words.{name}(each))", values) == [
        ours(each) for each in values
    ]


def test_a_word_has_the_same_colour_in_the_command_and_on_the_page() -> None:
    words = [*State, *Outcome]
    ours = {word.value: COLOUR_OF[word] for word in words}
    tones = "Object.fromEntries(values.map((word) => [word, words.tone(word)]))"
    assert in_the_page(tones, ours) == ours


def test_the_charts_know_every_phase() -> None:
    assert set(in_the_page("words.PHASES")) == set(Phase)
