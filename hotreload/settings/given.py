"""The values that were given in the file, the environment and by --set, each with its giver."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotreload.errors import ConfigError, cut

ENV_PREFIX = "HOTRELOAD__"
SECRET_NAMES = re.compile(r"token(?!iz|_file)|secret|password|api_?key|\burl\b", re.IGNORECASE)
"""Names whose values are never shown: the URL of a webhook lets any client post there."""

_AT_LINE = re.compile(r"\(at line (\d+), column \d+\)")
_NAME = re.compile(r"\s*(\[+[^\]]*\]+|[\w.\"'-]+\s*=)")
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_HINTS = (
    (
        re.compile(r"=\s*[+-]?0\d"),
        'a number may not begin with 0; write a file mode in quotes, such as "0660"',
    ),
    (re.compile(r"=\s*(True|False|yes|no|on|off)\b"), "write true or false"),
    (re.compile(r"=\s*[\d.]+\s*(ms|s|m|h)\b"), 'write a duration in quotes, such as "30s"'),
    (re.compile(r'=\s*"[^"]*\\'), "a \\ in double quotes begins an escape; use single quotes"),
    (re.compile(r"^\s*\[[^\]]*$"), "close the section's name with ]"),
    (re.compile(r"^\s*[\w.-]+\s*:"), "write name = value, with = and not with :"),
    (re.compile(r"=\s*[^\s\"'\[{\d+-]"), 'write text in quotes, such as "/srv/models/qwen3"'),
    (re.compile(r"=\s*(#|$)"), "there is no value; leave the line out to unset it"),
)
"""Mistakes that people make in TOML, and the right spelling of each; the first that fits counts."""

SettingPath = tuple[str | int, ...]
"""A setting's place: ("reload", "drain_timeout"), ("probe", 0, "regex")."""


@dataclass(frozen=True, slots=True)
class GivenValue:
    """One given value."""

    where: SettingPath
    value: Any
    origin: str


def from_file(file: Path) -> list[GivenValue]:
    """The values that the file sets; ConfigError when it cannot be read."""
    return [GivenValue(where, value, f"file {file}") for where, value in leaves(read_toml(file))]


def leaves(data: Mapping[str, Any], above: SettingPath = ()) -> Iterator[tuple[SettingPath, Any]]:
    """Each value in these tables that is no table itself, with its place."""
    for key, value in data.items():
        if isinstance(value, dict):
            yield from leaves(value, (*above, key))
        else:
            yield (*above, key), value


def from_env(environ: Mapping[str, str]) -> Iterator[GivenValue]:
    """The values that the environment sets."""
    for name, text in sorted(environ.items()):
        if name.startswith(ENV_PREFIX):
            where = tuple(name.removeprefix(ENV_PREFIX).lower().split("__"))
            yield GivenValue(where, _value(text), f"env {name}")


def from_sets(sets: Sequence[str | GivenValue]) -> Iterator[GivenValue]:
    """The values that --set sets, and those that another flag gave."""
    texts = [text for text in sets if isinstance(text, str)]
    if bad := [f"--set {text}: write it as section.key=value" for text in texts if "=" not in text]:
        raise ConfigError.from_faults(bad)
    yield from (item for item in sets if isinstance(item, GivenValue))
    for text in texts:
        key, _, value = text.partition("=")
        yield GivenValue(tuple(key.strip().split(".")), _value(value.strip()), "--set")


def _value(text: str) -> Any:
    """Read a TOML value; anything else, and a date, stays plain text."""
    try:
        value = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    simple = isinstance(value["value"], bool | int | float | str | list | dict)
    return value["value"] if simple and len(value) == 1 else text


_RANKS = ("JOB_COMPLETION_INDEX", "LWS_WORKER_INDEX", "TPU_WORKER_ID", "SKYPILOT_NODE_RANK")
_HOSTS = ("TPU_WORKER_HOSTNAMES", "SKYPILOT_NODE_IPS")
"""Variables that list all hosts, rank 0's first."""
_JOIN = {
    "node_rank": ("rank of this host", (*_RANKS, "HOSTNAME (a name that ends with -N)")),
    "nnodes": ("number of hosts", ("LWS_GROUP_SIZE", *_HOSTS)),
    "dist_init_addr": ("address of rank 0", ("LWS_LEADER_ADDRESS", *_HOSTS)),
}
"""The meaning of each setting by which ranks meet, and the variables that have its value."""
JOIN_PORT = 29500


def from_ranks(environ: Mapping[str, str], given: Sequence[GivenValue]) -> list[GivenValue]:
    """Rank, number of hosts and rank 0's address as variables say them, but for those `given`.

    ConfigError names each missing value, and values that contradict each other.
    """
    own = {each.where[-1]: each for each in given if each.where[:-1] == ("engine",)}
    found: list[GivenValue] = []
    faults: list[str] = []
    for key, told in _said_of_ranks(environ).items():
        what, variables = _JOIN[key]
        mine = {f"[engine] {key} ({own[key].origin})": own[key].value} if key in own else {}
        said = mine | told
        differ = len({str(value) for value in said.values()}) > 1
        if differ and key != "dist_init_addr":  # a host has several names
            each = ", ".join(f"{name} is {value}" for name, value in said.items())
            faults.append(f"[engine] ranks: no one {what}: {each}; unset what is wrong")
        elif said and not mine:
            name, value = next(iter(said.items()))
            found.append(GivenValue(("engine", key), value, f"env {name}"))
        elif not said:
            why = f"nothing says the {what}: set [engine] {key}, or one of {', '.join(variables)}"
            faults.append(f"[engine] ranks: {why}")
    if faults:
        raise ConfigError.from_faults(faults)
    is_alone = tree([*found, *given])["engine"]["nnodes"] == 1
    return [each for each in found if not (is_alone and each.where[-1] == "dist_init_addr")]


def _said_of_ranks(environ: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The values of these settings by variable, in the order in which they count."""
    said = {name: text.strip() for name, text in environ.items() if text.strip()}
    ranks = {name: _value(said[name]) for name in _RANKS if name in said}
    name, _, last = said.get("HOSTNAME", "").rpartition("-")
    # The last resort: a pod's name may end with a number that is no rank.
    if not ranks and name and last.isdecimal():
        ranks = {"HOSTNAME": int(last)}
    hosts = {name: re.findall(r"[^,\s]+", said.get(name, "")) for name in _HOSTS}
    counts = {name: _value(said[name]) for name in ("LWS_GROUP_SIZE",) if name in said}
    counts |= {name: len(each) for name, each in hosts.items() if each}
    leaders = {name: said[name] for name in ("LWS_LEADER_ADDRESS",) if name in said}
    leaders |= {name: each[0] for name, each in hosts.items() if each}
    addresses = {name: f"{leader}:{JOIN_PORT}" for name, leader in leaders.items()}
    return {"node_rank": ranks, "nnodes": counts, "dist_init_addr": addresses}


def tree(given: Sequence[GivenValue]) -> dict[str | int, Any]:
    """All of it in tables; of two values in one place the last."""
    root: dict[str | int, Any] = {}
    for item in given:
        node = root
        for part in item.where[:-1]:
            if not isinstance(node.get(part), dict):
                node[part] = {}
            node = node[part]
        node[item.where[-1]] = item.value
    return root


# --- the file ----------------------------------------------------------------------------


def read_toml(file: Path) -> dict[str, Any]:
    """The file's tables; ConfigError names the line that is no TOML and what to change in it."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError.from_faults([f"{file}: cannot be read: {error.strerror}"]) from error
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ConfigError.from_faults([f"{file}: is not TOML: {_why(error, data)}"]) from error


def _why(error: Exception, data: bytes) -> str:
    if data.startswith(_UTF_16):
        return "it is UTF-16 text; save it as UTF-8"
    at = _AT_LINE.search(str(error))
    if at is None or isinstance(error, UnicodeDecodeError):
        return str(error)
    line = data.decode("utf-8-sig").split("\n")[int(at[1]) - 1].strip()
    shown = f"`{cut(line)}`: " if line and not SECRET_NAMES.search(line) else ""
    before = data.decode("utf-8-sig").split("\n")[: int(at[1]) - 1]
    return f"line {at[1]}: {shown}{_hint(str(error), line, before)}"


def _hint(said: str, line: str, before: Sequence[str]) -> str:
    if said.startswith("Cannot"):  # overwrite a value, declare a table twice
        return _given_before(line, before)
    if said.startswith(("Illegal character '\\n'", "Unterminated string")):
        return "close the quotes"
    return next((hint for found, hint in _HINTS if found.search(line)), said)


def _given_before(line: str, before: Sequence[str]) -> str:
    """Say where the name of this line, a key's or a section's, stands already."""
    name = _name(line)
    numbered = list(enumerate(before, 1))
    if not name.startswith("["):  # a key is looked for in its own section
        last = max((number for number, each in numbered if _name(each).startswith("[")), default=0)
        numbered = numbered[last:]
    there = next((number for number, each in numbered if name and _name(each) == name), None)
    where = f"in line {there} already" if there else "there before"
    return f"{name or 'this name'} stands {where}; give it once"


def _name(line: str) -> str:
    """The key or the section that a line begins with; empty for any other."""
    found = _NAME.match(line)
    return "".join(found[0].removesuffix("=").split()) if found else ""
