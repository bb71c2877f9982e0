"""The report of a dry run, as people read it."""

from collections.abc import Iterator

from hotreload.cli import show
from hotreload.cli.outcome_text import LOST
from hotreload.cli.show import Fields
from hotreload.figures import duration
from hotreload.picture.words import drift_text, loader_text, named, plain

VERDICTS = {
    "passed": "would go live",
    "rejected": "would be refused",
    "postponed": "could not be tried now",
    "superseded": "was let go",
    "lost": LOST,
}
CHECKED = ("staging", "probing")
"""Phases that come after all checks of the files."""


def dry_run_text(attempt: Fields, generation: str | None) -> str:
    """Say whether a revision would go live, and all that was found out on the way."""
    verdict = VERDICTS.get(attempt["outcome"], attempt["outcome"])
    unsure = (
        " as far as can be told" if attempt["outcome"] == "passed" and attempt["unproven"] else ""
    )
    why = f": {plain(attempt['reason'])}" if attempt["reason"] else ""
    lines = [f"dry run: {named(attempt)} {verdict}{unsure}{why}"]
    lines += [f"  {line}" for line in show.pairs(list(_rows(attempt))).splitlines()]
    if generation and attempt["outcome"] != "lost":
        lines.append(f"  nothing has changed: generation {plain(generation)} goes on answering")
    return "\n".join(lines)


def _rows(attempt: Fields) -> Iterator[tuple[str, str]]:
    yield "checks", _checks(attempt)
    if attempt["loader"]:
        yield "loaded", loader_text(attempt)
        yield "change", drift_text(attempt)
    yield "probes", _probes(attempt)
    if attempt["phases"]:
        spent = (f"{plain(name)} {duration(took)}" for name, took in attempt["phases"].items())
        yield "times", ", ".join(spent)


def _checks(attempt: Fields) -> str:
    if any(phase in attempt["phases"] for phase in CHECKED):
        return "passed"
    found = [plain(finding) for finding in attempt["findings"]]
    return "\n".join(found) or "not done to the end"


def _probes(attempt: Fields) -> str:
    if attempt["unproven"]:
        return f"not asked, so their answers are not known: {plain(attempt['unproven'])}"
    if "probing" not in attempt["phases"]:
        return "not asked"
    if attempt["outcome"] == "passed":
        return "passed"
    return "\n".join(plain(finding) for finding in attempt["findings"]) or "not answered"
