"""The README says what is so: its tables, examples, names and codes are held against the code.

After a change of settings or metrics: `python -m tests.test_readme` writes their tables anew.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin
from unittest.mock import MagicMock

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from hotreload import errors
from hotreload.cli import GROUPS, exits
from hotreload.config import load, to_toml
from hotreload.errors import REJECTIONS
from hotreload.events import GenerationLive
from hotreload.observe.metrics import Metrics
from hotreload.server.app import create_app
from hotreload.settings import Settings
from hotreload.types import Generation, Outcome, Revision

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SOURCES = sorted((ROOT / "hotreload").rglob("*.py"))
CODE = re.compile(r"`([^`\n]+)`")

# --- what the tables must say ------------------------------------------------------------


def settings_table() -> str:
    """Every setting with its default and its meaning, as the README shows them."""
    return table(("setting", "default", "meaning"), settings_rows(Settings))


def settings_rows(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, ...]]:
    defaults = model.model_construct().model_dump(mode="json")
    for name, field in model.model_fields.items():
        inner = next(iter(tables_in(field)), None)
        if inner is not None:
            yield from settings_rows(inner, f"{above}{name}.")
        else:
            yield f"`{above}{name}`", default_of(field, defaults.get(name)), about(field)


def tables_in(field: FieldInfo) -> list[type[BaseModel]]:
    """The model of a setting that is a table, or an array of tables."""
    kinds = (field.annotation, *get_args(field.annotation))
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]


def default_of(field: FieldInfo, default: Any) -> str:
    if default is None or default in ({}, []):
        return f"unset; `{to_toml(field.examples[0])}`" if field.examples else "unset"
    return f"`{to_toml(default)}`"


def about(field: FieldInfo) -> str:
    words = str(field.description)
    if get_origin(field.annotation) is Literal and len(get_args(field.annotation)) > 1:
        words += f" One of {', '.join(f'`{choice}`' for choice in get_args(field.annotation))}."
    return words


def metrics_table() -> str:
    """Every metric of ours as it is exported, as the README shows them."""
    return table(("metric", "type", "labels", "meaning"), metrics_rows())


def metrics_rows() -> Iterator[tuple[str, ...]]:
    metrics = Metrics()
    leaves = {"a leaf": 1}
    metrics.observe(GenerationLive(Generation(1, Revision("id", "label"), "f", 0.0, leaves)))
    for family in text_string_to_metric_families(metrics.render().decode()):
        if family.name.startswith("hotreload_"):
            suffix = "_total" if family.type == "counter" else ""
            labels = dict.fromkeys(name for sample in family.samples for name in sample.labels)
            shown = ", ".join(f"`{label}`" for label in labels if label != "le")
            yield f"`{family.name}{suffix}`", family.type, shown, family.documentation


def table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(c.replace("|", r"\|") for c in row) + " |" for row in lines)


GENERATED = {"settings": settings_table, "metrics": metrics_table}


def section(name: str) -> str:
    """What stands between <!-- name --> and <!-- /name -->."""
    found = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", README, re.DOTALL)
    assert found, f"README.md has no section {name}"
    return found[1]


def first_cells(name: str) -> list[str]:
    """The first cell of each row of a table, without its backquotes."""
    rows = section(name).splitlines()[2:]
    return [row.split("|")[1].strip().strip("`") for row in rows]


# --- tables ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GENERATED)
def test_the_table_is_what_the_code_makes_of_it(name: str) -> None:
    expected = GENERATED[name]().splitlines()
    assert section(name).splitlines() == expected, "python -m tests.test_readme writes it anew"


def test_every_outcome_has_its_row() -> None:
    assert first_cells("outcomes") == [outcome.value for outcome in Outcome]


def test_every_reason_to_refuse_has_its_row() -> None:
    assert sorted(first_cells("rejections")) == sorted(REJECTIONS)


def test_every_exit_code_has_its_row() -> None:
    codes = {code for code in vars(exits).values() if isinstance(code, int)}
    assert {int(code) for code in first_cells("exit codes")} == {0, *codes}


def test_every_route_has_its_row() -> None:
    parts: Any = MagicMock()
    app = create_app(
        gate=parts, engine=parts, control=parts, view=parts, events=parts, metrics=parts
    )
    routes = {
        f"{method} {route.path_format}"  # type: ignore[attr-defined]  # a mount has none; we have none
        for route in app.routes
        for method in getattr(route, "methods", None) or ["GET"]
        if method != "HEAD"
    }
    assert set(first_cells("routes")) == routes


def test_every_code_a_client_can_see_is_explained() -> None:
    words = set(CODE.findall(README))
    assert sorted(codes_in_source() - words) == []


def codes_in_source() -> set[str]:
    """Codes that errors are raised with, and those of the kinds that are raised without one."""
    kinds = (errors.TryAgain, errors.EngineLost, errors.BadRequest, errors.Busy, errors.Superseded)
    found = {each.code for kind in kinds for each in (kind, *kind.__subclasses__())}
    found.remove(errors.TryAgain.code)  # only those below it are raised
    for module in SOURCES:
        for node in ast.walk(ast.parse(module.read_text())):
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


# --- names -------------------------------------------------------------------------------


def test_every_test_it_names_exists() -> None:
    named = re.findall(r"(tests/[\w/]+\.py)::(\w+)", README)
    assert len(named) > 15
    for file, name in named:
        tree = ast.parse((ROOT / file).read_text())
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        assert name in {n.name for n in tree.body if isinstance(n, functions)}, f"{file}::{name}"


def test_every_file_it_names_exists() -> None:
    paths = set(re.findall(r"[`(]((?:hotreload|tests|config|\.ci)/[\w./-]+)", README))
    assert len(paths) > 10
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_every_target_and_verb_it_names_exists() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    said = "\n".join([*CODE.findall(README), *re.findall(r"```\w+\n(.*?)```", README, re.DOTALL)])
    made = set(re.findall(r"^(?:\$ )?make (\w+)", said, re.MULTILINE))
    verbs = set(re.findall(r"^(?:\$ )?(?:\.venv/bin/)?hotreload ([a-z][\w-]*)", said, re.MULTILINE))
    assert made
    assert made <= targets
    assert verbs == {name for _, names in GROUPS for name in names} & verbs
    assert len(verbs) > 10


# --- examples ----------------------------------------------------------------------------


@pytest.mark.parametrize("text", re.findall(r"```toml\n(.*?)```", README, re.DOTALL))
def test_every_file_of_settings_is_accepted(text: str, tmp_path: Path) -> None:
    file = tmp_path / "hotreload.toml"
    file.write_text(text)
    load(file, [], {})


def test_the_console_shows_what_it_shows(tmp_path: Path) -> None:
    """All blocks in one folder, in their order; digits, and only they, may differ."""
    blocks = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    examples = [each for block in blocks for each in re.split(r"^\$ ", block, flags=re.M)[1:]]
    assert len(examples) > 5
    for example in examples:
        command, _, shown = example.partition("\n")
        ran = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, f"{command}\n{ran.stdout}"
        assert without_digits(ran.stdout) == without_digits(shown), command


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOTRELOAD")}
    here = os.path.dirname(sys.executable)
    assert shutil.which("hotreload", path=here), "the command is not installed: make setup"
    return {**kept, "PATH": f"{here}:{os.environ['PATH']}"}


def without_digits(text: str) -> str:
    return re.sub(r"\d+", "0", text)


def write_tables() -> None:
    """Put the generated tables into the README."""
    text = README
    for name, make in GENERATED.items():
        before, mark, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        text = f"{before}{mark}{make()}\n{end}{after}"
    (ROOT / "README.md").write_text(text)


if __name__ == "__main__":
    write_tables()
