"""The facts that must be the same on all hosts of one engine, and how two hosts differ in them.

Ranks that differ in one of these would compute different things in the same turn, or would not
agree which checkpoint is good.
"""

import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from hotreload import __version__
from hotreload.facts.packages import version_of
from hotreload.life.start.model_files import digests_of_side_files
from hotreload.settings.credentials import read_join_secret
from hotreload.settings.faults import mask
from hotreload.settings.load import list_judging
from hotreload.settings.sections import Settings
from hotreload.settings.tables import as_json
from hotreload.threads import in_thread

PACKAGES = ("sglang-jax", "jax", "jaxlib", "transformers")
"""The packages that compute, and that make tokens of text."""
ALIKE_IN_ENGINE = ("nnodes", "tp", "dtype")
ALIKE_IN_RELOAD = ("shadow_share", "fading_share")
"""The settings that decide which weights compute in a turn."""
COMPARED = b"hotreload: do all hosts have this secret?"
DIGEST = "sha256:"
"""The beginning of a fact that is a digest: two can be compared, and their texts stay unknown."""
NUMBERS_GIVEN = "numbers"
"""The name under which a rank sends, beside the facts, the last number given to a generation."""


def list_facts(settings: Settings) -> dict[str, str]:
    """Return the facts that every other host must share; reads the model's small files."""
    return {
        "hotreload": __version__,
        **{package: version_of(package) for package in PACKAGES},
        **{name: str(getattr(settings.engine, name)) for name in ALIKE_IN_ENGINE},
        **{f"[reload] {name}": str(getattr(settings.reload, name)) for name in ALIKE_IN_RELOAD},
        **{f"[engine.args] {name}": text for name, text in _args(settings)},
        **dict(_judging_settings(settings)),
        **dict(_secret(settings.engine.join_secret_file)),
        **{f"the model's {name}": digest for name, digest in _files(settings.engine.model)},
    }


async def read_facts(settings: Settings) -> dict[str, str]:
    """Return the facts, read in a thread that is left behind if a read hangs."""
    leave_as = "a read of the model's small files"
    return await in_thread(lambda cancel: list_facts(settings), leave_as=leave_as)


def find_differences(own: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Return a sentence for each fact in which another host differs from this one."""
    names = dict.fromkeys([*own, *theirs])
    pairs = ((name, own.get(name), theirs.get(name)) for name in names)
    return [_sentence(name, here, there) for name, here, there in pairs if here != there]


def _sentence(name: str, here: str | None, there: str | None) -> str:
    if here is None or there is None:
        has, lacks = ("there", "here") if here is None else ("here", "there")
        return f"{name} is given {has} and not {lacks}"
    if here.startswith(DIGEST):
        return f"{name} is another there than here"
    return f"{name} is {there or 'not installed'} there and {here or 'not installed'} here"


def _args(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield [engine.args], with secrets masked: the ranks' store has no password."""
    for name, value in sorted(settings.engine.args.items()):
        yield name, json.dumps(mask(name, value), sort_keys=True)


def _secret(file: Path | None) -> Iterator[tuple[str, str]]:
    """Yield a digest that differs for different secrets, and does not reveal them."""
    if file is not None:
        key = read_join_secret(file).encode()
        yield "[engine] join_secret_file", DIGEST + hmac.new(key, COMPARED, "sha256").hexdigest()


def _judging_settings(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the settings that decide whether a checkpoint is good."""
    data = as_json(settings)
    for name in sorted(list_judging(type(settings)) - {"probe"}):
        section, key = name.split(".")
        yield f"[{section}] {key}", json.dumps(data[section][key])
    yield "[[probe]]", _digest(json.dumps(data["probe"], sort_keys=True).encode())


def _files(model: Path | None) -> Iterator[tuple[str, str]]:
    for name, digest in digests_of_side_files(model) if model is not None else ():
        yield name, DIGEST + digest


def _digest(content: bytes) -> str:
    return DIGEST + hashlib.sha256(content).hexdigest()
