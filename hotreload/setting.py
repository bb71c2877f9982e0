"""The settings of a table: a plain frozen dataclass, each field made by `setting`, and their kinds.

A part declares the settings that it uses; `settings` reads them from TOML and checks them. Client
verbs know features and so these classes: nothing here imports pydantic, and a kind says in plain
dicts (pydantic's core schema) how it is read.
"""

import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from copy import copy
from dataclasses import MISSING, dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from hotreload.figures import HOW_TO_WRITE, seconds_in


@dataclass(frozen=True, slots=True)
class Setting:
    """All that is said of a setting beside its kind and its default."""

    words: str = ""
    """Its meaning, for people. The docstring of a table within a table has that table's."""
    live: bool = False
    """True if it can change while the daemon runs; every other one waits for a restart."""
    example: Any = None
    """The value that is shown in the place of a default that switches it off."""
    was: str = ""
    """The name that it had before, such as "reload.bake": what sets that is refused with its new
    name. Of a table it stands for all that is in the table."""


REQUIRED: Any = MISSING
"""The default of a setting that has none."""


def setting[T](
    default: T, words: str = "", *, live: bool = False, example: Any = None, was: str = ""
) -> T:
    """Make a field of a table; the rest is said by the fields of `Setting`."""
    said = {"setting": Setting(words, live, example, was)}
    if isinstance(default, Hashable):
        return field(default=default, metadata=said)
    return field(default_factory=lambda: copy(default), metadata=said)


class SettingsOfFeature:
    """A feature's table that is asked for more than its values; others need not be one."""

    def unfit_for_hosts(self, beside: str) -> Iterator[tuple[str, str]]:
        """Yield each key that does not go with an engine over several hosts, and why.

        `beside` says how many hosts there are.
        """
        yield from ()

    def engine_needs(self) -> Mapping[str, Any]:
        """Return fields of UnseenOptions: what an engine must be started with for the feature."""
        return {}

    def with_files(self) -> Self:
        """Return the table with its files' contents; ConfigError lists their faults."""
        return self


# --- kinds of values: durations, paths, numbers, addresses -------------------------------

_VARIABLE = re.compile(r"\$[A-Z_]{2,}|\$\{\w+\}|%[A-Z]{2,}%")
"""TextBounds for which a shell would put in a variable's value."""


def _seconds(value: object) -> object:
    if isinstance(value, str):
        if (seconds := seconds_in(value)) is not None:
            return seconds
    elif isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise ValueError(f"{value!r} is no duration: {HOW_TO_WRITE}")


def _require_name(value: object) -> object:
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
    named = _require_name(value)
    if "/" not in str(named) and not str(named).startswith("~"):
        raise ValueError(f"{value!r} is neither auto nor off; a folder that lies here is ./{value}")
    return _path(Path(str(named)))


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


def http_url(value: str) -> str:
    """Return the value if it is the URL of an HTTP server; ValueError if not.

    The value is not in the message: its path may be a secret.
    """
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise ValueError("write a URL such as 'https://host:4318', without a user or password")
    if not value.isascii() or not value.isprintable() or " " in value:
        raise ValueError("must be a URL of printable ASCII without spaces")
    try:
        is_port = parts.port != 0
    except ValueError:
        is_port = False
    if not is_port:
        raise ValueError("the port must be a number from 1 to 65535")
    return value


_CLOSED_RANGE = re.compile(r"\[!?+\]?+[^\]]*+\]")
"""A range of characters as fnmatch reads it: a `]` at its very beginning is one of them."""


def _check_ranges(pattern: str) -> str:
    """Return the pattern if each of its ranges ends; one that does not fits only a bracket."""
    begun = _CLOSED_RANGE.sub(lambda found: "_" * len(found[0]), pattern).find("[")
    if begun >= 0:
        meant = f"{pattern[:begun]}[[]{pattern[begun + 1 :]}"
        words = f"write [0-9] for a digit, or {meant!r} if the name has a bracket"
        raise ValueError(f"{pattern!r}: no ']' ends what '[' begins; {words}")
    return pattern


def _all_closed(patterns: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(_check_ranges, patterns))


CoreSchema = dict[str, Any]
"""The form in which pydantic knows a type; it asks each mark in an `Annotated` for one."""
SchemaOf = Callable[[object], CoreSchema]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of a number; a strict one is no text and no truth value."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    is_strict: bool = False

    def __get_pydantic_core_schema__(self, source: object, inner: SchemaOf) -> CoreSchema:
        """Return the schema of the number with its bounds."""
        number, bounds = inner(source), {"ge": self.least, "gt": self.above, "le": self.most}
        finite = {"allow_inf_nan": False} if number["type"] == "float" else {}
        given = {name: bound for name, bound in bounds.items() if bound is not None}
        return {**number, **finite, **given, "strict": self.is_strict}


@dataclass(frozen=True, slots=True)
class TextBounds:
    """Bounds of a text."""

    least: int = 0
    pattern: str = ""

    def __get_pydantic_core_schema__(self, source: object, inner: SchemaOf) -> CoreSchema:
        """Return the schema of the text with its bounds."""
        return {**inner(source), "min_length": self.least, "pattern": self.pattern}


@dataclass(frozen=True, slots=True)
class Before:
    """Reads what was given, before its type is checked; ValueError says what to change."""

    read: Callable[[Any], Any]

    def __get_pydantic_core_schema__(self, source: object, inner: SchemaOf) -> CoreSchema:
        """Return a schema that reads first."""
        return {**_calls("before", self.read), "schema": inner(source)}


@dataclass(frozen=True, slots=True)
class After:
    """Checks a value of the right type, or makes it another; ValueError says what to change."""

    check: Callable[[Any], Any]

    def __get_pydantic_core_schema__(self, source: object, inner: SchemaOf) -> CoreSchema:
        """Return a schema that checks last."""
        return {**_calls("after", self.check), "schema": inner(source)}


def _calls(when: str, function: Callable[[Any], Any]) -> CoreSchema:
    return {"type": f"function-{when}", "function": {"type": "no-info", "function": function}}


@dataclass(frozen=True, slots=True)
class Written:
    """Writes a value as JSON has it."""

    write: Callable[[Any], str]

    def __get_pydantic_core_schema__(self, source: object, inner: SchemaOf) -> CoreSchema:
        """Return a schema that writes so."""
        return {**inner(source), "serialization": _writes(self.write)}


def _writes(function: Callable[[Any], str]) -> CoreSchema:
    return {"type": "function-plain", "function": function, "when_used": "json"}


class NamedFile(NamedTuple):
    """A file that a setting names, and its content; None where it was not read.

    It is read only for a daemon that will use it.
    """

    file: Path
    content: Any = None

    def __str__(self) -> str:
        return str(self.file)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, inner: SchemaOf) -> CoreSchema:
        """Return a schema that takes a path, and writes it."""
        return {**_calls("plain", cls._of), "serialization": _writes(str)}

    @classmethod
    def _of(cls, value: object) -> Self:
        return cls(_path(Path(str(_require_name(value)))))


Seconds = Annotated[float, Bounds(least=0), Before(_seconds)]
Deadline = Annotated[float, Bounds(above=0), Before(_seconds)]
Number = Annotated[float, Bounds(is_strict=True)]
PartOfTurns = Annotated[float, Bounds(least=0.05, most=1, is_strict=True)]
"""A part of the turns. With less a batch would rest for longer than 0.0.2 keeps its tokens."""
PartOfAll = Annotated[float, Bounds(least=0, most=1, is_strict=True)]
AtMost = Annotated[float, Bounds(least=0, is_strict=True)]


def _threads(value: object) -> object:
    if value == "auto" or (type(value) is int and value >= 1):
        return value
    raise ValueError("should be a whole number, at least 1, or 'auto'")


def _workers(value: object) -> object:
    if value == "auto" or (type(value) is int and 0 <= value <= MOST_WORKERS):
        return value
    raise ValueError(f"should be a whole number from 0 to {MOST_WORKERS}, or 'auto'")


MOST_WORKERS = 64
WorkerCount = Annotated[int | Literal["auto"], Before(_workers)]
ThreadCount = Annotated[int | Literal["auto"], Before(_threads)]
AtLeastOne = Annotated[int, Bounds(least=1, is_strict=True)]
Location = Annotated[Path, Before(_require_name), After(_path)]
CompileCachePlace = Annotated[Literal["auto", "off"] | Path, Before(_named_unless_word)]
Glob = Annotated[str, After(_check_ranges)]
Globs = Annotated[tuple[str, ...], After(_all_closed)]
HostPort = Annotated[str, After(host_port)]
HttpUrl = Annotated[str, After(http_url)]
MeetingPoint = Annotated[str, After(_meeting_point)]
