"""Charts of the HTML pages as SVG text: no script, no network, readable on a phone, in light and in dark.

Every chart is 360 wide and scales. Colours and fonts come from classes in `templates/charts.css`, which each page
includes (`STYLE`); series use its variables --c1 to --c8.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

WIDTH = 360
STYLE = (Path(__file__).parent / "templates" / "charts.css").read_text(encoding="utf-8")
SERIES = tuple(f"var(--c{k})" for k in range(1, 9))
LONG = {"ours": 25, "other": 30}  # letters of a name, bold or not, that leave room for a value
_LABEL = 5
"""How many characters of a number fit next to an axis without making room for it."""
_LETTER = 6.8
"""Width of a digit of a label, at most."""
_DOT = "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z"
SHAPES = (_DOT, "M-4 -4h8v8h-8z", "M0 -5L5 4H-5z", "M0 -5L5 0L0 5L-5 0z", "M-5 -3h10v6h-10z", "M0 5L5 -4H-5z")
"""Outlines of the marks of a frontier: ours is a dot, other methods have a square, triangles, a diamond and a bar."""
Interval = tuple[float, float, float]
"""Mean, and the ends of its interval."""


def percent(value: float) -> str:
    """A share in the usual form: more digits where it is small."""
    return f"{tidy(100 * value, 1)} %" if abs(value) < 0.9995 else f"{100 * value:.0f} %"


def number(value: float) -> str:
    return tidy(value, 3)


def tidy(value: float, digits: int) -> str:
    """With so many digits; a small negative number is 0, not -0."""
    return f"{round(value, digits) + 0.0:.{digits}f}"


@dataclass(frozen=True)
class Dot:
    """A value with its interval; `control` is the value without the thing that is measured."""

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


@dataclass(frozen=True)
class Mark:
    """Flip rate and accuracy of a model. Ours with a label form the frontier; `ring` and `bold` highlight one."""

    name: str
    flips: Interval
    right: Interval
    label: str = ""
    ring: bool = False
    bold: bool = False


@dataclass(frozen=True)
class Axes:
    """A plot area: from values between two ends to positions in the picture."""

    across: tuple[float, float]
    up: tuple[float, float]
    left: float
    height: float = 150
    right: float = WIDTH - 10
    top: float = 12

    @property
    def bottom(self) -> float:
        return self.top + self.height

    def x(self, value: float) -> float:
        low, high = self.across
        return self.left + (self.right - self.left) * (min(max(value, low), high) - low) / (high - low or 1.0)

    def y(self, value: float) -> float:
        low, high = self.up
        return self.bottom - self.height * (min(max(value, low), high) - low) / (high - low or 1.0)

    def row(self, value: float, label: str) -> str:
        """A grid line across, with its label on the left."""
        at = self.y(value)
        return (
            f'<path d="M{self.left:g} {at:.1f}H{self.right:g}" class="grid"/>'
            f'<text x="{self.left - 6:g}" y="{at + 4:.1f}" text-anchor="end" class="soft">{label}</text>'
        )

    def column(self, value: float, label: str, anchor: str = "middle") -> str:
        """A grid line upwards, with its label below."""
        return f'<path d="M{self.x(value):.1f} {self.top:g}V{self.bottom:g}" class="grid"/>' + self.below(
            value, label, 16, anchor=anchor
        )

    def below(self, value: float, label: str, down: float, kind: str = "soft", anchor: str = "middle") -> str:
        at, height = f"{self.x(value):.1f}", f"{self.bottom + down:g}"
        return f'<text x="{at}" y="{height}" text-anchor="{anchor}" class="{kind}">{escape(label)}</text>'

    def titles(self, below: str, left_title: str = "", aside: float = 12) -> str:
        """The name of each axis."""
        text = self.below((self.across[0] + self.across[1]) / 2, below, 32)
        if left_title:
            text += (
                f'<text transform="rotate(-90)" x="{-(self.top + self.bottom) / 2:g}" y="{aside:g}" '
                f'text-anchor="middle" class="soft">{escape(left_title)}</text>'
            )
        return text

    def level(self, value: float, title: str) -> str:
        """A dashed line across."""
        path = f"M{self.left:g} {self.y(value):.1f}H{self.right:g}"
        return f'<path d="{path}" class="chance"><title>{escape(title)}</title></path>'


def forest(
    title: str, dots: Sequence[Dot], share: bool = True, chance: float | None = None, start: float = 0.0
) -> str:
    """One row for each dot: its name and value above (a long name on its own line), the interval below."""
    show = percent if share else number
    ends = [v for d in dots for v in (d.value, d.high, d.control) if v is not None] + [chance or 0.0]
    stop = min(1.0, round_up(max(ends) - start) + start) if share else round_up(max(ends))
    tall = [len(dot.name) > LONG["ours" if dot.ours else "other"] for dot in dots]
    axes = Axes((start, stop), (0, 1), 6, 34 * len(dots) + 14 * sum(tall), WIDTH - 8, 8)
    marks = _marks(start, stop, share)
    anchors = ["start", *["middle"] * (len(marks) - 2), "end"]
    parts = [axes.column(at, _axis_label(at, share), anchor) for at, anchor in zip(marks, anchors, strict=True)]
    if chance is not None:
        path = f"M{axes.x(chance):.1f} {axes.top:g}V{axes.bottom:g}"
        parts.append(f'<path d="{path}" class="chance"><title>chance {show(chance)}</title></path>')
    y = axes.top - 34
    for dot, long in zip(dots, tall, strict=True):
        y += 34
        kind = "ours" if dot.ours else "other"
        parts.append(f'<text x="{axes.left}" y="{y + 13:g}" class="{kind}">{escape(dot.name)}</text>')
        y += 14 * long
        interval = ""
        if dot.low is not None and dot.high is not None:
            interval = f" ({show(dot.low).removesuffix(' %')} to {show(dot.high)})"
            parts.append(
                f'<path d="M{axes.x(dot.low):.1f} {y + 24:g}H{axes.x(dot.high):.1f}" class="whisker {kind}"/>'
            )
        if dot.control is not None:
            path = f"M{axes.x(dot.control):.1f} {y + 18:g}v12"
            parts.append(f'<path d="{path}" class="control"><title>control {show(dot.control)}</title></path>')
        tip = escape(f"{dot.name}: {show(dot.value)}{interval}")
        parts.append(
            f'<text x="{axes.right}" y="{y + 13:g}" text-anchor="end" class="{kind}">{show(dot.value)}'
            f'<tspan class="soft">{interval}</tspan></text>'
            f'<circle cx="{axes.x(dot.value):.1f}" cy="{y + 24:g}" r="5" class="dot {kind}">'
            f"<title>{tip}</title></circle>"
        )
    return drawing(title, axes.bottom + 22, parts)


def curves(
    title: str,
    lines: Sequence[Line],
    below: str,
    chosen: float | None = None,
    share: bool = False,
    level: tuple[float, str] | None = None,
    near: bool = False,
) -> str:
    """Lines over evenly spaced positions, whatever their values, with a mark at the chosen one.

    level: a value with its name, drawn across. near: start the axis near the lowest value instead of 0. Series stand
    side by side so that intervals show.
    """
    ticks = sorted({x for line in lines for x, _ in line.points})
    values = [y for line in lines for _, y in line.points] + [y for line in lines for pair in line.band for y in pair]
    values += [level[0]] if level else []
    start = math.floor(10 * min(values)) / 10 if near else 0.0
    stop = min(start + round_up(max([*values, 1e-9]) - start), 1.0 if share else math.inf)
    marks = _marks(start, stop, share)
    labels = [_axis_label(at, share) for at in marks]
    left = max(44.0, 8 + _LETTER * max(map(len, labels)))
    axes = Axes((0, max(1, len(ticks))), (start, stop), left)
    index = {tick: n + 0.5 for n, tick in enumerate(ticks)}

    def x(tick: float, series: int) -> float:
        return axes.x(index[tick]) + 5 * (series - (len(lines) - 1) / 2)

    parts = [axes.row(at, label) for at, label in zip(marks, labels, strict=True)]
    parts += [
        axes.below(index[tick], f"{tick:g}", 16, "ours" if tick == chosen else "soft")
        for tick in ticks[:: max(1, len(ticks) // 8)]
    ]
    parts.append(axes.titles(below))
    if chosen is not None and chosen in index:
        at = axes.x(index[chosen])
        parts.append(f'<path d="M{at:.1f} {axes.top:g}V{axes.bottom:g}" class="chosen"><title>chosen</title></path>')
    if level is not None:
        parts.append(axes.level(*level))
    show = percent if share else number
    for k, line in enumerate(lines):
        colour = SERIES[k % len(SERIES)]
        for (a, _), (low, high) in zip(line.points, line.band, strict=False):
            path = f"M{x(a, k):.1f} {axes.y(low):.1f}V{axes.y(high):.1f}"
            parts.append(f'<path d="{path}" stroke="{colour}" class="error"/>')
        track = " ".join(f"{x(a, k):.1f},{axes.y(b):.1f}" for a, b in line.points)
        parts.append(f'<polyline points="{track}" stroke="{colour}" class="line"/>')
        parts += [
            f'<circle cx="{x(a, k):.1f}" cy="{axes.y(b):.1f}" r="3.6" fill="{colour}"><title>'
            f"{escape(line.name)} at {a:g}: {show(b)}</title></circle>"
            for a, b in line.points
        ]
    used = 0
    if len(lines) > 1:
        shapes = [(_shape(_DOT, SERIES[k % len(SERIES)]), line.name) for k, line in enumerate(lines)]
        legend, used = _legend(shapes, axes.bottom + 50, 1 if max(len(line.name) for line in lines) > 24 else 2)
        parts.append(legend)
    return drawing(title, axes.bottom + 40 + used, parts)


def scores_before_after(title: str, pairs: Sequence[Sequence[float]], what: str) -> str:
    """A point for each record: a share before and after. The diagonal means no change, the shade a flip."""
    axes = Axes((0, 1), (0, 1), 62, 230, 292, 10)
    half = axes.height / 2
    parts = [
        f'<rect x="{axes.left}" y="{axes.top}" width="{half}" height="{half}" class="flips"/>',
        f'<rect x="{axes.left + half}" y="{axes.top + half}" width="{half}" height="{half}" class="flips"/>',
        f'<path d="M{axes.x(0)} {axes.y(0)}L{axes.x(1)} {axes.y(1)}" class="chance"/>',
        f'<text x="{axes.x(0.04)}" y="{axes.y(0.93)}" class="soft">would flip</text>',
        f'<text x="{axes.x(0.96)}" y="{axes.y(0.03)}" text-anchor="end" class="soft">would flip</text>',
        axes.titles(f"{what} before", "after", 18),
    ]
    parts += [
        text
        for at in (0.0, 0.5, 1.0)
        for text in (axes.row(at, f"{100 * at:g} %"), axes.column(at, f"{100 * at:g} %"))
    ]
    parts += [
        f'<circle cx="{axes.x(a):.1f}" cy="{axes.y(b):.1f}" r="4.5" class="{kind}">'
        f"<title>{percent(a)} before, {percent(b)} after</title></circle>"
        for a, b in pairs
        for kind in ["point flip" if (a > 0.5) != (b > 0.5) else "point"]
    ]
    return drawing(title, axes.bottom + 42, parts)


def frontier_chart(title: str, marks: Sequence[Mark], ours: str, majority: float | None) -> str:
    """Accuracy over flip rate: our points joined in the order of flip rate, other methods as other marks.

    Crosses are intervals. A dashed line is the accuracy of always giving the most frequent answer.
    """
    names = [ours, *dict.fromkeys(m.name for m in marks if m.name != ours)]
    widest = round_up(max([1e-3, *(m.flips[2] for m in marks)]))
    ends = [v for m in marks for v in m.right] + ([] if majority is None else [majority])
    start, stop = math.floor(50 * min(ends)) / 50, math.ceil(50 * max(ends)) / 50
    axes = Axes((0.0, widest), (start, stop if stop > start else start + 0.02), 60, 210, WIDTH - 12)
    parts = [axes.row(at, f"{100 * at:g} %") for at in _marks(*axes.up, True)]
    parts += [
        axes.column(widest * k / 4, f"{25 * widest * k:.3g} %", "end" if k == 4 else "middle") for k in range(5)
    ]
    parts.append(axes.titles("flip rate (left is better)", "correct decisions (up is better)"))
    if majority is not None:
        parts.append(axes.level(majority, f"always the most frequent answer: {percent(majority)}"))
        height = axes.y(majority) - 5
        parts.append(f'<text x="{axes.right:g}" y="{height:.1f}" text-anchor="end" class="soft">majority</text>')
    frontier = sorted((m for m in marks if m.name == ours), key=lambda m: m.flips[0])
    track = " ".join(f"{axes.x(m.flips[0]):.1f},{axes.y(m.right[0]):.1f}" for m in frontier if m.label)
    parts.append(f'<polyline points="{track}" stroke="{SERIES[0]}" class="line"/>')
    for m in [*(m for m in marks if m.name != ours), *frontier]:
        k = names.index(m.name)
        colour, at, up = SERIES[k % len(SERIES)], axes.x(m.flips[0]), axes.y(m.right[0])
        path = f"M{axes.x(m.flips[1]):.1f} {up:.1f}H{axes.x(m.flips[2]):.1f}"
        path += f"M{at:.1f} {axes.y(m.right[1]):.1f}V{axes.y(m.right[2]):.1f}"
        parts.append(f'<path d="{path}" stroke="{colour}" class="error"/>')
        if m.ring:
            parts.append(f'<circle cx="{at:.1f}" cy="{up:.1f}" r="8" stroke="{colour}" class="ring"/>')
        named = f"{m.name}, λ {m.label}" if m.label else m.name
        tip = f"{named}: {percent(m.right[0])} right, {percent(m.flips[0])} flip"
        parts.append(_shape(_outline(k), colour, at, up, tip))
    parts += _lambda_labels(frontier, marks, axes)
    shown = [(k, name) for k, name in enumerate(names) if frontier or k]
    shapes = [(_shape(_outline(k), SERIES[k % len(SERIES)]), name) for k, name in shown]
    legend, used = _legend(shapes, axes.bottom + 52, 1)
    return drawing(title, axes.bottom + 42 + used, [*parts, legend])


def _outline(k: int) -> str:
    return SHAPES[0] if k == 0 else SHAPES[1 + (k - 1) % (len(SHAPES) - 1)]


def _lambda_labels(points: Sequence[Mark], marks: Sequence[Mark], axes: Axes) -> list[str]:
    """Lambdas next to our points where they cover no mark and no other label: the bold one, then from both ends."""
    taken = [(axes.x(m.flips[0]) - 5, axes.y(m.right[0]) - 5, 10.0, 10.0) for m in marks]
    parts: list[str] = []
    ends = [m for pair in zip(points, reversed(points), strict=True) for m in pair][: len(points)]
    for m in sorted(dict.fromkeys(m for m in ends if m.label), key=lambda m: not m.bold):
        at, up, wide = axes.x(m.flips[0]), axes.y(m.right[0]), _LETTER * (len(m.label) + 2)
        for x, y in (
            (x, up + y) for y in ((17, -8, 31, -22, 45) if m.bold else (17, -8)) for x in (at + 8, at - 8 - wide)
        ):
            box = (x, y - 10, wide, 12.0)
            if x < axes.left or x + wide > axes.right or y > axes.bottom or any(_overlap(box, o) for o in taken):
                continue
            taken.append(box)
            kind = "ours" if m.bold else "soft"
            parts.append(f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">λ {escape(m.label)}</text>')
            break
    return parts


def _overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether two boxes (left, top, width, height) share a point."""
    return all(
        a < b + d and b < a + c for a, b, c, d in ((one[k], other[k], one[k + 2], other[k + 2]) for k in (0, 1))
    )


def sparkline(values: Sequence[float], top: float) -> str:
    """How a score changed from release to release."""
    if len(values) < 2 or top <= 0:
        return ""
    points = [(2 + 56 * k / (len(values) - 1), 17 - 14 * max(v, 0.0) / top) for k, v in enumerate(values)]
    track = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    text = f"score by release: {', '.join(f'{v:.2f}' for v in values)}"
    return (
        f'<svg viewBox="0 0 60 20" class="spark" role="img" aria-label="{text}">'
        f'<title>{text}</title><polyline points="{track}"/>'
        f'<circle cx="{points[-1][0]:.1f}" cy="{points[-1][1]:.1f}" r="2.2"/></svg>'
    )


def running_chart(budget: Mapping[str, Any]) -> str:
    """Epsilon after each release, by Rényi accounting and by privacy loss distributions, against the cap."""
    lines = [
        Line(name, [(n, release[key]) for n, release in enumerate(budget["releases"], 1)])
        for name, key in (("Rényi (decides)", "epsilon_after"), ("tight (PLD)", "epsilon_pld_after"))
    ]
    level = (budget["cap"], f"cap {budget['cap']:g}")
    return curves("Epsilon after each release, against the cap (dashed)", lines, "release", level=level)


def drawing(title: str, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" class="chart" role="img" '
        f'aria-label="{escape(title)}"><title>{escape(title)}</title>{"".join(parts)}</svg>'
    )


def round_up(value: float) -> float:
    """The next of 1, 1.2, 1.6, 2, 3, 4, 6, 8 times a power of ten: quarters of them are short numbers."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(m * power for m in (1, 1.2, 1.6, 2, 3, 4, 6, 8, 10) if m * power >= value * (1 - 1e-9))


def _marks(start: float, stop: float, share: bool) -> list[float]:
    """Values of an axis: shares fall on whole percents, and other labels are short, where possible."""
    span = stop - start

    def fits(n: int) -> bool:
        return abs(100 * span / n - round(100 * span / n)) < 1e-6 if share else len(f"{span / n:.3g}") <= _LABEL

    steps = next((n for n in (4, 3, 5) if fits(n)), 4)
    return [start + span * k / steps for k in range(steps + 1)]


def _axis_label(value: float, share: bool) -> str:
    return f"{100 * value:g} %" if share else f"{value:.3g}"


def _shape(outline: str, colour: str, x: float = 0.0, y: float = 0.0, tip: str = "") -> str:
    title = f"<title>{escape(tip)}</title>" if tip else ""
    return f'<path d="{outline}" transform="translate({x:.1f} {y:.1f})" fill="{colour}">{title}</path>'


def _legend(shapes: Sequence[tuple[str, str]], y: float, columns: int) -> tuple[str, int]:
    """Marks with their names, in one or two columns, and the height they take."""
    parts = []
    for k, (shape, name) in enumerate(shapes):
        x, down = 14 + (k % columns) * 174, y + 17 * (k // columns)
        parts.append(shape.replace("translate(0.0 0.0)", f"translate({x:.1f} {down - 4:.1f})"))
        parts.append(f'<text x="{x + 11}" y="{down:g}" class="soft">{escape(name)}</text>')
    return "".join(parts), 17 * math.ceil(len(shapes) / columns) + 4
