"""Plots of what the benches measured, as SVG: bars beside each other, and lines on log scales."""

import math
import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

FOLDER = Path("build/bench") / f"engine-{os.environ.get('HOTRELOAD_ENGINE', '0.0')}"
COLOURS = ("#1f6feb", "#d1782f", "#3a8f5c", "#8a56ac", "#6b7280")
WIDTH, LEFT, RIGHT, LINE = 760, 250, 90, 34

Points = Sequence[tuple[float, float]]


def bars(name: str, title: str, rows: Mapping[str, float], unit: str) -> None:
    """One bar for each row, from zero; the figure stands at its end."""
    most = max(rows.values()) or 1.0
    drawn = [_text(16, 26, title, size=15)]
    for at, (row, value) in enumerate(rows.items()):
        top = 48 + at * LINE
        long = (WIDTH - LEFT - RIGHT) * value / most
        drawn += [
            _text(LEFT - 10, top + 15, row, anchor="end"),
            f'<rect x="{LEFT}" y="{top}" width="{long:.1f}" height="20" fill="{COLOURS[at % 5]}"/>',
            _text(LEFT + long + 8, top + 15, f"{value:.3g} {unit}"),
        ]
    _write(name, 60 + len(rows) * LINE, drawn)


def lines(name: str, title: str, x_name: str, y_name: str, series: Mapping[str, Points]) -> None:
    """Each series a line, both axes logarithmic."""
    height, low, top = 390, 330, 64
    points = [point for line in series.values() for point in line]
    across = _Scale([x for x, _ in points], 70, WIDTH - 240)
    up = _Scale([y for _, y in points], low, top)
    drawn = [_text(16, 26, title, size=15), _text(70, height - 12, f"{x_name} (log)")]
    drawn.append(_text(16, top - 6, f"{y_name} (log)"))
    for value in across.marks:
        x = across.at(value)
        drawn += [_rule(x, top, x, low), _text(x, low + 18, f"{value:g}", anchor="middle")]
    for value in up.marks:
        y = up.at(value)
        drawn += [_rule(70, y, WIDTH - 240, y), _text(64, y + 4, f"{value:g}", anchor="end")]
    for at, (label, line) in enumerate(series.items()):
        colour = COLOURS[at % 5]
        path = " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in line)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        x, y = line[-1]
        drawn.append(_text(across.at(x) + 8, up.at(y) + 4, label, colour=colour))
    _write(name, height, drawn)


class _Scale:
    """Where a value lies between two edges; whole powers of ten are marked."""

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        self._low = math.floor(math.log10(min(values)))
        high = max(math.ceil(math.log10(max(values))), self._low + 1)
        self._step = (last - first) / (high - self._low)
        self._first = first
        self.marks = [10.0**power for power in range(self._low, high + 1)]

    def at(self, value: float) -> float:
        return self._first + (math.log10(value) - self._low) * self._step


def _text(
    x: float,
    y: float,
    words: str,
    *,
    anchor: str = "start",
    size: int = 13,
    colour: str = "#24292f",
) -> str:
    look = f'font-size="{size}" text-anchor="{anchor}" fill="{colour}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {look}>{escape(words)}</text>'


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#d0d7de"/>'


def _write(name: str, height: float, drawn: Sequence[str]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.svg"
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    start = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">'
    path.write_text("\n".join([start, '<rect width="100%" height="100%" fill="white"/>', *drawn]))
    with path.open("a") as file:
        file.write("\n</svg>\n")
    print(f"plotted: {path}")
