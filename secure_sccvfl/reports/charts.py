"""Pictures of a run's page as SVG text: no script, no network, colours from the page's own variables.

Every chart is 360 wide and scales. Text takes the colour of the page, so it is readable in light and in dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 360
LONG = {"ours": 25, "other": 30}  # letters of a name, bold or not, that leave room for a value
SERIES = tuple(f"var(--c{k})" for k in range(1, 9))
_LABEL = 5
"""How many characters of a number fit beside an axis without making room for it."""
_LETTER = 6.8
"""Width of a digit of a label, at most."""


@dataclass(frozen=True)
class Dot:
    """A value with its interval; `control` is the value without the thing that is judged."""

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
    """A share in the usual form: more digits where it is small."""
    return f"{tidy(100 * value, 1)} %" if abs(value) < 0.9995 else f"{100 * value:.0f} %"


def number(value: float) -> str:
    return tidy(value, 3)


def tidy(value: float, digits: int) -> str:
    """With so many digits; a small negative number is 0, not -0."""
    return f"{round(value, digits) + 0.0:.{digits}f}"


def forest(
    title: str, dots: Sequence[Dot], share: bool = True, chance: float | None = None, start: float = 0.0
) -> str:
    """One row for each dot: its name and value above (a long name on a line of its own), the interval below."""
    show = percent if share else number
    ends = [v for d in dots for v in (d.value, d.high, d.control) if v is not None] + [chance or 0.0]
    stop = min(1.0, round_up(max(ends) - start) + start) if share else round_up(max(ends))
    left, right, row, top = 6, 8, 34, 8
    long = [len(dot.name) > LONG["ours" if dot.ours else "other"] for dot in dots]
    bottom = top + row * len(dots) + 14 * sum(long)

    def x(value: float) -> float:
        return left + (WIDTH - left - right) * (min(max(value, start), stop) - start) / (stop - start or 1.0)

    parts = []
    steps = axis_steps(stop - start, share)
    for k in range(steps + 1):
        at = start + (stop - start) * k / steps
        anchor = "start" if k == 0 else "end" if k == steps else "middle"
        label = f"{100 * at:g} %" if share else f"{at:g}"
        parts.append(
            f'<path d="M{x(at):.1f} {top}V{bottom}" class="grid"/>'
            f'<text x="{x(at):.1f}" y="{bottom + 14}" text-anchor="{anchor}" class="soft">{label}</text>'
        )
    if chance is not None:
        parts.append(
            f'<path d="M{x(chance):.1f} {top}V{bottom}" class="chance"><title>chance {show(chance)}</title></path>'
        )
    y = top - row
    for dot, tall in zip(dots, long, strict=True):
        y += row
        kind = "ours" if dot.ours else "other"
        parts.append(f'<text x="{left}" y="{y + 13}" class="{kind}">{escape(dot.name)}</text>')
        y += 14 * tall
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
            f'<text x="{WIDTH - right}" y="{y + 13}" text-anchor="end" class="{kind}">{show(dot.value)}'
            f'<tspan class="soft">{interval}</tspan></text>'
            f'<circle cx="{x(dot.value):.1f}" cy="{y + 24}" r="5" class="dot {kind}"><title>{tip}</title></circle>'
        )
    return drawing(title, bottom + 20, "".join(parts))


def curves(
    title: str,
    lines: Sequence[Line],
    below: str,
    chosen: float | None = None,
    share: bool = False,
    chance: float | None = None,
) -> str:
    """Lines over evenly spaced positions, whatever their values, with a mark at the chosen one.

    With a chance level the axis starts near the lowest value; series stand side by side so that intervals show.
    """
    places = sorted({x for line in lines for x, _ in line.points})
    values = [y for line in lines for _, y in line.points] + [y for line in lines for pair in line.band for y in pair]
    start = math.floor(10 * min([*values, chance])) / 10 if chance else 0.0
    stop = min(start + round_up(max([*values, 1e-9]) - start), 1.0 if share else math.inf)
    steps = axis_steps(stop - start, share)
    marks = [start + (stop - start) * k / steps for k in range(steps + 1)]
    labels = [f"{100 * at:g} %" if share else f"{at:.3g}" for at in marks]
    left, right, top, height = max(44.0, 8 + _LETTER * max(map(len, labels))), 10, 12, 150
    bottom = top + height

    def x(place: float, series: float = (len(lines) - 1) / 2) -> float:
        aside = 5 * (series - (len(lines) - 1) / 2)
        return left + (WIDTH - left - right) * (places.index(place) + 0.5) / len(places) + aside

    def y(value: float) -> float:
        return bottom - height * (min(max(value, start), stop) - start) / (stop - start)

    parts = []
    for at, label in zip(marks, labels, strict=True):
        parts.append(
            f'<path d="M{left:g} {y(at):.1f}H{WIDTH - right}" class="grid"/>'
            f'<text x="{left - 6:g}" y="{y(at) + 4:.1f}" text-anchor="end" class="soft">{label}</text>'
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
    if chance:
        parts.append(
            f'<path d="M{left:g} {y(chance):.1f}H{WIDTH - right}" class="chance"><title>chance</title></path>'
        )
    for k, line in enumerate(lines):
        colour = SERIES[k % len(SERIES)]
        track = " ".join(f"{x(a, k):.1f},{y(b):.1f}" for a, b in line.points)
        for (a, _), (low, high) in zip(line.points, line.band, strict=False):
            parts.append(f'<path d="M{x(a, k):.1f} {y(low):.1f}V{y(high):.1f}" stroke="{colour}" class="error"/>')
        parts.append(f'<polyline points="{track}" stroke="{colour}" class="line"/>')
        show = percent if share else number
        parts += [
            f'<circle cx="{x(a, k):.1f}" cy="{y(b):.1f}" r="3.6" fill="{colour}"><title>'
            f"{escape(line.name)} at {a:g}: {show(b)}</title></circle>"
            for a, b in line.points
        ]
    legend, used = _legend([line.name for line in lines], bottom + 50) if len(lines) > 1 else ("", 0)
    return drawing(title, bottom + 40 + used, "".join(parts) + legend)


def before_after(title: str, pairs: Sequence[tuple[float, float]], what: str) -> str:
    """A point for each record: a share before and after. The diagonal means no change, the shade a flip."""
    left, top, side = 62, 10, 230

    def x(value: float) -> float:
        return left + side * value

    def y(value: float) -> float:
        return top + side * (1 - value)

    half = side / 2
    parts = [
        f'<rect x="{left}" y="{top}" width="{half}" height="{half}" class="flips"/>',
        f'<rect x="{left + half}" y="{top + half}" width="{half}" height="{half}" class="flips"/>',
        f'<path d="M{x(0)} {y(0)}L{x(1)} {y(1)}" class="chance"/>',
        f'<text x="{x(0.04)}" y="{y(0.93)}" class="soft">would flip</text>',
        f'<text x="{x(0.96)}" y="{y(0.03)}" text-anchor="end" class="soft">would flip</text>',
        f'<text x="{x(0.5)}" y="{top + side + 34}" text-anchor="middle" class="soft">{escape(what)} before</text>',
        f'<text transform="rotate(-90)" x="{-y(0.5)}" y="18" text-anchor="middle" class="soft">after</text>',
    ]
    for at in (0.0, 0.5, 1.0):
        parts.append(
            f'<path d="M{x(0)} {y(at)}H{x(1)}M{x(at)} {y(0)}V{y(1)}" class="grid"/>'
            f'<text x="{x(at)}" y="{y(0) + 16}" text-anchor="middle" class="soft">{100 * at:g} %</text>'
            f'<text x="{left - 6}" y="{y(at) + 4}" text-anchor="end" class="soft">{100 * at:g} %</text>'
        )
    parts += [
        f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="4.5" class="point{" flip" if (a > 0.5) != (b > 0.5) else ""}">'
        f"<title>{percent(a)} before, {percent(b)} after</title></circle>"
        for a, b in pairs
    ]
    return drawing(title, top + side + 42, "".join(parts))


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
    """Names with their colours, in two columns if they are short, and the height they take."""
    parts = []
    columns = 1 if max(map(len, names)) > 24 else 2
    for k, name in enumerate(names):
        at, down = 12 + (k % columns) * 174, y + 17 * (k // columns)
        parts.append(f'<circle cx="{at}" cy="{down - 4}" r="4" fill="{SERIES[k % len(SERIES)]}"/>')
        parts.append(f'<text x="{at + 9}" y="{down}" class="soft">{escape(name)}</text>')
    return "".join(parts), 17 * math.ceil(len(names) / columns) + 4


def round_up(value: float) -> float:
    """The next of 1, 1.2, 1.6, 2, 3, 4, 6, 8 times a power of ten: quarters of them are short numbers."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(m * power for m in (1, 1.2, 1.6, 2, 3, 4, 6, 8, 10) if m * power >= value * (1 - 1e-9))


def axis_steps(span: float, share: bool) -> int:
    """The number of steps of an axis: shares fall on whole percents, and other labels are short, where possible."""

    def fits(n: int) -> bool:
        return abs(100 * span / n - round(100 * span / n)) < 1e-6 if share else len(f"{span / n:.3g}") <= _LABEL

    return next((n for n in (4, 3, 5) if fits(n)), 4)


def drawing(title: str, height: float, body: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" class="chart" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{body}</svg>"
    )


@dataclass(frozen=True)
class Ranked:
    """A column with its role, noisy score if it has a table, mutual information, and what chance gives (95 %)."""

    name: str
    role: str
    score: float | None
    information: float
    chance: float


def ranked_chart(title: str, rows: Sequence[Ranked]) -> str:
    """A bar for the score, in the colour of the role; below it a thin one for the information, with a mark at chance.

    Each has its own scale, since the two have different units.
    """
    left, right, row = 6, 8, 34
    top_score = round_up(max([1e-9, *(r.score or 0.0 for r in rows)]))
    top_information = round_up(max([1e-9, *(max(r.information, r.chance) for r in rows)]))
    wide = WIDTH - left - right

    def bar(value: float, top: float) -> float:
        return wide * min(max(value, 0.0), top) / top

    parts = []
    for k, r in enumerate(rows):
        y, score = 4 + k * row, r.score or 0.0
        told = f"{'no table' if r.score is None else f'score {tidy(r.score, 2)}'}, MI {tidy(r.information, 3)}"
        tip = escape(f"{r.name}: {told} nats; by chance up to {tidy(r.chance, 3)}")
        at = left + bar(r.chance, top_information)
        parts.append(
            f'<text x="{left}" y="{y + 12}">{escape(r.name)} <tspan class="soft">({r.role})</tspan></text>'
            f'<text x="{WIDTH - right}" y="{y + 12}" text-anchor="end" class="soft">{told}</text>'
            f'<rect x="{left}" y="{y + 16}" width="{bar(score, top_score):.1f}" height="6" class="role {r.role}">'
            f"<title>{tip}</title></rect>"
            f'<rect x="{left}" y="{y + 23}" width="{bar(r.information, top_information):.1f}" height="4" '
            f'class="information"><title>{tip}</title></rect>'
            f'<path d="M{at:.1f} {y + 21}v8" class="control"><title>{tip}</title></path>'
        )
    return drawing(title, 4 + row * len(rows), "".join(parts))


def scatter(title: str, points: Sequence[Sequence[float]], groups: Sequence[int], names: Sequence[str]) -> str:
    """A point for each record on two components, coloured and shaped by group; the smaller group is on top."""
    side_x, side_y, edge = WIDTH - 20, 220, 10
    columns = [[p[axis] for p in points] for axis in (0, 1)]
    ends = [(min(c), max(c)) for c in columns]

    def place(value: float, axis: int) -> float:
        low, high = ends[axis]
        share = (value - low) / (high - low) if high > low else 0.5
        return edge + side_x * share if axis == 0 else edge + side_y * (1 - share)

    counts = {g: list(groups).count(g) for g in set(groups)}
    parts = [f'<rect x="4" y="4" width="{WIDTH - 8}" height="{side_y + 12}" rx="6" class="frame"/>']
    for (a, b), group in sorted(zip(points, groups, strict=True), key=lambda pair: -counts[pair[1]]):
        x, y, colour = place(a, 0), place(b, 1), SERIES[group % len(SERIES)]
        mark = (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"'
            if group % 2 == 0
            else f'<rect x="{x - 2.6:.1f}" y="{y - 2.6:.1f}" width="5.2" height="5.2"'
        )
        parts.append(f'{mark} fill="{colour}" class="record"/>')
    for k, name in enumerate(names):
        y, colour = side_y + 34 + 17 * k, SERIES[k % len(SERIES)]
        mark = (
            f'<circle cx="12" cy="{y - 4}" r="4"' if k % 2 == 0 else f'<rect x="8.5" y="{y - 8}" width="7" height="7"'
        )
        parts.append(
            f'{mark} fill="{colour}"/><text x="22" y="{y}" class="soft">{escape(name)} ({counts.get(k, 0)})</text>'
        )
    return drawing(title, side_y + 24 + 17 * len(names), "".join(parts))
