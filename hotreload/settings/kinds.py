"""The kinds of values: durations, paths, numbers, addresses; and the table that holds settings."""

import re
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
)

from hotreload.behaviour.corpus import Corpus
from hotreload.figures import HOW_TO_WRITE, seconds_in

_VARIABLE = re.compile(r"\$[A-Z_]{2,}|\$\{\w+\}|%[A-Z]{2,}%")
"""Text for which a shell would put in a variable's value."""


def _seconds(value: object) -> object:
    if isinstance(value, str):
        if (seconds := seconds_in(value)) is not None:
            return seconds
    elif isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise ValueError(f"{value!r} is no duration: {HOW_TO_WRITE}")


def _named(value: object) -> object:
    if value == "":
        raise ValueError("must be a path; leave the line out to unset it")
    if not isinstance(value, str | Path):
        words = 'write it in quotes, such as "/srv/models/qwen3"; one that lies here as ./NAME'
        raise ValueError(f"{value!r} is no path: {words}")
    if isinstance(value, str) and (variable := _VARIABLE.search(value)):
        words = f"{variable[0]} would be a folder of that name: variables are not read here"
        raise ValueError(f"{words}; write the whole path, or ~ for the home folder")
    return value


def _path(value: Path) -> Path:
    if "\0" in str(value):
        raise ValueError("must be a path, and has a NUL in it")
    try:
        return value.expanduser()
    except RuntimeError as error:
        raise ValueError(f"{value}: {error}") from error


def _named_unless_word(value: object) -> object:
    if value in ("auto", "off"):
        return value
    named = _named(value)
    if "/" not in str(named) and not str(named).startswith("~"):
        raise ValueError(f"{value!r} is neither auto nor off; a folder that lies here is ./{value}")
    return _path(Path(str(named)))


def _mode(value: object) -> object:
    if isinstance(value, str) and re.fullmatch(r"(0o)?0?[0-7]{3}", value):
        return int(value, 8)
    raise ValueError(f'{value!r} is no file mode: write it in quotes, such as "0660"')


def host_port(value: str, port: int = 8000) -> str:
    """Return the value if it is an address; ValueError proposes one, with its port or this one."""
    parts = urlsplit(f"//{value}")
    if not parts.hostname or parts.port is None or parts.netloc != value or parts.username:
        meant = f"127.0.0.1:{value if value.isdecimal() else port}"
        raise ValueError(f"{value!r} is no address: write host:port, such as {meant!r}")
    return value


PORTS_AFTER = (0, 5, 6)
"""The distance of each port that the engine listens on from the meeting point's own."""


def ports_of_a_meeting(address: str) -> list[tuple[str, int]]:
    """The host of a meeting point with each port that rank 0 listens on there."""
    host, _, port = address.rpartition(":")
    return [(host, int(port) + after) for after in PORTS_AFTER]


def _meeting_point(value: str) -> str:
    host, _, port = host_port(value, 29500).rpartition(":")
    if ":" in host:
        raise ValueError(f"{value!r}: write a name or an IPv4 address; the engine takes no other")
    last = int(port) + max(PORTS_AFTER)
    if int(port) == 0 or last > 65535:
        raise ValueError(f"{value!r} is no port to meet at: it and {last}, too, must be ports")
    return value


def is_local(address: str) -> bool:
    """True if no other machine can reach this address."""
    host = urlsplit(f"//{address}").hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def origin(value: str) -> str:
    """Return the value if a browser can send it as an Origin; ValueError if not."""
    parts = urlsplit(value)
    is_bare = value == f"{parts.scheme}://{parts.netloc}" == value.lower() and not parts.username
    if parts.scheme not in ("http", "https") or not parts.hostname or "*" in value or not is_bare:
        raise ValueError(
            f"{value!r} is no origin: write scheme, host and port as a browser does, such as "
            "'https://chat.example.com'; each site is named, there is no *"
        )
    return value


_CLOSED_RANGE = re.compile(r"\[!?+\]?+[^\]]*+\]")
"""A range of characters as fnmatch reads it: a `]` at its very beginning is one of them."""


def _closed(pattern: str) -> str:
    """Return the pattern if each of its ranges ends; one that does not fits only a bracket."""
    begun = _CLOSED_RANGE.sub(lambda found: "_" * len(found[0]), pattern).find("[")
    if begun >= 0:
        meant = f"{pattern[:begun]}[[]{pattern[begun + 1 :]}"
        words = f"write [0-9] for a digit, or {meant!r} if the name has a bracket"
        raise ValueError(f"{pattern!r}: no ']' ends what '[' begins; {words}")
    return pattern


def _all_closed(patterns: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(_closed, patterns))


Seconds = Annotated[float, BeforeValidator(_seconds), Field(ge=0, allow_inf_nan=False)]
Deadline = Annotated[float, BeforeValidator(_seconds), Field(gt=0, allow_inf_nan=False)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
PartOfTurns = Annotated[float, Field(strict=True, ge=0.05, le=1)]
"""A part of the turns. With less a batch would rest for longer than 0.0.2 keeps its tokens."""
PartOfAll = Annotated[float, Field(strict=True, ge=0, le=1)]
AtMost = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]


def _threads(value: object) -> object:
    if value == "auto" or (type(value) is int and value >= 1):
        return value
    raise ValueError("should be a whole number, at least 1, or 'auto'")


def _workers(value: object) -> object:
    if value == "auto" or (type(value) is int and 0 <= value <= MOST_WORKERS):
        return value
    raise ValueError(f"should be a whole number from 0 to {MOST_WORKERS}, or 'auto'")


MOST_WORKERS = 64
WorkerCount = Annotated[int | Literal["auto"], BeforeValidator(_workers)]
ThreadCount = Annotated[int | Literal["auto"], BeforeValidator(_threads)]
Replayed = Annotated[int, Field(strict=True, ge=0, le=1000)]
AtLeastOne = Annotated[int, Field(strict=True, ge=1)]
Location = Annotated[Path, BeforeValidator(_named), AfterValidator(_path)]
CompileCachePlace = Annotated[Literal["auto", "off"] | Path, BeforeValidator(_named_unless_word)]
CorpusFile = Annotated[
    Corpus,
    PlainValidator(lambda value: Corpus(_path(Path(str(_named(value)))))),
    PlainSerializer(str, when_used="json"),
]
"""A file of questions. What is in it is read where a daemon is to go by the settings."""
FileMode = Annotated[
    int, BeforeValidator(_mode), PlainSerializer("{:04o}".format, when_used="json")
]
Glob = Annotated[str, AfterValidator(_closed)]
Globs = Annotated[tuple[str, ...], AfterValidator(_all_closed)]
HostPort = Annotated[str, AfterValidator(host_port)]
MeetingPoint = Annotated[str, AfterValidator(_meeting_point)]


class SettingsTable(BaseModel):
    """A TOML table: no unknown keys, nothing changes once it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)
