"""Plan one budget for tables and private heads: how much noise each gets, and the ridge of the head."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from accounting.accountant import Lines, Price, price_of, renyi
from accounting.calibration import UPWARDS, Coarse, Sampled, TargetError, check_target
from accounting.events import OBJECTIVE, Event, Mechanism

LEAST_MU, MOST_MU = 2.0**-20, 2.0**10
"""The least and the most mu of everything together, for any budget."""


@dataclass(frozen=True)
class HeadBudget:
    """Noise of every release of a run with private heads. All multipliers are of hidden noise (`Event.multiplier`).

    table_multiplier: deviation over sensitivity of a table release. head_multiplier: deviation of a head's noise
    vector over 2 c R. output_multiplier: deviation of the noise that is added to a head over what a replaced record
    can move it through finite precision: 2 tolerance / ridge, if the gradient of sums at the head is at most
    `tolerance` long. ridge: of the sum over records. curvature: the one of the head's event. Infinite multipliers
    belong to releases that are not made.
    """

    table_multiplier: float
    head_multiplier: float
    output_multiplier: float
    ridge: float
    curvature: float


@lru_cache(maxsize=256)
def split_budget(
    epsilon: float,
    delta: float,
    *,
    releases: int,
    coarse: Coarse = (),
    sampled: Sampled = (),
    heads: int = 1,
    radius: float,
    columns: int,
    slope: float = 1.0,
    bend: float | None = None,
    mechanism: Mechanism = "objective",
    least_ridge: float = 2.8,
    share: float = 0.7,
    output_share: float = 0.01,
    spent: tuple[Event, ...] = (),
) -> HeadBudget:
    """Noise and ridge at which tables and heads together just fit epsilon by the Rényi accountant, never more.

    releases, coarse, sampled: the Gaussian releases, as in `calibration.noise_multiplier`. They get 1 - share of the
    joint mu^2 (a sampled one counts with the square of its chance). The heads get the rest, in equal parts, and of
    that output_share goes to the output perturbation of each. Without other releases everything goes to the heads.

    radius: public bound on the length of a row, bias included. columns: length of a head. slope: c, the largest slope
    of the loss. bend: second derivative of the loss over q (1 - q), or over 4 q (1 - q) in the symmetric case, where
    q is the relative slope. It is 1 for the logistic loss, for log-cosh, and for a Huber-like c^2 log cosh(r / c).
    Without it the largest value of these losses and of the capped logistic loss is taken: c^2 / (2 c - 1) or c.

    ridge = max(least_ridge, slope radius^2 sqrt(columns) / (3 mu)) with mu of one head. It depends on public figures
    alone. All results are rounded to the side of more noise, so that all hosts find the same.
    """
    check_target(epsilon, delta)
    tables = Tables(releases, coarse, sampled)
    if not (0 < share <= 1 and 0 <= output_share < 1) or (tables.weight and share == 1):
        raise ValueError(f"shares must lie between 0 and 1, got {share} and {output_share}")
    bent = _bend(slope, mechanism) if bend is None else bend
    head = Shape(mechanism, heads, radius, columns, slope, bent, least_ridge)
    before = tuple((price_of(event), event.count) for event in spent)
    for_heads = share if tables.weight else 1.0

    def plan(scale: float) -> HeadBudget:
        """The budget at a joint mu of 1 / scale, before it is rounded."""
        noise = scale * math.sqrt(heads / (for_heads * (1 - output_share)))
        return HeadBudget(
            scale * math.sqrt(tables.weight / (1 - for_heads)) if tables.weight else math.inf,
            noise,
            scale * math.sqrt(heads / (for_heads * output_share)) if output_share else math.inf,
            head.ridge(noise),
            head.curvature(head.ridge(noise)),
        )

    def cost(found: HeadBudget) -> float:
        return renyi((*before, *tables.prices(found.table_multiplier), *head.prices(found)), delta)

    joint = _largest_mu(lambda mu: cost(plan(1 / mu)) - epsilon)
    if joint is None:
        used = f"; {renyi(before, delta):.4f} is spent" if spent else ""
        raise TargetError(
            f"the budget is too small for tables and head together: epsilon {epsilon:g} at delta {delta:g} leaves "
            f"nothing for table releases ({tables.number}) and heads ({heads}){used}"
        )
    scale = UPWARDS.create_decimal_from_float(1 / joint)
    while cost(budget := _rounded(plan(float(scale)))) > epsilon:
        scale = scale.next_plus(UPWARDS)
    return budget


@dataclass(frozen=True)
class Tables:
    """The Gaussian releases of a plan, all of one multiplier; see `calibration.noise_multiplier`."""

    releases: int
    coarse: Coarse
    sampled: Sampled

    def __post_init__(self) -> None:
        if min((self.releases, *(count for _, count in self.sampled))) < 0:
            raise ValueError(f"releases must be at least 0, got {self.releases} and {self.sampled}")
        if not all(0 < chance <= 1 for chance, _ in self.sampled):
            raise ValueError(f"sampling must lie in (0, 1], got {self.sampled}")
        if not all(1 <= times < math.inf for times in self.coarse):
            raise ValueError(f"coarse releases must have at least the noise of the others, got {self.coarse}")

    @property
    def number(self) -> int:
        return self.releases + len(self.coarse) + sum(count for _, count in self.sampled)

    @property
    def weight(self) -> float:
        """Their joint mu^2 at multiplier 1, where a sampled release counts with the square of its chance."""
        sampled = math.fsum(chance**2 * count for chance, count in self.sampled)
        return self.releases + math.fsum(times**-2 for times in self.coarse) + sampled

    def prices(self, multiplier: float) -> Lines:
        found = [(Price(multiplier), self.releases), *((Price(times * multiplier), 1) for times in self.coarse)]
        for chance, count in self.sampled:
            price = Price(multiplier) if chance == 1 else Price(multiplier, chance, 2 * multiplier)
            found.append((price, count))
        return tuple((price, count) for price, count in found if count)


@dataclass(frozen=True)
class Shape:
    """What the price of heads depends on besides noise; all of it is public. See `split_budget`."""

    mechanism: Mechanism
    heads: int
    radius: float
    columns: int
    slope: float
    bend: float
    least_ridge: float

    def __post_init__(self) -> None:
        if self.mechanism not in OBJECTIVE:
            raise ValueError(f"the mechanism of a head must be one of {', '.join(OBJECTIVE)}, got {self.mechanism}")
        if self.heads < 1 or self.columns < 1:
            raise ValueError(f"need heads >= 1 and columns >= 1, got {self.heads} and {self.columns}")
        for field in ("radius", "slope", "bend", "least_ridge"):
            if not 0 < getattr(self, field) < math.inf:
                raise ValueError(f"{field} must be finite and positive, got {getattr(self, field)}")

    def ridge(self, multiplier: float) -> float:
        return max(self.least_ridge, self.slope * self.radius**2 * math.sqrt(self.columns) * multiplier / 3)

    def curvature(self, ridge: float) -> float:
        return (4 if self.mechanism == "objective-symmetric" else 1) * self.bend * self.radius**2 / ridge

    def with_noise(self, budget: HeadBudget, multiplier: float) -> HeadBudget:
        """The same split of a budget at another noise of the heads.

        All multipliers grow equally, the ridge by its rule. From the same budget and multiplier every host finds the
        same figures, rounded to the side of more noise.
        """
        factor, ridge = multiplier / budget.head_multiplier, self.ridge(multiplier)
        tables, output = factor * budget.table_multiplier, factor * budget.output_multiplier
        return _rounded(HeadBudget(tables, multiplier, output, ridge, self.curvature(ridge)))

    def prices(self, found: HeadBudget) -> Lines:
        head = Price(found.head_multiplier, mechanism=self.mechanism, curvature=found.curvature)
        if not math.isfinite(found.output_multiplier):
            return ((head, self.heads),)
        return ((head, self.heads), (Price(found.output_multiplier), self.heads))


def _largest_mu(over: Callable[[float], float]) -> float | None:
    """The joint mu at which nothing is left over, or None if even the least is too much."""
    from scipy.optimize import brentq  # slow to import

    if over(LEAST_MU) > 0:
        return None
    low = high = 1.0
    while over(high) < 0 and high < MOST_MU:
        low, high = high, 2 * high
    while over(low) > 0 and low > LEAST_MU:
        low, high = low / 2, low
    return float(brentq(over, low, high, xtol=1e-10, rtol=1e-10)) if over(high) > 0 else high


def _bend(slope: float, mechanism: Mechanism) -> float:
    """The largest second derivative, over q (1 - q) or 4 q (1 - q), of the losses that `split_budget` names."""
    if mechanism == "objective-symmetric":
        return max(1.0, slope)
    if slope <= 0.5:
        raise ValueError(f"a capped logistic loss has a slope above 1/2, got {slope}; give its bend")
    return max(slope, slope**2 / (2 * slope - 1))


def _rounded(budget: HeadBudget) -> HeadBudget:
    """The same, rounded up: multipliers and ridge have at least the noise and the curvature that were planned for."""

    def up(value: float) -> float:
        return float(UPWARDS.create_decimal_from_float(value)) if math.isfinite(value) else value

    return HeadBudget(
        up(budget.table_multiplier),
        up(budget.head_multiplier),
        up(budget.output_multiplier),
        up(budget.ridge),
        up(budget.curvature),
    )
