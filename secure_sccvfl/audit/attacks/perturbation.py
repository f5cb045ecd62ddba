"""Subspace-PGD: flip decisions by moving mediators only, to records that can exist.

A number moves by at most the radius, a share of its public range, and stays inside it. A category moves to another
category, whole: one-hot columns stay one-hot. At most `CATEGORY_MOVES` categorical features of a record change. A
value that is missing stays missing. Every restart takes signed-gradient steps in the numbers, then tries every
category of every mediator for the one that lowers the decision's margin most, and takes steps in the numbers again. A
record counts as flipped if any restart flips it.

Without `features` in the view it is the paper's attack: every column moves in the ball, one-hot columns by fractions,
and public ranges do not bind. Records of this kind do not exist; it is kept for comparison with the paper.

The positive control is a linear model of the mediators alone. It is known which records can be flipped there, and the
attack must flip them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from secure_sccvfl.audit.attacks.view import Rate, WhiteBox
from secure_sccvfl.data.randomness import stream

STEPS = 20
RESTARTS = 3
CATEGORY_MOVES = 1


def two_class(logits: torch.Tensor) -> torch.Tensor:
    """One logit as two, so that every model ends in a softmax."""
    return torch.cat([torch.zeros_like(logits), logits], dim=1) if logits.shape[1] == 1 else logits


def margins(target: WhiteBox, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """By how much the logit of the first decision exceeds the best other one; negative: the decision flipped."""
    logits = two_class(target.logits(x))
    first = logits.gather(1, label[:, None])[:, 0]
    others = logits.scatter(1, label[:, None], -torch.inf)
    return first - others.max(dim=1).values


def _numbers(target: WhiteBox, inputs: np.ndarray) -> torch.Tensor:
    """1 where a cell is a number that may move, for each record."""
    free = np.zeros(inputs.shape)
    if not target.features:
        free[:, target.columns] = 1.0
    for block in target.features:
        if not block.one_hot:
            free[:, block.start] = 1.0 if block.width == 1 else inputs[:, block.start + 1] < 0.5
    return torch.tensor(free)


def _descend(
    target: WhiteBox, x: torch.Tensor, centre: torch.Tensor, free: torch.Tensor, label: torch.Tensor, radius: float
) -> torch.Tensor:
    """Signed-gradient steps in the numbers inside the ball around `centre` and the public range."""
    low, high = centre - radius * free, centre + radius * free
    if target.features:
        low, high = torch.minimum(low.clamp(min=0.0), centre), torch.maximum(high.clamp(max=1.0), centre)
    for _ in range(STEPS):
        x = x.detach().requires_grad_(True)
        (gradient,) = torch.autograd.grad(margins(target, x, label).sum(), x)
        x = torch.maximum(torch.minimum(x - radius / 5 * gradient.sign() * free, high), low)
    return x.detach()


@torch.no_grad()
def _move_category(target: WhiteBox, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """The change of one category that lowers each record's margin most; none if no change lowers it."""
    best, lowest = x, margins(target, x, label)
    for block in (b for b in target.features if b.one_hot):
        for column in range(block.start, block.stop):
            moved = x.clone()
            moved[:, block.columns] = 0.0
            moved[:, column] = 1.0
            margin = margins(target, moved, label)
            better = margin < lowest
            best, lowest = torch.where(better[:, None], moved, best), torch.where(better, margin, lowest)
    return best


def perturb(target: WhiteBox, radius: float, seed: int = 0, restarts: int = RESTARTS) -> torch.Tensor:
    """The perturbed records of lowest margin over all restarts: the first starts from the records themselves."""
    x = torch.tensor(target.inputs, dtype=torch.float64)
    free, rng = _numbers(target, target.inputs), stream(seed, "pgd restarts")
    with torch.no_grad():
        label = two_class(target.logits(x)).argmax(dim=1)
        best, lowest = x, margins(target, x, label)
    for number in range(restarts):
        start = x
        if number:
            moved = x + torch.tensor(rng.uniform(-radius, radius, x.shape))
            start = torch.where(free > 0, moved.clamp(0.0, 1.0) if target.features else moved, x)
        result = _descend(target, start, x, free, label, radius)
        tried = [result]
        if target.features:
            for _ in range(CATEGORY_MOVES):
                result = _move_category(target, result, label)
            centre = torch.where(free > 0, x, result)
            tried += [result, _descend(target, result, centre, free, label, radius)]
        for moved in tried:
            with torch.no_grad():
                margin = margins(target, moved, label)
            better = margin < lowest
            best, lowest = torch.where(better[:, None], moved, best), torch.where(better, margin, lowest)
    return best


def subspace_pgd(target: WhiteBox, radius: float, seed: int = 0, restarts: int = RESTARTS) -> Rate:
    """Share of records whose decision changes; no perturbation changes none, so chance is 0."""
    moved = perturb(target, radius, seed, restarts)
    with torch.no_grad():
        before = two_class(target.logits(torch.tensor(target.inputs, dtype=torch.float64))).argmax(dim=1)
        after = two_class(target.logits(moved)).argmax(dim=1)
    hits = int((before != after).sum())
    return Rate.of_counts(f"{radius:.2f}", target.holder, hits, len(target.inputs), 0.0)


def feasible_pgd_curve(target: WhiteBox, seed: int) -> list[Rate]:
    return [subspace_pgd(target, radius, seed) for radius in target.radii]


def subspace_pgd_curve(target: WhiteBox, seed: int) -> list[Rate]:
    """The paper's attack, one rate for each radius, from the records themselves."""
    relaxed = replace(target, features=())
    return [subspace_pgd(relaxed, radius, seed, restarts=1) for radius in target.radii]


def linear_in_mediators(target: WhiteBox, seed: int) -> list[Rate]:
    """Positive control: a linear model of the mediators alone. All that can be flipped (`_reach`) must be.

    The border lies between the two neighbouring scores closest to the median, so there are records on both sides.
    """
    rng, radius = stream(seed, "pgd control"), max(target.radii)
    weight = np.zeros(target.inputs.shape[1])
    weight[target.columns] = rng.normal(size=len(target.columns))
    scores = target.inputs @ weight
    different = np.unique(scores)
    if len(different) < 2:
        return []
    borders = (different[:-1] + different[1:]) / 2
    middle = float(borders[np.abs(borders - np.median(scores)).argmin()])
    possible = _reach(target, weight, scores > middle, radius) > np.abs(scores - middle)
    factors = torch.tensor(weight)[:, None]
    linear = replace(target, logits=lambda x: x @ factors - middle, inputs=target.inputs[possible])
    return [subspace_pgd(linear, radius, seed)] if possible.any() else []


def _reach(target: WhiteBox, weight: np.ndarray, above: np.ndarray, radius: float) -> np.ndarray:
    """How far the score of each record can move towards the other side, for a linear model."""
    x, towards = target.inputs, np.where(above, -1.0, 1.0)[:, None]
    moved = x + radius * _numbers(target, x).numpy() * np.sign(weight) * towards
    if target.features:
        moved = np.where(moved == x, x, moved.clip(0.0, 1.0))
    numbers = np.abs((moved - x) @ weight)
    best = np.zeros(len(x))
    for block in (b for b in target.features if b.one_hot):
        weights = weight[block.start : block.stop]
        best = np.maximum(best, np.max(towards * weights, axis=1) - towards[:, 0] * (x[:, block.columns] @ weights))
    return np.asarray(numbers + best)
