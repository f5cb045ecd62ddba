"""The head as a release: what objective perturbation needs, what it costs, and the noise that it draws.

A decision follows from the head, and the head from every training record. So the head is made differentially private
before anything follows from it: decisions, scores and test figures are then post-processing with respect to training
records. The head minimises

    sum of losses + n/2 w^T P w + ridge/2 |w|^2 + b^T w,        b ~ N(0, sigma^2 I),

where P follows from released values, every row is at most `radius` long, and a slope of the loss is at most `slope`.
docs/privacy-accounting.md has the proof and its conditions. What the code must keep:

| condition | where |
|---|---|
| rows depend on their own record and on released tables; public centres, radius | `models.encoders.public_encoder` |
| P is positive semidefinite and follows from released values | `models.table_gram`, or `releases.gram` |
| n, ridge and lambda are public; nothing is chosen on records | `TrainConfig`, `HeadPlan` |
| fresh noise for every head, never shared | `protocols.steps.second_order.noise_of_heads` |
| the head is within tolerance / ridge of the exact minimum; noise on the result covers that | `HeadNoise.output` |
| one finished head is all that is opened: no bit about steps before a refresh of the tables | `Descents.warm_up` |

Refreshes during training add nothing to this price but themselves. Given all tables, P is fixed. The steps before the
last of them are a starting point that stays secret, has no noise of its own and is charged as nothing: the finished
head is within the same distance of the same minimum from wherever it starts. A head that was trained with noise
before the refresh, and checked, would be a second one.

The noise of a head is the dealer's alone (with `noise = all-parties` every party's): a receiver of decisions is a
party and knows its own noise. So nothing is left against a dealer who also reads decisions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import sqrt
from typing import Protocol

from accounting.calibration import Coarse, Sampled
from accounting.events import Event, Mechanism, Sensitivity
from accounting.objective import HeadBudget, Shape, split_budget
from protocols.operations import noise
from protocols.operations.noise import NoiseKind
from protocols.operations.sigmoid import CAP, CAP_STEEPNESS
from protocols.steps.second_order import TOLERANCE, tolerance_of
from secure_sccvfl.data.dataset import Task
from secure_sccvfl.releases.gram import GramNoise
from secure_sccvfl.releases.releases import HEAD, HEAD_OUTPUT

ROUNDING = 2.0**-14
"""How far rounding to fixed point may move an entry of a row (root mean square over columns)."""
LARGEST_CURVATURE = 9.0
"""Mean over columns of the curvature that they are scaled by, at which this holds: rows have 16 bits in columns that
are divided by its root, and rows that s selects are rounded twice: 2^-17 + 3 x 2^-16 is at most 2^-14."""
MEAN_RIDGE = 5e-3
"""The least ridge over the number of records, as without a private head. It keeps the noise small that covers finite
precision."""
LEAST_RIDGE = 2.8
SHARE, CARD_SHARE = 0.6, 0.75
"""The head's share of the budget, in squared inverse noise; the rest is for the tables. The second where a card
decides every column: fewer tables are released, and no role rests on them."""
FEW, MANY = 5_000, 15_000
"""Training records from which on epsilon 4, and 2, keep the loss small (docs/privacy-accounting.md)."""
EPSILON_RULE = f"8 below {FEW:,} training records or where their number is not public, 4 from there, 2 from {MANY:,}"
SLOPES: dict[Task, tuple[Mechanism, float, float]] = {
    "binary": ("objective", CAP, CAP * CAP_STEEPNESS),
    "multiclass": ("objective", CAP, CAP * CAP_STEEPNESS),
    "regression": ("objective-symmetric", 0.5, 1.0),
}
"""Of the loss of each task: whether its slope has one sign or both, its largest magnitude, and its bend: the second
derivative over q (1 - q), or 4 q (1 - q) where it has both signs, for the relative slope q."""


@dataclass(frozen=True)
class HeadPlan:
    """The public facts that the price of a run's heads follows from.

    radius: longest row, with the bias. columns: with the bias. heads: how many logits are trained, each with its own
    noise. share: of the budget. tolerance: on the length of the mean gradient at a finished head. gram: the Gram
    matrix of records' edits is released too, with the noise of a table over what a record moves (`releases.gram`).
    """

    radius: float
    columns: int
    heads: int
    mechanism: Mechanism
    slope: float
    bend: float
    share: float = SHARE
    tolerance: float = TOLERANCE
    gram: bool = False

    @classmethod
    def of(
        cls,
        radii: Iterable[float],
        columns: int,
        heads: int,
        task: Task,
        share: float = SHARE,
        lambdas: Iterable[float] = (0.0,),
        gram: bool = False,
    ) -> HeadPlan:
        """radii: of the parties' rows. columns: of all parties, without the bias. lambdas: of the heads."""
        mechanism, slope, bend = SLOPES[task]
        longest = sqrt(1.0 + sum(radius**2 for radius in radii)) + ROUNDING * sqrt(columns + 1)
        return cls(longest, columns + 1, heads, mechanism, slope, bend, share, tolerance_of(lambdas), gram)

    def budget(
        self,
        epsilon: float,
        delta: float,
        releases: int,
        sampled: Sampled = (),
        spent: tuple[Event, ...] = (),
        coarse: Coarse = (),
    ) -> HeadBudget:
        """How tables, the Gram matrix if it is released, and heads share what is left of a cap."""
        return split_budget(
            epsilon,
            delta,
            releases=releases + self.gram,
            coarse=coarse,
            sampled=sampled,
            heads=self.heads,
            radius=self.radius,
            columns=self.columns,
            slope=self.slope,
            bend=self.bend,
            mechanism=self.mechanism,
            least_ridge=LEAST_RIDGE,
            share=self.share,
            spent=spent,
        )

    def with_noise(self, budget: HeadBudget, multiplier: float) -> HeadBudget:
        """The same split at another noise of the heads; ridge and curvature follow from this plan."""
        shape = (self.mechanism, self.heads, self.radius, self.columns, self.slope, self.bend, LEAST_RIDGE)
        return Shape(*shape).with_noise(budget, multiplier)


@dataclass(frozen=True)
class HeadNoise:
    """What objective perturbation adds to each head, in public numbers.

    sigma: deviation of the noise on the gradient of the summed loss. ridge: of the summed loss, on every column and
    the bias. output: deviation of the noise on every weight of the finished head. radius: of the rows. seed: of
    simulated noise on the plaintext engine. tolerance: on the length of the mean gradient at the finished head.
    """

    sigma: float
    ridge: float
    output: float
    radius: float
    kind: NoiseKind = "dealer"
    seed: int = 0
    tolerance: float = TOLERANCE


def default_epsilon(records: int | None) -> float:
    """The total epsilon of a run that names none, by the public number of its training records.

    None where that number is not public before the run, as for data that are not pooled.
    """
    return 8.0 if records is None or records < FEW else 4.0 if records < MANY else 2.0


class HeadCharge(Protocol):
    """Charges the heads of a run and what they need. Every process calls it before training."""

    def charge_gram(self, moved: Sensitivity) -> GramNoise:
        """Charge the Gram matrix of records' edits, just before it is opened; returns the noise to draw."""
        ...

    def charge_heads(self, count: int) -> HeadNoise:
        """count: the public number of records."""
        ...


@dataclass(frozen=True)
class PricedHead:
    """The events of a run's heads, which are charged before training, and the noise that is drawn for them."""

    objective: Event
    output: Event
    noise: HeadNoise

    @property
    def events(self) -> tuple[Event, Event]:
        return self.objective, self.output


def noise_of_model(kind: NoiseKind) -> NoiseKind:
    """Who makes the noise of heads and of what all parties see: no party may know all of it."""
    return "all-parties" if kind == "all-parties" else "dealer"


def price_head(
    plan: HeadPlan, budget: HeadBudget, count: int, kind: NoiseKind, parties: int, records: str, name: str = ""
) -> PricedHead:
    """The events and the noise of heads on `count` records (a public number). `name`: of a further training."""
    ridge = max(budget.ridge, MEAN_RIDGE * count)
    moved = 2 * plan.slope * plan.radius
    error = 2 * plan.tolerance * count / ridge
    made = noise_of_model(kind)
    hidden, left = noise.hidden_copies(made, parties), noise.copies_against_dealer(made, parties)

    def event(name: str, moved: float, multiplier: float, mechanism: Mechanism, curvature: float) -> Event:
        return Event(
            name,
            moved,
            multiplier * moved,
            records,
            count=plan.heads,
            mechanism=mechanism,
            copies=hidden,
            dealer_copies=left,
            curvature=curvature,
        )

    bent = budget.curvature * budget.ridge / ridge
    objective = event(name or HEAD.charged_as(), moved, budget.head_multiplier, plan.mechanism, bent)
    output = event(HEAD_OUTPUT.charged_as(), error, budget.output_multiplier, "gaussian", 0.0)
    drawn = HeadNoise(objective.sigma, ridge, output.sigma, plan.radius, made, tolerance=plan.tolerance)
    return PricedHead(objective, output, drawn)


def simulated(priced: PricedHead, parties: int, seed: int) -> HeadNoise:
    """The same noise for the plaintext engine: all contributions as one."""
    found = priced.noise
    factor = noise.deviation(found.kind, 1.0, parties)
    return replace(found, sigma=found.sigma * factor, output=found.output * factor, seed=seed)
