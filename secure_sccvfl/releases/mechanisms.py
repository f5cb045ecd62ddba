"""The charged mechanisms: for each one its sensitivity, its noise and its DP event, made in one place.

| mechanism | functions | who knows its noise |
|---|---|---|
| noisy sums (tables, moments, residuals, gradients, evaluation) | `noised_event` | by `NoiseKind` |
| Gram matrix of counterfactual changes | `gram_sensitivity`, `gram_event`, `released_root` | no party |
| private head (objective perturbation) | `HeadPlan`, `price_head` | no party |

Secure runs charge these events through `charging.Charger`, plaintext runs through `noise.GaussianNoise`.

**Gram matrix.** With `consistency_from = records` the penalty of a head is taken over the counterfactual changes d of
all training records. A private head needs a penalty that follows from released values, so the sum S of d d^T is
opened once, with noise, and charged (`catalogue.GRAM`). All parties then compute the penalty from it in public.

*Sensitivity.* The change of a record follows from its own columns, its s, released tables and public random numbers
of its row. For each of A protected attributes and K draws a record has one change, so it adds

    C = sum over attributes and draws of d d^T,        |C|_F <= sum of |d|^2 <= A K B^2,

where B bounds the length of a change over all parties. Each owner shortens its part to `SHORTENED` of the longest
that the public dictionary allows (`models.encoders.edit_radius`), and B^2 is the sum of these squares. The longest
part has the square 2 for a category (one entry falls by at most 1, the others rise by as much together) and the
number of steps for a number (no step changes by more than 1). If the number may be missing, it is at least steps / 4
+ 1: one that becomes missing or present changes its flag by 1 and every step by at most 1/2. Entries are rounded to
FRACTION_BITS, which makes a change in m columns longer by at most sqrt(m) / 2 of their unit. S is computed without
further rounding. For a replaced record, <C, C'> >= 0 because both are positive semidefinite, so |C - C'|_F <= sqrt(2)
A K B^2. Two changes of length B at a right angle reach the bound.

*Noise.* Every entry of S gets independent noise of deviation sigma, above and below the diagonal. The matrix is
opened to all parties, the holder of s among them, so only noise that no party knows counts: the dealer's, or with
`noise = all-parties` one contribution.

*Post-processing.* `released_root` takes the symmetric part, sets negative eigenvalues to 0, and scales columns so
that no diagonal entry is above 1, which no mean square of a change is. The result is positive semidefinite.

**Head.** Decisions follow from the head, and the head from every training record. So the head is made differentially
private before anything follows from it; decisions, scores and test figures are then post-processing with respect to
training records. The head minimises

    sum of losses + n/2 w^T P w + ridge/2 |w|^2 + b^T w,        b ~ N(0, sigma^2 I),

where P follows from released values, every row is at most `radius` long, and a slope of the loss is at most `slope`.
docs/privacy-accounting.md has the proof and its conditions. What the code must keep:

| condition | where |
|---|---|
| rows depend on their own record and on released tables; public centres, radius | `models.encoders.public_encoder` |
| P is positive semidefinite and follows from released values | `models.table_gram`, or `released_root` |
| n, ridge and lambda are public; nothing is chosen on records | `TrainConfig`, `HeadPlan` |
| fresh noise for every head, never shared | `protocols.steps.second_order.noise_of_heads` |
| the head is within tolerance / ridge of the exact minimum; noise on the result covers that | `HeadNoise.output` |
| one finished head is all that is opened: no bit about steps before a refresh of the tables | `Descents.warm_up` |

Refreshes during training add only their own privacy cost. Given all tables, P is fixed. The steps before the last of
them are a starting point that stays secret and has no noise: the finished head is within the same distance of the
same minimum wherever it starts. A head that was trained with noise before the refresh, and checked, would be a second
one. The noise of a head is the dealer's alone (with `noise = all-parties` every party's): a receiver of decisions is
a party and knows its own noise. So nothing is left against a dealer who also reads decisions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np

from secure_sccvfl.accounting.accountant import FINE
from secure_sccvfl.accounting.calibration import Coarse, HeadBudget, HeadShape, Sampled, split_budget
from secure_sccvfl.accounting.events import Event, Mechanism, Sensitivity
from secure_sccvfl.data.dataset import Task
from secure_sccvfl.protocols.errors import RangeError
from secure_sccvfl.protocols.operations import noise
from secure_sccvfl.protocols.operations.noise import NoiseKind
from secure_sccvfl.protocols.operations.sigmoid import CAP, CAP_STEEPNESS
from secure_sccvfl.protocols.records.releases import Receipt
from secure_sccvfl.protocols.ring import FRACTION_BITS, WIDE_BITS
from secure_sccvfl.protocols.steps.second_order import TOLERANCE, tolerance_of
from secure_sccvfl.releases import catalogue
from secure_sccvfl.releases.catalogue import Kind
from secure_sccvfl.releases.default_budget import BASELINE_SHARE

COARSER: Mapping[str, float] = {catalogue.FIRST_COUNT.charged_as(): 5.0}
"""Charges whose release has this many times the noise multiplier of the others: it costs the square of that less."""
SHORTENED = 0.5
"""Most changes are far shorter than the longest, and noise falls with the square of this share. Chosen among 1, .7,
.5, .35, .25 and .15 on German and acs12-gender, epsilon 8, seeds 700 to 709."""
LARGEST_ENTRY = 2.0 ** (60 - WIDE_BITS)
"""Largest entry of S: with twelve deviations of the largest noise that can be drawn it stays below 2^62."""
LEAST_ROWS = 1 << 10
ROUNDING = 2.0**-14
"""How far rounding to fixed point may move an entry of a row (root mean square over columns)."""
LARGEST_CURVATURE = 9.0
"""Mean over columns of the curvature that they are scaled by, at which this holds: rows have 16 bits in columns that
are divided by its root, and rows that s selects are rounded twice: 2^-17 + 3 x 2^-16 is at most 2^-14."""
MEAN_RIDGE = 5e-3
"""The least ridge over the number of records. It keeps the noise small that covers finite precision."""
SHARE, CARD_SHARE = 0.6, 0.75
"""The head's share of the budget, in squared inverse noise; the rest is for the tables. The second where a card
decides every column: fewer tables are released, and no role rests on them."""
SLOPES: dict[Task, tuple[Mechanism, float, float]] = {
    "binary": ("objective", CAP, CAP * CAP_STEEPNESS),
    "multiclass": ("objective", CAP, CAP * CAP_STEEPNESS),
    "regression": ("objective-symmetric", 0.5, 1.0),
}
"""Of the loss of each task: whether its slope has one sign or both, its largest magnitude, and its bend: the second
derivative over q (1 - q), or 4 q (1 - q) where it has both signs, for the relative slope q."""


@dataclass(frozen=True)
class NoiseLevel:
    """Noise multiplier of a release (deviation over what a replaced record moves), and who contributes the noise."""

    multiplier: float
    kind: NoiseKind
    parties: int


def noised_event(
    name: str,
    sensitivity: Sensitivity,
    level: NoiseLevel,
    records: str,
    refresh: int = 0,
    sampling: float = 1.0,
    mechanism: Mechanism = "gaussian",
) -> Event:
    """The release whose hidden noise is `level.multiplier` (times `COARSER`) times what a replaced record moves.

    Hidden means hidden from parties without the attribute. Contributions too small for their grid are not counted
    together (`accounting.accountant`).
    """
    hidden = noise.hidden_copies(level.kind, level.parties)
    left = noise.copies_against_dealer(level.kind, level.parties)
    whole = level.multiplier * COARSER.get(name, 1.0) * sensitivity.replaced
    sigma = whole / math.sqrt(hidden)
    if sigma < FINE * sensitivity.unit:
        hidden, left, sigma = 1, min(1, left), whole
    return Event(
        name,
        sensitivity.replaced,
        sigma,
        records,
        refresh,
        sampling=sampling,
        mechanism=mechanism,
        added=sensitivity.added,
        copies=hidden,
        dealer_copies=left,
    )


def noise_of_model(kind: NoiseKind) -> NoiseKind:
    """Who makes the noise of heads and of what all parties see: no party may know all of it."""
    return "all-parties" if kind == "all-parties" else "dealer"


@dataclass(frozen=True)
class GramNoise:
    """sigma: deviation of one noise contribution to an entry. receipt: of the charge. seed: of simulated noise."""

    sigma: float
    kind: NoiseKind = "dealer"
    receipt: Receipt | None = None
    seed: int = 0


def gram_sensitivity(radii: Iterable[float], columns: int, changes: int, rows: int) -> Sensitivity:
    """What a record moves in S. radii: of the parties' changes. columns: that they reach. changes: A K each."""
    length = math.hypot(*radii) + math.sqrt(columns) * 2.0 ** -(FRACTION_BITS + 1)
    added = changes * length**2
    if max(rows, LEAST_ROWS) * added > LARGEST_ENTRY:
        raise RangeError(f"sums of changes of {rows} records do not fit the ring: use consistency_from = tables")
    return Sensitivity(math.sqrt(2) * added, added, 2.0**-WIDE_BITS)


def gram_event(sensitivity: Sensitivity, level: NoiseLevel, records: str) -> Event:
    """The noisy Gram matrix. All parties see it, so none of them may know its noise."""
    return noised_event(
        catalogue.GRAM.charged_as(), sensitivity, replace(level, kind=noise_of_model(level.kind)), records
    )


def released_root(mean: np.ndarray) -> np.ndarray:
    """The root R of the positive semidefinite matrix R^T R that follows from a noisy mean Gram matrix.

    The symmetric root is unique, so all parties compute the same up to the last bits.
    """
    values, vectors = np.linalg.eigh((mean + mean.T) / 2)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return np.asarray(root / np.maximum(1.0, np.sqrt((root**2).sum(axis=0))))


@dataclass(frozen=True)
class HeadPlan(HeadShape):
    """The public facts that the privacy cost of a run's heads follows from.

    share: of the budget. tolerance: on the length of the mean gradient at a finished head. gram: the Gram matrix is
    released too, with the noise multiplier of a table.
    """

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
        baselines: int = 0,
    ) -> HeadPlan:
        """radii: of the parties' rows. columns: of all parties, without the bias. lambdas: of the heads."""
        mechanism, slope, bend = SLOPES[task]
        longest = math.sqrt(1.0 + sum(radius**2 for radius in radii)) + ROUNDING * math.sqrt(columns + 1)
        of_baselines = baselines, BASELINE_SHARE if baselines else 0.0
        shape = longest, columns + 1, heads, mechanism, slope, bend, *of_baselines
        return cls(*shape, share, tolerance_of(lambdas), gram)

    def budget(
        self,
        epsilon: float,
        delta: float,
        releases: int,
        sampled: Sampled = (),
        spent: tuple[Event, ...] = (),
        coarse: Coarse = (),
    ) -> HeadBudget:
        """How tables, the Gram matrix if it is released, and heads share what is left of a budget."""
        return split_budget(
            epsilon,
            delta,
            self,
            releases=releases + self.gram,
            coarse=coarse,
            sampled=sampled,
            share=self.share,
            spent=spent,
        )


@dataclass(frozen=True)
class HeadNoise:
    """What objective perturbation adds to each head, in public numbers.

    sigma: deviation of the noise on the gradient of the summed loss. ridge: of the summed loss, on every column and
    the bias. output: deviation of the noise on every weight of the finished head. radius: of the rows. seed: of
    simulated noise on the plaintext engine. tolerance: on the length of the mean gradient at the finished head.
    baselines: the noise of the baseline heads, if there are any.
    """

    sigma: float
    ridge: float
    output: float
    radius: float
    kind: NoiseKind = "dealer"
    seed: int = 0
    tolerance: float = TOLERANCE
    baselines: HeadNoise | None = None

    def simulated(self, factor: float, seed: int) -> HeadNoise:
        """The same with seeded noise of this many times the deviation."""
        baselines = None if self.baselines is None else self.baselines.simulated(factor, seed)
        return replace(self, sigma=self.sigma * factor, output=self.output * factor, seed=seed, baselines=baselines)


class HeadCharge(Protocol):
    """Charges the heads of a run and what they need. Every process calls it before training."""

    def charge_gram(self, moved: Sensitivity) -> GramNoise:
        """Charge the Gram matrix, just before it is opened; returns the noise to draw."""
        ...

    def charge_heads(self, count: int) -> HeadNoise:
        """count: the public number of records."""
        ...


@dataclass(frozen=True)
class PricedHead:
    """The events of a run's heads, which are charged before training, and the noise that is drawn for them."""

    events: tuple[Event, ...]
    noise: HeadNoise


def price_head(
    plan: HeadPlan,
    budget: HeadBudget,
    count: int,
    kind: NoiseKind,
    parties: int,
    records: str,
    kinds: tuple[Kind, Kind] = (catalogue.HEAD, catalogue.HEAD_OUTPUT),
) -> PricedHead:
    """The events and the noise of heads on `count` records (a public number); `kinds`: what they are charged as."""
    if plan.baselines:
        given = count, kind, parties, records
        taken = price_head(replace(plan, baselines=0, baseline_share=0.0), budget, *given)
        shape = replace(plan, heads=plan.baselines, baselines=0, baseline_share=0.0)
        others = price_head(
            shape, plan.of_baselines(budget), *given, (catalogue.BASELINE_HEADS, catalogue.BASELINE_OUTPUT)
        )
        return PricedHead((*taken.events, *others.events), replace(taken.noise, baselines=others.noise))
    ridge = max(budget.ridge, MEAN_RIDGE * count)
    maker = noise_of_model(kind)
    hidden, left = noise.hidden_copies(maker, parties), noise.copies_against_dealer(maker, parties)
    event = partial(Event, records=records, count=plan.heads, copies=hidden, dealer_copies=left)
    moved, error = 2 * plan.slope * plan.radius, 2 * plan.tolerance * count / ridge
    bent = budget.curvature * budget.ridge / ridge
    sigma, output_sigma = budget.head_multiplier * moved, budget.output_multiplier * error
    objective = event(kinds[0].charged_as(), moved, sigma, mechanism=plan.mechanism, curvature=bent)
    output = event(kinds[1].charged_as(), error, output_sigma)
    drawn = HeadNoise(objective.sigma, ridge, output.sigma, plan.radius, maker, tolerance=plan.tolerance)
    return PricedHead((objective, output), drawn)
