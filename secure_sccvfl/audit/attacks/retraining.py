"""The retraining attack: s of training records from many heads that were trained on them.

A head at its optimum satisfies, in the columns that counterfactuals move,
    slope of the loss + ridge w + lambda / n * sum over records and draws of D_i(s_i) (D_i(s_i) . w) / draws = 0
where D_i(g) is the change of record i's encoding if it was in group g. If the consistency penalty is built from
records, this is linear in the indicators of s. Cached tables make another training free, and another seed of the
generators gives other D: enough trainings give s of every record.

The attack is idealised in the adversary's favour: it knows x and y of every record and each head exactly. `tables`
is the Gram matrix that the penalty of the attacked training is built from if it follows from released tables; None
means that it is built from the records, with the counterfactual of each one's own group. `sigma` is the deviation of
objective perturbation. The adversary solves the same equations in either case. What it could guess without any
head, from x and the tables, is the control: a head must add nothing to that.

The positive control is a training without either defence: the attack then finds s of all records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit

from secure_sccvfl.audit.attacks.heads import fit_head, head_noise, with_bias
from secure_sccvfl.audit.attacks.view import Rate
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.releases.mechanisms import released_root

TRAININGS = 48
MOST_RECORDS = 177
Edits = Sequence[Sequence[np.ndarray]]
"""[draw][group] -> change of every record's encoding (n x d)."""


@dataclass(frozen=True)
class Retraining:
    """A training set, how its heads are trained, and the counterfactuals that each seed of the generators makes.

    guard: the part of the penalty that does not depend on s per record (weights included). ridge: of each column.
    known: guesses of s that need no head, from x and the released tables: what the heads are compared with.
    heads: weights and bias of real trainings by seed, instead of the optimum of this objective. gram_noise: deviation
    of the noise on an entry of the mean Gram matrix of records, where that is a charged release.
    """

    holder: str
    rows: np.ndarray
    label: np.ndarray
    groups: np.ndarray
    known: np.ndarray
    edits: Callable[[int], Edits]
    lam: float
    ridge: float
    guard: np.ndarray
    tables: np.ndarray | None
    sigma: float = 0.0
    trainings: int = TRAININGS
    heads: Callable[[int], np.ndarray] | None = None
    gram_noise: float = 0.0

    def head(self, edits: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """What one training releases."""
        gram = record_gram(edits, self.groups) if self.tables is None else self.tables
        if self.gram_noise > 0:
            moving = np.diag(gram) > 0
            root = released_root(gram + np.outer(moving, moving) * rng.normal(0, self.gram_noise, gram.shape))
            gram = root.T @ root
        noise = head_noise(self.rows.shape[1], self.sigma, rng)
        return fit_head(self.rows, self.label, self.fixed + self.lam * gram, noise, self.bias_ridge)

    def slopes(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Slope and curvature of the loss of each record at these logits."""
        chance = expit(logits)
        return chance - self.label, chance * (1 - chance)

    @property
    def bias_ridge(self) -> float:
        """A head with noise has a ridge on its bias, too."""
        return self.ridge if self.sigma > 0 else 1e-9

    @property
    def fixed(self) -> np.ndarray:
        return np.asarray(self.ridge * np.eye(self.rows.shape[1]) + self.guard)


def record_gram(edits: Edits | np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The Gram matrix of the counterfactuals of every record's own group: a secret of all records."""
    own = [np.array(by_group)[groups, np.arange(len(groups))] for by_group in edits]
    return np.asarray(sum(d.T @ d for d in own) / (len(own) * len(groups)))


@dataclass(frozen=True)
class _Equations:
    """left @ (indicators of every group but the first) = right, up to the heads' noise; and what curvature reveals.

    The right side is what is left of the optimum's equation if every record was in the first group. The density of a
    noisy head is that of its noise times the determinant of the objective's curvature: `curvature` is the slope of
    its logarithm in each indicator. Without it, guesses would follow the size of a record's counterfactuals.
    """

    left: np.ndarray
    right: np.ndarray
    curvature: np.ndarray


def _equations(view: Retraining, seed: int) -> _Equations:
    rng, n = stream(seed, "retraining noise"), len(view.rows)
    x, left, right, slopes = with_bias(view.rows), [], [], []
    groups = int(view.groups.max()) + 1
    share = np.bincount(view.groups, minlength=groups) / n
    for k in range(view.trainings):
        edits: np.ndarray = np.array(view.edits(k))  # draws x groups x records x columns
        head = view.head(edits, rng) if view.heads is None else view.heads(k)
        weight_of = view.lam / (n * len(edits))
        moving = np.flatnonzero(np.abs(edits).sum(axis=(0, 1, 2)) > 0)
        shifts = edits @ head[:-1]
        pulls = weight_of * np.einsum("dgnc,dgn->gnc", edits[..., moving], shifts)
        slope, steep = view.slopes(x @ head)
        rest = view.rows.T @ slope / n + view.fixed @ head[:-1]
        left.append(np.hstack([(pull - pulls[0]).T for pull in pulls[1:]]))
        right.append(-rest[moving] - pulls[0].sum(axis=0))
        if view.sigma > 0:
            gram = weight_of * np.einsum("g,dgnc,dgne->ce", share, edits, edits, optimize=True)
            curve = (x * (steep / n)[:, None]).T @ x + np.pad(view.fixed + gram, ((0, 1), (0, 1)))
            curve[-1, -1] += view.bias_ridge
            inverse = np.linalg.pinv(curve, hermitian=True)[:-1, :-1]
            sizes = weight_of * np.einsum("dgnc,ce,dgne->gn", edits, inverse, edits, optimize=True)
            slopes.append(np.concatenate([size - sizes[0] for size in sizes[1:]]))
    flat = np.sum(slopes, axis=0) if slopes else np.zeros(left[0].shape[1])
    return _Equations(np.vstack(left), np.concatenate(right), flat)


def recovered(view: Retraining, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Guesses of s, guesses without any head (`known`), and the truth, of all records that a counterfactual moves.

    Least squares around the shares of the groups, which the tables reveal, with as much weight on them as the noise
    of the heads makes right. A record is guessed in the group whose indicator lies furthest above its share.
    """
    found = _equations(view, seed)
    n, others = len(view.rows), found.left.shape[1] // len(view.rows)
    share = np.bincount(view.groups, minlength=others + 1)[1:] / n
    prior, noise = np.repeat(share, n), (view.sigma / n) ** 2
    doubt = noise / max(float((share * (1 - share)).mean()), 1e-9)
    told = found.left.T @ (found.right - found.left @ prior) + noise * found.curvature
    beyond = _solve(found.left.T @ found.left, told, doubt).reshape(others, n)
    guess = np.vstack([-beyond.sum(axis=0), beyond]).argmax(axis=0)
    moved = np.abs(found.left).reshape(len(found.left), others, n).sum(axis=(0, 1)) > 1e-12
    return guess[moved], view.known[moved], view.groups[moved]


def _solve(square: np.ndarray, told: np.ndarray, doubt: float) -> np.ndarray:
    small = 1e-12 * np.trace(square) / len(square)
    return np.linalg.solve(square + (doubt + small) * np.eye(len(square)), told)


def retraining_attack(view: Retraining, seed: int) -> list[Rate]:
    """After a quarter of the trainings, then after all; none if counterfactuals move too few records to judge."""
    made = []
    for count in (max(1, view.trainings // 4), view.trainings):
        guess, _, truth = recovered(replace(view, trainings=count), seed)
        if len(np.unique(truth)) > 1 and np.bincount(truth).min() >= 5:
            made.append(Rate.balanced(f"{count} trainings", view.holder, guess, truth))
    return made


def undefended(view: Retraining, seed: int) -> list[Rate]:
    """Positive control: the penalty is built from the records, and the head has no noise."""
    count = TRAININGS if view.gram_noise else view.trainings
    clear = replace(view, tables=None, sigma=0.0, heads=None, gram_noise=0.0, trainings=count)
    return retraining_attack(clear, seed)
