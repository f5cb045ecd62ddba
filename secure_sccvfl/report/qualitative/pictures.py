"""Pictures of roles and of representations as SVG text, in the style of `report.charts`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from secure_sccvfl.report.charts import SERIES, WIDTH, drawing, round_up, tidy


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
