"""An event on a line, as people read it."""

from collections.abc import Mapping
from typing import Any

from hotreload.cli.show import Fields, local
from hotreload.picture.words import plain


def event_text(event: Fields) -> str:
    """Write one event on a line, the local time before it."""
    fields = {name: value for name, value in event.items() if value not in (None, [], "")}
    others = {name: value for name, value in fields.items() if name not in ("event", "at")}
    said = (f"{plain(name)}={_value(value)}" for name, value in others.items())
    at = f"{local(event['at'])}  " if event.get("at") else ""
    return f"{at}{plain(event['event']):<20} {' '.join(said)}".rstrip()


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{plain(key)}: {_value(item)}" for key, item in value.items()) + "}"
    text = plain("; ".join(map(str, value)) if isinstance(value, list) else value)
    return repr(text) if " " in text else text
