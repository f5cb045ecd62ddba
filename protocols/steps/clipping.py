"""Clipping of contingency tables under MPC: c becomes c S / |c|, the paper's clipping.

Before: the tables of all features are a CrypTen tensor of integers. The number of records N, the length S and the
sizes of the tables are public. After: each table scaled to length S is a tensor, in integer units of S 2^-20. Nobody
learns anything: products and divisions open masked values only (protocols/operations/arithmetic.py).

The paper scales by min(1, S / |c|). A table of one attribute with K cells and n records has n / sqrt(K) <= |c| <= n.
So if S is at most the smallest length of a table of N / 2 records, every table is longer than S, and the minimum is
S / |c| without a comparison. A larger S is refused: hardly any table would be scaled.

*Inverse square root.* Let L be a public lower bound of |c|^2 / N^2 (the least for N / 2 records), and z = |c|^2 /
(N^2 L), between 1 and a public M. Newton's w <- w (3 - z w^2) / 2 converges to 1 / sqrt(z). With u = w sqrt(z) it is
u <- g(u) = u (3 - u^2) / 2, whatever z is. It starts at w = sqrt(2 / M), so u lies between sqrt(2 / M) and sqrt(2). g
rises on (0, 1) to g(1) = 1, the largest value on (0, sqrt(3)), and g(sqrt(2)) = .707. So after one step u <= 1, and a
lower bound of u follows from its last one: low <- g(low). The number of steps depends on M only.

*Rounding.* All numbers have 26 fractional bits. In each step z w is off by one unit, (z w) w by two (w <= 1), w (3
- z w^2) / 2 by w + 1: u is off by (u + sqrt(z)) units, at most rho = (2 + sqrt(M)) 2^-26. So low <- g(low) - rho,
which ends near 1 - rho: `Clipping.error` runs this recursion and adds the rounding of z and of the public factors.
Errors do not accumulate, since every step starts from z itself. The last product is divided by a public number, off
by at most two units of S 2^-20 in each cell.

*Sensitivity.* A scaled table is off by at most `Clipping.distance` (l2 norm), for every data set of N / 2 to N
records. So between two neighbours it moves by at most twice that more than the exact one (`accounting.paper`).

Rounds: 1 (square), 1 (division), 6 for each Newton step, 2 for the last product. For 20 cells that is 9 steps and
58 rounds. Bytes to each peer: 32 for each cell, 8 for each table, and 72 for each table and step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from secure_sccvfl.protocols.errors import RangeError
from secure_sccvfl.protocols.session.runtime import Session, crypten

BITS = 26
"""Fraction of the numbers in Newton's steps."""
UNIT_BITS = 20
"""A scaled table is counted in units of its length times 2^-20."""
_MOST_ROWS = 1 << 26
_SUM_BITS = 61


@dataclass(frozen=True)
class Clipping:
    """Public scales. `bins`: of the largest table. `groups`: of each attribute. `length`: the S of all tables."""

    rows: int
    bins: int
    groups: tuple[int, ...]
    length: float

    def __post_init__(self) -> None:
        if not 2 <= self.rows < _MOST_ROWS:
            raise RangeError(f"clipping under MPC needs between 2 and 2^26 records, got {self.rows}")
        most = self.rows * math.sqrt(self.least)
        if not 0 < self.length <= most:
            raise RangeError(
                f"tables are scaled to a length above 0 and at most {most:.4g}, not {self.length:g}: "
                "a longer one would leave them as they are"
            )
        if self.spread > 1 << 18:
            raise RangeError(f"tables of {self.cells} cells are too large to be scaled under MPC")

    @property
    def cells(self) -> int:
        """Of the largest table, all attributes side by side."""
        return self.bins * sum(self.groups)

    @property
    def least(self) -> float:
        """L: squared length over N^2 is at least this, for half of the records."""
        return sum(1 / (self.bins * count) for count in self.groups) / 4

    @property
    def spread(self) -> float:
        """M: the largest z."""
        return len(self.groups) / self.least

    @property
    def typical(self) -> float:
        """A typical length of tables before scaling: the middle of the possible range, by ratio."""
        return self.rows * math.sqrt(math.sqrt(4 * self.least * len(self.groups)))

    @property
    def unit(self) -> float:
        return self.length * 2.0**-UNIT_BITS

    @cached_property
    def steps(self) -> int:
        return len(self._lower)

    @property
    def error(self) -> float:
        """Relative error of 1 / |c|: of Newton's steps, of z, of the public divisors."""
        of_z = 0.5 / self.square_divisor + 3 * 2.0**-BITS
        return 1 - self._lower[-1] + self._rho + of_z + 1 / self.product_divisor

    @property
    def distance(self) -> float:
        """How far a scaled table may be from the exact one, as an l2 norm."""
        return self.length * self.error + 2 * self.unit * math.sqrt(self.cells)

    @property
    def _rho(self) -> float:
        return (2 + math.sqrt(self.spread)) * 2.0**-BITS

    @cached_property
    def _lower(self) -> list[float]:
        """A lower bound of u after each step, until it rises no more."""
        bounds = [min(_newton(self.start), _newton(math.sqrt(2))) - self._rho]
        while _newton(bounds[-1]) - self._rho > bounds[-1] + 2.0**-BITS:
            bounds.append(_newton(bounds[-1]) - self._rho)
        return bounds

    @property
    def start(self) -> float:
        """The first w, on the grid."""
        return math.floor(math.sqrt(2 / self.spread) * 2.0**BITS) * 2.0**-BITS

    @property
    def square_shift(self) -> int:
        """Bits by which squared lengths can be moved up."""
        return _SUM_BITS - math.ceil(math.log2(len(self.groups) * self.rows**2))

    @property
    def square_divisor(self) -> int:
        return max(1, round(self.rows**2 * self.least * 2.0 ** (self.square_shift - BITS)))

    @property
    def product_shift(self) -> int:
        """Bits by which counts can be moved up before they are multiplied by w."""
        return _SUM_BITS - 1 - BITS - math.ceil(math.log2(self.rows * math.sqrt(self.least) + 1))

    @property
    def product_divisor(self) -> int:
        return round(self.rows * math.sqrt(self.least) * 2.0 ** (BITS - UNIT_BITS + self.product_shift))


def _newton(u: float) -> float:
    return u * (3 - u * u) / 2


def scaled(table: np.ndarray, length: float) -> np.ndarray:
    """The exact result for one table, in the clear; a table without records stays as it is."""
    norm = float(np.linalg.norm(table))
    return table * min(1.0, length / norm) if norm > 0 else table


def clip(session: Session, tables: Any, widths: Sequence[int], clipping: Clipping) -> Any:
    """The scaled tables, in units. `tables`: of counts, one below the other; `widths`: the bins of each."""
    cuts = list(pairwise(np.cumsum([0, *widths]).tolist()))
    squares = tables.square().sum(1)
    lengths = crypten.stack([squares[low:high].sum() for low, high in cuts]) * 2**clipping.square_shift
    z = divided(lengths, clipping.square_divisor).with_fraction(BITS)
    w = session.public(np.full(len(widths), clipping.start), BITS)
    for _ in range(clipping.steps):
        square = ((z * w).rescale(BITS) * w).rescale(BITS)
        w = ((3 - square) * w / 2).rescale(BITS)
    each = np.repeat(np.arange(len(widths)), widths).tolist()
    factors = w[each][:, None].expand(*tables.size())
    product = tables * 2**clipping.product_shift * factors
    return (product / clipping.product_divisor).rescale(BITS).with_fraction(0)


def divided(whole: Any, divisor: int) -> Any:
    """A tensor of integers over a public one, off by at most two units; 1 or 2 rounds."""
    return (whole.exact() / divisor).rescale(0, sliced=True)
