"""What the verbs of `hotreload` print, and how they exit."""

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from hotreload.cli import VERBS
from hotreload.errors import (
    Busy,
    ConfigError,
    EngineLost,
    HotReloadError,
    NotSaved,
    NotServing,
    SourceUnavailable,
)
from hotreload.events import PhaseEntered, StateSaved, Wait
from hotreload.tiny import UNSOUND, write_tiny
from hotreload.types import LoadFacts, Outcome, Phase, Reason
from tests.evidence import judged
from tests.golden.blanks import without_defaults
from tests.golden.command import asked, run
from tests.golden.compare import Golden, sections
from tests.server.world import FIRST, World, attempt, serve

PAGE = re.compile(r"\(docs/\w+\.md\)")
"""Codes may move from page to page."""
NAN = Reason("nonfinite", "lm_head: 3 NaN, and 2 more", ("lm_head: 3 NaN", "norm: 1 NaN", "q: NaN"))
ROOM = Reason("oom", "no room")
OWN = LoadFacts("own", "", 12, 18, 600, 12, 0.04, "layers.3.down_proj")
DRY = replace(
    attempt(Outcome.PASSED),
    dry_run=True,
    phases={Phase.VALIDATING: 0.2, Phase.STAGING: 1.0, Phase.PROBING: 0.3},
    loading=OWN,
)
ENDS = {
    "live": replace(attempt(), fingerprints=("before", "after")),
    "rejected": attempt(Outcome.REJECTED, NAN),
    "postponed": attempt(Outcome.POSTPONED, ROOM),
    "superseded": attempt(Outcome.SUPERSEDED, ROOM),
    "lost": attempt(Outcome.LOST, ROOM),
}
DRY_ENDS = {
    "passes": DRY,
    "passes unproven": judged(DRY, unproven="it has no lanes"),
    "would be refused": replace(DRY, outcome=Outcome.REJECTED, reason=NAN, loading=None),
    "would be put off": replace(DRY, outcome=Outcome.POSTPONED, reason=ROOM, loading=None),
    "costs the engine": replace(DRY, outcome=Outcome.LOST, reason=ROOM, loading=None),
}
REFUSALS: list[HotReloadError] = [
    Busy("step-3 is under way"),
    NotSaved("the disk is full"),
    SourceUnavailable("step-9 is not here"),
    NotServing("the engine is starting", code="booting", retry_after=2),
    NotServing("hotreload is stopping", code="stopping"),
    EngineLost("the scheduler thread died"),
    ConfigError("[source] path is not set"),
]
ORDERS = ["reload --wait", "reload step-2 --timeout 5", "rollback", "rollback 1", "perturb --yes"]


def test_help(golden: Golden, tmp_path: Path) -> None:
    """The list of verbs, and how each is written; tests/cli/test_help.py looks at the rest."""
    told = {"hotreload --help": run(tmp_path, "--help"), "hotreload": run(tmp_path)}
    usage = [run(tmp_path, verb, "--help").partition("\n\n")[0] for verb in VERBS]
    golden("help.txt", sections({**told, "how each verb is written": "\n".join(usage)}))


def test_explain(golden: Golden, tmp_path: Path) -> None:
    """Some codes; tests/cli/test_explain.py looks at each."""
    told = {"hotreload explain": run(tmp_path, "explain")}
    for code in ("nonfinite", "missing", "weights_stale", "pause_lapsed", "78", "nothing"):
        told[f"hotreload explain {code}"] = run(tmp_path, "explain", code)
    golden("explain.txt", PAGE.sub("(docs/PAGE)", sections(told)))


# --- beside a daemon ---------------------------------------------------------------------------


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A server that has booted and answers with generation 1."""
    async with serve(tmp_path) as world:
        yield world


async def test_orders(golden: Golden, tmp_path: Path, world: World) -> None:
    """However an attempt ends, and whatever an order is refused for."""
    told: dict[str, str] = {}
    for name, world.control.outcome in ENDS.items():
        for order in (*ORDERS, "reload --wait --json"):
            told[f"hotreload {order} ({name})"] = await asked(tmp_path, *order.split())
    for name, world.control.outcome in DRY_ENDS.items():
        told[f"hotreload reload --dry-run ({name})"] = await asked(tmp_path, "reload", "--dry-run")
    world.control.outcome = attempt()
    for order in ("reload", "pin", "pin --json", "unpin"):
        told[f"hotreload {order}"] = await asked(tmp_path, *order.split())
    world.control.outcome = ENDS["live"]
    world.events.publish(StateSaved("the disk is full"))
    for order in ("reload --wait", "rollback", "perturb --yes"):
        told[f"hotreload {order} (not saved)"] = await asked(tmp_path, *order.split())
    for world.control.refusal in REFUSALS:
        for order in ("reload --wait", "pin"):
            why = type(world.control.refusal).__name__
            told[f"hotreload {order} ({why}: {world.control.refusal})"] = await asked(
                tmp_path, *order.split()
            )
    orders = dict.fromkeys(
        f"{verb} {what} force={force}" for verb, what, force in world.control.asked
    )
    told["what the daemon was asked"] = "\n".join(orders)
    golden("command-orders.txt", sections(told))


async def test_questions(golden: Golden, tmp_path: Path, world: World) -> None:
    told: dict[str, str] = {}

    async def ask(*words: str, when: str = "") -> None:
        told[f"hotreload {' '.join(words)}{when}"] = await asked(tmp_path, *words)

    for words in (("generate", "hi"), ("generate", "hi", "--stream"), ("checksums",)):
        await ask(*words)
        await ask(*words, "--json")
    world.engine.damage = {"lm_head": 12}
    await ask("checksums", when=" (one leaf moved)")
    told["hotreload status --json | jq keys"] = keys_of(await asked(tmp_path, "status", "--json"))
    world.engine.breaks_after = (2, EngineLost("the scheduler thread died"))
    await ask("generate", "hi", "--stream", when=" (the engine dies)")
    await ask("generate", "hi", when=" (it is lost)")
    golden("command-questions.txt", sections(told))


def keys_of(document: str) -> str:
    """The names at the top of a document as it is printed, in their order."""
    names = [line for line in document.splitlines() if line[:3] == '  "']
    return "\n".join(name.partition(":")[0].strip() for name in names)


async def test_a_boot(golden: Golden, tmp_path: Path) -> None:
    async with serve(tmp_path, booted=False) as world:
        world.events.publish(Wait("a checkpoint", "start"))
        world.events.publish(PhaseEntered(FIRST.revision, Phase.BUILDING))
        told = {
            "hotreload generate hi --no-wait": await asked(tmp_path, "generate", "hi", "--no-wait"),
            "hotreload history": await asked(tmp_path, "history"),
            "hotreload checksums": await asked(tmp_path, "checksums"),
        }
    told["hotreload status (nobody there)"] = run(tmp_path, "status")
    golden("command-boot.txt", sections(told))


async def test_events(golden: Golden, tmp_path: Path) -> None:
    async with events_of(tmp_path) as told:
        pass
    golden("command-events.txt", sections(told))


@asynccontextmanager
async def events_of(folder: Path) -> AsyncIterator[dict[str, str]]:
    """What `hotreload events` prints while some happen, and the daemon then stops."""
    told: dict[str, str] = {}
    async with serve(folder) as world:
        before = len(world.events._observers)
        listening = asyncio.create_task(asked(folder, "events"))
        await world.until(lambda: len(world.events._observers) > before)
        world.events.publish(PhaseEntered(FIRST.revision, Phase.FETCHING))
        world.events.publish(StateSaved("the disk is full"))
        yield told
    told["hotreload events"] = await listening


# --- without a daemon --------------------------------------------------------------------------


def checks(folder: Path) -> Iterator[tuple[str, str]]:
    """`hotreload check` of sound checkpoints and of each that was spoiled."""
    write_tiny(folder / "good")
    write_tiny(folder / "other", arch="llama")
    for words in ("good", "good --against DIR/good", "other --against DIR/good", "nothing"):
        yield f"hotreload check {words}", run(folder, "check", *f"DIR/{words}".split())
    yield "hotreload check good --json", run(folder, "check", "DIR/good", "--json")
    for damage in UNSOUND:
        write_tiny(folder / "bad", damage=damage.kind)
        said = run(folder, "check", "DIR/bad", "--against", "DIR/good")
        yield f"hotreload check {damage.kind} --against good", said
        shutil.rmtree(folder / "bad")


def settings(folder: Path) -> Iterator[tuple[str, str]]:
    """`hotreload check-config`, of what is right and wrong."""
    file = folder / "hotreload.toml"
    file.write_text("[engine]\nmodel = '/srv/model'\n[source]\npath = '/srv/checkpoints'\n")
    for words in ("", "DIR/hotreload.toml"):
        said = run(folder, "check-config", *words.split())
        yield f"hotreload check-config {words} (but for defaults)", without_defaults(said)
    file.write_text("[log]\nlevel = 'loud'\n[server]\nmode = 660\n[nothing]\nhere = 1\n")
    for words in ("DIR/hotreload.toml", "DIR/hotreload.toml --json"):
        yield f"hotreload check-config {words} (wrong)", run(folder, "check-config", *words.split())


def others(folder: Path) -> Iterator[tuple[str, str]]:
    """Verbs that write files, and what verbs say that are given nothing to work with."""
    for words in (
        "tiny DIR/tiny",
        "tiny DIR/tiny",
        "tiny DIR/spoiled --damage nan --arch llama --shards 2",
        "tiny DIR/none --damage rust",
        "tiny DIR/none --say impossible",
        "install-unit --dry-run --instance one --exec /bin/true --prefix DIR/two",
        "install-unit --exec DIR/nothing",
        "serve --config DIR/none.toml",
        "swap --model DIR/none --checkpoint DIR/none",
        "diff DIR/none DIR/none",
        "diff DIR/none DIR/none --json",
        "diff DIR/none DIR/none --set compare.limits.min_agreement=2",
        "nothing",
    ):
        yield f"hotreload {words}", run(folder, *words.split())
    words = "install-unit --dry-run --exec /bin/true --config /none.toml"
    files = run(folder, *words.split()).split("### ")
    yield words, "### ".join(each for each in files if not DROP_IN.match(each))


DROP_IN = re.compile(r"\S+\.service\.d/")
"""They depend on the machine: on its devices, and where the command lies."""


@pytest.mark.parametrize("told", [checks, settings, others])
def test_alone(
    golden: Golden, tmp_path: Path, told: Callable[[Path], Iterator[tuple[str, str]]]
) -> None:
    texts: dict[str, str] = {}
    for title, text in told(tmp_path):
        texts[title if title not in texts else f"{title} (again)"] = text
    golden(f"command-{told.__name__}.txt", sections(texts))
