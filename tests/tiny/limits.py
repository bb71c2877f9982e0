"""The table of DAMAGES.md that says which limit catches which damage.

What hotreload's own report says of each, by numpy: `python -m tests.tiny.limits` measures for half
a minute and writes it.
"""

import asyncio
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from hotreload.features.compare.comparison import breaches
from hotreload.features.compare.evidence import Behaviour
from hotreload.features.compare.settings import CompareLimits
from hotreload.tiny.trainer import BASE_STEPS, TUNED_STEPS, train_and_keep
from hotreload.tiny.weights import Arrays
from tests.docs.pages import marked
from tests.tiny.asked import report_on
from tests.tiny.conversions import CONVERSIONS, Past, conversion

PAGE = Path(__file__).with_name("DAMAGES.md")
LIMITS = {
    "qwen3": CompareLimits(
        min_agreement=0.42, max_kl=0.25, max_perplexity_ratio=1.4, max_length_ratio=1.4
    ),
    "qwen2": CompareLimits(
        min_agreement=0.25, max_kl=0.6, max_perplexity_ratio=3, max_length_ratio=1.4
    ),
}
"""A little beyond the worst of the good steps of this architecture's training."""
GOOD_STEPS = range(TUNED_STEPS, TUNED_STEPS + 24, 4)
"""Steps each of which is compared with the one four further on."""
HEAD = ("damage", "agreement", "KL", "perplexity ratio", "length ratio", "caught by")
NONE = "-"


class LimitRow(NamedTuple):
    """One row of the table."""

    kind: str
    agreement: float
    kl: float
    perplexity_ratio: float
    length_ratio: float

    @property
    def caught_by(self) -> list[str]:
        """The limits that these figures break."""
        found = Behaviour(
            *(6, 96, self.agreement, 1.0, None, self.length_ratio, 0, 0, 0, 0, 0, 0),
            mean_kl=self.kl,
            perplexity_ratio=self.perplexity_ratio,
        )
        return [each.partition(":")[0] for each in breaches(found, LIMITS[arch_of(self.kind)])]

    def written(self) -> str:
        names = ", ".join(f"`{name}`" for name in self.caught_by) or NONE
        kind = f"`{self.kind}`" if self.kind in KINDS else self.kind
        return f"| {kind} | {' | '.join(f'{each:.3g}' for each in self[1:])} | {names} |"


KINDS = [each.kind for each in CONVERSIONS]


def arch_of(kind: str) -> str:
    return "qwen2" if kind == "missing-biases" else "qwen3"


@cache
def weights_of(arch: str) -> dict[int, Arrays]:
    """One run's weights, as they are after some of its steps."""
    steps = {BASE_STEPS // 3, BASE_STEPS, *GOOD_STEPS, GOOD_STEPS[-1] + 4}
    return dict(train_and_keep(arch, steps))


def good_row(step: int) -> LimitRow:
    """A good checkpoint beside the one before it in the same run."""
    run = weights_of("qwen3")
    return _row(f"none: {step + 4} beside {step}", run[step + 4], run[step])


def damaged_row(kind: str) -> LimitRow:
    run = weights_of(arch_of(kind))
    past = Past(run[BASE_STEPS], run[BASE_STEPS // 3])
    live = run[TUNED_STEPS]
    return _row(kind, conversion(kind).spoiled(live, lambda: past), live)


def _row(kind: str, new: Arrays, live: Arrays) -> LimitRow:
    found = asyncio.run(report_on(new, live))
    assert found.mean_kl is not None
    assert found.perplexity_ratio is not None
    assert found.length_ratio is not None
    figures = found.agreement, found.mean_kl, found.perplexity_ratio, found.length_ratio
    return LimitRow(kind, *(float(f"{each:.3g}") for each in figures))  # as they are written


def rows() -> Iterator[LimitRow]:
    yield from map(good_row, GOOD_STEPS)
    yield from sorted(map(damaged_row, KINDS), key=lambda row: (row.agreement, -row.kl))


WRITTEN = re.compile(r"^\| `?([\w: -]+?)`? \| (\d\S*) \| (\S+) \| (\S+) \| (\S+) \| (.+) \|$", re.M)


def read() -> list[tuple[LimitRow, list[str]]]:
    """The rows on the page, and the limits that it says catch each."""
    (table,) = marked("limits").findall(PAGE.read_text())
    cells = [row.groups() for row in WRITTEN.finditer(table)]
    return [
        (LimitRow(kind, *map(float, figures)), re.findall(r"`(\w+)`", names))
        for kind, *figures, names in cells
    ]


def main() -> None:
    lines = [f"| {' | '.join(HEAD)} |", f"| {' | '.join('---' for _ in HEAD)} |"]
    table = "\n".join([*lines, *(row.written() for row in rows())])
    PAGE.write_text(marked("limits").sub(table, PAGE.read_text()))


if __name__ == "__main__":
    main()
