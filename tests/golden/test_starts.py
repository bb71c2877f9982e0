"""What happens in a start, event by event: the real start with an engine and checks of words."""

import os
import re
from collections.abc import Callable
from pathlib import Path

from hotreload.attempts import By
from hotreload.core.ledger import ServedBy
from hotreload.errors import ConfigError, EngineLost, HotReloadError, ProbeFailed
from hotreload.types import Generation, Reason, Revision
from tests.golden.blanks import blanked
from tests.golden.compare import Golden, sections
from tests.golden.observed import told_shortly
from tests.life.start.test_boot import Machine, does_not_start, weights

OURS = (
    (re.compile(r'("\w+": )\d[\d.]*(e-\d+)?(?=[,}])'), r"\1SOME"),
    (re.compile(rf'"uid": {os.getuid()}\b'), '"uid": OURS'),
)
"""How long the phases took, and who starts the daemon."""


def older_generations(machine: Machine) -> None:
    for number, name in enumerate(("step_3", "step_4"), start=2):
        weights(machine.source.folder / name)
        generation = Generation(number, Revision(name, name), "fp", 0.0)
        machine.ledger.went_live(generation, str(machine.source.folder / name))
    machine.ledger.refuse(Revision("step_4", "step_4"), Reason("probe", "bad"), 0.0)


def another_engine(machine: Machine) -> None:
    machine.ledger.served_by = ServedBy("0.0.1", "0.8.0", "auto", 1, "args", "files", "/srv/model")
    bad_answers(machine)


def bad_answers(machine: Machine) -> None:
    machine.steps.faults["probe"] = ProbeFailed("the answer does not hold 'Paris'")


def pinned(machine: Machine) -> None:
    machine.ledger.set_pinned(True, By("pin", 0, 77, 0.0, "evaluation"))
    machine.unfit = {"step_1"}


def nothing_is_sound(machine: Machine) -> None:
    machine.forget()
    machine.unfit = {"step_2", "model"}


def faults_of_engines(**faults: Exception) -> Callable[[Machine], None]:
    return lambda machine: machine.start_faults.update(faults)


STARTS: dict[str, Callable[[Machine], None]] = {
    "the last good generation": lambda machine: None,
    "where nothing was live yet": Machine.forget,
    "the last good one is damaged": lambda machine: machine.unfit.add("step_1"),
    "an older generation, as the newest was refused": older_generations,
    "nothing is sound": nothing_is_sound,
    "a pin that cannot be restored": pinned,
    "the engine does not start on it": faults_of_engines(step_1=does_not_start()),
    "a setting is wrong": faults_of_engines(step_1=ConfigError("[engine.args] no such argument")),
    "the engine is lost": faults_of_engines(step_1=EngineLost("the scheduler thread died")),
    "the answers are bad": bad_answers,
    "the answers are bad, and the engine is another": another_engine,
}


async def told(machine: Machine, changed: Callable[[Machine], None]) -> str:
    """Every event of a start, and what came of it."""
    changed(machine)
    try:
        live = await machine.run()
        end = f"generation {live.number} ({live.revision}) answers"
    except HotReloadError as fault:
        end = f"it ends with {type(fault).__name__}: {fault}"
    tried = f"the engine was started with {machine.started}"
    return "\n".join([*map(told_shortly, machine.events), tried, end])


async def test_starts(golden: Golden, tmp_path: Path) -> None:
    texts: dict[str, str] = {}
    for number, (name, changed) in enumerate(STARTS.items()):
        folder = tmp_path / str(number)
        texts[name] = blanked(await told(Machine(folder), changed), folder)
    text = sections(texts)
    for found, word in OURS:
        text = found.sub(word, text)
    golden("starts.txt", text)
