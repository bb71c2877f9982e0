"""The tables of docs/ that follow from the code.

After a change of settings, alerts, metrics or engines: `python -m tests.docs.tables` writes them.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, get_origin

from prometheus_client.parser import text_string_to_metric_families

from hotreload.attempts import REJECTIONS
from hotreload.engine.versions import SUPPORTED
from hotreload.features import FEATURES
from hotreload.server.api_schema import known_fields
from hotreload.server.api_schema.known_fields import EMPTY_VALUES, KnownFields
from hotreload.server.openai.response_requests import RESPONSES
from hotreload.server.text_generation import PARAMETERS
from hotreload.settings.load import need_no_restart, to_toml
from hotreload.settings.sections import class_with
from hotreload.settings.tables import TableField, defaults_of, fields_of, table_of
from tests.docs.pages import BESIDE, PAGES, ROOT, marked
from tests.monitoring.page import whole_page
from tests.monitoring.rules import ALERTS

ALL = class_with(FEATURES)
CHANGE_AT_ONCE = need_no_restart(ALL)
AT_ONCE = " ↻"
"""The mark of a setting that can change while the daemon runs."""
ASKED = re.compile(r"^\{\{ (?:with|range) .*\{\{ end -\}\}\s*|\{\{.*?\}\}")
TOLD_BELOW = re.compile(r"; (always 1|last comparison)(?=\.)")
"""What the page says once of several metrics, below the table."""
LONGEST_DEFAULT = 100
ALERT_NAME = re.compile(rf"\b({'|'.join(ALERTS)})\b")


def settings() -> str:
    """Every setting with its default and its meaning, a table for each section of the file."""
    sections = fields_of(ALL).items()
    return "\n\n".join(_settings_of(name, field) for name, field in sections)


def _settings_of(name: str, field: TableField) -> str:
    rows = settings_rows(table_of(field), name)
    written = f"[[{name}]]" if get_origin(field.kind) else f"[{name}]"
    return f"## `{written}`\n\n{table(('setting', 'default', 'meaning'), rows)}"


def settings_rows(section: Any, place: str, above: str = "") -> Iterator[tuple[str, ...]]:
    defaults = defaults_of(section)
    for name, field in fields_of(section).items():
        if (inner := table_of(field)) is not None:
            yield from settings_rows(inner, place, f"{above}{name}.")
        else:
            is_live = not CHANGE_AT_ONCE.isdisjoint({place, f"{place}.{above}{name}"})
            shown = f"`{above}{name}`{AT_ONCE if is_live else ''}"
            yield shown, default_of(field, defaults.get(name)), about(field)


def default_of(field: TableField, default: Any) -> str:
    if default is None or default in ({}, []):
        example = field.setting.example
        return "unset" if example is None else f"unset; `{to_toml(example)}`"
    shown = f"`{to_toml(default)}`"
    return shown if len(shown) < LONGEST_DEFAULT else "[a list](../config/hotreload.toml)"


def about(field: TableField) -> str:
    words = field.setting.words
    if len(field.choices) > 1:
        words += f" One of {', '.join(f'`{choice}`' for choice in field.choices)}."
    return words


def metrics() -> str:
    """Every metric of ours as it is exported, with its labels."""
    return table(("metric", "meaning"), metrics_rows())


def metrics_rows() -> Iterator[tuple[str, ...]]:
    for family in text_string_to_metric_families(whole_page().render().decode()):
        if family.name.startswith("hotreload_"):
            suffix = "_total" if family.type == "counter" else ""
            labels = dict.fromkeys(name for sample in family.samples for name in sample.labels)
            shown = ",".join(label for label in labels if label != "le")
            by = f"{{{shown}}}" if shown else ""
            kind = " Histogram." if family.type == "histogram" else ""
            yield f"`{family.name}{suffix}{by}`", TOLD_BELOW.sub("", family.documentation) + kind


def rejections() -> str:
    """Every reason to refuse a checkpoint, the kernel's and then the features'."""
    reasons = {
        **REJECTIONS,
        **{code: said for each in FEATURES for code, said in each.reasons.items()},
    }
    rows = ((f"`{code}`", means, todo) for code, (means, todo) in reasons.items())
    return table(("reason", "what it means", "what to do"), rows)


def alerts() -> str:
    """Every alert: what it means and what to do, as the alert itself says it."""
    return "\n\n".join(_alert(name, rule) for name, rule in ALERTS.items())


def _alert(name: str, rule: Mapping[str, Any]) -> str:
    said = rule["annotations"]
    means = ASKED.sub("", said["description"])  # without what it asks Prometheus when it fires
    todo = ALERT_NAME.sub(lambda found: f"[{found[0]}](#alert-{found[0].lower()})", said["todo"])
    severity = rule["labels"]["severity"]
    return f"### Alert {name}\n\n- **Means:** {severity}. {means}\n- **Do:** {todo}"


def engines() -> str:
    """Every supported release: its jax, and what its engine can do."""
    able = next(iter(SUPPORTED.values())).can
    return table(("sglang-jax", "jax", *able), engines_rows())


def engines_rows() -> Iterator[tuple[str, ...]]:
    for name, release in SUPPORTED.items():
        yield name, release.jax, *("yes" if can else "no" for can in release.can.values())


ROUTES: Mapping[str, KnownFields] = {
    "`/generate`": known_fields.GENERATE,
    "its `sampling_params`": known_fields.SAMPLING_PARAMS,
    "chat": known_fields.CHAT,
    "completions": known_fields.COMPLETION,
    "responses": RESPONSES,
    "`POST /`, `parameters`": PARAMETERS,
}
YES, ANY = MAY_SAY_ALL = ("yes", "any")
NOT_ZERO = tuple(value for value in EMPTY_VALUES if value is False or value != 0)


def fields() -> str:
    """The fields by which a request to the model may ask for something, on a route at least."""
    return _fields(lambda each: each if each in MAY_SAY_ALL else "", lambda alike: YES in alike)


def every_field() -> str:
    """Every field that a request to the model may have."""
    return _fields(lambda each: each, any)


def _fields(shown: Callable[[str], str], is_row: Callable[[tuple[str, ...]], bool]) -> str:
    """Make rows of how each object takes a field: fields that are taken alike share one."""
    names: dict[tuple[str, ...], list[str]] = {}
    tables = ROUTES.values()
    for name in sorted(
        set().union(*({*each.accepted_kinds, *each.unsupported} for each in tables))
    ):
        alike = tuple(shown(taken(known, name)) for known in tables)
        names.setdefault(alike, []).append(f"`{name}`")
    rows = ((", ".join(named), *alike) for alike, named in names.items() if is_row(alike))
    return table(("field", *ROUTES), rows)


def taken(known: KnownFields, name: str) -> str:
    """How an object takes a field."""
    if name in known.supported:
        return YES
    if name in known.ignored:
        return ANY
    if name not in known.unsupported:
        return ""
    idle = known.idle_values(name)
    for words, usual in (("empty", EMPTY_VALUES), ("empty, not 0", NOT_ZERO)):
        if idle[: len(usual)] == usual:
            return ", ".join([words, *(f"`{json.dumps(each)}`" for each in idle[len(usual) :])])
    return ", ".join(f"`{json.dumps(each)}`" for each in idle) or "`null`"


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(c.replace("|", r"\|") for c in row) + " |" for row in lines)


GENERATED: Mapping[str, Callable[[], str]] = {
    "settings": settings,
    "alerts": alerts,
    "rejections": rejections,
    "metrics": metrics,
    "engines": engines,
    "fields": fields,
    "every field": every_field,
}
"""Which part of the pages each of these makes."""


def write() -> None:
    """Put the tables into the pages that have a part for them."""
    for path, text in (PAGES | BESIDE).items():
        (ROOT / path).write_text(with_tables(text))


def with_tables(text: str) -> str:
    for name, make in GENERATED.items():
        made = make().replace("\\", r"\\")  # in what is put in, a backslash begins an escape
        text = marked(name).sub(made, text)
    return text


if __name__ == "__main__":
    write()
