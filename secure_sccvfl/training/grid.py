"""Second-order training for a whole grid of lambda at once: the public rules that both engines follow.

A logit is linear in the head, so the loss has the curvature C X^T X / n at most (C: `CURVATURE` of the task), and the
penalties are squares. So for every lambda one matrix bounds the curvature of the whole objective from above,
    A = C X^T X / n + ridge + lambda G + proxy penalty,
and steps along its inverse, P (gradient), with a little momentum converge fast. Heads of all lambdas are the columns
of one matrix. Those whose lambdas are within a factor of NEAR share one P: that of the largest, which bounds the
curvature of the others too. The bias is the weight of a column of ones.

Scale. The owner of a column j knows its ridge and mean square, and bounds on what the penalties add:
    s_j = (flat + weight energy + reach)^-1/2,    weight = the largest lambda, between 1 and SCALED_LAMBDA
where flat = C mean square + ridge. In columns scaled by s the diagonal of A is at most max(1, lambda / weight,
proxy weight). So its trace, and its largest eigenvalue, are at most m times that for m columns: the span.

Inverse. With E = I - a A and a = FIRST / span, all eigenvalues of E are in (-1, 1], and
    P = a c (I + E) c' (I + E') ...    with E' = (1 - c) I + c E^2 and so on
is the inverse of A up to the remainder of E (protocols/steps/second_order.py). Both P and the next E take one
product each, and the two side by side. Curvature below LEAST of the scaled diagonal is not inverted: it would move a
logit by little, and gets there in more steps. The number of doublings follows from m and the largest lambda: nothing
is opened to end early.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from secure_sccvfl.data.party import Blocks
from secure_sccvfl.protocols.operations.banded import BAND_ROWS, even
from secure_sccvfl.protocols.steps.second_order import FIRST, relaxations

LARGEST_WEIGHT = 2.0**10
"""Of the consistency penalty and of the proxy penalty."""
ROUNDED_BITS = 25
"""Bits of E that are right, about."""
LEAST, ROUGHER = 2.0**-9, 2.0**3
"""Smallest curvature in scaled columns that is inverted, and how much larger it is for an inverse of a few steps."""
LEFT, ROUGHLY_LEFT = 0.06, 0.05
"""What is left of E after the last doubling, where the curvature is not smaller."""
SCALED_LAMBDA = 4.0
"""Columns are scaled for the largest lambda, up to this one."""
NEAR = 4.0
"""Within this factor a larger lambda serves: on four data sets it took no more steps than one P for each lambda."""
SHARP_RATE, SHARP_MOMENTUM = 1.0, 0.1
"""Of steps along the inverse of the curvature itself."""
SAMPLED, PRIVATE_SAMPLED = 4, 16
"""How many bands of rows that curvature is estimated on at most; private heads must be closer to their optimum."""


def sampled_rows(count: int, most: int = SAMPLED) -> np.ndarray:
    """The rows of those bands: True for each."""
    bands = -(-count // BAND_ROWS)
    return np.repeat(np.isin(np.arange(bands), even(bands, most)), BAND_ROWS)[:count]


class Bounds(NamedTuple):
    """Each owner's curvature bounds per column: of loss and ridge, of the consistency and of the proxy penalty."""

    flat: Blocks
    energy: Blocks
    reach: Blocks


@dataclass(frozen=True)
class Grid:
    """Weights of one logit to train together: lambda and the weight of the proxy penalty for each.

    `curvature` is that of the loss. Of several classes each has a head for every lambda.
    sharpens: the curvature is taken at the heads after some steps, so that the first inverse may be rough.
    separate: every head has its own matrix, as private heads need. Otherwise near lambdas share one.
    least: smallest curvature in scaled columns that is inverted.
    """

    lambdas: tuple[float, ...]
    proxy_penalties: tuple[float, ...]
    curvature: float
    rate: float = 1.2
    momentum: float = 0.25
    sharpens: bool = False
    separate: bool = False
    least: float = LEAST

    def __post_init__(self) -> None:
        if not self.lambdas or len(self.proxy_penalties) != len(self.lambdas):
            raise ValueError(
                f"need one weight of the proxy penalty for each lambda, got {self.lambdas} and {self.proxy_penalties}"
            )
        if (
            min(*self.lambdas, *self.proxy_penalties) < 0
            or max(*self.lambdas, *self.proxy_penalties) > LARGEST_WEIGHT
        ):
            raise ValueError(
                f"weights must be from 0 to {LARGEST_WEIGHT:g}, got {self.lambdas} and {self.proxy_penalties}"
            )
        if self.curvature <= 0 or not 0 < self.rate < 2 or not 0 <= self.momentum < 1:
            raise ValueError("need a positive curvature, a rate between 0 and 2, and a momentum of 0 or more below 1")

    def __len__(self) -> int:
        return len(self.lambdas)

    @property
    def heads(self) -> tuple[tuple[float, float], ...]:
        """Lambda and weight of the proxy penalty of each head."""
        return tuple(zip(self.lambdas, self.proxy_penalties, strict=True))

    @property
    def inverted(self) -> tuple[tuple[float, float], ...]:
        """Lambda and weight of the proxy penalty of each matrix that is inverted, from the largest lambda down."""
        if self.separate:
            return self.heads
        matrices: list[tuple[float, float]] = []
        for lam, proxy_penalty in sorted(self.heads, reverse=True):
            if matrices and lam * NEAR >= matrices[-1][0]:
                matrices[-1] = (matrices[-1][0], max(matrices[-1][1], proxy_penalty))
            else:
                matrices.append((lam, proxy_penalty))
        return tuple(matrices)

    @property
    def matrix_of(self) -> tuple[int, ...]:
        """For each head the number of its matrix in `inverted`: the least that bounds its curvature."""
        if self.separate:
            return tuple(range(len(self)))
        return tuple(max(at for at, (most, _) in enumerate(self.inverted) if lam <= most) for lam in self.lambdas)

    @property
    def weight(self) -> float:
        """Of the consistency penalty in the scales of the columns."""
        return min(max(1.0, *self.lambdas), SCALED_LAMBDA)

    def span(self, columns: int) -> float:
        """Bound on the eigenvalues of all matrices that are inverted, in scaled columns: that on their trace."""
        return columns * max(1.0, *(max(lam / self.weight, proxy_penalty) for lam, proxy_penalty in self.inverted))

    def doublings(self, columns: int) -> tuple[float, ...]:
        """c of each doubling of the first inverses; `columns` includes the bias."""
        if not self.sharpens:
            return self.sharp_doublings(columns)
        return relaxations(self._least(columns, min(1.0, ROUGHER * self.least)), ROUGHLY_LEFT)

    def sharp_doublings(self, columns: int) -> tuple[float, ...]:
        """The same of those at the heads."""
        return relaxations(self._least(columns, self.least), LEFT)

    def _least(self, columns: int, least: float) -> float:
        """Share of the bound on the eigenvalues; below the last one rounding under MPC would count."""
        return max(least / self.span(columns), columns * 2.0**-ROUNDED_BITS)


def scales(grid: Grid, flat: np.ndarray, energy: np.ndarray, reach: np.ndarray) -> np.ndarray:
    """s: the factor of each column. Of the bias it is 1."""
    return np.asarray(1.0 / np.sqrt(flat + grid.weight * energy + reach))


def inverses(grid: Grid, curvatures: Sequence[np.ndarray]) -> np.ndarray:
    """The inverse by doubling of matrices whose eigenvalues are bounded, in plaintext."""
    columns = len(curvatures[0])
    first, one = FIRST / grid.span(columns), np.eye(columns)
    error, inverse = one - first * np.asarray(curvatures), first * one
    for c in grid.doublings(columns):
        inverse, error = c * (inverse + inverse @ error), (1 - c) * one + c * (error @ error)
    return inverse
