"""Second-order steps in secret: heads of a grid of lambda descend along the inverse of their curvature, together.

Before: a tall matrix X under masks (protocols/steps/head.py), its last column ones; shares of the Gram matrix G of
the edits; and of vectors of which each party knows the part of its own columns: scale s, ridge, and guard directions
u. Weights of the heads are public. After `inverse_curvatures`: of every head its penalty H = ridge + lambda G + guard
u u^T, and inverses P of A = C X^T X / n + H (heads with near lambdas share one), in columns scaled by s, shared and
under a mask. After `curvature_at` and `sharpened`: the same with X^T D X / n in the place of C X^T X / n, where D is
the curvature of the loss at some heads, and the gradient there. After `move`: shares of the heads (columns x heads)
after a step. Nobody learns anything.

| part | rounds | ring elements to each peer |
|---|---|---|
| outer products of the vectors, truncated | 2 | (2 m + t) (1 + guards) |
| scale G | 2 | 3 t |
| truncate H and, as E = I - a A, penalties and X^T X | 1 | t (g + k + one for each 2^16 rows) |
| a doubling: P <- c P (I + E), E <- (1 - c) I + c E^2 | 2 | 4 t k |
| mask H and P | 1 | m^2 (g + k) |
| at some heads: open w; slope and D, lifted; open r, truncate D | 4 | g (m + 4 rows) + k sample |
| D X; X^T D X | 2 for each 2^21 elements | k x sample x m, and sample x m |
| truncate E and the gradient; doublings; mask H and P | 2 and the doublings | t k (bands) + m g; as above |
| a step: open w; sigmoid and lift; open r; truncate; open the gradient; truncate | 7 | g (2 rows + m (bands + 6)) |
| the first step at some heads: open the gradient; truncate | 2 | 3 m g |

There are m columns with the bias, g heads, k inverses, and t = m (m + 1) / 2 elements to a triangle. Scaling 2^15
elements or more takes a third round, and fewer elements.

Doublings. E = I - a A has eigenvalues between low - 1 and 1 - low if those of A are between `least` and 1 times
their bound. Squares of them are between 0 and (1 - low)^2. With c = 2 / (1 + 2 low - low^2), (1 - c) I + c E^2 has
eigenvalues in an interval around 0 again, with 2 - c, nearly 4 low, in the place of low; c = 1 would only double it.
This is the recursion of Chebyshev's polynomials. P A = I - E holds throughout, so a small E makes P an inverse, if
only about: it decides how fast steps converge, never where to. An eigenvalue of A below `least` is stretched by 2 c
in each doubling, and gets to the optimum in more steps. The number of doublings follows from public numbers.

Why twice. The bound C = 1/4 of the curvature of a logistic loss is far above it where labels are rare or columns tell
them apart: then steps along P are short, and many. So after some steps P is made again from the curvature at the
heads. Its estimate needs no more rows than a few bands. D is at most C, so ranges hold as they are for P of the
bound, if owners' scales bound the mean squares of these bands too. Only the bound of a step below is not proven for
this P. Should a step wrap, logits or what is left to the minimum are out of range, and the run stops. In the end one
more product gives q^T P q, twice what is left to the minimum (`room_to_settle`), and a head with too much of it stops
the run.

Why it is secure: each opened value is a secret minus a uniform tuple value that is used once, or minus a mask that
belongs to one secret. X^T X = O^T O + O^T M + M^T O + M^T M for X = O + M with O open. Who knows columns of the mask
M multiplies them, and the dealer gives shares of M^T M. So every view is uniform whatever the data are.

Ranges. By the rules of the scales the trace of A, so each eigenvalue, is at most `span`, and all entries of G, u u^T
and of the mean of D x x^T are at most max(1, lambda, guard): a positive semidefinite matrix has none above its
largest diagonal. Eigenvalues of E are in (-1, 1], since 1 <= c < 2. E is kept times g <= 2 (`Plan.scaled`) with 29
bits, so its square is below 2^60. Rounding adds at most m 2^-29 in a doubling, and each later one multiplies it by 2
c g' / g^2 <= 4 at most: entries stay in range while m times the product of all 2 c is at most 2^26 (`Plan.check`). P
is at most a times that product, and has so many bits that c P (I + E) stays below 2^61. X^T D X is not truncated on
the way: D has 16 bits and X 16. Of private heads D x x^T is at most 1 for each row, so a band of 2^11 rows stays
below 2^59; of others the mean over at most 2^13 rows is, so that their sum stays below 2^61. In columns scaled by s
P_jj is at most (1 + E) / (ridge_j s_j^2), since A is at least the ridge: below 2^14 by the caller's check. For the
gradient q of a convex objective f whose curvature is at most A, q^T P q <= 2 f(0) (1 + E). So what is truncated to a
step is at most 1.3 sqrt(P_jj) < 2^8, and 28 + 26 bits stay below 2^62. Penalties of a head are divided by a power of
two near its weight, and multiplied back by the divisor of a truncation.

A head that leaves columns out has its own matrix, with zeros in their rows and columns, and so has its inverse: its
steps are 0 there. Which columns these are is public. Zeroing shares is local, and keeps a matrix positive
semidefinite: all ranges hold. It adds a head and a matrix, and no round.

Private heads (objective perturbation). The gradient of each head has a noise vector b of its own, which the dealer
deals (`noise_of_heads`); it is scaled in the rounds that scale G. Scales s and the rounding of rows follow from
public bounds and released tables, so that a row depends on its own record alone. Sums of gradients of short rows are
added before they are truncated (`added_bands`). At heads of zero the slope of the loss is 1/2 or -1/2, linear in the
label: the first gradient takes one round, before the inverse. The last steps and the check have the precise sigmoid.
At the end the mean gradient must be short (`tolerance_of`), and the weights so short that no logit of a row of the
public radius leaves the range of that sigmoid (`room_of_private`, then a comparison and the opening of one bit). The
second follows from the private head. The first is true of every data set for which the fixed number of steps
converges. Noise on the finished head covers what that leaves (secure_sccvfl/privacy/heads.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, isqrt, log2, prod, sqrt

import numpy as np

from protocols import ring
from protocols.dealing.party import Party
from protocols.errors import ProtocolError, RangeError
from protocols.operations.arithmetic import (
    Masked,
    bilinear,
    divide_each,
    divisions,
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
    shares_of,
    stack_product,
    transposed_products,
    transposition,
)
from protocols.operations.noise import NoiseKind, noise_share
from protocols.operations.sigmoid import (
    FINE_BOUND,
    capped_slope_and_bend,
    fine_sigmoid,
    sigmoid,
    sigmoid_and_slope,
)
from protocols.ring import FRACTION_BITS, Words
from protocols.steps.head import HEAD_BITS, LOGIT_BITS, RESIDUAL_BITS

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
"""Largest length of the mean gradient at a finished private head, in unscaled columns (`room_of_private`)."""
BOUNDED_SLOPE_BOUND = FINE_BOUND / 4 - 1
"""Up to this magnitude of a logit a fine `bounded_slope` is precise; the label lies between 0 and 1."""
NOISE_BITS = _OUTER_BITS + _GRADIENT_BITS - VECTOR_BITS
"""Of the noise of a private head in its mean gradient."""
_WEIGHTED_WORDS = 1 << 21
"""So many words of D X are made at once."""
_ADDED_BANDS = 16
"""Gradients of so many bands are added before they are truncated, where rows are short."""
LARGEST_MAGNITUDE = 1 << 10
FIRST = 1.9
"""The factor a of E = I - a A, times the bound on the eigenvalues of A; below 2."""
_STIFF = 4.0
"""Above this weight of edits the tolerance grows with the weight (`tolerance_of`)."""


@dataclass(frozen=True)
class Plan:
    """Public numbers of a grid of heads.

    heads, inverted: weights of edits and guards of each head, and of each matrix that is inverted. places: the number
    of the matrix of each head. curvature: C. span: bound on all eigenvalues of the matrices. doublings, sharp: c of
    every doubling of the first inverses, and of those at some heads (`relaxations`). guessing: the number of the
    matrix that `solved` uses. used: 1 for each pair of columns that the last matrix is about (an upper triangle), 0
    for columns that its head does not use; None if it uses all.
    """

    heads: tuple[tuple[float, float], ...]
    inverted: tuple[tuple[float, float], ...]
    places: tuple[int, ...]
    curvature: float
    span: float
    doublings: tuple[float, ...]
    rate: float
    momentum: float
    sharp: tuple[float, ...]
    guessing: int | None = None
    used: Words | None = field(default=None, compare=False)

    @property
    def factor(self) -> float:
        """a of E = I - a A."""
        return FIRST / self.span

    @property
    def scaled(self) -> tuple[float, ...]:
        """g of E before each doubling and after the last: it makes all constants of a doubling sums (`_inverted`)."""
        found = [1.0]
        for c in reversed(self.doublings):
            found.insert(0, sqrt(c * found[0]))
        return tuple(found)

    @property
    def inverse_first(self) -> float:
        """The number that P is multiplied by before the first doubling, so that it is 1 after the last."""
        return prod(c / g for c, g in zip(self.doublings, self.scaled, strict=False))

    @property
    def inverse_bits(self) -> int:
        """Fraction of the inverses while they are made; at most MATRIX_BITS."""
        largest = self.factor * prod(2 * c for c in self.doublings)
        return min(MATRIX_BITS, 60 - _ERROR_BITS - ceil(log2(largest)))

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
            doublings=self.sharp,
            rate=rate,
            momentum=momentum,
            guessing=None,
        )

    def check(self, columns: int) -> None:
        """Raise unless all values stay in range."""
        most = max(prod(2 * c for c in self.doublings), prod(2 * c for c in self.sharp))
        if most * columns > 2 ** (_ERROR_BITS - 3):
            raise RangeError(f"the doublings of matrices with {columns} columns lose too many bits")
        if max(map(_magnitude, (*self.heads, *self.inverted))) > LARGEST_MAGNITUDE:
            raise RangeError(f"a weight is above {LARGEST_MAGNITUDE}")


def relaxations(least: float, left: float) -> tuple[float, ...]:
    """c of every doubling E <- (1 - c) I + c E^2 (module text), until |E| <= left.

    For matrices with eigenvalues from `least` times their bound up to the bound: those of E = I - a A are between
    low - 1 and 1 - low. c maps their squares to such an interval again, with nearly four times that low.
    """
    found, low = [], FIRST * min(least, 2 / FIRST - 1)
    while 1 - low > left:
        found.append(2 / (1 + 2 * low - low**2))
        low = 2 - found[-1]
    return tuple(found)


def _magnitude(weights: tuple[float, float]) -> int:
    return int(2 ** ceil(log2(max(1.0, *weights))))


@dataclass(frozen=True, repr=False)
class Curved:
    """Shares of upper triangles over their magnitudes: H of every head, and of every matrix that is inverted (with
    _WEIGHT_BITS more).
    """

    pull: Words
    held: Words

    def of_heads(self, plan: Plan) -> Curved:
        """Without the matrix that no head uses."""
        return Curved(self.pull, self.held[sorted(set(plan.places))])


@dataclass(frozen=True, repr=False)
class Scales:
    """Shares of vectors over all columns with the bias: s, guards (rows), ridge * s^2.

    VECTOR_BITS but for the ridge, which has RIDGE_BITS. The guards are scaled by s. weight: a factor of ridge and
    guards, near 1, VECTOR_BITS; None for 1.
    """

    scale: Words
    guards: Words
    ridge: Words
    weight: Words | None = None


@dataclass(frozen=True, repr=False)
class Prepared:
    """Penalties H of all heads and, below them, inverses P, in columns scaled by s, under a mask; what `sharpened`
    needs; the gradient where the inverse was taken; and the noise of private heads in it.
    """

    stack: Masked
    curved: Curved
    gradient: Words | None = None
    tilt: Words | None = None


def inverse_curvatures(
    party: Party,
    tall: BandedMatrix,
    gram: Words,
    scales: Scales,
    plan: Plan,
    records: int,
    noise: Words | None = None,
    slope: Words | None = None,
) -> Prepared:
    """Penalties and inverses, with C X^T X / n as the curvature of the loss.

    gram: shares of G (columns x columns without the bias), MATRIX_BITS. records: n, which X^T X is divided by. noise:
    of private heads (`noise_of_heads`, NOISE_BITS). slope: r at heads of zero (rows x heads), if it is linear in the
    label; then X^T r takes one round more, and the gradient of the first step is known.
    """
    plan.check(tall.columns)
    vectors = np.concatenate([scales.scale[None], scales.guards])
    outer = ring.packed(bilinear(party, "mul", vectors[:, :, None], vectors[:, None, :]))
    (outer,) = divide_each(party, [(outer, 1 << (2 * VECTOR_BITS - _OUTER_BITS))])
    noise = np.zeros((tall.columns, 0), np.int64) if noise is None else noise
    whole = np.concatenate([ring.packed(_padded(gram)), noise.reshape(-1)])
    by = np.concatenate([outer[0], np.repeat(scales.scale, noise.shape[1])])
    edits, drawn = np.split(scaled_bilinear(party, "mul", whole, by, 1 << _OUTER_BITS), [len(outer[0])])
    tilt = drawn.reshape(noise.shape) if drawn.size else None
    guard, ridge = outer[1:].sum(axis=0) << (MATRIX_BITS - _OUTER_BITS), scales.ridge
    if scales.weight is not None:
        alone = np.concatenate([guard, ridge])
        weighted = scaled_bilinear(party, "mul", alone, scales.weight, 1 << VECTOR_BITS)
        guard, ridge = weighted[: len(guard)], weighted[len(guard) :]
    held = _penalties(edits, guard, ridge, plan.inverted)
    unit = records * 2 ** (2 * FRACTION_BITS) / plan.curvature
    work = [(_penalties(edits, guard, ridge, plan.heads), 1 << _WEIGHT_BITS)]
    work += _first_errors(held, gram_sums(party, tall)[:, None], unit, plan)
    if slope is not None:
        sums = transposed_products(party, tall, slope)
        work += [(sums if tilt is None else added_bands(sums), _gradient_unit(records))]
    pull, *parts = divide_each(party, work)
    gradient = None
    if slope is not None:
        gradient = parts.pop().sum(axis=0) + (0 if tilt is None else tilt)
    curved = Curved(pull, held)
    return Prepared(_stack(party, parts, curved, plan), curved, gradient, tilt)


def sharpened(
    party: Party, curved: Curved, fitted: Words, share: float, plan: Plan, gradients: Gradients | None
) -> Prepared:
    """The same for another curvature of the loss: of some heads (`curvature_at`), not its bound.

    fitted, share: X^T D X over some rows, and how many records these stand for. gradients: at these heads.
    """
    work = _first_errors(curved.held, fitted, share * 2 ** (2 * FRACTION_BITS + _STEEP_BITS), plan)
    if gradients is None:
        return Prepared(_stack(party, divide_each(party, work), curved, plan), curved)
    more, finish = gradients.work(plan)
    parts = divide_each(party, [*work, *more])
    gradient = finish(parts[len(work) :])
    return Prepared(_stack(party, parts[: len(work)], curved, plan), curved, gradient)


def _first_errors(held: Words, fitted: Words, unit: float, plan: Plan) -> list[tuple[Words, int]]:
    """What to divide, and by what, for g (I - E): penalties of each matrix, and then the sums over some rows of all.

    fitted: these sums (parts x matrices x triangle). unit: what 1 is of them.
    """
    one = plan.scaled[0] * plan.factor * 2.0**_ERROR_BITS
    sizes = [_magnitude(pair) for pair in plan.inverted]
    units = [max(2, round(2 ** (MATRIX_BITS + _WEIGHT_BITS) / (one * size))) for size in sizes]
    return [*zip(held, units, strict=True), (fitted, max(2, round(unit / one)))]


def _stack(party: Party, parts: Sequence[Words], curved: Curved, plan: Plan) -> Masked:
    """Penalties of all heads, and inverses of the matrices of these parts (`_first_errors`), under one mask."""
    error = -np.array(parts[:-1]) - parts[-1].sum(axis=0)
    error, columns = _limited(error, plan), _columns(error)
    if party.rank == 0:
        error += _identity(columns) * np.int64(round(plan.scaled[0] * 2**_ERROR_BITS))
    inverse = _limited(_inverted(party, error, columns, plan) << (MATRIX_BITS - plan.inverse_bits), plan)
    return mask_shared(party, ring.unpacked(np.concatenate([curved.pull, inverse]), columns).reshape(-1, columns))


def _columns(triangles: Words) -> int:
    """From the number of words to a triangle."""
    return (isqrt(8 * triangles.shape[-1] + 1) - 1) // 2


Slopes = Callable[[Party, Words, Words], tuple[Words, Words]]
"""From logits (LOGIT_BITS) and labels to slope and curvature of the loss, RESIDUAL_BITS; two rounds."""


def slopes_of(party: Party, logits: Words, label: Words) -> tuple[Words, Words]:
    """Of the logistic loss; the label has RESIDUAL_BITS."""
    chance, steep = sigmoid_and_slope(party, logits, LOGIT_BITS)
    return chance - label, steep


def slopes_of_capped(party: Party, logits: Words, label: Words) -> tuple[Words, Words]:
    """Of the capped loss of a private head; the label is a whole number."""
    slope, steep = capped_slope_and_bend(party, logits, label, LOGIT_BITS)
    return slope, steep


def slopes_of_bounded(party: Party, logits: Words, label: Words) -> tuple[Words, Words]:
    """Of the loss of `bounded_slope`, whose curvature is 4 times the derivative of the sigmoid."""
    slope, steep = sigmoid_and_slope(party, _apart(logits, label), LOGIT_BITS)
    return _centred(party, slope), 4 * steep


def bounded_slope(party: Party, logits: Words, label: Words, *, fine: bool) -> Words:
    """Shares of sigmoid(4 (z - y)) - 1/2, the slope of log(cosh(2 (z - y))) / 4, RESIDUAL_BITS; two rounds.

    logits: z, LOGIT_BITS. label: y, RESIDUAL_BITS.
    """
    return _centred(party, (fine_sigmoid if fine else sigmoid)(party, _apart(logits, label), LOGIT_BITS))


def _apart(logits: Words, label: Words) -> Words:
    return (logits - (label << (LOGIT_BITS - RESIDUAL_BITS))) * np.int64(4)


def _centred(party: Party, chance: Words) -> Words:
    return chance - np.int64(1 << (RESIDUAL_BITS - 1)) if party.rank == 0 else chance


def curvature_at(
    party: Party, tall: BandedMatrix, steep: Words, plan: Plan, rows: BandedMatrix, slope: Words | None
) -> tuple[Words, Words | None]:
    """X^T D X for every matrix that is inverted, of some bands (parts x matrices x triangle), and X^T r of all rows.

    D is the mean, over the heads of a matrix, of the curvature of their loss (steep, RESIDUAL_BITS). It has FLATTEST
    more, so that errors of the sigmoid leave none negative. slope: r, if X^T r is wanted, which takes no more rounds.
    One round, and two for each 2^21 words of D X. Words to each peer: rows x (g + k), and (1 + k) times those of X.
    """
    columns, count = tall.columns, len(plan.inverted)
    mean = np.zeros((count, steep.shape[1]), np.int64)
    mean[list(plan.places), range(steep.shape[1])] = 1
    mean *= (1 << _MEAN_BITS) // np.maximum(mean.sum(axis=1, keepdims=True), 1)
    of_heads = np.einsum("rg,kg->kr", steep, mean)
    masked, divided = divisions(party, [(of_heads, 1 << (_MEAN_BITS + RESIDUAL_BITS - _STEEP_BITS))])
    gradients = None
    if slope is None:
        (steep,) = divided(party.open_masked("curvature", masked))
    else:
        wanted, finish = transposition(party, rows, slope)
        *opened, last = party.open_masked("curvature", [*masked, wanted])
        (steep,), gradients = divided(opened), finish(last)
    if party.rank == 0:
        steep += np.int64(round(FLATTEST * 2**_STEEP_BITS))
    squares, at = [], 0
    each = max(1, _WEIGHTED_WORDS // (count * columns * BAND_ROWS))
    for bands in tall.apart(each):  # a few at a time: k times the rows are large
        here = steep[:, at : at + bands.rows, None]
        weighted = bilinear(party, "mul", shares_of(party, bands)[None], here)
        for sums in transposed_products(party, bands, weighted.transpose(1, 0, 2).reshape(-1, count * columns)):
            squares.append(ring.packed(sums.reshape(columns, count, columns).transpose(1, 0, 2)))
        at += bands.rows
    return np.array(squares), gradients


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
    """a c (I + E) c' (I + E') ..., `inverse_bits`; all matrices as upper triangles, heads below each other.

    error: g E, with g = `plan.scaled`. With F = g E and Q = P times a public number, a doubling is Q <- Q (F + g I)
    and F <- F^2 - g' (c - 1) I, where g' is the next g: no constant is left to multiply by. Q ends as P.
    """
    scaled, start = plan.scaled, 0
    if party.rank == 0:
        start = round(plan.factor * plan.inverse_first * 2.0**plan.inverse_bits)
    made = np.broadcast_to(_identity(columns) * np.int64(start), error.shape)
    for at in party.tuples.repeat(len(plan.doublings)):
        error, made = doubled(party, error, made, columns, 1 << _ERROR_BITS, scaled[at])
        if party.rank == 0:
            back = scaled[at + 1] * (plan.doublings[at] - 1)
            error -= _identity(columns) * np.int64(round(back * 2**_ERROR_BITS))
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
    party: Party, gradient: Words, heads: Words, scales: Words, longest: float, tolerance: float = TOLERANCE
) -> tuple[Words, Words]:
    """Shares of what is negative for a private head that is not finished: its gradient or its weights are too long.

    And of the heads in unscaled columns, HEAD_BITS. gradient, heads: in scaled columns (`Gradients`, HEAD_BITS).
    scales: shares of 1 / s and of s (rows), VECTOR_BITS. longest: public bound on the length of the weights. The
    gradient may be half of `tolerance` long: the other half covers rounding and the error of the sigmoid in the
    gradient itself. Three rounds.
    """
    both, factors = np.stack([gradient, heads]), scales[:, :, None]
    plain = scaled_bilinear(party, "mul", both, factors, 1 << VECTOR_BITS)
    squares: Words = -square(party, plain).sum(axis=1).reshape(-1)
    if party.rank == 0:
        most = (tolerance / 2) ** 2 * 2 ** (2 * _GRADIENT_BITS), longest**2 * 2 ** (2 * HEAD_BITS)
        squares += np.repeat(np.array([round(one) for one in most], np.int64), gradient.shape[1])
    return squares, plain[1]


@dataclass(frozen=True, repr=False)
class Gradients:
    """What the gradient of the mean objective of some heads, from number `start` on, is made of.

    sums: X_i^T r of every band (FRACTION_BITS + RESIDUAL_BITS). pulls: as `look` gives them. tilt: of private heads.
    """

    sums: Words
    pulls: Words
    start: int
    records: int
    tilt: Words | None

    def work(self, plan: Plan) -> tuple[list[tuple[Words, int]], Callable[[Sequence[Words]], Words]]:
        """What to divide, and by what; and the gradient (_GRADIENT_BITS) from the quotients."""
        these = slice(self.start, self.start + self.pulls.shape[1])
        here = plan.magnitudes[these]
        places = [[place for place, size in enumerate(here) if size == wanted] for wanted in sorted(set(here))]
        whole = 1 << (MATRIX_BITS + HEAD_BITS - _GRADIENT_BITS)
        work = [(self.pulls[:, alike], whole // here[alike[0]]) for alike in places]

        def finish(quotients: Sequence[Words]) -> Words:
            gradient: Words = quotients[0].sum(axis=0)
            for alike, part in zip(places, quotients[1:], strict=True):
                gradient[:, alike] += part
            return gradient if self.tilt is None else gradient + self.tilt[:, these]

        return [(self.sums, _gradient_unit(self.records)), *work], finish

    def found(self, party: Party, plan: Plan) -> Words:
        """One round."""
        work, finish = self.work(plan)
        return finish(divide_each(party, work))


def _gradient_unit(records: int) -> int:
    return records << (FRACTION_BITS + RESIDUAL_BITS - _GRADIENT_BITS)


def move(party: Party, at: Moving, gradient: Words, stack: Masked, plan: Plan) -> Moving:
    """Heads and velocities after a step along the inverse; two rounds.

    gradient: of `Gradients`. The divisors include the rate.
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
