"""How the counterfactual models of the evaluation change records.

`all` and `marg` (`by_marginals`): each feature moves from its distribution in one group to that in another. Every
group's distribution is shrunk towards the pooled one by its sampling noise, so a difference that chance explains
moves nobody. A category moves by the maximal coupling of the two distributions. A number keeps its rank. Records that
share a value, such as 40 hours a week, are ranked among themselves at random, also inside a bin. A number that may be
missing first moves between missing and present (`models.missing`).

`kr_all` (`by_conditionals`): mediators move one after another, each given the fixed features and the mediators before
it. A regression on those and on the group gives the conditional distribution. A category moves by the maximal
coupling of the two, a number by the shift of its conditional mean, after a move between missing and present that is
a regression of its own. The effects of the group are shrunk by empirical Bayes: where they explain no more than
chance would, nobody moves.

`ot` (exact optimal transport) and `cvae` (conditional VAE with MMD) are fitted on held-out records. Both change
records even where nothing depends on s, so they fail the permutation baseline; they stay in the tables for
comparison.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from secure_sccvfl.data.groups import Structure
from secure_sccvfl.data.layout import Block, one_hot
from secure_sccvfl.data.randomness import stream, torch_seed
from secure_sccvfl.discovery.scores import proper
from secure_sccvfl.discovery.structured import structured_shares
from secure_sccvfl.evaluation.counterfactual_models import (
    MIN_GROUP,
    Case,
    CounterfactualError,
    Counterfactuals,
    Records,
)
from secure_sccvfl.models.cvae import Cvae, CvaeConfig
from secure_sccvfl.models.missing import gaps, moved_missing, with_missing
from secure_sccvfl.models.table_generator import maximal_coupling

DRAWS = 4
"""Copies of each record: what is drawn at random is averaged over them."""
MOST_LEVELS = 60
"""A number with more different values than this is cut into bins."""
BINS = 20


def shrunk(counts: np.ndarray, structure: Structure = ()) -> np.ndarray:
    """Distributions of groups (bins x groups) from counts, each drawn towards the pooled one.

    Positive-part James-Stein: a group keeps 1 - df / chi of its distance, where chi is Pearson's statistic of the
    group against the pool. Chi is df on average for a group that does not differ. Ordered and crossed groups are
    drawn effect by effect (`discovery.structured`).
    """
    sizes = counts.sum(axis=0)
    if structure:
        return proper(structured_shares(counts, sizes, 0.0, structure))
    pooled = counts.sum(axis=1) / sizes.sum()
    seen = pooled > 0
    out = np.tile(pooled[:, None], (1, len(sizes)))
    for group in np.flatnonzero(sizes > 0):
        distance = counts[:, group] / sizes[group] - pooled
        chi = sizes[group] * (distance[seen] ** 2 / pooled[seen]).sum() / max(1 - sizes[group] / sizes.sum(), 1e-9)
        out[:, group] += max(0.0, 1 - (seen.sum() - 1) / max(chi, 1e-9)) * distance
    return out


class Move(Protocol):
    """What records of one group would be in another, for one feature; `uniform` holds a draw per record."""

    def __call__(self, columns: np.ndarray, source: int, target: int, uniform: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True)
class CategoryMove:
    shares: np.ndarray

    def __call__(self, columns: np.ndarray, source: int, target: int, uniform: np.ndarray) -> np.ndarray:
        steps = maximal_coupling(self.shares[:, source], self.shares[:, target]).cumsum(axis=1)
        chosen = (uniform[:, None] > steps[columns.argmax(axis=1)]).sum(axis=1)
        return one_hot(chosen.clip(0, len(self.shares) - 1), len(self.shares))


@dataclass(frozen=True)
class NumberMove:
    """By rank between distributions over bins of `values`, the sorted values of all groups.

    starts: where each bin begins among them, and the end of the last one. A rank stands for one of these values, and
    a value for all ranks that it has: of many records with one value some move and some stay.
    missing: the share of missing values in each group, None if there are none. Records first move between missing and
    present (`models.missing`); who becomes present draws a rank in the target group.
    """

    shares: np.ndarray
    values: np.ndarray
    starts: np.ndarray
    missing: np.ndarray | None = None

    def __call__(self, columns: np.ndarray, source: int, target: int, uniform: np.ndarray) -> np.ndarray:
        before = gaps(columns)
        after, left = before, uniform
        if self.missing is not None:
            after, left = moved_missing(before, self.missing[source], self.missing[target], uniform)
        known = ~before & ~after
        first, end = (np.searchsorted(self.values, columns[known, 0], side=side) for side in ("left", "right"))
        ranks = np.vstack([np.zeros(self.shares.shape[1]), self.shares.cumsum(axis=0)])
        ranks /= ranks[-1]
        place = first + left[known] * (end - first)
        out = columns.copy()
        out[known, 0] = self._at_rank(np.interp(place, self.starts, ranks[:, source]), ranks[:, target])
        return with_missing(out, before, after, self._at_rank(left[before & ~after], ranks[:, target]))

    def _at_rank(self, rank: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        """The value at each rank of one group. ranks: where its bins begin, and 1."""
        bins = np.searchsorted(ranks[1:-1], rank, side="right")
        low, high = ranks[bins], ranks[bins + 1]
        within = np.clip((rank - low) / np.maximum(high - low, 1e-12), 0.0, 1.0)
        wanted = self.starts[bins] + within * (self.starts[bins + 1] - self.starts[bins])
        picked: np.ndarray = self.values[np.clip(wanted.astype(int), 0, len(self.values) - 1)]
        return picked


def fit(block: Block, records: Records, groups: int, structure: Structure = ()) -> Move | None:
    """The moves of one feature; None where it has a single value."""
    columns, members = records.inputs[:, block.columns], one_hot(records.codes, groups)
    if block.one_hot:
        return CategoryMove(shrunk(columns.T @ members, structure))
    there = ~gaps(columns)
    values = columns[there, 0]
    levels = np.unique(values)
    if len(levels) < (2 if there.all() else 1):
        return None
    missing = None if there.all() else shrunk(np.stack([there, ~there]) @ members, structure)[1]
    if len(levels) > MOST_LEVELS:
        levels = np.unique(np.quantile(values, np.linspace(0, 1, BINS + 1)[:-1]))
    places = np.searchsorted(levels, values, side="right") - 1
    starts = np.searchsorted(np.sort(places), np.arange(len(levels) + 1))
    present = shrunk(one_hot(places, len(levels)).T @ members[there], structure)
    return NumberMove(present, np.sort(values), starts, missing)


def by_marginals(case: Case) -> Counterfactuals:
    source = case.movable
    old, origin, target = case.inputs[source], case.codes[source], case.target[source]
    moved = np.tile(old, (DRAWS, 1))
    pairs = [
        (a, b, np.flatnonzero((origin == a) & (target == b))) for a in np.unique(origin) for b in np.unique(target)
    ]
    for block in case.layout.blocks:
        edited = block.feature.name in case.edited
        move = fit(block, case.fitted_on, case.groups, case.structure) if edited else None
        if move is None:
            continue
        uniform = stream(case.seed, "judge-marginal", block.feature.name).random((DRAWS, len(source)))
        for draw in range(DRAWS):
            for a, b, rows in pairs:
                if len(rows):
                    new = move(old[rows][:, block.columns], int(a), int(b), uniform[draw, rows])
                    moved[draw * len(source) + rows, block.columns] = new
    weight = np.full(len(moved), 1 / DRAWS)
    return Counterfactuals("all", np.tile(source, DRAWS), moved, weight, np.tile(target, DRAWS))


FIT_ROWS = 8000
RIDGE = 3.0
"""Ridge of the features that a mediator is given; that of the group follows from the data."""
INFORMATION = 0.15
"""What one record tells about a logit, p (1 - p), for a typical share p."""
STEPS = 60


@dataclass(frozen=True)
class Design:
    """What a mediator is given: features, centred on the fitted rows, and the group as indicators."""

    given: np.ndarray
    groups: np.ndarray

    @property
    def columns(self) -> np.ndarray:
        return np.hstack([self.given, self.groups])

    def penalty(self, of_groups: float) -> np.ndarray:
        return np.repeat([RIDGE, of_groups], [self.given.shape[1], self.groups.shape[1]])

    def take(self, rows: np.ndarray) -> Design:
        return Design(self.given[rows], self.groups[rows])


def _excess(statistic: float, freedom: float) -> float:
    """By how much the groups explain more than chance does: F - 1. At most 0 means that they explain nothing."""
    return statistic / max(freedom, 1) - 1


def fit_number(design: Design, value: np.ndarray) -> np.ndarray | None:
    """Coefficients of a ridge regression; None where groups explain no more than chance.

    The ridge of the groups shrinks their effects by 1 - 1 / F, where F compares the variance that they explain beside
    the features with what is left.
    """
    given, groups = (part - part.mean(axis=0) for part in (design.given, design.groups))
    centred = value - value.mean()
    gram = given.T @ given + RIDGE * np.eye(given.shape[1])
    rest, between = (part - given @ np.linalg.solve(gram, given.T @ part) for part in (centred, groups))
    explained = between @ np.linalg.lstsq(between, rest, rcond=1e-6)[0]
    freedom = groups.shape[1] - 1
    noise = ((rest - explained) ** 2).sum() / max(len(value) - freedom, 1)
    excess = _excess(float((explained**2).sum() / max(noise, 1e-12)), freedom)
    if excess <= 0:
        return None
    both = np.hstack([given, groups])
    penalty = design.penalty(float(np.median((between**2).sum(axis=0)) / excess))
    weights: np.ndarray = np.linalg.solve(both.T @ both + np.diag(penalty), both.T @ centred)
    return weights


def _logistic(columns: np.ndarray, penalty: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Weights (columns and a constant x categories) of a multinomial logistic regression with this ridge."""
    columns = _with_constant(columns)
    ridge = np.append(penalty, 1e-6)[:, None]

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights = flat.reshape(-1, chosen.shape[1])
        logs = log_softmax(columns @ weights, axis=1)
        value = -(logs * chosen).sum() + 0.5 * (ridge * weights**2).sum()
        return value, (columns.T @ (np.exp(logs) - chosen) + ridge * weights).ravel()

    start = np.zeros(columns.shape[1] * chosen.shape[1])
    fitted = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": STEPS})
    weights: np.ndarray = fitted.x.reshape(-1, chosen.shape[1])
    return weights


def _with_constant(columns: np.ndarray) -> np.ndarray:
    return np.hstack([columns, np.ones((len(columns), 1))])


def _shares(columns: np.ndarray, weights: np.ndarray) -> np.ndarray:
    shares: np.ndarray = softmax(_with_constant(columns) @ weights, axis=1)
    return shares


def fit_category(design: Design, chosen: np.ndarray) -> np.ndarray | None:
    """Weights of a logistic regression; None where groups explain no more than chance.

    F comes from a score statistic of the groups on the residuals of a fit without them.
    """
    plain = Design(design.given, design.groups[:, :0])
    shares = _shares(plain.columns, _logistic(plain.columns, plain.penalty(1.0), chosen))
    groups = design.groups - design.groups.mean(axis=0)
    score = (groups.T @ (chosen - shares)) ** 2
    variance = (groups**2).T @ (shares * (1 - shares))
    # These weights make Pearson's statistic of the sum over all categories and groups.
    weight = np.outer(1 - design.groups.mean(axis=0), 1 - shares.mean(axis=0))
    freedom = (groups.shape[1] - 1) * (int((shares.mean(axis=0) > 1e-6).sum()) - 1)
    excess = _excess(float((score / np.maximum(variance, 1e-9) * weight).sum()), freedom)
    if excess <= 0:
        return None
    ridge = float(np.median((groups**2).sum(axis=0)) * INFORMATION / excess)
    return _logistic(design.columns, design.penalty(ridge), chosen)


def coupled(value: np.ndarray, old: np.ndarray, new: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Categories redrawn by the maximal coupling of each record's two distributions (records x categories)."""
    rows = np.arange(len(value))
    stay = np.minimum(1.0, new[rows, value] / np.maximum(old[rows, value], 1e-12))
    steps = np.clip(new - old, 0.0, None).cumsum(axis=1)
    # A record that moves takes one of the categories that gain, by how much each gains.
    among = (uniform - stay) / np.maximum(1 - stay, 1e-12) * steps[:, -1]
    moved = (among[:, None] > steps).sum(axis=1).clip(0, old.shape[1] - 1)
    return np.where(uniform < stay, value, moved)


def missing_by_conditionals(
    designs: tuple[Design, Design, Design],
    fitted: np.ndarray,
    old: np.ndarray,
    moved: np.ndarray,
    weights: np.ndarray | None,
    uniform: np.ndarray,
) -> np.ndarray:
    """The columns `moved` of a number after moves between missing and present, given the columns before it.

    designs: of the fitted records, and of the records before and after. fitted, old: columns of the number. weights:
    of its present values (`fit_number`). The share of missing values follows a logistic regression. Who becomes
    present takes the value of a fitted record at random, shifted by the regression from that record to its own.
    """
    known, before, after = designs
    lacking, missing = gaps(fitted), gaps(old)
    there = np.flatnonzero(~lacking)
    regression = fit_category(known, np.column_stack([~lacking, lacking]).astype(float))
    if regression is None or not len(there):
        return moved
    shares, wanted = (_shares(design.columns, regression)[:, 1] for design in (before, after))
    then, left = moved_missing(missing, shares, wanted, uniform)
    if weights is None:
        weights = _without_groups(known.take(there), fitted[there, 0])
    arrives = np.flatnonzero(missing & ~then)
    donors = there[(left[arrives] * len(there)).astype(int).clip(0, len(there) - 1)]
    shift = (after.columns[arrives] - known.columns[donors]) @ weights
    return with_missing(moved.copy(), missing, then, np.clip(fitted[donors, 0] + shift, 0.0, 1.0))


def _without_groups(design: Design, value: np.ndarray) -> np.ndarray:
    """Coefficients of a ridge regression on the features alone: 0 for the groups."""
    given = design.given - design.given.mean(axis=0)
    gram = given.T @ given + RIDGE * np.eye(given.shape[1])
    return np.append(np.linalg.solve(gram, given.T @ (value - value.mean())), np.zeros(design.groups.shape[1]))


def by_conditionals(case: Case) -> Counterfactuals:
    fitted_on, usable = case.fitted_on, case.usable
    fit_rows = stream(case.seed, "judge-conditional-rows").permutation(len(fitted_on.inputs))[:FIT_ROWS]
    inputs, codes = fitted_on.inputs[fit_rows], fitted_on.codes[fit_rows]
    source = np.tile(case.movable, DRAWS)
    old, target = case.inputs[source], case.target[source]
    moved = old.copy()
    of_fit, of_old, of_new = (one_hot(c, case.groups)[:, usable] for c in (codes, case.codes[source], target))
    given = case.layout.columns(case.fixed)
    for block in case.layout.blocks:
        if block.feature.name not in case.edited:
            continue
        centre = inputs[:, given].mean(axis=0)
        known_design = Design(inputs[:, given] - centre, of_fit)
        before, after = Design(old[:, given] - centre, of_old), Design(moved[:, given] - centre, of_new)
        if block.one_hot:
            weights = fit_category(known_design, inputs[:, block.columns])
            if weights is not None:
                uniform = stream(case.seed, "judge-conditional", block.feature.name).random(len(source))
                shares, wanted = (_shares(design.columns, weights) for design in (before, after))
                chosen = coupled(old[:, block.columns].argmax(axis=1), shares, wanted, uniform)
                moved[:, block.columns] = one_hot(chosen, block.width)
        else:
            there = np.flatnonzero(~gaps(inputs[:, block.columns]))
            weights = fit_number(known_design.take(there), inputs[there, block.start])
            if weights is not None:
                shift = (after.columns - before.columns) @ weights
                rows = ~gaps(old[:, block.columns])
                moved[rows, block.start] = np.clip(old[:, block.start] + shift, 0.0, 1.0)[rows]
            if len(there) < len(inputs):
                uniform = stream(case.seed, "missing-conditional", block.feature.name).random(len(source))
                designs = known_design, before, after
                fitted, own = inputs[:, block.columns], old[:, block.columns]
                new = missing_by_conditionals(designs, fitted, own, moved[:, block.columns], weights, uniform)
                moved[:, block.columns] = new
        given = np.append(given, np.arange(block.start, block.stop))
    return Counterfactuals("kr_all", source, moved, np.full(len(source), 1 / DRAWS), target)


# A pair should agree on unedited columns where possible: those count a fifth of a mediator.
CONTEXT_WEIGHT = 0.2
OT_ROWS = 1500


def by_transport(case: Case) -> Counterfactuals:
    """A record takes the mediators of the records that it is coupled with, weighted by the plan."""
    import ot  # slow to import

    inputs, codes, target, layout = case.inputs, case.codes, case.target, case.layout
    columns = layout.columns(case.edited)
    weight = np.full(layout.width, np.sqrt(CONTEXT_WEIGHT))
    weight[columns] = 1.0
    for block in layout.blocks:
        if block.one_hot:
            weight[block.columns] /= np.sqrt(2.0)
    rng = stream(case.seed, "judge-rows")
    sources, matches, shares = [], [], []
    members = {int(g): rng.permutation(np.flatnonzero(codes == g))[:OT_ROWS] for g in np.unique(codes)}
    for a in members:
        for b in case.usable.tolist():
            if a == b or not (target[members[a]] == b).any():
                continue
            rows, others = members[a], members[b]
            cost = ot.dist(inputs[rows] * weight, inputs[others] * weight)
            plan = ot.emd(np.full(len(rows), 1 / len(rows)), np.full(len(others), 1 / len(others)), cost)
            i, j = np.nonzero(plan > 1e-12)
            wanted = target[rows[i]] == b
            sources.append(rows[i][wanted])
            matches.append(others[j][wanted])
            shares.append(plan[i, j][wanted] * len(rows))
    if not sources:
        raise CounterfactualError(f"no two groups have {MIN_GROUP} held-out records each")
    source, matched, share = (np.concatenate(v) for v in (sources, matches, shares))
    moved = inputs[source].copy()
    moved[:, columns] = inputs[matched][:, columns]
    return Counterfactuals("ot", source, moved, share, codes[matched])


def by_autoencoder(case: Case) -> Counterfactuals:
    model = Cvae(case.layout, case.edited, case.groups, CvaeConfig())
    model.fit(case.inputs, case.codes, torch_seed(case.seed, "judge", "cvae"))
    source = case.movable
    moved = model.edit(case.inputs[source], case.codes[source], case.target[source])
    return Counterfactuals("cvae", source, moved, np.ones(len(source)), case.target[source])
