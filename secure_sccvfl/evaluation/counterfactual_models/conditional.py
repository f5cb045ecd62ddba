"""The model `kr_all`: mediators move one after another, each given the fixed features and the mediators before it.

A regression of each mediator on those and on the group gives its conditional distribution. A category moves by the
maximal coupling of the two conditional distributions, a number by the shift of its conditional mean. The effects of
the group are shrunk by empirical Bayes: where they explain no more than chance would, nobody moves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from secure_sccvfl.data.layout import one_hot
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.evaluation.counterfactual_models import Case, Counterfactuals
from secure_sccvfl.evaluation.counterfactual_models.marginal import DRAWS, gaps

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
    rest, own = (part - given @ np.linalg.solve(gram, given.T @ part) for part in (centred, groups))
    explained = own @ np.linalg.lstsq(own, rest, rcond=1e-6)[0]
    freedom = groups.shape[1] - 1
    noise = ((rest - explained) ** 2).sum() / max(len(value) - freedom, 1)
    excess = _excess(float((explained**2).sum() / max(noise, 1e-12)), freedom)
    if excess <= 0:
        return None
    both = np.hstack([given, groups])
    penalty = design.penalty(float(np.median((own**2).sum(axis=0)) / excess))
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
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": STEPS})
    weights: np.ndarray = found.x.reshape(-1, chosen.shape[1])
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


def edit(case: Case) -> Counterfactuals:
    known, usable = case.fitted_on, case.usable
    fit_rows = stream(case.seed, "judge-conditional-rows").permutation(len(known.inputs))[:FIT_ROWS]
    inputs, codes = known.inputs[fit_rows], known.codes[fit_rows]
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
        given = np.append(given, np.arange(block.start, block.stop))
    return Counterfactuals("kr_all", source, moved, np.full(len(source), 1 / DRAWS), target)
