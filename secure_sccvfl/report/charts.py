"""Pictures of a run's page as SVG text: no script, no network, colours from the page's own variables.

Every chart is 360 wide and scales; text takes the colour of the page, so it reads in light and in dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 360
SERIES = tuple(f"var(--c{k})" for k in range(1, 9))


@dataclass(frozen=True)
class Dot:
    """A value with its interval; `control` is what would be seen without the thing that is judged."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    ours: bool = False
    control: float | None = None


@dataclass(frozen=True)
class Line:
    """Points of one series, each with an optional interval."""

    name: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float]] = ()


def percent(value: float) -> str:
    """A share as people write it: more digits where it is small."""
    return f"{100 * value:.1f} %" if abs(value) < 0.9995 else f"{100 * value:.0f} %"


def number(value: float) -> str:
    return f"{value:.3f}"


def forest(
    title: str, dots: Sequence[Dot], share: bool = True, chance: float | None = None, start: float = 0.0
) -> str:
    """One row for each dot: its name and value above, the interval and the dot below."""
    show = percent if share else number
    ends = [v for d in dots for v in (d.value, d.high, d.control) if v is not None] + [chance or 0.0]
    stop = min(1.0, _round_up(max(ends) - start) + start) if share else _round_up(max(ends))
    left, right, row, top = 6, 8, 34, 8
    bottom = top + row * len(dots)

    def x(value: float) -> float:
        return left + (WIDTH - left - right) * (min(max(value, start), stop) - start) / (stop - start or 1.0)

    parts = []
    for k in range(5):
        at = start + (stop - start) * k / 4
        anchor = "start" if k == 0 else "end" if k == 4 else "middle"
        label = f"{100 * at:g} %" if share else f"{at:g}"
        parts.append(
            f'<path d="M{x(at):.1f} {top}V{bottom}" class="grid"/>'
            f'<text x="{x(at):.1f}" y="{bottom + 14}" text-anchor="{anchor}" class="soft">{label}</text>'
        )
    if chance is not None:
        parts.append(
            f'<path d="M{x(chance):.1f} {top}V{bottom}" class="chance"><title>chance {show(chance)}</title></path>'
        )
    for k, dot in enumerate(dots):
        y = top + row * k
        kind = "ours" if dot.ours else "other"
        interval = ""
        if dot.low is not None and dot.high is not None:
            interval = f" ({show(dot.low).removesuffix(' %')} to {show(dot.high)})"
            parts.append(f'<path d="M{x(dot.low):.1f} {y + 24}H{x(dot.high):.1f}" class="whisker {kind}"/>')
        if dot.control is not None:
            parts.append(
                f'<path d="M{x(dot.control):.1f} {y + 18}v12" class="control">'
                f"<title>control {show(dot.control)}</title></path>"
            )
        tip = escape(f"{dot.name}: {show(dot.value)}{interval}")
        parts.append(
            f'<text x="{left}" y="{y + 13}" class="{kind}">{escape(dot.name)}</text>'
            f'<text x="{WIDTH - right}" y="{y + 13}" text-anchor="end" class="{kind}">{show(dot.value)}'
            f'<tspan class="soft">{interval}</tspan></text>'
            f'<circle cx="{x(dot.value):.1f}" cy="{y + 24}" r="5" class="dot {kind}"><title>{tip}</title></circle>'
        )
    return _svg(title, bottom + 20, "".join(parts))


def curves(title: str, lines: Sequence[Line], below: str, chosen: float | None = None, share: bool = False) -> str:
    """Lines over positions that are evenly spaced, whatever their values, with a mark at the chosen one."""
    places = sorted({x for line in lines for x, _ in line.points})
    values = [y for line in lines for _, y in line.points] + [y for line in lines for pair in line.band for y in pair]
    stop = min(_round_up(max([*values, 1e-9])), 1.0 if share else math.inf)
    left, right, top, height = 44, 10, 12, 150
    bottom = top + height

    def x(place: float) -> float:
        return left + (WIDTH - left - right) * (places.index(place) + 0.5) / len(places)

    def y(value: float) -> float:
        return bottom - height * min(value, stop) / stop

    parts = []
    for k in range(5):
        at = stop * k / 4
        label = f"{100 * at:g} %" if share else f"{at:.3g}"
        parts.append(
            f'<path d="M{left} {y(at):.1f}H{WIDTH - right}" class="grid"/>'
            f'<text x="{left - 6}" y="{y(at) + 4:.1f}" text-anchor="end" class="soft">{label}</text>'
        )
    for place in places:
        weight = ' class="ours"' if place == chosen else ' class="soft"'
        parts.append(f'<text x="{x(place):.1f}" y="{bottom + 16}" text-anchor="middle"{weight}>{place:g}</text>')
    parts.append(
        f'<text x="{(left + WIDTH - right) / 2}" y="{bottom + 32}" text-anchor="middle" class="soft">'
        f"{escape(below)}</text>"
    )
    if chosen in places:
        parts.append(f'<path d="M{x(chosen):.1f} {top}V{bottom}" class="chosen"><title>chosen</title></path>')
    for k, line in enumerate(lines):
        colour = SERIES[k % len(SERIES)]
        track = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in line.points)
        for (a, _), (low, high) in zip(line.points, line.band, strict=False):
            parts.append(f'<path d="M{x(a):.1f} {y(low):.1f}V{y(high):.1f}" stroke="{colour}" class="error"/>')
        parts.append(f'<polyline points="{track}" stroke="{colour}" class="line"/>')
        show = percent if share else number
        parts += [
            f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="3.6" fill="{colour}"><title>{escape(line.name)} at {a:g}: '
            f"{show(b)}</title></circle>"
            for a, b in line.points
        ]
    legend, used = _legend([line.name for line in lines], bottom + 50) if len(lines) > 1 else ("", 0)
    return _svg(title, bottom + 40 + used, "".join(parts) + legend)


def sparkline(values: Sequence[float], top: float) -> str:
    """How a score moved from refresh to refresh."""
    if len(values) < 2 or top <= 0:
        return ""
    points = [(2 + 56 * k / (len(values) - 1), 17 - 14 * max(v, 0.0) / top) for k, v in enumerate(values)]
    track = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    told = ", ".join(f"{v:.2f}" for v in values)
    return (
        f'<svg viewBox="0 0 60 20" class="spark" role="img" aria-label="score by refresh: {told}">'
        f'<title>score by refresh: {told}</title><polyline points="{track}"/>'
        f'<circle cx="{points[-1][0]:.1f}" cy="{points[-1][1]:.1f}" r="2.2"/></svg>'
    )


def _legend(names: Sequence[str], y: float) -> tuple[str, float]:
    """Two columns of names with their colours, and the height they take."""
    parts = []
    for k, name in enumerate(names):
        at, down = 12 + (k % 2) * 174, y + 17 * (k // 2)
        parts.append(f'<circle cx="{at}" cy="{down - 4}" r="4" fill="{SERIES[k % len(SERIES)]}"/>')
        parts.append(f'<text x="{at + 9}" y="{down}" class="soft">{escape(name)}</text>')
    return "".join(parts), 17 * math.ceil(len(names) / 2) + 4


def _round_up(value: float) -> float:
    """The next of 1, 1.2, 1.6, 2, 3, 4, 6, 8 times a power of ten: quarters of them are short numbers."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(m * power for m in (1, 1.2, 1.6, 2, 3, 4, 6, 8, 10) if m * power >= value * (1 - 1e-9))


def _svg(title: str, height: float, body: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" class="chart" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{body}</svg>"
    )
