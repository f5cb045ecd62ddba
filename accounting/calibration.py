"""From a budget to noise, and from noise to the rest of a budget; always by the Rényi accountant.

`noise_multiplier` plans Gaussian releases, `split_budget` plans them together with private heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, replace
from decimal import ROUND_CEILING, Context
from functools import lru_cache

from secure_sccvfl.accounting.accountant import Lines, Price, epsilon_of, price_of, renyi
from secure_sccvfl.accounting.events import OBJECTIVE, Event, Mechanism

UPWARDS = Context(prec=7, rounding=ROUND_CEILING)
"""Multipliers are rounded up to seven digits: the planned releases always fit, and all hosts find the same."""
MOST_RELEASES = 2**20
LEAST, MOST = 2.0**-20, 2.0**20
"""The least and the most noise over sensitivity, for any budget."""
LEAST_MU, MOST_MU = 2.0**-20, 2.0**10
"""The least and the most mu of tables and heads together, for any budget."""
LEAST_RIDGE = 2.8
Sampled = tuple[tuple[float, int], ...]
"""A record's chance to take part, and how many releases are made at it."""
Coarse = tuple[float, ...]
"""For each release that carries more noise than the others: how many times as much."""


class TargetError(ValueError):
    """A budget that promises nothing, or cannot be kept."""


def check_target(epsilon: float, delta: float, records: int | None = None) -> None:
    """Refuse a budget that promises nothing. A delta above 1/n would allow publishing a record outright."""
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise TargetError(f"epsilon must be finite and positive, got {epsilon}")
    if not 0 < delta < 1:
        raise TargetError(f"delta must lie between 0 and 1, got {delta}")
    if records is not None and delta * records > 1:
        raise TargetError(f"delta must be at most 1/n = {1 / records:.2g} for {records} records, got {delta}")


@dataclass(frozen=True)
class GaussianReleases:
    """Planned releases with Gaussian noise, all of one multiplier (`noise_multiplier`)."""

    releases: int
    coarse: Coarse = ()
    sampled: Sampled = ()

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
        whole = self.releases + sum(count for chance, count in self.sampled if chance == 1)
        steps = [(Price(multiplier, chance, 2 * multiplier), n) for chance, n in self.sampled if chance < 1]
        lines = [(Price(multiplier), whole), *steps, *((Price(times * multiplier), 1) for times in self.coarse)]
        return tuple((price, count) for price, count in lines if count)


@lru_cache(maxsize=256)
def noise_multiplier(
    epsilon: float,
    delta: float,
    releases: int,
    sampled: Sampled = (),
    spent: tuple[Event, ...] = (),
    coarse: Coarse = (),
) -> float:
    """Hidden noise over sensitivity at which all planned releases together just fit the budget, never more.

    spent: what a record has paid for before; the planned releases share what is left. Infinite if nothing is left.

    It is `Event.multiplier`: sigma is this times the sensitivity to a replaced record, over the root of the copies.
    releases: how many are about every record. sampled: how many more are about a secret Poisson sample, of
    contributions with any sign (`Sensitivity.of_any`). coarse: those with a multiple of this noise.
    """
    from scipy.optimize import brentq  # slow to import

    check_target(epsilon, delta)
    planned = GaussianReleases(releases, coarse, sampled)
    if planned.number - len(coarse) < 1:
        raise ValueError(f"releases must be at least 1, got {releases} and {sampled}")
    before = tuple((price_of(event), event.count) for event in spent)

    def cost(multiplier: float) -> float:
        return renyi((*before, *planned.prices(multiplier)), delta)

    low = high = 1.0
    if spent and cost(MOST) > epsilon:
        return math.inf
    while cost(high) > epsilon:
        low, high = high, 2 * high
    while cost(low) < epsilon and low > LEAST:
        low, high = low / 2, low
    root = brentq(lambda z: cost(z) - epsilon, low, high, xtol=1e-10, rtol=1e-10) if low > LEAST else low
    multiplier = UPWARDS.create_decimal_from_float(root)
    while cost(float(multiplier)) > epsilon:
        multiplier = multiplier.next_plus(UPWARDS)
    return float(multiplier)


def releases_left(spent: Iterable[Event], event: Event, cap: float, delta: float) -> int:
    """How many more releases like this one fit; MOST_RELEASES means that many or more."""
    listed = list(spent)

    def fits(count: int) -> bool:
        return epsilon_of([*listed, replace(event, count=count * event.count)], delta) <= cap

    low, high = 0, 1
    while high <= MOST_RELEASES and fits(high):
        low, high = high, 2 * high
    if low == MOST_RELEASES:
        return low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


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


@dataclass(frozen=True)
class HeadShape:
    """What the price of heads depends on besides noise; all of it is public.

    radius: bound on the length of a row, bias included. columns: length of a head. heads: how many, each with its own
    noise. baselines: how many further heads share `baseline_share` of what the heads have. slope: c, the largest
    slope of the loss. bend: second derivative of the loss over q (1 - q), or over 4 q (1 - q) in the symmetric case,
    where q is the relative slope. It is 1 for the logistic loss, for log-cosh, and for a Huber-like c^2 log cosh(r /
    c), and c / tau for the capped logistic loss.
    """

    radius: float
    columns: int
    heads: int = 1
    mechanism: Mechanism = "objective"
    slope: float = 1.0
    bend: float = 1.0
    baselines: int = 0
    baseline_share: float = 0.0

    def __post_init__(self) -> None:
        if self.mechanism not in OBJECTIVE:
            raise ValueError(f"the mechanism of a head must be one of {', '.join(OBJECTIVE)}, got {self.mechanism}")
        if self.heads < 1 or self.columns < 1:
            raise ValueError(f"need heads >= 1 and columns >= 1, got {self.heads} and {self.columns}")
        if not 0 <= self.baseline_share < 1 or bool(self.baselines) != bool(self.baseline_share):
            raise ValueError(f"{self.baselines} baseline heads cannot have a share of {self.baseline_share}")
        for field in ("radius", "slope", "bend"):
            if not 0 < getattr(self, field) < math.inf:
                raise ValueError(f"{field} must be finite and positive, got {getattr(self, field)}")

    def ridge(self, multiplier: float) -> float:
        return max(LEAST_RIDGE, self.slope * self.radius**2 * math.sqrt(self.columns) * multiplier / 3)

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

    def of_baselines(self, budget: HeadBudget) -> HeadBudget:
        """The noise of the baseline heads, which share their part of the heads' mu^2 equally."""
        times = math.sqrt(self.baselines * (1 - self.baseline_share) / (self.heads * self.baseline_share))
        return self.with_noise(budget, times * budget.head_multiplier)

    def prices(self, budget: HeadBudget) -> Lines:
        lines, kinds = [], [(budget, self.heads)]
        if self.baselines:
            kinds.append((self.of_baselines(budget), self.baselines))
        for noise, count in kinds:
            lines.append((Price(noise.head_multiplier, mechanism=self.mechanism, curvature=noise.curvature), count))
            if math.isfinite(noise.output_multiplier):
                lines.append((Price(noise.output_multiplier), count))
        return tuple(lines)


@lru_cache(maxsize=256)
def split_budget(
    epsilon: float,
    delta: float,
    head: HeadShape,
    *,
    releases: int,
    coarse: Coarse = (),
    sampled: Sampled = (),
    share: float = 0.7,
    output_share: float = 0.01,
    spent: tuple[Event, ...] = (),
) -> HeadBudget:
    """Noise and ridge at which tables and heads together just fit epsilon by the Rényi accountant, never more.

    releases, coarse, sampled: the Gaussian releases, as in `noise_multiplier`. They get 1 - share of the
    joint mu^2 (a sampled one counts with the square of its chance). The heads get the rest, in equal parts but for
    that of baselines, and of it output_share goes to the output perturbation of each. Without other releases
    everything goes to the heads.

    ridge = max(LEAST_RIDGE, slope radius^2 sqrt(columns) / (3 mu)) with mu of one head. It depends on public figures
    alone. All results are rounded to the side of more noise, so that all hosts find the same.
    """
    check_target(epsilon, delta)
    tables = GaussianReleases(releases, coarse, sampled)
    if not (0 < share <= 1 and 0 <= output_share < 1) or (tables.weight and share == 1):
        raise ValueError(f"shares must lie between 0 and 1, got {share} and {output_share}")
    before = tuple((price_of(event), event.count) for event in spent)
    heads, for_heads = head.heads / (1 - head.baseline_share), share if tables.weight else 1.0

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

    def cost(budget: HeadBudget) -> float:
        return renyi((*before, *tables.prices(budget.table_multiplier), *head.prices(budget)), delta)

    joint = _largest_mu(lambda mu: cost(plan(1 / mu)) - epsilon)
    if joint is None:
        used = f"; {renyi(before, delta):.4f} is spent" if spent else ""
        raise TargetError(
            f"the budget is too small for tables and head together: epsilon {epsilon:g} at delta {delta:g} leaves "
            f"nothing for table releases ({tables.number}) and heads ({head.heads + head.baselines}){used}"
        )
    scale = UPWARDS.create_decimal_from_float(1 / joint)
    while cost(budget := _rounded(plan(float(scale)))) > epsilon:
        scale = scale.next_plus(UPWARDS)
    return budget


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


def _rounded(budget: HeadBudget) -> HeadBudget:
    """The same, rounded up: multipliers and ridge have at least the noise and the curvature that were planned for."""

    def up(value: float) -> float:
        return float(UPWARDS.create_decimal_from_float(value)) if math.isfinite(value) else value

    return HeadBudget(*map(up, astuple(budget)))
