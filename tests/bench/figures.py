"""Medians, tails and a table of them; every figure beside the baseline of its own run."""

import statistics
from collections.abc import Mapping, Sequence


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def p99(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(0.99 * (len(ordered) - 1)))]


def noise(values: Sequence[float]) -> float:
    """Half the spread of the middle half, as a share of the median."""
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) / 2 / statistics.median(values)


def print_table(title: str, rows: Mapping[str, Sequence[float]], baseline: str) -> None:
    """Milliseconds, and how many times less than the baseline."""
    print(f"\n{title}")
    print(f"{'':<46}{'median':>10}{'p99':>10}{'noise':>8}{'n':>5}{'baseline / this':>17}")
    for name, values in rows.items():
        ratio = median(rows[baseline]) / median(values)
        print(
            f"{name:<46}{median(values) * 1e3:>8.2f}ms{p99(values) * 1e3:>8.2f}ms"
            f"{noise(values):>7.0%}{len(values):>5}{ratio:>16.1f}x"
        )
