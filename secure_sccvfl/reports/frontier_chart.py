"""The frontier as SVG text, in the style of `reports.charts`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from secure_sccvfl.reports.charts import SERIES, WIDTH, axis_steps, drawing, percent, round_up

Place = Callable[[float], float]
"""From a value to its place on an axis."""
Span = tuple[float, float, float]
"""Mean, and the ends of its interval."""
NARROW = 30
"""Points nearer to each other than this have no room for two labels."""
SHAPES = ("M-4 -4h8v8h-8z", "M0 -5L5 4H-5z", "M0 -5L5 0L0 5L-5 0z", "M-5 -3h10v6h-10z", "M0 5L5 -4H-5z")
"""Outlines of other methods' marks: a square, triangles, a diamond, a bar. Ours are dots."""


@dataclass(frozen=True)
class Mark:
    """Flips and accuracy of a model. Ours with a label are the frontier; `ring` and `bold` set one apart."""

    name: str
    flips: Span
    right: Span
    label: str = ""
    ring: bool = False
    bold: bool = False


def frontier_chart(title: str, marks: Sequence[Mark], ours: str, majority: float | None) -> str:
    """Accuracy over flips: our points joined in the order of flips, other methods as other marks.

    Crosses are intervals. A dashed line is the accuracy of always giving the most frequent answer.
    """
    left, right, top, height = 60, 12, 12, 210
    bottom = top + height
    names = list(dict.fromkeys(m.name for m in marks if m.name != ours))
    widest = round_up(max([1e-3, *(m.flips[2] for m in marks)]))
    ends = [v for m in marks for v in m.right] + ([] if majority is None else [majority])
    start, stop = math.floor(50 * min(ends)) / 50, math.ceil(50 * max(ends)) / 50
    if stop == start:
        stop += 0.02

    def x(value: float) -> float:
        return left + (WIDTH - left - right) * min(max(value, 0.0), widest) / widest

    def y(value: float) -> float:
        return bottom - height * (value - start) / (stop - start)

    parts = _frontier_axes(x, y, widest, (start, stop), (left, WIDTH - right, top, bottom))
    if majority is not None:
        told = f"always the most frequent answer: {percent(majority)}"
        parts.append(
            f'<path d="M{left} {y(majority):.1f}H{WIDTH - right}" class="chance"><title>{told}</title></path>'
            f'<text x="{WIDTH - right}" y="{y(majority) - 5:.1f}" text-anchor="end" class="soft">majority</text>'
        )
    own = sorted((m for m in marks if m.name == ours), key=lambda m: m.flips[0])
    track = " ".join(f"{x(m.flips[0]):.1f},{y(m.right[0]):.1f}" for m in own if m.label)
    parts.append(f'<polyline points="{track}" stroke="{SERIES[0]}" class="line"/>')
    for m in [*(m for m in marks if m.name != ours), *own]:
        number = names.index(m.name) + 1 if m.name != ours else 0
        parts.append(_cross(m, x, y, SERIES[number % len(SERIES)]))
        parts.append(_shape(m, number, x(m.flips[0]), y(m.right[0])))
    parts += _labels(own, x, y)
    legend, used = _shape_legend([ours, *names] if own else names, not own, bottom + 52)
    return drawing(title, bottom + 42 + used, "".join(parts) + legend)


def _frontier_axes(
    x: Place, y: Place, widest: float, span: tuple[float, float], box: tuple[float, float, float, float]
) -> list[str]:
    left, right, top, bottom = box
    (start, stop), parts = span, []
    for k in range(axis_steps(stop - start, True) + 1):
        at = start + (stop - start) * k / axis_steps(stop - start, True)
        parts.append(
            f'<path d="M{left} {y(at):.1f}H{right}" class="grid"/>'
            f'<text x="{left - 6}" y="{y(at) + 4:.1f}" text-anchor="end" class="soft">{100 * at:g} %</text>'
        )
    for k in range(5):
        at = widest * k / 4
        anchor = "middle" if k < 4 else "end"
        parts.append(
            f'<path d="M{x(at):.1f} {top}V{bottom}" class="grid"/>'
            f'<text x="{x(at):.1f}" y="{bottom + 16}" text-anchor="{anchor}" class="soft">{100 * at:.3g} %</text>'
        )
    middle = (left + right) / 2
    parts.append(
        f'<text x="{middle}" y="{bottom + 32}" text-anchor="middle" class="soft">decisions that flip (left is better)'
        f'</text><text transform="rotate(-90)" x="{-(top + bottom) / 2}" y="12" text-anchor="middle" class="soft">'
        "right decisions (up is better)</text>"
    )
    return parts


def _labels(own: Sequence[Mark], x: Place, y: Place) -> list[str]:
    """Lambdas beside our points, above on the left or below on the right: the bold one, others if there is room."""
    parts: list[str] = []
    above: list[float] = []
    below: list[float] = []
    for m in sorted(own, key=lambda m: not m.bold):
        at, up = x(m.flips[0]), y(m.right[0])
        lane = next((lane for lane in (above, below) if all(abs(at - o) >= NARROW for o in lane)), None)
        if lane is None or not m.label:
            continue
        lane.append(at)
        place = (at - 9, up - 8, "end") if lane is above and at > 2 * NARROW + 10 else (at + 8, up + 17, "start")
        parts.append(
            f'<text x="{place[0]:.1f}" y="{place[1]:.1f}" text-anchor="{place[2]}" '
            f'class="{"ours" if m.bold else "soft"}">λ {escape(m.label)}</text>'
        )
    return parts


def _cross(m: Mark, x: Place, y: Place, colour: str) -> str:
    """The intervals of a point, both ways."""
    (_, less, more), (_, low, high) = m.flips, m.right
    at, up = x(m.flips[0]), y(m.right[0])
    track = f"M{x(less):.1f} {up:.1f}H{x(more):.1f}M{at:.1f} {y(low):.1f}V{y(high):.1f}"
    return f'<path d="{track}" stroke="{colour}" class="error"/>'


def _shape(m: Mark, number: int, at: float, up: float) -> str:
    colour = SERIES[number % len(SERIES)]
    named = f"{m.name}, λ {m.label}" if m.label else m.name
    tip = escape(f"{named}: {percent(m.right[0])} right, {percent(m.flips[0])} flip")
    ring = f'<circle cx="{at:.1f}" cy="{up:.1f}" r="8" stroke="{colour}" class="ring"/>' if m.ring else ""
    if number == 0:
        body = f'<circle cx="{at:.1f}" cy="{up:.1f}" r="4.5" fill="{colour}">'
        return f"{ring}{body}<title>{tip}</title></circle>"
    outline = SHAPES[(number - 1) % len(SHAPES)]
    body = f'<path d="{outline}" transform="translate({at:.1f} {up:.1f})" fill="{colour}">'
    return f"{ring}{body}<title>{tip}</title></path>"


def _shape_legend(names: Sequence[str], skip_ours: bool, y: float) -> tuple[str, float]:
    """Names with their marks, one below the other, and the height they take."""
    parts = []
    for k, name in enumerate(names):
        down, number = y + 17 * k, k + skip_ours
        parts.append(_shape(Mark(name, (0.0,) * 3, (0.0,) * 3), number, 14, down - 4))
        parts.append(f'<text x="26" y="{down}" class="soft">{escape(name)}</text>')
    return "".join(parts), 17 * len(names) + 4
