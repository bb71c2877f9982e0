"""The described API in lines that can be read: a shape a line, in a spelling of its own."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

Schema = dict[str, Any]
USUAL = {"X-Hotreload-Generation", "X-Request-Id"}
SAID = {"description", "title", "default", "example", "examples"}
IGNORED = "anything: it changes no answer"


def requests(document: Schema) -> Iterator[str]:
    """What each operation takes; where it takes what another takes, too, that is named."""
    seen: dict[str, str] = {}
    for name, operation in _operations(document):
        keys = (json.dumps(each).replace('"', "") for each in operation.get("security", []))
        yield f"{name} {operation['operationId']} {' or '.join(keys)}"
        for part, lines in _takes(operation):
            text = "\n".join(f"    {line}" for line in lines)
            before = seen.setdefault(text, name)
            yield f"  {part}:\n{text}" if before == name else f"  {part}: as {before}"


def answers(document: Schema) -> Iterator[str]:
    """By which statuses each operation answers what, and with which headers beside the usual."""
    for name, operation in _operations(document):
        yield name
        yield from _answers(operation["responses"])


def _operations(document: Schema) -> Iterator[tuple[str, Schema]]:
    for path, verbs in sorted(document["paths"].items()):
        for verb, operation in sorted(verbs.items()):
            yield f"{verb.upper()} {path}", operation


def _takes(operation: Schema) -> Iterator[tuple[str, Iterable[str]]]:
    yield from _parameters(operation)
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        yield kind, _fields(content["schema"])


def _parameters(operation: Schema) -> Iterator[tuple[str, list[str]]]:
    named: dict[str, list[str]] = {}
    for each in operation.get("parameters", []):
        said = f"{each['name']}{'' if each['required'] else '?'} {spelt(each['schema'])}"
        named.setdefault(each["in"], []).append(said)
    yield from named.items()


def _fields(schema: Schema) -> Iterator[str]:
    """A line a field, and one for all that are taken and change nothing."""
    if not {"properties"} & schema.keys():
        yield spelt(schema)
        return
    required, ignored = schema.get("required", []), []
    for name, field in schema["properties"].items():
        if field.get("description") == IGNORED:
            ignored.append(name)
        else:
            yield f"{name}{'' if name in required else '?'}: {spelt(field)}"
    if ignored:
        yield f"{IGNORED}: {', '.join(ignored)}"
    if rest := {k: v for k, v in schema.items() if k not in {"properties", "required", "type"}}:
        yield json.dumps(rest)


def _answers(responses: Schema) -> Iterator[str]:
    """The statuses by what each answers, and the headers that it has."""
    alike: dict[str, list[str]] = {}
    for status, answer in responses.items():
        content = answer.get("content", {})
        kinds = [f"{kind} {spelt(each.get('schema', {}))}" for kind, each in content.items()]
        more = [name for name in answer.get("headers", {}) if name not in USUAL]
        headers = f" [{', '.join(more)}]" if more else ""
        alike.setdefault(f"{'; '.join(kinds) or 'nothing'}{headers}", []).append(status)
    for answer, statuses in alike.items():
        yield f"  {' '.join(statuses)}: {answer}"


def schemas(document: Schema) -> Iterator[str]:
    """Each named schema, field by field."""
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield f"{name}:"
        yield from (f"    {line}" for line in _fields(schema))


def spelt(schema: Schema) -> str:
    """A schema in a line."""
    said = {key: value for key, value in schema.items() if key not in SAID}
    text = json.dumps(said, sort_keys=True) if said else "anything"
    match said:
        case {"$ref": ref}:
            text = str(ref).rpartition("/")[2]
        case {"anyOf": each} | {"oneOf": each} if len(said) == 1:
            text = " | ".join(dict.fromkeys(map(spelt, each)))
        case {"enum": values} if said.keys() <= {"enum", "type"}:
            text = " | ".join(map(json.dumps, values))
        case {"type": "array", "items": items} if said.keys() <= {"type", "items"}:
            text = f"[{spelt(items)}]"
        case {"type": "integer" | "number" as kind} if said.keys() <= {"type", *BOUNDS}:
            ends = [str(said[each]) if said.get(each, MOST) != MOST else "" for each in BOUNDS]
            text = f"{kind} {'..'.join(ends)}" if any(ends) else kind
        case {"type": kind} if len(said) == 1:
            text = kind if isinstance(kind, str) else " | ".join(kind)
        case {"properties": fields} if said.keys() <= {"type", "properties", *CLOSED}:
            required = said.get("required", [])
            inside = [f"{n}{'' if n in required else '?'}: {spelt(f)}" for n, f in fields.items()]
            closed = "" if said.get("additionalProperties", True) else " only"
            text = f"{{{', '.join(inside)}}}{closed}"
    return text


BOUNDS = ("minimum", "maximum")
MOST = 2**53
"""No number in JSON is known to be exact above it: it bounds nothing of ours."""
CLOSED = ("required", "additionalProperties")
