"""The paper's mechanism, priced as what it is: all features and all refreshes together.

The paper scales a table of counts c to c * min(1, S / |c|) and adds noise of deviation sigma * S. Its Proposition 1
gives epsilon = sqrt(2 ln(1.25 / delta)) / sigma for one table and one release. This formula holds below epsilon = 1
only.

How far one record moves a scaled table. A record adds a vector u of zeros and ones, a of them ones (one per
protected attribute whose counts are in the table), so c' = c + u with |u| = sqrt(a). Then the scaled tables are at
most min(sqrt(a), S) apart:
  - Scaling is the projection onto a ball, which brings no two points further apart: at most sqrt(a).
  - If c = 0, they are min(sqrt(a), S) apart. Otherwise every attribute has a count, so |c|^2 >= a; with
    p = |c|^2 and q = c.u >= 0, cos^2 of the angle is (p + q)^2 / (p (p + 2q + a)) >= p / (p + a) >= 1/2. The
    angle is at most 45 degrees and norms only grow from c to c'. Both outside the ball: the chord is at most
    2 S sin(22.5 deg) < S. c inside, c' outside: |c|^2 + S^2 - 2 |c| S cos <= S^2 since |c| <= S <= 2 S cos.
    Both inside: the distance is sqrt(a) = |u| <= |c'| <= S.
An empty data set reaches the bound. Over d features it is sqrt(d) min(sqrt(a), S), which is at most the joint
sensitivity sqrt(d a) of the unscaled tables times min(1, S): `scaled_sensitivity`. So the scaling saves nothing in
privacy (noise and sensitivity shrink equally for S <= 1) while the counts are divided by |c| / S.

Replacing a record moves a scaled table by at most sqrt(2) min(sqrt(a), S): the projection brings the sqrt(2a) of
the counts no further apart, and two tables without a negative entry in a ball of radius S are at most sqrt(2) S
apart. So scaled tables have the sensitivity of counts too. The paper's statement is compared with the price of an
added record.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from secure_sccvfl.accounting.accountant import tight_epsilon
from secure_sccvfl.accounting.calibration import check_target
from secure_sccvfl.accounting.events import Event, Sensitivity


def proposition_1(sigma: float, delta: float) -> float:
    """The epsilon that the paper states for one table and one release."""
    return math.sqrt(2 * math.log(1.25 / delta)) / sigma


def scaled_sensitivity(joint: float, scale: float) -> float:
    """Joint sensitivity of tables after each is scaled to norm `scale` at most; `joint` is the one before."""
    if not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"the norm to scale to must be finite and positive, got {scale}")
    return joint * min(1.0, scale)


def clipped(joint: float, scale: float, distance: float, unit: float) -> Sensitivity:
    """The same for tables that are scaled in fixed point: each release is off by `distance` (joint l2 norm) at most.

    So two neighbours are that much further apart, twice. `unit`: the grid of the scaled tables.
    """
    exact = Sensitivity.of_counts(scaled_sensitivity(joint, scale))
    return Sensitivity(exact.replaced + 2 * distance, exact.added + 2 * distance, unit)


def paper_event(
    name: str, tables: int, sigma: float, records: str, scale: float = 1.0, refresh: int = 0, count: int = 1
) -> Event:
    """One release of the paper's noisy tables: this many tables at once, with noise sigma * scale on each count."""
    moved = Sensitivity.of_counts(scaled_sensitivity(math.sqrt(tables), scale))
    return Event(name, moved.replaced, sigma * scale, records, refresh, count, mechanism="paper", added=moved.added)


@dataclass(frozen=True)
class Claim:
    """The paper's epsilon next to the tight one: for one table, and for all tables and releases."""

    sigma: float
    stated: float
    one_table: float
    everything: float

    @property
    def too_small(self) -> bool:
        """Whether the paper's epsilon is wrong even for the single table that it is about."""
        return self.stated < self.one_table


def claim(sigma: float, delta: float, tables: int, releases: int) -> Claim:
    """What the paper states at this sigma (S = 1), what holds for one table, and for all that it releases."""
    check_target(1.0, delta)

    def tight(tables: int, releases: int) -> float:
        return tight_epsilon([paper_event("sketch", tables, sigma, "any", count=releases)], delta, "added")

    return Claim(sigma, proposition_1(sigma, delta), tight(1, 1), tight(tables, releases))
