"""An operator's command that decides about new weights: its settings, its end, its evidence."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, override

from hotreload.attempts import Evidence
from hotreload.events import Event
from hotreload.picture.words import AttemptWords, Fields, plain
from hotreload.setting import Bounds, Deadline, SettingsOfFeature, setting
from hotreload.types import Revision


@dataclass(frozen=True, slots=True)
class CommandSettings(SettingsOfFeature):
    """An operator's command that decides about new weights before they answer anybody."""

    run: tuple[str, ...] = setting(
        (),
        "An eval and its arguments; its exit code decides about each checkpoint. Unset: none.",
        example=["/opt/evals/run.sh"],
        was="behaviour.command",
    )
    timeout: Deadline = setting(
        600.0,
        "How long it may take; then the checkpoint is postponed.",
        live=True,
        was="behaviour.command_timeout",
    )
    user: str | None = setting(
        None,
        "The user it runs as, if hotreload is root; unset, hotreload's own.",
        example="evals",
        was="behaviour.command_user",
    )
    tokens: Annotated[int, Bounds(least=256)] = setting(
        8192,
        "Its room for tokens of the new weights; a KV pool of up to 64 MiB is taken whole.",
        was="behaviour.command_tokens",
    )

    @override
    def unfit_for_hosts(self, beside: str) -> Iterator[tuple[str, str]]:
        if self.run:
            yield "run", f"not {beside}: clients alone are answered there, and no candidate"

    @override
    def engine_needs(self) -> Mapping[str, Any]:
        return {"candidate_tokens": self.tokens if self.run else 0}


@dataclass(frozen=True, slots=True)
class CommandBegan(Event):
    """The operator's command begins to judge these weights, within so many seconds."""

    revision: Revision
    command: str
    """The name of its program."""
    within: float

    name = "reload.command"


COMMAND = "command"
"""The name of its evidence, and the code of its refusals."""
BLANK = Evidence(COMMAND, facts={"command_said": []})
"""The evidence of a command that was not asked."""
LINES_IN_WORDS = 3
"""The most lines of the command's output that the words show."""
COULD_NOT_JUDGE = {
    75: "which asks to be tried again later",
    126: "which says that it may not be run",
    127: "which says that it was not found",
}
"""Exit codes that say nothing about weights: EX_TEMPFAIL, and two that shells give."""


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """The end of a command that was to judge weights."""

    code: int | None
    """Its exit code; None if it gave none."""
    lines: tuple[str, ...] = ()
    """The last lines that it wrote."""
    why: str = ""
    """The reason why it gave no exit code."""


def words_of_command(attempt: Fields, at_length: bool) -> AttemptWords:
    """Say what it said last."""
    said = attempt.get("command_said")
    words = said and f"the command said: {plain(' / '.join(said[-LINES_IN_WORDS:]))}"
    return AttemptWords(lines=[words] if words else [])


def evidence_of(end: CommandEnd) -> Evidence:
    """Return what the end of the command says of the weights."""
    has_judged = end.code is not None and end.code not in COULD_NOT_JUDGE
    outcome = ("refused" if end.code else "passed") if has_judged else "not_judged"
    words = f"the command said: {' / '.join(end.lines[-LINES_IN_WORDS:])}" if end.lines else ""
    return Evidence(BLANK.name, outcome, words, {"command_said": [*end.lines]})
