"""The closing table: what was done to the daemon, how often it survived, and what came of it."""

from collections import Counter, defaultdict

from tests.histories.record import OUTCOMES, Fault, Record
from tests.histories.survived import survivors

HEADS = ("fault", "injected", "survived", "what came of it")
SHOWN = 6


def table(record: Record) -> str:
    """One line a kind of fault, and one that sums the run up."""
    by_name: dict[str, list[Fault]] = defaultdict(list)
    survived: Counter[str] = Counter()
    for fault, is_survived in zip(record.faults, survivors(record), strict=True):
        by_name[fault.name].append(fault)
        survived[fault.name] += is_survived
    ended = _outcomes(record)
    names = sorted(by_name)
    rows = [HEADS, *(_row(name, by_name[name], survived[name], ended) for name in names)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [_line(row, widths) for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:], "", summary(record)])


def summary(record: Record) -> str:
    """The run in one paragraph."""
    ends = Counter(each.ended for each in record.requests if each.route == "/generate")
    told = ", ".join(f"{count} {ended}" for ended, count in ends.most_common())
    kills = sum(life.was_killed for life in record.lives)
    live = sum(heard.fields["event"] == "generation.live" for heard in record.heard)
    return (
        f"seed {record.seed}: {len(record.faults)} faults, {sum(survivors(record))} survived, "
        f"in {_spent(record) / 60:.1f} min, {len(record.lives)} lives, {kills} of them killed, "
        f"{live} generations live\n"
        f"requests to the model: {told}"
    )


def _outcomes(record: Record) -> dict[str, Counter[str]]:
    """Of each revision: how its attempts ended, a refusal with its reason."""
    ended: dict[str, Counter[str]] = defaultdict(Counter)
    for heard in record.heard:
        _, _, outcome = heard.fields["event"].partition("reload.")
        if outcome in OUTCOMES:
            code = heard.fields["code"] if outcome == "rejected" else ""
            ended[heard.fields["revision"]][f"{outcome} {code}".strip()] += 1
    return ended


def _spent(record: Record) -> float:
    """Seconds from the first start to the last thing that is known; a run may have broken off."""
    ends = [life.ended or life.started for life in record.lives]
    ends += [each.end for each in record.requests[-1:]]
    return max(ends) - record.lives[0].started if record.lives else 0.0


def _row(
    name: str, faults: list[Fault], survived: int, ended: dict[str, Counter[str]]
) -> tuple[str, ...]:
    came_of = Counter(fault.came_of for fault in faults if fault.came_of)
    revisions = {revision for fault in faults for revision in fault.revisions}
    for revision in revisions:
        came_of.update(ended.get(revision) or Counter(["overtaken"]))
    listed = [f"{count}x {words}" for words, count in came_of.most_common(SHOWN)]
    rest = sum(came_of.values()) - sum(count for _, count in came_of.most_common(SHOWN))
    listed += [f"{rest}x other"] if rest else []
    return name, str(len(faults)), str(survived), ", ".join(listed)


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    name, injected, survived, came_of = row
    columns = (name.ljust(widths[0]), injected.rjust(widths[1]), survived.rjust(widths[2]))
    return "  ".join((*columns, came_of)).rstrip()
