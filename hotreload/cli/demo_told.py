"""What came of the demo: the table and the sums it ends in, held against what it promises."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hotreload.cli.demo_clients import ClientAnswer, Clients
from hotreload.cli.demo_story import Chapter, words
from hotreload.cli.show import painted, table
from hotreload.figures import duration

Fields = dict[str, Any]

PHASES = ("validating", "draining", "staging", "probing", "swapping")
"""What an attempt goes through, in its order; draining is a wait for room for one more set."""
SHOWN_FAULTS = 5


@dataclass(frozen=True, slots=True)
class Told:
    """What happened: each chapter with its attempt, and what the clients saw."""

    chapters: list[tuple[Chapter, Fields]]
    clients: Clients
    live_since: Mapping[int, float]
    """When each generation of the story went live."""

    @property
    def longest_wait(self) -> float:
        """How long the gate held anybody's request, at the most; as the daemon says."""
        return max(float(attempt["pause_seconds"]) for _, attempt in self.chapters)

    @property
    def ended_by_the_old(self) -> list[ClientAnswer]:
        """Answers that ended after another generation had gone live than the one they name."""
        return [
            answer
            for answer in self.clients.answers
            if answer.ended > self.live_since.get(answer.generation + 1, answer.ended)
        ]

    @property
    def mixed(self) -> list[ClientAnswer]:
        """Answers that are not exactly what the generation named in them says."""
        says = {1: words(1)}
        for chapter, attempt in self.chapters:
            if attempt["generation"] is not None:
                says[attempt["generation"]] = words(chapter.number)
        return [
            answer
            for answer in self.clients.answers
            if answer.generation not in says or not answer.is_exactly(says[answer.generation])
        ]

    @property
    def surprises(self) -> list[str]:
        """What did not happen as it must."""
        return [*self._other_ends(), *self._taken_back(), *self._waits(), *self._unseen()]

    def _other_ends(self) -> list[str]:
        return [
            f"{chapter.label}: expected {chapter.outcome} {chapter.code or ''}, "
            f"got {attempt['outcome']} {attempt['code'] or ''}"
            for chapter, attempt in self.chapters
            if (attempt["outcome"], attempt["code"]) != (chapter.outcome, chapter.code)
        ]

    def _taken_back(self) -> list[str]:
        """Weights that were live before the probe rejected them."""
        return [
            f"{chapter.label}: it was live before it was rejected"
            for chapter, attempt in self.chapters
            if attempt["rolled_back"]
        ]

    def _waits(self) -> list[str]:
        return [
            f"{chapter.label}: requests had to wait {duration(attempt['pause_seconds'])}"
            for chapter, attempt in self.chapters
            if attempt["pause_seconds"]
        ]

    def _unseen(self) -> list[str]:
        """Swaps that no answer outlasted: of those the demo shows nothing."""
        outlasted = {answer.generation + 1 for answer in self.ended_by_the_old}
        return [
            f"{chapter.label}: no request under way ended under the old weights"
            for chapter, attempt in self.chapters
            if attempt["generation"] is not None and attempt["generation"] not in outlasted
        ]


def print_closing(told: Told) -> bool:
    """Print the table and the sums; return whether all of it happened."""
    head = ["checkpoint", "outcome", "reason", *PHASES, "requests held", ""]
    print(f"\n{table(head, [_row(*each) for each in told.chapters])}\n")
    clients = told.clients
    print(f"{len(clients.answers)} answers, failed requests: {len(clients.failures)}")
    print(f"longest wait: {duration(told.longest_wait)}")
    print(f"answers that ended under the old weights after a swap: {len(told.ended_by_the_old)}")
    print(f"answers that were not exactly what their generation says: {len(told.mixed)}")
    faults = [
        *told.surprises,
        *clients.failures[:SHOWN_FAULTS],
        *map(str, told.mixed[:SHOWN_FAULTS]),
    ]
    for fault in faults:
        print(painted(f"  {fault}", "bad"))
    return not faults


def _row(chapter: Chapter, attempt: Fields) -> list[str]:
    spent = [attempt["phases"].get(phase) for phase in PHASES]
    times = [duration(seconds) if seconds is not None else "" for seconds in spent]
    held = duration(attempt["pause_seconds"])
    return [chapter.label, attempt["outcome"], attempt["code"] or "", *times, held, chapter.what]
