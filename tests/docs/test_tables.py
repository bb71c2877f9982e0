"""The tables of docs/ list what there is: no row is missing, none is left over."""

import ast
import inspect
import re
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import pytest

from hotreload import cli, errors
from hotreload.cli.client.look import check_code
from hotreload.engine.lanes.fits import why_no_lanes
from hotreload.errors import PASSED_OVER
from hotreload.features.pause.routes import pause_routes
from hotreload.picture.picture import State
from hotreload.server.app import create_app
from hotreload.server.http.request_log import generation_header
from hotreload.server.model_routes import DIALECTS
from hotreload.sources.passed_over import AFTER
from hotreload.types import Generation, Outcome, Revision
from tests.docs.pages import CODE, ROOT, first_cells, section, words_in
from tests.docs.tables import GENERATED
from tests.engine.families import MODELS, ON_BOTH
from tests.evidence import TROUBLES
from tests.source import MODULES, nodes_of


@pytest.mark.parametrize("name", GENERATED)
def test_the_table_is_what_the_code_makes_of_it(name: str) -> None:
    expected = GENERATED[name]().splitlines()
    assert section(name).splitlines() == expected, "python -m tests.docs.tables writes it anew"


def test_every_outcome_has_its_row() -> None:
    assert first_cells("outcomes") == [outcome.value for outcome in Outcome]


def test_every_state_has_its_row() -> None:
    assert first_cells("states") == list(State)


def test_every_trouble_has_its_row() -> None:
    assert first_cells("troubles") == list(TROUBLES)


def test_every_reason_to_pass_a_folder_over_has_its_row_and_says_when() -> None:
    assert first_cells("passed over") == list(PASSED_OVER)
    words = {"settle": "once quiet for `settle`", "patience": "after `patience`"}
    for row, (told, refused) in zip(
        section("passed over").splitlines()[2:], AFTER.values(), strict=True
    ):
        said, ends = row.split("|")[3:5]
        assert words.get(told, "after ten times `patience`") in said
        at_the_end = words | {"settle": "at once"}
        assert at_the_end.get(refused or "", "never") in ends


def test_every_exit_code_has_its_row() -> None:
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]
    codes = {each.exit_code for each in kinds if issubclass(each, errors.HotReloadError)}
    others = {0, cli.FAILED, cli.INTERRUPTED, cli.BROKEN_PIPE}
    assert {int(code) for code in first_cells("exit codes")} == {*others, *codes}


def test_every_exit_code_of_a_check_has_its_row() -> None:
    told = {check_code({"state": state}, found) for state in State for found in ([], ["x"])}
    assert {int(code) for code in first_cells("check")} == {*told, errors.Unreachable.exit_code}


def test_every_route_has_its_row() -> None:
    parts: Any = MagicMock()
    app = create_app(
        entrance=parts,
        operator=parts,
        documents=parts,
        events=parts,
        metrics=parts,
        routes=[pause_routes(parts)],
    )
    routes = {
        f"{method} {route.path_format}"  # type: ignore[attr-defined]  # a mount has none; we have none
        for route in app.routes
        for method in getattr(route, "methods", None) or ["GET"]
        if method != "HEAD"
    }
    of_others = {*words_in("sglang routes", 0), *words_in("vllm routes", 0)}
    assert {*first_cells("routes"), *of_others} == routes


def test_every_header_of_ours_has_its_row() -> None:
    named = {
        node.value
        for module in MODULES
        for node in nodes_of(module)
        if isinstance(node, ast.Constant) and re.fullmatch(r"X-Hotreload-[\w-]+", str(node.value))
    }
    assert set(first_cells("headers")) == named


def test_the_headers_that_a_request_may_send_are_told_apart_from_those_of_answers() -> None:
    rows = [row.split("|")[1:4] for row in section("headers").splitlines()[2:]]
    sent = {name.strip(" `") for name, request, _ in rows if request.strip()}
    taken = {
        parameter.name
        for dialect in DIALECTS.values()
        for parameter in dialect.operation.parameters
        if parameter.name.startswith("X-Hotreload-")
    }
    assert sent == taken
    made = {name.strip(" `") for name, _, answer in rows if answer.strip()}
    assert made == set(generation_header(Generation(1, Revision("a"), "print", 0.0)))


def test_every_field_of_the_status_has_its_row() -> None:
    shown = (ROOT / "tests/golden/files/status.txt").read_text()  # held against the code
    assert words_in("status fields", 0) == set(re.findall(r"^[a-z_]+\b", shown, re.MULTILINE))


def test_every_family_of_models_that_is_tried_has_its_row() -> None:
    rows = [row.split(" | ") for row in section("families").splitlines()[2:]]
    served = [
        {name for row in rows if row[column] in words for name in CODE.findall(row[0])}
        for column, words in ((1, {"yes"}), (2, {"yes", "partly"}))
    ]
    assert served == [ON_BOTH, set(MODELS)]


def test_every_reason_why_an_engine_drains_has_its_row() -> None:
    said = [
        node.value
        for node in ast.walk(ast.parse(inspect.getsource(why_no_lanes)))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    reasons = {text.strip() for text in said if text.startswith(("it ", "its "))}
    rows = [row.replace("2 hosts", "").strip() for row in first_cells("drains")]
    assert set(rows) == reasons


def test_every_code_an_operator_or_a_client_can_see_is_explained() -> None:
    tables = {"outcomes": 0, "rejections": 0, "put off": 0, "clients": 1}
    explained = set().union(*(words_in(name, column) for name, column in tables.items()))
    assert sorted(codes_in_source() - explained) == []


def codes_in_source() -> set[str]:
    """Codes that errors are raised with, and those of the kinds that are raised without one."""
    kinds = (
        errors.TryAgain,
        errors.EngineLost,
        errors.BadRequest,
        errors.Busy,
        errors.Superseded,
        errors.AnswerNonfinite,
        errors.NotSaved,
        errors.NotNewEnough,
    )
    found = {each.code for kind in kinds for each in (kind, *kind.__subclasses__())}
    found.remove(errors.TryAgain.code)  # only those below it are raised
    for module in MODULES:
        for node in nodes_of(module):
            if isinstance(node, ast.Call):
                found |= set(_codes_of(node))
    return found


def _codes_of(call: ast.Call) -> Iterator[str]:
    named = [keyword.value for keyword in call.keywords if keyword.arg == "code"]
    refused = call.args[1:2] if getattr(call.func, "id", "") == "Refused" else []
    finding = call.args[:1] if getattr(call.func, "id", "") == "Finding" else []
    for value in (*named, *refused, *finding):
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.value
