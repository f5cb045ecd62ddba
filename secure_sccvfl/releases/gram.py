"""The Gram matrix of the training records' edits as a release: how far one record moves it, its noise, what is used.

With `consistency_from = records` the penalty of a head is taken over the edits d of all training records. A private
head needs a penalty that follows from released values, so the sum S of d d^T is opened once, with noise, and charged
(`releases.GRAM`). All parties then make the penalty of it in public.

Sensitivity. The edit of a record follows from its own columns, its s, released tables and public random numbers of
its row. For each of A protected attributes and K draws a record has one edit, so it adds

    C = sum over attributes and draws of d d^T,        |C|_F <= sum of |d|^2 <= A K B^2,

where B bounds the length of an edit over all parties. Each owner shortens its part of an edit to `SHORTENED` of the
longest that the public dictionary allows (`models.encoders.edit_radius`), and B^2 is the sum of these squares. The
longest part has the square 2 for a category (one entry falls by at most 1, the others rise by as much together) and
the number of steps for a number (no step changes by more than 1; a missing number stays missing). Entries are rounded
to FRACTION_BITS, which makes an edit in m columns longer by at most sqrt(m) / 2 of their unit. S is computed without
further rounding. For a replaced record, <C, C'> >= 0 because both are positive semidefinite, so
|C - C'|_F <= sqrt(2) A K B^2. The bound is reached by two edits of length B at a right angle.

Noise. Every entry of S gets independent noise of deviation sigma, above and below the diagonal. The symmetric part
then has sigma on the diagonal and sigma / sqrt(2) elsewhere. The matrix is opened to all
parties, the holder of s among them, so only noise that no party knows is counted: the dealer's, or with
`noise = all-parties` one copy.

Post-processing. `released_root` takes the symmetric part, sets negative eigenvalues to 0, and scales columns so that
no diagonal entry is above 1, which no mean square of an edit is. The result is positive semidefinite.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from accounting.events import Sensitivity
from protocols.errors import RangeError
from protocols.operations.noise import NoiseKind
from protocols.records.releases import Receipt
from protocols.ring import FRACTION_BITS, WIDE_BITS

SHORTENED = 0.5
"""Most edits are far shorter than the longest, and noise falls with the square of this share. Of 1, .7, .5, .35, .25
and .15 it was chosen on German and acs12-gender, epsilon 8, seeds 700 to 709."""
ROOM = 2.0 ** (60 - WIDE_BITS)
"""Largest entry of S: with twelve deviations of the largest noise that can be drawn it stays below 2^62."""
LEAST_ROWS = 1 << 10


@dataclass(frozen=True)
class GramNoise:
    """sigma: deviation of one copy of noise on an entry. receipt: of the charge. seed: of simulated noise."""

    sigma: float
    kind: NoiseKind = "dealer"
    receipt: Receipt | None = None
    seed: int = 0


def gram_sensitivity(radii: Iterable[float], columns: int, edits: int, rows: int) -> Sensitivity:
    """What a record moves in S. radii: of the parties' edits. columns: that edits reach. edits: A K. rows: public."""
    length = math.hypot(*radii) + math.sqrt(columns) * 2.0 ** -(FRACTION_BITS + 1)
    added = edits * length**2
    if max(rows, LEAST_ROWS) * added > ROOM:
        raise RangeError(f"sums of the edits of {rows} records do not fit the ring: use consistency_from = tables")
    return Sensitivity(math.sqrt(2) * added, added, 2.0**-WIDE_BITS)


def released_root(mean: np.ndarray) -> np.ndarray:
    """The root R of the positive semidefinite matrix R^T R that follows from a noisy mean Gram matrix.

    The symmetric root is unique, so all parties find the same up to the last bits.
    """
    values, vectors = np.linalg.eigh((mean + mean.T) / 2)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return np.asarray(root / np.maximum(1.0, np.sqrt((root**2).sum(axis=0))))
