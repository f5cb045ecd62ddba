"""Second-order steps under MPC: heads of a grid of lambda descend together along the inverse of their curvature.

Before: a tall matrix X under masks (protocols/steps/head.py), its last column ones; shares of the Gram matrix G of
the counterfactual shifts; and of vectors of which each party knows the part for its own columns: scale s, ridge, and
proxy directions u (the proxy penalty). Weights of the heads are public. After `inverse_curvatures`: of every head its
penalty H = ridge + lambda G + pi u u^T, and inverses P of A = C X^T X / n + H (heads with near lambdas share one),
in columns scaled by s, shared and under a mask. After `curvature_at` and `refined`: the same with X^T D X / n
instead of C X^T X / n, where D is the curvature of the loss at some heads, and the gradient there. After `move`:
shares of the heads (columns x heads) after a step. Nobody learns anything.

| part | rounds | ring elements to each peer |
|---|---|---|
| outer products of the vectors, truncated | 2 | (2 m + t) (1 + directions) |
| scale G | 2 | 3 t |
| truncate H and, as E = I - a A, penalties and X^T X | 1 | t (g + k + one for each 2^16 rows) |
| a doubling: P <- c P (I + E), E <- (1 - c) I + c E^2 | 2 | 4 t k |
| mask H and P | 1 | m^2 (g + k) |
| at some heads: open w; slope and D, extended; open r, truncate D | 4 | g (m + 4 rows) + k sample |
| D X; X^T D X | 2 for each 2^21 elements | k x sample x m, and sample x m |
| truncate E and the gradient; doublings; mask H and P | 2 and the doublings | t k (bands) + m g; as above |
| a step: open w; sigmoid, extend; open r; truncate; open the gradient; truncate | 7 | g (2 rows + m (bands + 6)) |
| the first step at some heads: open the gradient; truncate | 2 | 3 m g |

There are m columns with the bias, g heads, k inverses, and t = m (m + 1) / 2 elements to a triangle. Scaling 2^15
elements or more takes a third round, and fewer elements.

Doublings. E = I - a A has eigenvalues between low - 1 and 1 - low if those of A are between `least` and 1 times their
bound. Squares of them are between 0 and (1 - low)^2. With c = 2 / (1 + 2 low - low^2), (1 - c) I + c E^2 has
eigenvalues in an interval around 0 again, with 2 - c, nearly 4 low, instead of low; c = 1 would only double it.
This is the recursion of Chebyshev's polynomials. P A = I - E holds throughout, so a small E makes P an approximate
inverse: it determines how fast steps converge, never where to. An eigenvalue of A below `least` is stretched by 2 c
in each doubling, and converges in more steps. The number of doublings follows from public numbers.

Why twice. The bound C = 1/4 of the curvature of a logistic loss is far above it where labels are rare or columns
separate them: then steps along P are short, and many. So after some steps P is made again from the curvature at the
heads, estimated on a few bands. D is at most C, so the ranges of P hold, if owners' scales bound the mean squares of
these bands too. Only the bound of a step below is not proven for this P. Should a step wrap, logits or the distance
to the minimum are out of range, and the run stops. In the end one more product gives q^T P q, twice the distance to
the minimum (`room_to_settle`), and a head with too much of it stops the run.

Why it is secure: each opened value is a secret minus a uniform tuple value that is used once, or minus a mask that
belongs to one secret (protocols/operations/banded.py). So every view is uniform whatever the data are.

Ranges. By the rules of the scales the trace of A, so each eigenvalue, is at most `span`, and all entries of G, u u^T
and of the mean of D x x^T are at most max(1, lambda, pi): a positive semidefinite matrix has none above its
largest diagonal. Eigenvalues of E are in (-1, 1], since 1 <= c < 2. E is stored times g <= 2 (`Plan.scaled`) with 29
bits, so its square is below 2^60. Rounding adds at most m 2^-29 in a doubling, and each later one multiplies it by 2
c g' / g^2 <= 4 at most: entries stay in range while m times the product of all 2 c is at most 2^26 (`Plan.check`). P
is at most a times that product, and has so many bits that c P (I + E) stays below 2^61. X^T D X is not truncated on
the way: D has 16 bits and X 16. Of private heads D x x^T is at most 1 for each row, so a band of 2^11 rows stays
below 2^59; of others the mean over at most 2^13 rows is, so that their sum stays below 2^61. In columns scaled by s
P_jj is at most (1 + E) / (ridge_j s_j^2), since A is at least the ridge: below 2^14 by the caller's check. For the
gradient q of a convex objective f whose curvature is at most A, q^T P q <= 2 f(0) (1 + E). So what is truncated to a
step is at most 1.3 sqrt(P_jj) < 2^8, and 28 + 26 bits stay below 2^62. Penalties of a head are divided by a power of
two near its weight, and multiplied back by the divisor of a truncation.

Private heads (objective perturbation). The gradient of each head has its own noise vector b, which the dealer deals
(`noise_of_heads`); it is scaled in the rounds that scale G. Scales s and the rounding of rows follow from public
bounds and released tables, so that a row depends on its own record only. Sums of gradients of short rows are added
before they are truncated. At heads of zero the slope of the loss is 1/2 or -1/2, linear in the label: the first
gradient takes one round, before the inverse. The last steps and the check use the precise sigmoid. At the end the
mean gradient must be short (`tolerance_of`), and the weights so short that no logit of a row of the public radius
leaves the range of that sigmoid (`headroom_of_private`, a comparison and the opening of one bit). The second follows
from the private head. The first is true of every data set for which the fixed number of steps converges. Noise on the
finished head covers what that leaves (secure_sccvfl/releases/heads.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, log2, prod, sqrt
from typing import Any

import numpy as np
import torch

from secure_sccvfl.protocols import ring
from secure_sccvfl.protocols.errors import RangeError
from secure_sccvfl.protocols.operations.noise import NoiseKind
from secure_sccvfl.protocols.operations.sigmoid import BOUND, FINE_BOUND
from secure_sccvfl.protocols.session.runtime import Session, crypten
from secure_sccvfl.protocols.steps.head import HEAD_BITS

Shared = Any
"""A CrypTen tensor. CrypTen has no types for mypy."""

VECTOR_BITS = 20
RIDGE_BITS = 38
MATRIX_BITS = 28
"""Of G, of A and H, and of P in columns scaled by s."""
_OUTER_BITS = 26
_ERROR_BITS = 29
_WEIGHT_BITS = 20
_STEEP_BITS = 16
_MEAN_BITS = 6
FLATTEST = 2.0**-10
_GRADIENT_BITS = 26
INVERSE_LIMIT = 2.0**14
SETTLED = 2.0**-14
"""Largest q^T P q of a head that is at its optimum (`room_to_settle`)."""
TOLERANCE = 2.0**-19
"""Largest length of the mean gradient at a finished private head, in unscaled columns (`headroom_of_private`)."""
BOUNDED_SLOPE_BOUND = FINE_BOUND / 4 - 1
"""Up to this magnitude of a logit a fine `bounded_slope` is precise; the label lies between 0 and 1."""
NOISE_BITS = _OUTER_BITS + _GRADIENT_BITS - VECTOR_BITS
"""Of the noise of a private head in its mean gradient."""
SHORT_ROWS = 2.0
"""Largest entry of a row of private heads: gradients of 16 bands are added before they are truncated."""
LARGEST_MAGNITUDE = 1 << 10
FIRST = 1.9
"""The factor a of E = I - a A, times the bound on the eigenvalues of A; below 2."""
_STIFF = 4.0
"""Above this weight of the consistency penalty the tolerance grows with the weight (`tolerance_of`)."""


@dataclass(frozen=True)
class Plan:
    """Public numbers of a grid of heads.

    heads, inverted: weights of the consistency and of the proxy penalty of each head, and of each matrix that is
    inverted. matrix_of: the number of the matrix of each head. curvature: C. span: bound on all eigenvalues of the
    matrices. doublings, sharp: c of every doubling of the first inverses, and of those at some heads (`relaxations`).
    """

    heads: tuple[tuple[float, float], ...]
    inverted: tuple[tuple[float, float], ...]
    matrix_of: tuple[int, ...]
    curvature: float
    span: float
    doublings: tuple[float, ...]
    rate: float
    momentum: float
    sharp: tuple[float, ...]

    @property
    def factor(self) -> float:
        """a of E = I - a A."""
        return FIRST / self.span

    @cached_property
    def scaled(self) -> tuple[float, ...]:
        """g of E before each doubling and after the last: it makes all constants of a doubling sums (`_inverted`)."""
        result = [1.0]
        for c in reversed(self.doublings):
            result.insert(0, sqrt(c * result[0]))
        return tuple(result)

    @property
    def first(self) -> float:
        """g a: what the matrices are multiplied by before the first doubling."""
        return self.scaled[0] * self.factor

    @property
    def inverse_first(self) -> float:
        """The number that P is multiplied by before the first doubling, so that it is 1 after the last."""
        return prod(c / g for c, g in zip(self.doublings, self.scaled, strict=False))

    @property
    def inverse_bits(self) -> int:
        """Fraction of the inverses while they are made; at most MATRIX_BITS."""
        largest = self.factor * prod(2 * c for c in self.doublings)
        return min(MATRIX_BITS, 60 - _ERROR_BITS - ceil(log2(largest)))

    @cached_property
    def magnitudes(self) -> tuple[int, ...]:
        """A power of two for each head, such that its penalties are at most 3 once divided by it."""
        return tuple(_magnitude(pair) for pair in self.heads)

    def refined(self, rate: float, momentum: float) -> Plan:
        """That of inverses at some heads."""
        return replace(self, doublings=self.sharp, rate=rate, momentum=momentum)

    def check(self, columns: int) -> None:
        """Raise unless all values stay in range."""
        most = max(prod(2 * c for c in self.doublings), prod(2 * c for c in self.sharp))
        if most * columns > 2 ** (_ERROR_BITS - 3):
            raise RangeError(f"inverting matrices with {columns} columns loses too many bits")
        if max(map(_magnitude, (*self.heads, *self.inverted))) > LARGEST_MAGNITUDE:
            raise RangeError(f"a weight is above {LARGEST_MAGNITUDE}")


def relaxations(least: float, left: float) -> tuple[float, ...]:
    """c of every doubling E <- (1 - c) I + c E^2 (module text), until |E| <= left.

    For matrices with eigenvalues from `least` times their bound up to the bound: those of E = I - a A are between
    low - 1 and 1 - low. c maps their squares to such an interval again, with nearly four times that low.
    """
    result, low = [], FIRST * min(least, 2 / FIRST - 1)
    while 1 - low > left:
        result.append(2 / (1 + 2 * low - low**2))
        low = 2 - result[-1]
    return tuple(result)


def _magnitude(weights: tuple[float, float]) -> int:
    return int(2 ** ceil(log2(max(1.0, *weights))))


@dataclass(frozen=True, repr=False)
class Curved:
    """Upper triangles over their magnitudes: H of every head (MATRIX_BITS), and of every matrix that is inverted
    (with _WEIGHT_BITS more).
    """

    pull: Shared
    held: Shared


@dataclass(frozen=True, repr=False)
class Scales:
    """Vectors over all columns with the bias: s, proxy directions (rows), ridge * s^2.

    VECTOR_BITS except for the ridge, which has RIDGE_BITS. Proxy directions are scaled by s. With a range penalty the
    ridge is a matrix: that of the ridge plus blocks of which each party knows its own, with a diagonal of at most 1.
    weight: a factor of ridge and proxy directions, near 1, VECTOR_BITS; None for 1.
    """

    scale: Shared
    proxy_directions: Shared | None
    ridge: Shared
    weight: Shared | None = None


@dataclass(frozen=True, repr=False)
class Prepared:
    """Penalties H of all heads and, below them, inverses P, in columns scaled by s, pinned; what `refined` needs;
    the gradient where the inverse was taken; and the noise of private heads in it.
    """

    stack: Shared
    curved: Curved
    gradient: Shared | None = None
    tilt: Shared | None = None


def inverse_curvatures(
    session: Session,
    fused: Shared,
    gram: Shared,
    scales: Scales,
    plan: Plan,
    records: int,
    noise: Shared | None = None,
    slope: Shared | None = None,
) -> Prepared:
    """Penalties and inverses, with C X^T X / n as the curvature of the loss.

    fused: X, pinned. gram: G (columns x columns without the bias), MATRIX_BITS. records: n, which X^T X is divided
    by. noise: of private heads (`noise_of_heads`, NOISE_BITS). slope: r at heads of zero (rows x heads), if it is
    linear in the label; then X^T r takes one round more, and the gradient of the first step is known.
    """
    columns = fused.size(1)
    plan.check(columns)
    vectors = (
        scales.scale[None]
        if scales.proxy_directions is None
        else crypten.cat([scales.scale[None], scales.proxy_directions])
    )
    outer = (vectors.unsqueeze(2) * vectors.unsqueeze(1)).packed().rescale(_OUTER_BITS)
    consistency, tilt = _scaled_by(gram.pad((0, 1, 0, 1)).packed(), outer[0], noise, scales.scale)
    proxy, ridge = outer[1:].sum(0).rescale(MATRIX_BITS), scales.ridge
    if scales.weight is not None:
        alone = crypten.cat([proxy.with_fraction(0), ridge.with_fraction(0).reshape(-1)])
        weighted = (alone * scales.weight).rescale(0)
        proxy, ridge = weighted[: proxy.size(0)].with_fraction(MATRIX_BITS), weighted[proxy.size(0) :]
        ridge = ridge.reshape(*scales.ridge.size()).with_fraction(RIDGE_BITS)
    held, of_heads = (_penalties(consistency, proxy, ridge, pairs) for pairs in (plan.inverted, plan.heads))
    squares, sums = fused.gram(), None
    if slope is not None:
        sums = fused.t() @ slope
        session.flush()
    pull = of_heads.rescale(MATRIX_BITS)
    error = _first_error(held, squares / (records / plan.curvature / plan.first), plan)
    gradient = None
    if sums is not None:
        gradient = (sums / records).rescale(_GRADIENT_BITS)
        gradient = gradient if tilt is None else gradient + tilt
    curved = Curved(pull, held)
    return Prepared(_stack(session, error, columns, curved, plan), curved, gradient, tilt)


def _scaled_by(gram: Shared, both: Shared, noise: Shared | None, scale: Shared) -> tuple[Shared, Shared | None]:
    """The triangle of G times s on both sides, MATRIX_BITS, and noise times s, _GRADIENT_BITS: one product."""
    if noise is None:
        return (gram * both).rescale(MATRIX_BITS), None
    whole = crypten.cat([gram.with_fraction(0), noise.with_fraction(0).reshape(-1)])
    each = scale.with_fraction(_OUTER_BITS).unsqueeze(1).expand(*noise.size()).reshape(-1)
    result = (whole * crypten.cat([both, each])).rescale(0)
    consistency, drawn = result[: gram.size(0)], result[gram.size(0) :].reshape(*noise.size())
    return consistency.with_fraction(MATRIX_BITS), drawn.with_fraction(_GRADIENT_BITS)


def refined(
    session: Session, curved: Curved, fitted: Shared, share: float, plan: Plan, gradients: Gradients | None
) -> Prepared:
    """The same for another curvature of the loss: of some heads (`curvature_at`), not its bound.

    fitted, share: X^T D X over some rows, and how many records these stand for. gradients: at these heads.
    """
    error = _first_error(curved.held, fitted / (share / plan.first), plan)
    gradient = None if gradients is None else gradients.mean(plan)
    columns = ring.columns_of(fitted.size(-1))
    return Prepared(_stack(session, error, columns, curved, plan), curved, gradient)


def _first_error(held: Shared, fitted: Shared, plan: Plan) -> Shared:
    """g a A for every matrix A, _ERROR_BITS: penalties, and the curvature of the loss times g a. All wait."""
    sizes = [_magnitude(pair) for pair in plan.inverted]
    parts = [(held[at] / (1 / (plan.first * size))).rescale(_ERROR_BITS) for at, size in enumerate(sizes)]
    return [*parts, fitted.rescale(_ERROR_BITS)]


def _stack(session: Session, parts: Sequence[Shared], columns: int, curved: Curved, plan: Plan) -> Shared:
    """Penalties of all heads, and inverses of the matrices of these parts (`_first_error`), pinned."""
    error = -crypten.stack(list(parts[:-1])) - parts[-1]
    error = error + torch.from_numpy(plan.scaled[0] * _identity(columns))
    inverse = _inverted(session, error, columns, plan).rescale(MATRIX_BITS)
    return crypten.cat([curved.pull, inverse]).unpacked(columns).pinned()


Slopes = Callable[[Shared, Shared], tuple[Shared, Shared]]
"""From logits (LOGIT_BITS) and labels to slope and curvature of the loss, RESIDUAL_BITS; two rounds."""


def slopes_of(logits: Shared, label: Shared) -> tuple[Shared, Shared]:
    """Of the logistic loss; the label has RESIDUAL_BITS."""
    chance, steep = logits.sigmoid_and_slope()
    return chance - label, steep


def slopes_of_capped(logits: Shared, label: Shared) -> tuple[Shared, Shared]:
    """Of the capped loss of a private head; the label is an integer."""
    slope, steep = logits.capped_slope_and_bend(label)
    return slope, steep


def slopes_of_bounded(logits: Shared, label: Shared) -> tuple[Shared, Shared]:
    """Of the loss of `bounded_slope`, whose curvature is 4 times the derivative of the sigmoid."""
    chance, steep = (4 * (logits - label)).sigmoid_and_slope()
    return chance - 0.5, 4 * steep


def bounded_slope(logits: Shared, label: Shared, *, fine: bool) -> Shared:
    """sigmoid(4 (z - y)) - 1/2, the slope of log(cosh(2 (z - y))) / 4, RESIDUAL_BITS; two rounds.

    logits: z, LOGIT_BITS. label: y, RESIDUAL_BITS.
    """
    return (4 * (logits - label)).sigmoid(bound=FINE_BOUND if fine else BOUND) - 0.5


def curvature_at(sample: Shared, steep: Shared, plan: Plan, fused: Shared, slope: Shared | None) -> tuple[Any, Any]:
    """X^T D X of some bands for every matrix that is inverted (triangles), and X^T r of all rows.

    sample, fused: some bands of X, and all of X, pinned. D is the mean, over the heads of a matrix, of the curvature
    of their loss (steep, RESIDUAL_BITS). It has FLATTEST more, so that errors of the sigmoid leave none negative.
    slope: r, if X^T r is wanted, which takes no more rounds. One round, and two for each 2^21 ring elements of D X.
    Ring elements to each peer: rows x (g + k), and (1 + k) times those of X.
    """
    mean = np.zeros((len(plan.inverted), steep.size(1)), np.int64)
    mean[list(plan.matrix_of), range(steep.size(1))] = 1
    mean *= (1 << _MEAN_BITS) // mean.sum(axis=1, keepdims=True)
    of_heads = (steep @ torch.from_numpy(mean.T.copy())).t()
    diagonals = (of_heads / (1 << _MEAN_BITS)).rescale(_STEEP_BITS)
    sums = None if slope is None else fused.t() @ slope
    return sample.gram(diagonals + FLATTEST), sums


def _identity(columns: int) -> np.ndarray:
    return ring.upper_triangles(np.eye(columns))


def _penalties(consistency: Shared, proxy: Shared, ridge: Shared, weights: Sequence[tuple[float, float]]) -> Shared:
    """H of each pair of weights over its magnitude, MATRIX_BITS + _WEIGHT_BITS; weights are rounded to the latter."""
    long = MATRIX_BITS + _WEIGHT_BITS
    diagonal = ridge.with_fraction(0)
    diagonal = diagonal if ridge.dim() == 2 else diagonal * torch.eye(ridge.size(0), dtype=torch.int64)
    rows = []
    for pair in weights:
        size = _magnitude(pair)
        of_consistency, of_proxy = (round(value / size * 2**_WEIGHT_BITS) for value in pair)
        shift = long - RIDGE_BITS - (size.bit_length() - 1)
        below = (diagonal * (1 << shift)).packed().with_fraction(long)
        rows.append((consistency * of_consistency + proxy * of_proxy).with_fraction(long) + below)
    return crypten.stack(rows)


def _inverted(session: Session, error: Shared, columns: int, plan: Plan) -> Shared:
    """a c (I + E) c' (I + E') ..., `inverse_bits`; all matrices as upper triangles, heads below each other.

    error: g E, with g = `plan.scaled`. With F = g E and Q = P times a public number, a doubling is Q <- Q (F + g I)
    and F <- F^2 - g' (c - 1) I, where g' is the next g: no constant is left to multiply by. Q ends as P.
    """
    scaled, identity = plan.scaled, _identity(columns)
    start = np.broadcast_to(plan.factor * plan.inverse_first * identity, error.size())
    output = session.public(start, plan.inverse_bits)
    for at in session.repeat(len(plan.doublings)):
        error, output = error.doubled(output, columns, scaled[at])
        error = error - torch.from_numpy(scaled[at + 1] * (plan.doublings[at] - 1) * identity)
    return output


def look(fused: Shared, stack: Shared, heads: Shared, start: int) -> tuple[Shared, Shared]:
    """The logits X w (LOGIT_BITS, rows x heads), and H w over its magnitude; one round.

    heads: some of the grid, from number `start` on.
    """
    return fused @ heads, stack[start : start + heads.size(1)].each(heads)


@dataclass(frozen=True, repr=False)
class Slope:
    """The gradient of heads (_GRADIENT_BITS) and the step along the inverse (HEAD_BITS); its rate."""

    gradient: Shared
    step: Shared
    rate: float


@dataclass(frozen=True, repr=False)
class Moving:
    """Some heads of a grid (columns x heads) and their velocities, HEAD_BITS; from number `start` on.

    slope: of the last step.
    """

    heads: Shared
    velocity: Shared
    start: int = 0
    slope: Slope | None = None


def noise_of_heads(session: Session, kind: NoiseKind, sigma: float, shape: tuple[int, int], bits: int) -> Shared:
    """A fresh noise vector for every head (columns x heads), with `bits` fractional bits. No round.

    Only the dealer knows its noise; with `all-parties` each party adds its own.
    """
    columns, heads = shape
    return session.noise_table(kind, sigma, columns, [()] * heads, bits)


def tolerance_of(weights: Iterable[float]) -> float:
    """Largest length of the mean gradient at finished private heads with these public lambdas.

    Heads are rounded to HEAD_BITS, and the penalty multiplies that: at a weight of 16 the gradient of the best
    rounded head is about 2^-21 long, at 64 about 2^-19. Half of TOLERANCE would often not be reached.
    """
    return TOLERANCE * max(1.0, max(weights) / _STIFF)


def headroom_of_private(
    gradient: Shared, heads: Shared, scales: Shared, longest: float, tolerance: float = TOLERANCE
) -> tuple[Shared, Shared]:
    """What is negative for a private head that is not finished: its gradient or its weights are too long.

    And the heads in unscaled columns, HEAD_BITS. gradient, heads: in scaled columns (`Gradients`, HEAD_BITS).
    scales: 1 / s and s (rows), VECTOR_BITS. longest: public bound on the length of the weights. The gradient may be
    half of `tolerance` long: the other half covers rounding and the error of the sigmoid in the gradient itself.
    Three rounds.
    """
    both = crypten.stack([gradient.with_fraction(0), heads.with_fraction(0)])
    plain = (both * scales.unsqueeze(2)).rescale(0)
    most = (tolerance / 2) ** 2 * 2 ** (2 * _GRADIENT_BITS), longest**2 * 2 ** (2 * HEAD_BITS)
    limits = torch.tensor([round(one) for one in most]).repeat_interleave(gradient.size(1))
    slack = -plain.square().sum(1).reshape(-1) + limits
    return slack, plain[1].with_fraction(HEAD_BITS)


@dataclass(frozen=True, repr=False)
class Gradients:
    """What the gradient of the mean objective of some heads, from number `start` on, is made of.

    sums: X^T r (FRACTION_BITS + RESIDUAL_BITS). pulls: as `look` returns them. tilt: of private heads.
    """

    sums: Shared
    pulls: Shared
    start: int
    records: int
    tilt: Shared | None

    def mean(self, plan: Plan) -> Shared:
        """The gradient, _GRADIENT_BITS; one round."""
        these = slice(self.start, self.start + self.pulls.size(1))
        sizes = np.array(plan.magnitudes[these])
        gradient = (self.sums / self.records + self.pulls * sizes).rescale(_GRADIENT_BITS)
        return gradient if self.tilt is None else gradient + self.tilt[:, these]


def move(at: Moving, gradient: Shared, stack: Shared, plan: Plan) -> Moving:
    """Heads and velocities after a step along the inverse; two rounds."""
    these = slice(at.start, at.start + gradient.size(1))
    along = stack[[len(plan.heads) + index for index in plan.matrix_of[these]]].each(gradient)
    step = (plan.rate * along).rescale(HEAD_BITS)
    velocity = (plan.momentum * at.velocity).rescale(HEAD_BITS) - step
    return Moving(at.heads + velocity, velocity, at.start, Slope(gradient, step, plan.rate))


def room_to_settle(slopes: Sequence[Slope]) -> Shared:
    """What is negative for a head whose last step was still long; one round, 2 x columns x heads ring elements.

    For the gradient q at a head and the inverse curvature P, q^T P q is about twice the excess of the objective over
    its minimum. It must be at most SETTLED.
    """
    gradient = crypten.cat([slope.gradient for slope in slopes], dim=1)
    step = crypten.cat([slope.step for slope in slopes], dim=1)
    most = [slope.rate * SETTLED for slope in slopes for _ in range(slope.step.size(1))]
    return -(gradient * step).sum(0) + torch.tensor(most, dtype=torch.float64)
