"""Second-order steps in secret: heads of a grid of lambda descend along the inverse of their curvature, together.

Before: a tall matrix X under masks (protocols/steps/head.py), its last column ones; shares of the Gram matrix G of
the edits; and of vectors of which each party knows the part of its own columns: scale s, relative scales d, ridge,
and guard directions u. Weights of the heads are public. After `inverse_curvatures`: of every head its penalty H =
ridge + lambda G + guard u u^T, and inverses P of A = C X^T X / n + H (heads with near lambdas share one), in columns
scaled by s, shared and under a mask. After `curvature_at` and `sharpened`: the same with X^T D X / n in the place of
C X^T X / n, where D is the curvature of the loss at some heads. After `move`: shares of the heads (columns x heads)
after a step. Nobody learns anything.

| part | rounds | words to each peer |
|---|---|---|
| outer products of the vectors | 1 | 2 m (1 + k + guards) |
| truncate them, and X^T X | 1 | t (1 + k + guards + one for each 2^16 rows) |
| scale G | 2 | 3 t |
| truncate A and H | 1 | t (g + k) |
| scale A: E = I - a A | 2 | 3 t k |
| a doubling: P <- P + P E, E <- E E | 2 | 4 t k |
| scale P | 2 | 3 t k |
| mask H and P | 1 | m^2 (g + k) |
| at some heads: D; D X; X^T D X (a few bands) | 6 + 3 for each 2^21 words | sample x (2 g + k + m (1 + 2 k)) |
| then the six parts from "truncate A" on, but for H | | |
| a step: open w; sigmoid and lift; open r; truncate; open the gradient; truncate | 7 | g (2 rows + m (bands + 6)) |

There are m columns with the bias, g heads, k inverses, and t = m (m + 1) / 2 words to a triangle. Scaling 2^15 words
or more takes a third round, and fewer words.

Why twice. The bound C = 1/4 of the curvature of a logistic loss is far above it where labels are rare or columns tell
them apart: then steps along P are short, and many. So after some steps P is made anew from the curvature at the
heads. Its estimate needs no more rows than a few bands. D is at most C, so ranges hold as they are for P of the
bound, if owners' scales bound the mean squares of these bands too. Only the bound of a step below is not proven for
this P. Should a step wrap, logits or what is left to the minimum are out of range, and the run stops. In the end one
more product gives q^T P q, twice what is left to the minimum (`room_to_settle`), and a head with too much of it stops
the run.

Why it is secure: each opened value is a secret minus a uniform tuple value that is used once, or minus a mask that
belongs to one secret. X^T X = O^T O + O^T M + M^T O + M^T M for X = O + M with O open. Who knows columns of the mask
M multiplies them, and the dealer gives shares of M^T M. So every view is uniform whatever the data are.

Ranges. By the rules of the scales all diagonals of A, G and u u^T are at most 1 once scaled, and so are all entries:
a positive semidefinite matrix has none above its largest diagonal. Eigenvalues of E are in (-1, 1]. Rounding adds at
most m 2^-30 in a doubling, and each later doubling at most doubles it. So entries of E stay below 3 while
2^(doublings + 1) m <= 2^30, and its squares (60 bits) below 2^62. P is at most `stretch` = a 2^doublings in scaled
columns, and has 31 - log2(stretch) bits there. In columns scaled by s alone, P_jj is at most 1 / (ridge_j s_j^2),
since A is at least the ridge, and 4 stretch for the bias: below 2^14 by the caller's check, so 21 + 26 bits stay
below 2^62. For the gradient q of a convex objective f whose curvature is at most A, q^T P q <= 2 f(0). So a step is
at most 2 sqrt(P_jj) < 2^8, and 28 + 26 bits stay below 2^62. Penalties of a head are divided by a power of two near
its weight, and multiplied back by the divisor of a truncation.

A head that leaves columns out has its own matrix, with zeros in their rows and columns, and so has its inverse: its
steps are 0 there. Which columns these are is public. Zeroing shares is local, and keeps a matrix positive
semidefinite: all ranges hold. It adds a head and a matrix, and no round.

Private heads (objective perturbation). The gradient of each head has a noise vector b of its own, which the dealer
deals (`noise_of_heads`, `tilt_of`: two rounds once). Scales s and the rounding of rows follow from public bounds and
released tables, so that a row depends on its own record alone. Sums of gradients of short rows are added before
they are truncated (`added_bands`). The slope of the loss takes one round more, a product with the label. The last
steps and the check have the precise sigmoid. At the end the mean gradient must be short (`tolerance_of`), and
the weights so short that no logit of a row of the public radius leaves the range of that sigmoid (`room_of_private`,
then a comparison and the opening of one bit). The second follows from the private head. The first is true of every
data set for which the fixed number of steps converges. Noise on the finished head covers what that leaves
(secure_sccvfl/privacy/heads.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, isqrt, log2

import numpy as np

from protocols import ring
from protocols.dealing.party import Party
from protocols.errors import ProtocolError, RangeError
from protocols.operations.arithmetic import (
    Masked,
    bilinear,
    divide_each,
    mask_shared,
    scaled_bilinear,
    square,
)
from protocols.operations.banded import (
    BAND_ROWS,
    BandedMatrix,
    doubled,
    gram_sums,
    multiplication,
    product,
    shares_of,
    stack_product,
    transposed_products,
)
from protocols.operations.noise import NoiseKind, noise_share
from protocols.operations.sigmoid import FINE_BOUND, capped_slope, fine_sigmoid, sigmoid
from protocols.ring import FRACTION_BITS, Words
from protocols.steps.head import HEAD_BITS, LOGIT_BITS, RESIDUAL_BITS

VECTOR_BITS = 20
RIDGE_BITS = 38
MATRIX_BITS = 28
"""Of G, of A and H, and of P in columns scaled by s."""
_OUTER_BITS = 26
_ERROR_BITS = 30
_WEIGHT_BITS = 20
_STEEP_BITS = 30
_MEAN_BITS = 6
_WEIGHTED_BITS = 22
FLATTEST = 2.0**-10
_GRADIENT_BITS = 26
INVERSE_LIMIT = 2.0**14
SETTLED = 2.0**-14
"""Largest q^T P q of a head that is at its optimum (`room_to_settle`)."""
TOLERANCE = 2.0**-19
"""Largest length of the mean gradient at a finished private head, in unscaled columns (`room_of_private`)."""
BOUNDED_SLOPE_BOUND = FINE_BOUND / 4 - 1
"""Up to this magnitude of a logit a fine `bounded_slope` is precise; the label lies between 0 and 1."""
NOISE_BITS = 20
_WEIGHTED_WORDS = 1 << 21
"""So many words of D X are made at once."""
_ADDED_BANDS = 16
"""Gradients of so many bands are added before they are truncated, where rows are short."""
LARGEST_MAGNITUDE = 1 << 10
_STIFF = 4.0
"""Above this weight of edits the tolerance grows with the weight (`tolerance_of`)."""


@dataclass(frozen=True)
class Plan:
    """Public numbers of a grid of heads.

    heads, inverted: weights of edits and guards of each head, and of each matrix that is inverted. places: the number
    of the matrix of each head. curvature, factor: C and a. sharp_doublings: of the inverses at some heads. guessing:
    the number of the matrix that `solved` uses. used: 1 for each pair of columns that the last matrix is about (an
    upper triangle), 0 for columns that its head does not use; None if it uses all.
    """

    heads: tuple[tuple[float, float], ...]
    inverted: tuple[tuple[float, float], ...]
    places: tuple[int, ...]
    curvature: float
    factor: float
    doublings: int
    rate: float
    momentum: float
    sharp_doublings: int
    guessing: int | None = None
    used: Words | None = field(default=None, compare=False)

    @property
    def inverse_bits(self) -> int:
        """Fraction of the inverse in scaled columns."""
        return 61 - _ERROR_BITS - ceil(log2(self.factor * 2**self.doublings))

    @property
    def magnitudes(self) -> tuple[int, ...]:
        """A power of two for each head, such that its penalties are at most 3 once divided by it."""
        return tuple(_magnitude(pair) for pair in self.heads)

    def sharpened(self, rate: float, momentum: float) -> Plan:
        """That of inverses at some heads. The matrix that no head uses is not inverted again."""
        kept = sorted(set(self.places))
        return replace(
            self,
            inverted=tuple(self.inverted[at] for at in kept),
            places=tuple(kept.index(at) for at in self.places),
            doublings=self.sharp_doublings,
            rate=rate,
            momentum=momentum,
            guessing=None,
        )

    def check(self, columns: int) -> None:
        """Raise unless all values stay in range."""
        most = max(self.doublings, self.sharp_doublings)
        if 2 ** (most + 1) * columns > 2**_ERROR_BITS:
            raise RangeError(f"{most} doublings of matrices with {columns} columns lose too many bits")
        if (
            max(map(_magnitude, (*self.heads, *self.inverted))) > LARGEST_MAGNITUDE
            or not 0 < self.factor * columns < 2
        ):
            raise RangeError("a weight is above 1024, or the first factor of an inverse is too large")


def _magnitude(weights: tuple[float, float]) -> int:
    return int(2 ** ceil(log2(max(1.0, *weights))))


@dataclass(frozen=True, repr=False)
class Curved:
    """Shares of upper triangles: H of every head, H of every matrix that is inverted (with _WEIGHT_BITS more), and
    the outer products of d; of H over its magnitude.
    """

    pull: Words
    held: Words
    relative: Words

    def of_heads(self, plan: Plan) -> Curved:
        """Without the matrix that no head uses."""
        kept = sorted(set(plan.places))
        return Curved(self.pull, self.held[kept], self.relative[kept])


@dataclass(frozen=True, repr=False)
class Scales:
    """Shares of vectors over all columns with the bias: s, d of each inverted matrix (rows), guards, ridge * s^2.

    VECTOR_BITS but for the ridge, which has RIDGE_BITS. The guards are scaled by s. weight: a factor of ridge and
    guards, near 1, VECTOR_BITS; None for 1.
    """

    scale: Words
    relative: Words
    guards: Words
    ridge: Words
    weight: Words | None = None


def inverse_curvatures(
    party: Party, tall: BandedMatrix, gram: Words, scales: Scales, plan: Plan, records: int
) -> tuple[Masked, Curved]:
    """The penalties H of all heads and, below them, the inverses P, in columns scaled by s; each divided by its size.

    And what `sharpened` needs. gram: shares of G (columns x columns without the bias), MATRIX_BITS. records: n, which
    X^T X is divided by.
    """
    plan.check(tall.columns)
    vectors = np.concatenate([scales.scale[None], scales.relative, scales.guards])
    outer = ring.packed(bilinear(party, "mul", vectors[:, :, None], vectors[:, None, :]))
    unit = round(records * 2 ** (2 * FRACTION_BITS - MATRIX_BITS) / plan.curvature)
    outer, fitted = divide_each(
        party, [(outer, 1 << (2 * VECTOR_BITS - _OUTER_BITS)), (gram_sums(party, tall), unit)]
    )
    both, relative, guards = np.split(outer, [1, 1 + len(plan.inverted)])
    edits = scaled_bilinear(party, "mul", ring.packed(_padded(gram)), both[0], 1 << _OUTER_BITS)
    guard, ridge = guards.sum(axis=0) << (MATRIX_BITS - _OUTER_BITS), scales.ridge
    if scales.weight is not None:
        alone = np.concatenate([guard, ridge])
        weighted = scaled_bilinear(party, "mul", alone, scales.weight, 1 << VECTOR_BITS)
        guard, ridge = weighted[: len(guard)], weighted[len(guard) :]
    held = _penalties(edits, guard, ridge, plan.inverted)
    pull, whole = divide_each(
        party,
        [
            (_penalties(edits, guard, ridge, plan.heads), 1 << _WEIGHT_BITS),
            (_with_loss(held, fitted.sum(axis=0), plan), 1 << _WEIGHT_BITS),
        ],
    )
    curved = Curved(pull, held, relative)
    return _stack(party, whole, curved, plan), curved


def sharpened(party: Party, curved: Curved, fitted: Words, plan: Plan) -> Masked:
    """As `inverse_curvatures`, for another curvature of the loss: of some heads (`curvature_at`), not its bound."""
    (whole,) = divide_each(party, [(_with_loss(curved.held, fitted, plan), 1 << _WEIGHT_BITS)])
    return _stack(party, whole, curved, plan)


def _sizes(plan: Plan) -> Words:
    return np.array([_magnitude(pair) for pair in plan.inverted])[:, None]


def _with_loss(held: Words, fitted: Words, plan: Plan) -> Words:
    """Penalties and the curvature of the loss (MATRIX_BITS) over the magnitude of each matrix."""
    return _limited(held + fitted * ((1 << _WEIGHT_BITS) // _sizes(plan)), plan)


def _stack(party: Party, whole: Words, curved: Curved, plan: Plan) -> Masked:
    """Penalties of all heads, and inverses of `whole`, under one mask."""
    columns = _columns(whole)
    unit = round(2 ** (MATRIX_BITS + _OUTER_BITS - _ERROR_BITS) / plan.factor)
    error = -scaled_bilinear(party, "mul", whole, curved.relative * _sizes(plan), unit)
    if party.rank == 0:
        error += _identity(columns) << _ERROR_BITS
    made = _inverted(party, error, columns, plan)
    unit = 1 << (plan.inverse_bits + _OUTER_BITS - MATRIX_BITS)
    inverse = _limited(scaled_bilinear(party, "mul", made, curved.relative, unit), plan)
    return mask_shared(party, ring.unpacked(np.concatenate([curved.pull, inverse]), columns).reshape(-1, columns))


def _columns(triangles: Words) -> int:
    """From the number of words to a triangle."""
    return (isqrt(8 * triangles.shape[-1] + 1) - 1) // 2


def steepness_of(party: Party, logits: Words) -> Words:
    """Shares of p (1 - p) at a logit (LOGIT_BITS), 2 RESIDUAL_BITS; three rounds."""
    chance = sigmoid(party, logits, LOGIT_BITS)
    return (chance << RESIDUAL_BITS) - square(party, chance)


def steepness_of_capped(party: Party, logits: Words, label: Words) -> Words:
    """Shares of the curvature of the capped loss at a logit, 2 RESIDUAL_BITS; five rounds.

    With the slope r it is 3/2 (|r| - 4/3 r^2), and |r| = r - 2 y r for the label y.
    """
    slope = capped_slope(party, logits, label, LOGIT_BITS, fine=False)
    length = slope - 2 * bilinear(party, "mul", label, slope)
    return 3 * (length << (RESIDUAL_BITS - 1)) - 2 * square(party, slope)


def bounded_slope(party: Party, logits: Words, label: Words, *, fine: bool) -> Words:
    """Shares of sigmoid(4 (z - y)) - 1/2, the slope of log(cosh(2 (z - y))) / 4, RESIDUAL_BITS; two rounds.

    logits: z, LOGIT_BITS. label: y, RESIDUAL_BITS.
    """
    apart = (logits - (label << (LOGIT_BITS - RESIDUAL_BITS))) * np.int64(4)
    found = (fine_sigmoid if fine else sigmoid)(party, apart, LOGIT_BITS)
    return found - np.int64(1 << (RESIDUAL_BITS - 1)) if party.rank == 0 else found


def steepness_of_bounded(party: Party, logits: Words, label: Words) -> Words:
    """Shares of the curvature of that loss, 1 - 4 r^2 for the slope r, 2 RESIDUAL_BITS; three rounds."""
    steep = -4 * square(party, bounded_slope(party, logits, label, fine=False))
    return steep + np.int64(1 << (2 * RESIDUAL_BITS)) if party.rank == 0 else steep


def curvature_at(
    party: Party,
    tall: BandedMatrix,
    heads: Words,
    records: float,
    plan: Plan,
    steepness: Callable[[Party, Words], Words] = steepness_of,
) -> Words:
    """X^T D X / records for every matrix that is inverted, as upper triangles, MATRIX_BITS.

    D is the mean, over the heads of a matrix, of the curvature of their loss (`steepness`). It has FLATTEST
    more, so that rounding leaves none negative. Six rounds, and three for each 2^21 words of D X (four for 2^15 or
    more). Words to each peer: m g, rows x (2 g + k), and (1 + 2 k) times the size of X (for 2^15 words or more less).
    """
    columns, count = tall.columns, len(plan.inverted)
    steep = steepness(party, product(party, tall, heads))
    mean = np.zeros((count, heads.shape[1]), np.int64)
    mean[list(plan.places), range(heads.shape[1])] = 1
    mean *= (1 << _MEAN_BITS) // np.maximum(mean.sum(axis=1, keepdims=True), 1)
    (steep,) = divide_each(
        party, [(np.einsum("rg,kg->kr", steep, mean), 1 << (_MEAN_BITS + 2 * RESIDUAL_BITS - _STEEP_BITS))]
    )
    if party.rank == 0:
        steep += np.int64(round(FLATTEST * 2**_STEEP_BITS))
    divisor = 1 << (FRACTION_BITS + _STEEP_BITS - _WEIGHTED_BITS)
    squares, at = [], 0
    each = max(1, _WEIGHTED_WORDS // (count * columns * BAND_ROWS))
    for bands in tall.apart(each):  # a few at a time: k times the rows are large
        here = steep[:, at : at + bands.rows, None]
        weighted = scaled_bilinear(party, "mul", shares_of(party, bands)[None], here, divisor)
        for sums in transposed_products(party, bands, weighted.transpose(1, 0, 2).reshape(-1, count * columns)):
            squares.append(ring.packed(sums.reshape(columns, count, columns).transpose(1, 0, 2)))
        at += bands.rows
    unit = round(records * 2 ** (FRACTION_BITS + _WEIGHTED_BITS - MATRIX_BITS))
    (means,) = divide_each(party, [(np.array(squares), unit)])
    found: Words = means.sum(axis=0)
    return found


def _limited(matrices: Words, plan: Plan) -> Words:
    """The last matrix without the columns that its head does not use. Which these are is public, so this is local."""
    if plan.used is None:
        return matrices
    return np.concatenate([matrices[:-1], matrices[-1:] * plan.used])


def _padded(gram: Words) -> Words:
    """With a row and a column of zeros for the bias."""
    return np.pad(gram, ((0, 1), (0, 1)))


def _identity(columns: int) -> Words:
    return ring.packed(np.eye(columns, dtype=np.int64))


def _penalties(edits: Words, guard: Words, ridge: Words, weights: Sequence[tuple[float, float]]) -> Words:
    """H of each pair of weights over its magnitude, MATRIX_BITS + _WEIGHT_BITS."""
    diagonal = ring.packed(np.diag(ridge))
    rows = []
    for pair in weights:
        size = _magnitude(pair)
        of_edits, of_guard = (np.int64(round(value / size * 2**_WEIGHT_BITS)) for value in pair)
        shift = MATRIX_BITS + _WEIGHT_BITS - RIDGE_BITS - (size.bit_length() - 1)
        rows.append(edits * of_edits + guard * of_guard + (diagonal << shift))
    return np.array(rows)


def _inverted(party: Party, error: Words, columns: int, plan: Plan) -> Words:
    """a (I + E) (I + E^2) (I + E^4) ..., `inverse_bits`; all matrices as upper triangles, heads below each other."""
    start = np.int64(round(plan.factor * 2**plan.inverse_bits)) if party.rank == 0 else np.int64(0)
    made = np.broadcast_to(_identity(columns) * start, error.shape)
    for _ in party.tuples.repeat(plan.doublings):
        error, more = doubled(party, error, made, columns, 1 << _ERROR_BITS)
        made = made + more
    return made


def look(party: Party, tall: BandedMatrix, stack: Masked, heads: Words, start: int) -> tuple[Words, Words]:
    """Shares of the logits X w (LOGIT_BITS, rows x heads), and of H w over its magnitude; one round.

    heads: some of the grid, from number `start` on.
    """
    masked, logits_of = multiplication(party, tall, heads)
    masked_too, pulls_of = stack_product(party, stack, range(start, start + heads.shape[1]), heads)
    opened = party.open_masked("grid product", [masked, masked_too])
    return logits_of(opened[0]), pulls_of(opened[1])


@dataclass(frozen=True, repr=False)
class Slope:
    """Shares of the gradient of heads (_GRADIENT_BITS) and of the step along the inverse (HEAD_BITS); its rate."""

    gradient: Words
    step: Words
    rate: float


@dataclass(frozen=True, repr=False)
class Moving:
    """Shares of some heads of a grid (columns x heads) and of their velocities, HEAD_BITS; from number `start` on.

    slope: of the last step.
    """

    heads: Words
    velocity: Words
    start: int = 0
    slope: Slope | None = None


def noise_of_heads(party: Party, kind: NoiseKind, sigma: float, shape: tuple[int, int], bits: int) -> Words:
    """Shares of a fresh noise vector for every head (columns x heads), with `bits` fractional bits. No round.

    Nobody knows the dealer's noise but the dealer; with `all-parties` each party adds its own.
    """
    columns, heads = shape
    return noise_share(party, kind, sigma * 2**bits, columns, [()] * heads)


def tilt_of(party: Party, noise: Words, scale: Words, records: int) -> Words:
    """Shares of the noise of private heads in the mean gradient of scaled columns, _GRADIENT_BITS.

    noise: `noise_of_heads` with `NOISE_BITS`. scale: s (VECTOR_BITS). Two rounds, 3 x columns x heads words.
    """
    unit = records << (NOISE_BITS + VECTOR_BITS - _GRADIENT_BITS)
    return scaled_bilinear(party, "mul", noise, scale[:, None], unit)


def added_bands(gradients: Words) -> Words:
    """Sums of the gradients of several bands (bands x columns x heads), for rows with entries of at most 2.

    16 bands of 2^11 rows with entries of at most 2 and residuals below 1 add up to less than 2^60.
    """
    starts = range(0, len(gradients), _ADDED_BANDS)
    added: Words = np.add.reduceat(gradients, list(starts), axis=0)
    return added


def tolerance_of(weights: Iterable[float]) -> float:
    """Largest length of the mean gradient at finished private heads whose edits have these public weights.

    Heads are rounded to HEAD_BITS, and the penalty multiplies that: at a weight of 16 the gradient of the best
    rounded head is about 2^-21 long, at 64 about 2^-19. Half of TOLERANCE would often not be reached.
    """
    return TOLERANCE * max(1.0, max(weights) / _STIFF)


def room_of_private(
    party: Party, gradient: Words, unscale: Words, weights: Words, longest: float, tolerance: float = TOLERANCE
) -> Words:
    """Shares of what is negative for a private head that is not finished: its gradient or its weights are too long.

    gradient: of scaled columns (`gradient_of`). unscale: shares of 1 / s, VECTOR_BITS. weights: of unscaled columns
    with the bias, HEAD_BITS. longest: public bound on their length. The gradient may be half of `tolerance` long: the
    other half covers rounding and the error of the sigmoid in the gradient itself. Three rounds.
    """
    plain = scaled_bilinear(party, "mul", gradient, unscale[:, None], 1 << VECTOR_BITS)
    squares: Words = -square(party, np.concatenate([plain, weights], axis=1)).sum(axis=0)
    if party.rank == 0:
        most = (tolerance / 2) ** 2 * 2 ** (2 * _GRADIENT_BITS), longest**2 * 2 ** (2 * HEAD_BITS)
        squares += np.repeat(np.array([round(one) for one in most], np.int64), gradient.shape[1])
    return squares


def gradient_of(
    party: Party, gradients: Words, pulls: Words, start: int, records: int, plan: Plan, tilt: Words | None
) -> Words:
    """Shares of the gradient of the mean objective of some heads, from number `start` on, _GRADIENT_BITS; one round.

    gradients: X_i^T r of every band (FRACTION_BITS + RESIDUAL_BITS); pulls: as `look` gives them. tilt: of private
    heads.
    """
    unit = records << (FRACTION_BITS + RESIDUAL_BITS - _GRADIENT_BITS)
    these = slice(start, start + pulls.shape[1])
    here = plan.magnitudes[these]
    places = [[place for place, size in enumerate(here) if size == wanted] for wanted in sorted(set(here))]
    whole = 1 << (MATRIX_BITS + HEAD_BITS - _GRADIENT_BITS)
    work = [(pulls[:, alike], whole // here[alike[0]]) for alike in places]
    slope, *pulled = divide_each(party, [(gradients, unit), *work])
    gradient: Words = slope.sum(axis=0)
    for alike, part in zip(places, pulled, strict=True):
        gradient[:, alike] += part
    return gradient if tilt is None else gradient + tilt[:, these]


def move(party: Party, at: Moving, gradient: Words, stack: Masked, plan: Plan) -> Moving:
    """Heads and velocities after a step along the inverse; two rounds.

    gradient: `gradient_of`. The divisors include the rate.
    """
    these = slice(at.start, at.start + gradient.shape[1])
    inverses = [len(plan.heads) + place for place in plan.places[these]]
    masked, finish = stack_product(party, stack, inverses, gradient)
    moved = finish(*party.open_masked("grid gradient", [masked]))
    kept = np.int64(round(plan.momentum * 2**FRACTION_BITS))
    step, momentum = divide_each(
        party,
        [
            (moved, round(2 ** (MATRIX_BITS + _GRADIENT_BITS - HEAD_BITS) / plan.rate)),
            (at.velocity * kept, 1 << FRACTION_BITS),
        ],
    )
    velocity = momentum - step
    return Moving(at.heads + velocity, velocity, at.start, Slope(gradient, step, plan.rate))


def solved(party: Party, tall: BandedMatrix, stack: Masked, targets: Words, records: int, plan: Plan) -> Words:
    """Shares of weights that fit targets (rows x outputs, RESIDUAL_BITS) by least squares, HEAD_BITS; four rounds.

    They minimise C |X w - targets|^2 / n + w^T ridge w: w = P C X^T targets / n for the matrix without other
    penalties. Words to each peer: rows + (bands + 2) m, for each output.
    """
    if plan.guessing is None:
        raise ProtocolError("this descent has no matrix for an adversary")
    unit = round((records << (FRACTION_BITS + RESIDUAL_BITS - _GRADIENT_BITS)) / plan.curvature)
    (slopes,) = divide_each(party, [(transposed_products(party, tall, targets), unit)])
    places = [len(plan.heads) + plan.guessing] * targets.shape[1]
    masked, finish = stack_product(party, stack, places, slopes.sum(axis=0))
    wide = finish(*party.open_masked("grid gradient", [masked]))
    (found,) = divide_each(party, [(wide, 1 << (MATRIX_BITS + _GRADIENT_BITS - HEAD_BITS))])
    return found


def room_to_settle(party: Party, slopes: Sequence[Slope]) -> Words:
    """Shares of what is negative for a head whose last step was still long; one round, 2 x columns x heads words.

    For the gradient q at a head and the inverse curvature P, q^T P q is about twice the excess of the objective over
    its minimum. It must be at most SETTLED.
    """
    gradient = np.concatenate([slope.gradient for slope in slopes], axis=1)
    step = np.concatenate([slope.step for slope in slopes], axis=1)
    room: Words = -bilinear(party, "mul", gradient, step).sum(axis=0)
    if party.rank == 0:
        most = [np.int64(round(s.rate * SETTLED * 2 ** (_GRADIENT_BITS + HEAD_BITS))) for s in slopes]
        room += np.repeat(most, [s.step.shape[1] for s in slopes])
    return room
