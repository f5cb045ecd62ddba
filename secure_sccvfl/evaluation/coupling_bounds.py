"""Bounds on the flip rate over all couplings that the released tables allow, for additive models of two classes.

A table says how many records of a group must move for the group to look like another one, not which. So a flip rate
depends on a coupling that no data identify. Here the class of couplings is: every mediator moves as little as its
table needs, while which records move, and how mediators move together, is free.

- Category, from the shares p of a group to q of another: records leave values with p > q and arrive at values with
  q > p (maximal coupling). Missing is a value.
- Number: between bins, keeping the position inside a bin. Over the cut c moves at most |F_p(c) - F_q(c)|, in the
  direction that it needs. A number that may be missing also moves between missing and present, by the difference of
  the missing shares (`models.missing`); who becomes present may get any value.

*Certificate within the tables.* A decision is certified if the sum over the mediators of the largest allowed shift
towards the other decision does not change it. So it cannot flip under any coupling of the class.

*Upper bound.* For records i of one group, moves y_ijl of mediator j to bin l, logits z_i and shifts d_ijl towards the
other decision, it is the linear programme

    max sum f_i    f_i <= sum_jl y_ijl min(1, d_ijl / |z_i|),   f_i = 0 if certified,   sum_l y_ijl <= 1,

with the capacities above for the sums of y over the records that leave, arrive or pass a cut. It bounds the expected
share of flips: a flip needs shifts that sum to |z_i|, and min(1, sum a) <= sum min(1, a). If the other mediators
cannot flip a record together, mediator j must move far enough: f_i <= the sum of these y_ijl. Capacities are those of
the tables or of the test records under the tables' rates, whichever are larger, so the counterfactuals of generator
`minimal` are in the class.

*At 95 %.* The same with capacities that hold for the tables without their DP noise, jointly with a confidence of at
least 95 %: Bonferroni over cells and cuts, a simulated quantile for the total of a category. Owners' exact marginals
of training records sharpen the tables, which pooled data allow. Sampling of records is not covered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from secure_sccvfl.data.layout import Block, unit_cuts
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.discovery.scores import group_sizes, proper, shrunken
from secure_sccvfl.evaluation.certified import certificate_scores, joint_layout, predictor_contributions
from secure_sccvfl.evaluation.methods import Fitted, Prepared
from secure_sccvfl.evaluation.scoring import Scored

ALPHA = 0.05
MOST_ROWS = 1000
"""Test records that a bound is computed on; of more, so many are drawn."""
SIMULATED = 4000
LEAST = 1e-9
"""Shares and shifts below this are 0."""


@dataclass(frozen=True)
class Shares:
    """Shares of the bins of a mediator in each group (bins x groups), and how far noise may have moved them.

    cell: of a difference of two groups in a bin. single: of one group's share. cut: of a difference of cumulative
    shares. total: of half the sum of absolute differences. All are 0 for a point estimate; bins x groups x groups,
    the last two groups x groups.
    """

    of: np.ndarray
    cell: np.ndarray
    single: np.ndarray
    cut: np.ndarray
    total: np.ndarray


@dataclass(frozen=True)
class Mediator:
    """Test records in one mediator: their bins, what it adds to their logits, and what it would add in other bins.

    low, high: smallest and largest contribution after a move to each bin (records x bins). steps: bins of present
    values if it is a number, else 0.
    """

    name: str
    bins: np.ndarray
    now: np.ndarray
    low: np.ndarray
    high: np.ndarray
    steps: int


@dataclass(frozen=True)
class Limits:
    """Which moves between bins are allowed, and how many records may make them.

    caps: pairs of a mask over moves (bins x bins) and the number of records that it allows.
    """

    allowed: np.ndarray
    caps: tuple[tuple[np.ndarray, float], ...]


@dataclass(frozen=True)
class Bound:
    """certified: of each record, within the tables. flips: upper bound on the share of decisions that flip."""

    certified: np.ndarray
    flips: float


def mediators_of(ready: Prepared, fitted: Fitted, inputs: np.ndarray) -> list[Mediator]:
    """What each edited feature adds to the logits of these records, and would add after a move."""
    edited = ready.roles.edited
    layout = joint_layout(ready.parties)
    blocks = [block for block in layout.blocks if block.feature.name in edited]
    contributions = predictor_contributions(fitted.predict, ready.parties, edited)
    return [
        _mediator(block, inputs[:, block.columns], of_levels[:, 0])
        for block, of_levels in zip(blocks, contributions, strict=True)
    ]


def _mediator(block: Block, columns: np.ndarray, of_levels: np.ndarray) -> Mediator:
    name = block.feature.name
    if block.one_hot:
        bins, there = columns.argmax(axis=1), np.tile(of_levels, (len(columns), 1))
        return Mediator(name, bins, of_levels[bins], there, there, 0)
    cuts, value = unit_cuts(block.feature), columns[:, 0]
    steps, at_cuts = len(cuts) - 1, of_levels[: len(cuts)]
    bins = np.clip(np.searchsorted(cuts[1:-1], value, side="right"), 0, steps - 1)
    inside = (value - cuts[bins]) / np.diff(cuts)[bins]
    there = at_cuts[:-1] + inside[:, None] * np.diff(at_cuts)
    now, low, high = np.interp(value, cuts, at_cuts), there, there
    if block.width > 1:
        missing, ends = columns[:, 1] > 0.5, np.stack([at_cuts[:-1], at_cuts[1:]])
        bins, now = np.where(missing, steps, bins), np.where(missing, of_levels[-1], now)
        flag = np.full((len(value), 1), of_levels[-1])
        low, high = (
            np.hstack([np.where(missing[:, None], end, there), flag]) for end in (ends.min(axis=0), ends.max(axis=0))
        )
    return Mediator(name, bins, now, low, high, steps)


def point_shares(ready: Prepared) -> dict[str, Shares]:
    """The distributions by which counterfactuals move: shrunken tables, without an allowance for noise."""
    noisy, shares = ready.model.noisy_tables[0], {}
    for party in ready.parties:
        own_tables = [noisy.tables[name] for name in party.layout.names if name in noisy.tables]
        for name in set(party.layout.names) & set(ready.roles.edited):
            of = shrunken(noisy.tables[name], group_sizes(own_tables), noisy.deviation)
            shares[name] = _exactly(of)
    return shares


def _exactly(of: np.ndarray) -> Shares:
    bins, groups = of.shape
    none = np.zeros((bins, groups, groups))
    return Shares(of, none, np.zeros((bins, groups)), none, np.zeros((groups, groups)))


def confident_shares(ready: Prepared, alpha: float = ALPHA) -> dict[str, Shares]:
    """Shares of the tables as they are, with exact marginals put in, and allowances that hold jointly for all."""
    noisy, edited = ready.model.noisy_tables[0], set(ready.roles.edited)
    rows = ready.config.training_rows(ready.split)
    tables = noisy.with_marginals(party.take(rows) for party in ready.parties).tables
    groups = len(ready.data.protected[0].groups)
    pairs, cells = groups * (groups - 1) / 2, sum(len(tables[name]) for name in edited)
    # Half of alpha for differences in cells, cuts and single shares, two-sided; half for totals.
    width = NormalDist().inv_cdf(1 - alpha / 4 / max(cells * (2 * pairs + groups), 1))
    rng, shares = stream(ready.seed, "coupling bounds"), {}
    for party in ready.parties:
        held = [tables[n] for n in party.layout.names if n in tables]
        if not held:
            continue
        sizes = np.maximum(group_sizes(held), 1.0)
        for name in sorted(set(party.layout.names) & edited):
            of = proper(tables[name] / sizes)
            alone = noisy.deviation * np.sqrt(1 - 1 / groups) / sizes
            both = noisy.deviation**2 * (
                (1 - 1 / groups) * (sizes[:, None] ** -2 + sizes[None] ** -2) + 2 / groups / np.outer(sizes, sizes)
            )
            apart = np.sqrt(both) * (1 - np.eye(groups))
            bins = len(of)
            drawn = rng.normal(size=(SIMULATED, bins))
            spread = 0.5 * np.abs(drawn - drawn.mean(axis=1, keepdims=True)).sum(axis=1)
            quantile = np.quantile(spread, 1 - alpha / 2 / max(len(edited) * pairs, 1))
            upto = np.sqrt(np.arange(1, bins + 1))[:, None, None]
            shares[name] = Shares(
                of,
                np.broadcast_to(width * apart, (bins, groups, groups)),
                np.broadcast_to(width * alone, (bins, groups)),
                width * apart * upto,
                quantile * apart,
            )
    return shares


def limits(shares: Shares, source: int, target: int, counts: np.ndarray, steps: int) -> Limits:
    """Moves of records with these counts by bin from one group to another. steps: of a number; 0 for a category."""
    p, q = shares.of[:, source], shares.of[:, target]
    size, bins, noise = counts.sum(), len(p), shares.cell[:, source, target]
    if not steps:
        lowest = np.maximum(p - shares.single[:, source], LEAST)
        out, into = np.clip(p - q + noise, 0.0, None), np.clip(q - p + noise, 0.0, None)
        leave = counts * np.minimum(1.0, out / lowest)
        total = 0.5 * np.abs(p - q).sum() + shares.total[source, target]
        expected = float((counts * np.clip(1 - q / np.maximum(p, LEAST), 0.0, 1.0)).sum())
        more = max(1.0, expected / max(size * 0.5 * np.abs(p - q).sum(), LEAST))
        allowed = (out > LEAST)[:, None] & (into > LEAST)[None] & ~np.eye(bins, dtype=bool)
        caps = [(_from(bins, k), float(leave[k])) for k in range(bins)]
        caps += [(_from(bins, k).T, float(size * into[k] * more)) for k in range(bins)]
        return Limits(allowed, (*caps, (np.ones((bins, bins), bool), float(size * total * more))))
    present = slice(0, steps)
    allowed, caps = np.zeros((bins, bins), bool), []
    if p[present].sum() > LEAST and q[present].sum() > LEAST:
        inner, caps = _between_bins(shares, source, target, counts[present], steps)
        allowed[present, present] = inner
        caps = [(np.pad(mask, (0, bins - steps)), most) for mask, most in caps]
    if bins > steps:
        missing = bins - 1
        to_missing = np.clip(q[-1] - p[-1] + noise[-1], 0.0, None)
        to_present = np.clip(p[-1] - q[-1] + noise[-1], 0.0, None)
        lowest = p[-1] - shares.single[-1, source], 1 - p[-1] - shares.single[-1, source]
        allowed[missing, present], allowed[present, missing] = to_present > LEAST, to_missing > LEAST
        rates = [min(1.0, r / max(low, LEAST)) for r, low in zip((to_present, to_missing), lowest, strict=True)]
        caps.append((_from(bins, missing), float(counts[missing] * rates[0])))
        caps.append((_from(bins, missing).T, float(counts[present].sum() * rates[1])))
    return Limits(allowed, tuple(caps))


def _from(bins: int, source: int) -> np.ndarray:
    """Moves out of one bin."""
    mask = np.zeros((bins, bins), bool)
    mask[source] = True
    return mask


def _between_bins(
    shares: Shares, source: int, target: int, counts: np.ndarray, steps: int
) -> tuple[np.ndarray, list[tuple[np.ndarray, float]]]:
    """Moves between bins of present values: with a point estimate those of the comonotone coupling."""
    p, q = (shares.of[:steps, group] / shares.of[:steps, group].sum() for group in (source, target))
    low, high = (np.concatenate([[0.0], np.cumsum(one)]) for one in (p, q))
    over = np.minimum(low[1:, None], high[None, 1:]) - np.maximum(low[:-1, None], high[None, :-1])
    over = np.clip(over, 0.0, None)
    kept = min(shares.of[:steps, source].sum(), shares.of[:steps, target].sum())
    noise = shares.cut[: steps - 1, source, target] / kept
    flows = counts[:, None] * over / np.maximum(p, LEAST)[:, None]
    index = np.arange(steps)
    up = np.clip((low - high)[1:-1] + noise, 0.0, None) * counts.sum()
    down = np.clip((high - low)[1:-1] + noise, 0.0, None) * counts.sum()
    caps, open_up, open_down = [], np.zeros(steps - 1, bool), np.zeros(steps - 1, bool)
    for cut in range(steps - 1):
        for most, mask, open_at in (
            (up[cut], (index[:, None] <= cut) & (index[None] > cut), open_up),
            (down[cut], (index[:, None] > cut) & (index[None] <= cut), open_down),
        ):
            most = max(most, float(flows[mask].sum()))
            caps.append((mask, float(most)))
            open_at[cut] = most > LEAST
    if not noise.any():
        return (over > LEAST) & ~np.eye(steps, dtype=bool), caps
    allowed = np.zeros((steps, steps), bool)
    for k in range(steps):
        for m in range(steps):
            path = open_up[k:m] if m > k else open_down[m:k]
            allowed[k, m] = m != k and bool(path.all())
    return allowed, caps


def bound(
    logits: np.ndarray, codes: np.ndarray, mediators: list[Mediator], shares: Mapping[str, Shares], groups: int
) -> Bound:
    """Over all couplings of the class. A record moves to each other group with the same weight."""
    certified, flips = np.ones(len(logits), bool), 0.0
    for source in range(groups):
        rows = np.flatnonzero(codes == source)
        for target in range(groups):
            if target == source or not len(rows):
                continue
            given = [
                limits(shares[m.name], source, target, np.bincount(m.bins[rows], minlength=m.low.shape[1]), m.steps)
                for m in mediators
            ]
            safe, flipped = _one_pair(logits[rows], [_rows(m, rows) for m in mediators], given)
            certified[rows] &= safe
            flips += flipped / (groups - 1)
    return Bound(certified, flips / max(len(logits), 1))


def _rows(mediator: Mediator, rows: np.ndarray) -> Mediator:
    of_records = {name: getattr(mediator, name)[rows] for name in ("bins", "now", "low", "high")}
    return replace(mediator, **of_records)


class _Programme:
    """Rows of a linear programme: sums of variables that have an upper bound."""

    def __init__(self) -> None:
        self.entries: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self.most: list[np.ndarray] = []
        self.rows = 0

    def add(self, row: np.ndarray, column: np.ndarray, value: np.ndarray | float, most: np.ndarray) -> None:
        self.entries.append((row + self.rows, column, np.broadcast_to(np.asarray(value, float), row.shape)))
        self.most.append(most)
        self.rows += len(most)

    def largest(self, count: int, columns: int, upper: np.ndarray) -> float:
        """The largest sum of the first `count` variables, all of which are between 0 and `upper`."""
        row, column, value = (np.concatenate(part) for part in zip(*self.entries, strict=True))
        matrix = coo_matrix((value, (row, column)), shape=(self.rows, columns)).tocsr()
        goal = np.zeros(columns)
        goal[:count] = -1.0
        solved = linprog(
            goal,
            A_ub=matrix,
            b_ub=np.concatenate(self.most),
            bounds=np.column_stack([np.zeros(columns), upper]),
            method="highs",
        )
        if not solved.success:
            raise ArithmeticError(f"no bound over couplings: {solved.message}")
        return float(-solved.fun)


def _one_pair(logits: np.ndarray, mediators: list[Mediator], given: list[Limits]) -> tuple[np.ndarray, float]:
    """Which records are certified, and the largest number of flips among them, from one group to another."""
    positive, distance = logits > 0, np.abs(logits)
    shifts, best = [], []
    for mediator, limit in zip(mediators, given, strict=True):
        towards = np.where(
            positive[:, None], mediator.now[:, None] - mediator.low, mediator.high - mediator.now[:, None]
        )
        shift = np.where(limit.allowed[mediator.bins], np.clip(towards, 0.0, None), 0.0)
        shifts.append(shift)
        best.append(shift.max(axis=1))
    reach = np.sum(best, axis=0) if best else np.zeros(len(logits))
    # A positive decision flips at a logit of 0, a negative one above 0.
    certified = np.where(positive, reach < distance, reach <= distance)
    free = np.flatnonzero(~certified)
    if not len(free):
        return certified, 0.0
    count, columns, programme = len(free), len(free), _Programme()
    gains: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for mediator, limit, shift, most in zip(mediators, given, shifts, best, strict=True):
        record, bins = np.nonzero(shift[free] > LEAST)
        if not len(record):
            continue
        variable = columns + np.arange(len(record))
        columns += len(record)
        moved, left = shift[free][record, bins], mediator.bins[free][record]
        need = distance[free] - (reach - most)[free]
        gains.append((record, variable, np.minimum(1.0, moved / np.maximum(distance[free][record], LEAST))))
        programme.add(record, variable, 1.0, np.ones(count))
        for mask, cap in limit.caps:
            inside = variable[mask[left, bins]]
            if len(inside):
                programme.add(np.zeros(len(inside), int), inside, 1.0, np.array([cap]))
        bound_to = np.flatnonzero(need > LEAST)
        number = np.full(count, -1)
        number[bound_to] = np.arange(len(bound_to))
        far = (number[record] >= 0) & (moved >= need[record] - 1e-12)
        if len(bound_to):
            programme.add(
                np.concatenate([number[record[far]], number[bound_to]]),
                np.concatenate([variable[far], bound_to]),
                np.concatenate([-np.ones(int(far.sum())), np.ones(len(bound_to))]),
                np.zeros(len(bound_to)),
            )
    record, variable, gain = (np.concatenate(part) for part in zip(*gains, strict=True))
    flips = np.arange(count)
    programme.add(
        np.concatenate([record, flips]),
        np.concatenate([variable, flips]),
        np.concatenate([-gain, np.ones(count)]),
        np.zeros(count),
    )
    return certified, programme.largest(count, columns, np.ones(columns))


def guarantee_scores(ready: Prepared, fitted: Fitted) -> list[Scored]:
    """What holds for every counterfactual: the certificate, and the bounds over couplings."""
    return [*certificate_scores(ready, fitted), *coupling_scores(ready, fitted)]


def coupling_scores(ready: Prepared, fitted: Fitted) -> list[Scored]:
    """`certified_tables` and `fr_bound`, and with `_95` the same at 95 % with respect to the noise of the tables.

    Nothing for a method that is not additive, more than two classes, a regression, or without mediators.
    """
    if not fitted.additive or ready.data.task != "binary" or not ready.roles.edited:
        return []
    rows = ready.split.test
    if len(rows) > MOST_ROWS:
        rows = np.sort(stream(ready.seed, "rows of bounds").choice(rows, MOST_ROWS, replace=False))
    attribute = ready.data.protected[0]
    inputs, codes, groups = ready.inputs[rows], attribute.codes[rows], len(attribute.groups)
    logits, mediators = fitted.predict(inputs)[:, 0], mediators_of(ready, fitted, inputs)
    scored = []
    for ending, shares in (("", point_shares(ready)), ("_95", confident_shares(ready))):
        found = bound(logits, codes, mediators, shares, groups)
        scored.append(Scored(None, f"certified_tables{ending}", float(found.certified.mean())))
        scored.append(Scored(None, f"fr_bound{ending}", found.flips))
    return scored
