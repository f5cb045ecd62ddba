"""Plots of a privacy report as SVG text: one file, no script, readable on a phone, in light and in dark.

Axes and letters take the colour of the page's text. Series use the page's --renyi, --pld and --cap colours where it
has them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

WIDTH, HEIGHT = 360, 210
LEFT, RIGHT, TOP, BOTTOM = 38, 8, 12, 34
RENYI, PLD, CAP = "var(--renyi, #2a78d6)", "var(--pld, #d9822b)", "var(--cap, #c23b3b)"
Report = dict[str, Any]


def cost_plot(report: Report) -> str:
    """What each release added to epsilon."""
    costs = [release["cost"] for release in report["releases"]]
    frame = _Frame(max(costs, default=1.0), len(costs))
    bars = "".join(
        f'<rect x="{frame.x(i) - frame.bar / 2:.1f}" y="{frame.y(cost):.1f}" width="{frame.bar:.1f}" '
        f'height="{frame.y(0) - frame.y(cost):.1f}" rx="1.5" fill="{RENYI}"><title>{escape(release["name"])}: '
        f"{cost:.3f}</title></rect>"
        for i, (cost, release) in enumerate(zip(costs, report["releases"], strict=True))
    )
    return _svg("What each release added to epsilon (Rényi)", frame.axes(_labels(report)) + bars)


def running_plot(report: Report) -> str:
    """Epsilon after each release, by Rényi and by loss distributions, against the cap."""
    releases, cap = report["releases"], report["cap"]
    frame = _Frame(max([cap, *(r["epsilon_after"] for r in releases)]), len(releases))
    lines = _line(frame, [r["epsilon_after"] for r in releases], RENYI)
    lines += _line(frame, [r["epsilon_pld_after"] for r in releases], PLD)
    limit = frame.y(cap)
    lines += (
        f'<path d="M{LEFT} {limit:.1f}H{WIDTH - RIGHT}" stroke="{CAP}" stroke-width="1.5" stroke-dasharray="5 4"/>'
    )
    keys = [("Rényi (decides)", RENYI), ("tight (PLD)", PLD), (f"cap {cap:g}", CAP)]
    return _svg("Epsilon after each release, against the cap", frame.axes(_labels(report)) + lines + _legend(keys))


def left_plot(report: Report) -> str:
    """How much of the cap is spent and how much is left."""
    spent = min(1.0, report["epsilon_rdp"] / report["cap"])
    wide = WIDTH - 2 * RIGHT
    left = f"left {report['remaining']:.3f} of {report['cap']:g}"
    body = (
        f'<rect x="{RIGHT}" y="26" width="{wide}" height="22" rx="4" fill="currentColor" fill-opacity=".12"/>'
        f'<rect x="{RIGHT}" y="26" width="{wide * spent:.1f}" height="22" rx="4" fill="{RENYI}"/>'
        f'<text x="{RIGHT}" y="18">spent {report["epsilon_rdp"]:.3f}</text>'
        f'<text x="{WIDTH - RIGHT}" y="18" text-anchor="end">{left}</text>'
    )
    return _svg("How much of the cap is spent", body, height=56)


class _Frame:
    """Where values and releases lie in the picture."""

    def __init__(self, highest: float, count: int) -> None:
        self.step = _round_step(highest / 4)
        self.top = self.step * max(1, math.ceil(highest / self.step - 1e-9))
        self.pitch = (WIDTH - LEFT - RIGHT) / max(1, count)
        self.bar = min(36.0, 0.7 * self.pitch)

    def x(self, i: int) -> float:
        return LEFT + self.pitch * (i + 0.5)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / self.top

    def axes(self, labels: Sequence[str]) -> str:
        parts = []
        for k in range(round(self.top / self.step) + 1):
            value = k * self.step
            parts.append(
                f'<path d="M{LEFT} {self.y(value):.1f}H{WIDTH - RIGHT}" stroke="currentColor" stroke-opacity=".18"/>'
                f'<text x="{LEFT - 5}" y="{self.y(value) + 4:.1f}" text-anchor="end">{value:g}</text>'
            )
        every = max(1, math.ceil(len(labels) * 44 / (WIDTH - LEFT - RIGHT)))
        below = f'y="{HEIGHT - BOTTOM + 14}" text-anchor="middle"'
        for i in range(0, len(labels), every):
            parts.append(f'<text x="{self.x(i):.1f}" {below}>{escape(labels[i])}</text>')
        return "".join(parts)


def _round_step(rough: float) -> float:
    """1, 2 or 5 times a power of ten, at least `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))


def _labels(report: Report) -> list[str]:
    names = [release["name"] for release in report["releases"]]
    return names if all(len(name) <= 8 for name in names) else [str(i + 1) for i in range(len(names))]


def _line(frame: _Frame, values: Sequence[float], colour: str) -> str:
    points = [(frame.x(i), frame.y(value)) for i, value in enumerate(values)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{colour}"/>' for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>{dots}'


def _legend(keys: Sequence[tuple[str, str]]) -> str:
    parts = []
    for i, (name, colour) in enumerate(keys):
        x = LEFT + i * 112
        parts.append(f'<rect x="{x}" y="{HEIGHT - 11}" width="10" height="4" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14}" y="{HEIGHT - 5}">{escape(name)}</text>')
    return "".join(parts)


def _svg(title: str, body: str, height: int = HEIGHT) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}" style="width:100%;max-width:40rem;height:auto" fill="currentColor" '
        f'font-family="system-ui, sans-serif" font-size="11"><title>{escape(title)}</title>{body}</svg>'
    )
