"""Arrows only go right: cli → daemon → {its parts} → core → vocabulary."""

import ast
from collections.abc import Iterator, Set
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.source import MODULES, PACKAGE, nodes_of, tree_of

FACTS = {
    "checkpoint.known_names",
    "facts",
}
VOCABULARY = {
    "types",
    "json_fields",
    "attempts",
    "errors",
    "events",
    "troubles",
    "failpoints",
    "figures",
    *FACTS,
}
PROBE = {"engine.answering.probe"}
"""A probe is a setting, too."""
OPTIONS = {"engine.options"}
"""The settings of [engine], beside what else an engine is started with."""
DEFAULTS = {"checkpoint.settings", "core.rules", "server_limits", "sources.settings"}
DEFAULTS |= {*PROBE, *OPTIONS}
"""Tables of settings that lie with what goes by them, and other defaults of the server."""
RULES_OF_ANSWERS = {"behaviour"}
"""What weights are asked and answer: pure values."""
RECORDS = {"core.ledger", "core.decision", "core.progress"}
"""What of the core is only read by those who tell how things are; all else there acts."""
SETTING = {"setting"}
"""How a part says what its settings are: it imports no pydantic, as client verbs know it."""
FEATURES = {"feature", "features"}
"""Capabilities beside the kernel, which knows none of them; and the doors that they use."""
CORE = {
    "core",
    "core.rules",
    *SETTING,
    "threads",
    "quiet",
    *RULES_OF_ANSWERS,
    *RECORDS,
    *VOCABULARY,
}
WORDS = {"picture.words", "picture.rows", "picture.summary"}
"""How a status is said: the client verbs make it of an older daemon's, so they are light."""
PICTURE = {"picture", *WORDS}
ENGINE = {
    "engine",
    "engine.answering",
    *PROBE,
    *OPTIONS,
    "engine.grammar_trials",
    "engine.lanes",
    "engine.upstream",
    "engine.weights",
}
SIBLINGS = {"sources", "checkpoint", "server", "tiny"}
"""They never import each other, but that who watches knows what a checkpoint is: `sources` may ask
`checkpoint`, and the checks know no source."""
OF_HOSTS = {"hosts", "hosts.engine", "hosts.upstream"}
"""One engine on several hosts: how they agree, the engine's part, and what it needs of upstream."""
READS = {
    "checkpoint.arrangement",
    "checkpoint.file_reader",
    "checkpoint.fingerprint",
    "checkpoint.in_memory",
}
"""How bytes of a checkpoint are read, for all who read them; the checks say what is wrong."""

CONFIGURED = {"server.from_settings"}
"""The one module of a room that makes its parts as the settings say; the rest of it knows none."""

MAY_IMPORT: dict[str, set[str]] = {
    "__init__": {"hot", "engine.answering", *PROBE},
    "types": set(),
    **{fact: set() for fact in FACTS - {"facts"}},
    "facts": {"facts", "types"},
    "checkpoint.file_reader": set(),
    "checkpoint.fingerprint": set(),
    "checkpoint.arrangement": {"errors"},
    "checkpoint.in_memory": {
        "checkpoint.arrangement",
        "checkpoint.known_names",
        "checkpoint.file_reader",
        "errors",
        "types",
    },
    "failpoints": set(),
    "figures": set(),
    "errors": {"types"},
    "attempts": {"types"},
    "events": {"events", "attempts", "types", "json_fields"},
    "json_fields": {"attempts", "types"},
    "troubles": {"events"},
    "behaviour": {"errors"},
    "threads": {"errors"},
    "quiet": set(),
    "core.rules": {"types", *SETTING},
    "server_limits": {"core.rules", *SETTING},
    "core": CORE,
    "setting": {"figures"},
    **dict.fromkeys(PROBE, SETTING),
    "engine.options": {"engine", "core.rules", "facts", "quiet", "types"}
    | {*SETTING, *RULES_OF_ANSWERS},
    "feature": {"picture", "picture.words", "server", "server_limits", "settings", *CORE},
    "features": {*FEATURES, *SETTING, *PICTURE, "server", "server_limits", "settings", *CORE},
    **{record: {"threads", "core.ledger", *VOCABULARY} for record in RECORDS},
    **{words: {"figures", *WORDS} for words in WORDS},
    "picture": {*PICTURE, "core.ledger", "core.decision", "threads", *VOCABULARY},
    "observe": {"observe", *PICTURE, *RULES_OF_ANSWERS, *RECORDS, *VOCABULARY},
    **{sibling: {sibling, *CORE} for sibling in SIBLINGS},
    "server": {"server", "server_limits", "picture", *CORE},
    "checkpoint.settings": SETTING,
    "sources.settings": {*SETTING, *FACTS},
    "server.from_settings": {"server", "server_limits", "picture", "settings", *CORE},
    "sources": {"sources", "sources.settings", "checkpoint", "checkpoint.file_reader", *CORE},
    "checkpoint": {"checkpoint", "checkpoint.settings", *READS, *CORE},
    "engine": {*ENGINE, *CORE},
    "engine.grammar_trials": {"engine.grammar_trials", *VOCABULARY},
    "engine.lanes": {"engine.lanes", "engine", *VOCABULARY},
    "engine.upstream": {"engine.upstream", "engine", *OPTIONS, "engine.lanes", "threads"}
    | {"engine.grammar_trials", *VOCABULARY},
    "engine.weights": {
        "engine.weights",
        "engine",
        "checkpoint.file_reader",
        "checkpoint.fingerprint",
    }
    | CORE,
    "engine.answering": {*ENGINE, *CORE} - {"engine.weights"},
    "hosts": {"hosts", "hosts.upstream", *CORE},
    "hosts.upstream": {"hosts.upstream", *VOCABULARY},
    "hosts.engine": {*OF_HOSTS, *ENGINE, *CORE},
    "hosts.life": {"hosts.life", "life", "settings", "observe"}
    | {*OF_HOSTS, *SIBLINGS, *ENGINE, *CORE},
    "settings": {"settings", "quiet", *SETTING, *DEFAULTS, *RULES_OF_ANSWERS, *VOCABULARY},
    "life": {*FEATURES, "life", "settings", "observe", *PICTURE}
    | {*SIBLINGS, *DEFAULTS, *ENGINE, *CORE},
    "hot": {"hot", "checkpoint", "checkpoint.arrangement", "checkpoint.in_memory"}
    | {"engine", "engine.answering", *PROBE, *OPTIONS}
    | {"engine.weights", *CORE},
    "library": {"hot", "checkpoint", "engine", "sources", "features", *CORE},
    "daemon": {*FEATURES, "life", *CONFIGURED, "hosts.life", "settings", "observe", *PICTURE}
    | {*SIBLINGS, *DEFAULTS, *ENGINE, *CORE},
    "launch_server": {"cli"},
    "worker_process": {"life", "server.from_settings", "server_limits", "settings", "observe"}
    | {"engine.answering", *PROBE}
    | {*SIBLINGS, *CORE},
    "client": {"client", "picture.words", *VOCABULARY},
    "cli": {
        *FEATURES,
        *SETTING,
        "cli",
        "client",
        "cli.ops.doctor_checks",
        "daemon",
        "library",
        "life",
        "settings",
        "observe",
    }
    | PICTURE
    | SIBLINGS
    | ENGINE
    | CORE,
    "cli.ops.doctor_checks": {
        "cli",
        "cli.ops.doctor_checks",
        "settings",
        *SETTING,
        "checkpoint",
        "sources",
    }
    | {"life", "hosts.life", "hosts.upstream"}
    | ENGINE
    | CORE,
}
"""What each module or room of `hotreload` may import of it; nothing is free by being new."""

READ_SETTINGS = {
    "feature",
    "features",
    "daemon",
    "worker_process",
    "life",
    "hosts.life",
    "cli",
    "cli.ops.doctor_checks",
    "settings",
}
READ_SETTINGS |= CONFIGURED

ONLY_IN = {
    "jax": {"engine", "hosts.engine", "hosts.upstream"},
    "flax": {"engine"},
    "sgl_jax": {"engine", "hosts.upstream"},
    "prometheus_client": {"observe"},
    "structlog": {"observe"},
    "fastapi": {"server", "features"},
    "watchdog": {"sources"},
    "huggingface_hub": {"sources"},
    "pydantic": {"settings", "life", "server"},
    "pydantic_core": {"settings", "life", "server"},
    "xxhash": {"checkpoint", "engine"},
    "opentelemetry": {"features"},
}

TAKEN_IN_ONCE = {
    "BakesNow",
    "Booting",
    "History",
    "ReplicasNow",
    "LatestEvent",
    "SourceNow",
    "TroublesNow",
    "UnderWay",
    "Wishes",
}
"""What events come to: the picture alone keeps each, so that all who tell of it tell the same."""
MADE_IN = {"Staged": {"engine"}, "Checkpoint": {"checkpoint"}} | {
    each: {"picture"} for each in TAKEN_IN_ONCE
}
"""Values of which one room alone makes any."""


ROOMS = MAY_IMPORT.keys()


def layer_of(module: Path) -> str:
    """The room it is in: the innermost that has rules of its own."""
    return room_of(name_of(module))


def room_of(name: str) -> str:
    """The room of what is imported under that name, or of a module."""
    parts = name.split(".")[1:] or ["__init__"]
    within = (".".join(parts[:depth]) for depth in range(len(parts), 0, -1))
    return next((room for room in within if room in ROOMS), parts[0])


def is_within(room: str, rooms: Set[str]) -> bool:
    """Whether it is one of these rooms, or a room in one of them."""
    return any(f"{room}.".startswith(f"{each}.") for each in rooms)


def imports_of(module: Path) -> Iterator[str]:
    """All that it imports, also for types alone and inside of functions."""
    for node in nodes_of(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports are absolute here"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layers_imported_by(module: Path) -> set[str]:
    """The rooms it needs; the package itself lends every room its version."""
    return {room_of(name) for name in modules_imported_by(module, known_names())}


@cache
def known_names() -> Set[str]:
    return {name_of(module) for module in MODULES} - {"hotreload"}


def test_arrows_only_go_right() -> None:
    assert [fault for module in MODULES for fault in wrong_arrows_of(module)] == []


def wrong_arrows_of(module: Path) -> Iterator[str]:
    """What it imports and may not, and what nobody has said of it."""
    layer, name = layer_of(module), name_of(module)
    if layer not in MAY_IMPORT:
        yield f"{name}: say in MAY_IMPORT what {layer} may import"
    else:
        forbidden = layers_imported_by(module) - MAY_IMPORT[layer]
        yield from (f"{name}: {layer} may not import {each}" for each in sorted(forbidden))
    for imported in imports_of(module):
        root, *_ = imported.split(".")
        allowed = ONLY_IN.get(root)
        if allowed is not None and not is_within(layer, allowed):
            yield f"{name}: {root} is imported in {layer}"


def test_nothing_is_allowed_that_is_gone() -> None:
    assert {layer_of(module) for module in MODULES} == MAY_IMPORT.keys()


STEPS = {"core.switch", "core.overlap", "core.drain"}
WHO_TAKES_THEM = {
    "core.rollout",
    "core.attempt",
    "core.attempt_records",
    "core.orders",
    "core.reconcile",
}


@pytest.mark.parametrize("step", sorted(STEPS))
def test_a_step_of_an_attempt_knows_nothing_of_the_attempt(step: str) -> None:
    """So the attempt reads as calls, none of which calls back."""
    module = PACKAGE / f"{step.replace('.', '/')}.py"
    imported = {name.removeprefix("hotreload.") for name in imports_of(module)}
    assert imported & WHO_TAKES_THEM == set()


def test_settings_are_read_where_parts_are_made_and_by_the_command_line_alone() -> None:
    readers = {name_of(each): layer_of(each) for each in MODULES if reads_settings(each)}
    assert {name: layer for name, layer in readers.items() if layer not in READ_SETTINGS} == {}


def reads_settings(module: Path) -> bool:
    return "settings" in layers_imported_by(module)


def test_who_alone_makes_a_value_makes_it_alone() -> None:
    made = []
    for module in MODULES:
        for node in nodes_of(module):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                made_in = MADE_IN.get(node.func.id)
                if made_in is not None and not is_within(layer_of(module), made_in):
                    made.append(f"{name_of(module)}: {ast.unparse(node)}")
    assert made == []


@pytest.mark.parametrize("call", ["flock", "fsync"])
def test_one_module_locks_files_and_flushes_them(call: str) -> None:
    calls = {
        name_of(module)
        for module in MODULES
        for node in nodes_of(module)
        if isinstance(node, ast.Attribute) and node.attr == call
    }
    assert calls == {"hotreload.facts.files"}


# --- circles ---------------------------------------------------------------------------------


def name_of(module: Path) -> str:
    parts = module.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def modules_imported_by(module: Path, known: Set[str]) -> Iterator[str]:
    """Those it needs: of `from package import name` the package only if it has the name itself."""
    for node in nodes_of(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from names & known
            if node.module in known and names - known:
                yield str(node.module)


def test_no_import_goes_round_in_a_circle() -> None:
    modules = {name_of(module): module for module in MODULES}
    known = modules.keys()
    graph = {name: set(modules_imported_by(modules[name], known)) for name in known}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as circle:
        pytest.fail(" → ".join(reversed(circle.args[1])))


def test_no_two_rooms_need_each_other() -> None:
    """A room is a folder of the package, or a file beside the folders."""
    graph: dict[str, set[str]] = {}
    for module in MODULES:
        needs = modules_imported_by(module, known_names())
        graph.setdefault(_folder_of(name_of(module)), set()).update(map(_folder_of, needs))
    for room, needed in graph.items():
        needed.discard(room)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as circle:
        pytest.fail(" → ".join(reversed(circle.args[1])))


def _folder_of(name: str) -> str:
    _, room, *_ = [*name.split("."), "__init__"]
    return room


# --- folders that one can see at a glance ------------------------------------------------------

MOST_MODULES = 16


def test_no_folder_has_more_modules_than_one_sees_at_a_glance() -> None:
    beside: dict[str, int] = {}
    for module in MODULES:
        if module.name != "__init__.py":
            folder = ".".join(module.parent.relative_to(PACKAGE).parts)
            beside[folder] = beside.get(folder, 0) + 1
    large = {folder: count for folder, count in beside.items() if count > MOST_MODULES}
    assert large == {}


ABOUT_ALL = {"deletion", "docstrings", "event_names", "homes", "kernel", "layers", "plain_words"}
"""Tests that are about every room; each other test lies in the folder of what it is about."""


def test_tests_lie_with_the_room_that_they_are_about() -> None:
    flat = {file.stem for file in (PACKAGE.parent / "tests").glob("test_*.py")}
    assert flat == {f"test_{each}" for each in ABOUT_ALL}


# --- pickles ---------------------------------------------------------------------------------

READERS = {
    "hotreload.worker_process",  # what the daemon writes to its worker's input
    "hotreload.engine.answering.encoder_copy",  # the tokenizer, in a worker
    "hotreload.hosts.upstream.turns",  # what rank 0 seals for the others
}
"""Who reads pickles, which are run as they are read: never the engine's process, from a worker."""


def test_nobody_reads_a_pickle_that_a_worker_wrote() -> None:
    calls = {"load", "loads", "Unpickler"}
    readers, encoders = set(), set()
    for module in MODULES:
        for node in nodes_of(module):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "pickle":
                readers |= {name_of(module)} if node.attr in calls else set()
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "CopiedEncoder":
                encoders.add(name_of(module))
    assert readers == READERS
    assert encoders == {"hotreload.worker_process"}


# --- names -----------------------------------------------------------------------------------


MEANT_BY_SEVERAL = {
    "BLANK": "the evidence of each feature until it is asked",
    "log": "the logger of each module",
    "Fields": "a JSON object: an alias of dict, which light modules spell themselves",
    "PROMPTS": "the fields of a request that hold the prompt",
}
"""Names that several modules have, and why each may."""
CALLED_AFTER_WHAT_STANDS_BEHIND = {PACKAGE / "server" / "ports.py", PACKAGE / "core" / "ports.py"}


def names_made_by(module: Path) -> Iterator[str]:
    """Its own public classes, constants and types."""
    for node in tree_of(module).body:
        match node:
            case ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=targets):
                found = (each for target in targets for each in ast.walk(target))
                yield from (each.id for each in found if isinstance(each, ast.Name))
            case ast.AnnAssign(target=ast.Name(name)) | ast.TypeAlias(name=ast.Name(name)):
                yield name


def test_a_public_name_stands_for_one_idea() -> None:
    homes: dict[str, list[str]] = {}
    for module in MODULES:
        if module not in CALLED_AFTER_WHAT_STANDS_BEHIND:
            for name in names_made_by(module):
                if not name.startswith("_"):
                    homes.setdefault(name, []).append(name_of(module))
    shared = {name: places for name, places in homes.items() if len(places) > 1}
    unmeant = {name: places for name, places in shared.items() if name not in MEANT_BY_SEVERAL}
    assert unmeant == {}
    assert shared.keys() == MEANT_BY_SEVERAL.keys(), "nothing is meant that is gone"


# --- depth -----------------------------------------------------------------------------------

MOST_DEPTH = 2
"""A class and one that it extends: what is needed of a third is held, not inherited."""
KINDS = {"HotReloadError", "Event", "TypedDict"}
"""Families of values, whose trees say what is a kind of what."""


@cache
def bases_by_class() -> dict[str, list[str]]:
    """Each class of the package by its name, with those of the package that it extends."""
    classes = [node for m in MODULES for node in nodes_of(m) if isinstance(node, ast.ClassDef)]
    names = {each.name for each in classes} | KINDS
    found: dict[str, list[str]] = {}
    for each in classes:
        bases = [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in each.bases]
        if "Protocol" not in bases:
            found.setdefault(each.name, []).extend(base for base in bases if base in names)
    return found


def line_of(name: str) -> list[str]:
    """The class and all that it extends, the longest way."""
    above = [line_of(base) for base in bases_by_class().get(name, ()) if base != name]
    return [name, *max(above, key=len, default=[])]


def test_no_class_stands_on_a_tower_of_classes() -> None:
    lines = map(line_of, bases_by_class())
    assert [line for line in lines if len(line) > MOST_DEPTH and not KINDS & {*line}] == []
