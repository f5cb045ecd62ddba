"""Attacks on the training set: from models, their answers, and released tables.

*Heads.* The trained head is a function of the records, the optimum of
    mean of log(1 + exp(-(2 y - 1) (x . w + b)))  +  w^T P w / 2  +  (noise . (w, b)) / n
with the noise of objective perturbation. Attackers use it for shadow models, and as equations about the records.

*Membership.* The adversary knows features and label of every candidate, half of which are members, and gets one
answer of the model for each. `confidence` looks at the margin of the true class, `per class` does so within each
class, `lira` compares it with those of shadow models (Carlini et al. 2022), trained on random halves of the
candidates. Thresholds and the choice among the three are made on candidates whose membership the adversary knows. The
positive control is a head that memorises: so many random features that it fits every label.

*Retraining.* A head at its optimum satisfies, in the columns that counterfactuals move,
    slope of the loss + ridge w + lambda / n * sum over records and draws of D_i(s_i) (D_i(s_i) . w) / draws = 0
where D_i(g) is the change of record i's encoding if it was in group g. If the consistency penalty is built from
records, this is linear in the indicators of s. Cached tables make another training free, and another seed of the
generators gives other D: enough trainings give s of every record. The attack is idealised in the adversary's favour:
it knows x and y of every record and each head exactly. The control is what it could guess without any head, from x
and the tables. The positive control is a training without noise whose penalty is built from the records.

*Properties.* The adversary holds all noisy tables of a run and knows two training sets that differ in the group of k
records. `share` uses the sizes of the groups alone; `cells` weighs exactly the cells that these records move, the
strongest test. Differential privacy allows Phi(k mu / 2), where mu is the accounted ratio of a record's movement to
the noise of all tables together (group privacy of a Gaussian release). The noise is that of the run: released tables
minus exact ones, which only the evaluation has; the interval is of its deviation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit
from scipy.stats import chi2, norm

from secure_sccvfl.audit.attacks.view import CHOSEN, Rate, strongest_guesses, threshold_guesses
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.releases.mechanisms import released_root


def with_bias(rows: np.ndarray) -> np.ndarray:
    return np.column_stack([rows, np.ones(len(rows))])


def fit_head(
    rows: np.ndarray,
    label: np.ndarray,
    penalty: np.ndarray,
    noise: np.ndarray | None = None,
    bias_ridge: float = 1e-9,
    steps: int = 60,
) -> np.ndarray:
    """Weights and, last, the bias: Newton steps until the objective no longer falls.

    The ridge of the bias keeps it finite where all labels are the same; a head with noise needs a ridge everywhere.
    """
    x, n = with_bias(rows), len(rows)
    pull = np.zeros(x.shape[1]) if noise is None else noise / n
    square, sign = np.pad(penalty, ((0, 1), (0, 1))), 2.0 * label - 1.0
    square[-1, -1] = bias_ridge

    def value(head: np.ndarray) -> float:
        return float(np.logaddexp(0.0, -sign * (x @ head)).mean() + head @ square @ head / 2 + pull @ head)

    head = np.zeros(x.shape[1])
    now = value(head)
    for _ in range(steps):
        chance = expit(x @ head)
        slope = x.T @ (chance - label) / n + square @ head + pull
        curve = (x * (chance * (1 - chance) / n)[:, None]).T @ x + square
        step = np.linalg.solve(curve + 1e-12 * np.eye(len(head)), slope)
        size = 1.0
        while (after := value(head - size * step)) > now and size > 1e-6:
            size /= 2
        head, before, now = head - size * step, now, after
        if float(slope @ step) < 1e-20 or (size < 1e-5 and after >= before):
            break
    return head


def head_noise(columns: int, sigma: float, rng: np.random.Generator) -> np.ndarray | None:
    """Noise of objective perturbation for a head of so many columns and its bias; a deviation of 0 gives none."""
    return rng.normal(0.0, sigma, columns + 1) if sigma > 0 else None


SHADOWS = 24
MEMORISING_RIDGE = 1e-5


@dataclass(frozen=True)
class Membership:
    """Candidates with what the adversary knows of them, and the answers (n x outputs) of the attacked model.

    rows: encodings, which the adversary trains its shadow models on. ridge: of these.
    """

    holder: str
    rows: np.ndarray
    label: np.ndarray
    member: np.ndarray
    answers: np.ndarray
    ridge: float

    @classmethod
    def of(
        cls,
        holder: str,
        rows: tuple[np.ndarray, np.ndarray],
        label: tuple[np.ndarray, np.ndarray],
        answers: tuple[np.ndarray, np.ndarray],
        ridge: float,
    ) -> Membership:
        """From members and others: the first of each, in equal numbers."""
        count = min(len(rows[0]), len(rows[1]))
        joined = [np.concatenate([part[:count] for part in pair]) for pair in (rows, label, answers)]
        member = np.repeat([1, 0], count)
        return cls(holder, joined[0], joined[1].astype(int), member, joined[2], ridge)


def margins(answers: np.ndarray, label: np.ndarray) -> np.ndarray:
    """How sure the model is of the true class: its logit, or for one logit that of the label's sign."""
    if answers.shape[1] == 1:
        return np.asarray((2 * label - 1) * answers[:, 0])
    return np.asarray(answers[np.arange(len(label)), label])


def _shadow_margins(view: Membership, used: np.ndarray) -> np.ndarray:
    """Margins of all candidates under a head that was trained on some of them: one head for each logit."""
    penalty, outputs = view.ridge * np.eye(view.rows.shape[1]), view.answers.shape[1]
    targets = [view.label] if outputs == 1 else [view.label == k for k in range(outputs)]
    heads = [fit_head(view.rows[used], target[used].astype(float), penalty) for target in targets]
    answers = np.column_stack([view.rows @ head[:-1] + head[-1] for head in heads])
    return margins(answers, view.label)


def lira(view: Membership, seed: int, shadows: int = SHADOWS) -> np.ndarray:
    """Log likelihood ratio of each candidate's margin: with it in the training set against without."""
    rng, n = stream(seed, "shadow models"), len(view.label)
    inside = np.zeros((shadows, n), bool)
    for k in range(0, shadows, 2):  # in pairs: every candidate is in one of the two
        chosen = rng.permutation(n)[: n // 2]
        inside[k, chosen] = True
        inside[k + 1 : k + 2] = ~inside[k]
    shadow = np.array([_shadow_margins(view, used) for used in inside])
    real = margins(view.answers, view.label)
    sides = []
    for side in (inside, ~inside):
        count = side.sum(axis=0)
        mean = (shadow * side).sum(axis=0) / count
        spread = np.sqrt((((shadow - mean) ** 2) * side).sum() / side.sum())  # pooled: few shadow models
        sides.append(norm.logpdf(real, mean, max(float(spread), 1e-9)))
    return np.asarray(sides[0] - sides[1])


def membership_inference(view: Membership, seed: int) -> list[Rate]:
    """Each attacker, then the one chosen on candidates that the adversary knows."""
    margin = margins(view.answers, view.label)
    centred = margin - np.array([np.median(margin[view.label == k]) for k in range(view.label.max() + 1)])[view.label]
    scores = {"confidence": margin, "per class": centred, "lira": lira(view, seed)}
    guesses = {name: threshold_guesses(score, view.member, seed) for name, score in scores.items()}
    guesses[CHOSEN] = strongest_guesses(guesses, view.member, seed)
    return [Rate.balanced(name, view.holder, guess, view.member) for name, guess in guesses.items()]


def memorising(view: Membership, seed: int) -> list[Rate]:
    """Positive control: the same attack on a head that fits the label of every member."""
    rng, width = stream(seed, "memorising head"), len(view.label)
    lift = rng.normal(size=(view.rows.shape[1], width)), rng.normal(size=width)
    rows = np.maximum(view.rows @ lift[0] + lift[1], 0.0)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
    wide = replace(view, rows=rows, label=(view.label > 0).astype(int), ridge=MEMORISING_RIDGE)
    used = view.member == 1
    kernel, sign = rows @ rows.T, 2.0 * wide.label - 1.0
    weight = np.linalg.solve(kernel[np.ix_(used, used)] + MEMORISING_RIDGE * np.eye(int(used.sum())), sign[used])
    answers = 4.0 * (kernel[:, used] @ weight)[:, None]
    margin = margins(answers, wide.label)
    guess = threshold_guesses(margin, view.member, seed)
    return [Rate.balanced("memorising head", view.holder, guess, view.member)]


TRAININGS = 48
MOST_RECORDS = 177
Edits = Sequence[Sequence[np.ndarray]]
"""[draw][group] -> change of every record's encoding (n x d)."""


@dataclass(frozen=True)
class Retraining:
    """A training set, how its heads are trained, and the counterfactuals that each seed of the generators makes.

    fixed_penalty: the part that does not depend on a record's s (weights included). ridge: of each column.
    known: guesses of s that need no head. tables: the Gram matrix of the penalty if it follows from released tables;
    None: it is built from the records. sigma: deviation of objective perturbation. heads: weights and bias of real
    trainings by seed, instead of the optimum. gram_noise: deviation of the noise on an entry of a released mean Gram
    matrix of records.
    """

    holder: str
    rows: np.ndarray
    label: np.ndarray
    groups: np.ndarray
    known: np.ndarray
    counterfactuals: Callable[[int], Edits]
    lam: float
    ridge: float
    fixed_penalty: np.ndarray
    tables: np.ndarray | None
    sigma: float = 0.0
    trainings: int = TRAININGS
    heads: Callable[[int], np.ndarray] | None = None
    gram_noise: float = 0.0

    def head(self, counterfactuals: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        gram = gram_of_records(counterfactuals, self.groups) if self.tables is None else self.tables
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
        return self.ridge if self.sigma > 0 else 1e-9

    @property
    def fixed(self) -> np.ndarray:
        return np.asarray(self.ridge * np.eye(self.rows.shape[1]) + self.fixed_penalty)


def gram_of_records(counterfactuals: Edits | np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The Gram matrix of the counterfactuals of every record's own group: a secret of all records."""
    changes = [np.array(by_group)[groups, np.arange(len(groups))] for by_group in counterfactuals]
    return np.asarray(sum(d.T @ d for d in changes) / (len(changes) * len(groups)))


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
        counterfactuals: np.ndarray = np.array(view.counterfactuals(k))  # draws x groups x records x columns
        head = view.head(counterfactuals, rng) if view.heads is None else view.heads(k)
        weight_of = view.lam / (n * len(counterfactuals))
        moving = np.flatnonzero(np.abs(counterfactuals).sum(axis=(0, 1, 2)) > 0)
        shifts = counterfactuals @ head[:-1]
        pulls = weight_of * np.einsum("dgnc,dgn->gnc", counterfactuals[..., moving], shifts)
        slope, steep = view.slopes(x @ head)
        rest = view.rows.T @ slope / n + view.fixed @ head[:-1]
        left.append(np.hstack([(pull - pulls[0]).T for pull in pulls[1:]]))
        right.append(-rest[moving] - pulls[0].sum(axis=0))
        if view.sigma > 0:
            gram = weight_of * np.einsum("g,dgnc,dgne->ce", share, counterfactuals, counterfactuals, optimize=True)
            curve = (x * (steep / n)[:, None]).T @ x + np.pad(view.fixed + gram, ((0, 1), (0, 1)))
            curve[-1, -1] += view.bias_ridge
            inverse = np.linalg.pinv(curve, hermitian=True)[:-1, :-1]
            sizes = weight_of * np.einsum(
                "dgnc,ce,dgne->gn", counterfactuals, inverse, counterfactuals, optimize=True
            )
            slopes.append(np.concatenate([size - sizes[0] for size in sizes[1:]]))
    flat = np.sum(slopes, axis=0) if slopes else np.zeros(left[0].shape[1])
    return _Equations(np.vstack(left), np.concatenate(right), flat)


def recovered(view: Retraining, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Guesses of s, guesses without any head (`known`), and the truth, of all records that a counterfactual moves.

    Least squares around the shares of the groups, which the tables reveal, with as much weight on them as the noise
    of the heads makes right. A record is guessed in the group whose indicator lies furthest above its share.
    """
    equations = _equations(view, seed)
    n, others = len(view.rows), equations.left.shape[1] // len(view.rows)
    share = np.bincount(view.groups, minlength=others + 1)[1:] / n
    prior, noise = np.repeat(share, n), (view.sigma / n) ** 2
    doubt = noise / max(float((share * (1 - share)).mean()), 1e-9)
    projected = equations.left.T @ (equations.right - equations.left @ prior) + noise * equations.curvature
    beyond = _solve(equations.left.T @ equations.left, projected, doubt).reshape(others, n)
    guess = np.vstack([-beyond.sum(axis=0), beyond]).argmax(axis=0)
    moved = np.abs(equations.left).reshape(len(equations.left), others, n).sum(axis=(0, 1)) > 1e-12
    return guess[moved], view.known[moved], view.groups[moved]


def _solve(square: np.ndarray, target: np.ndarray, doubt: float) -> np.ndarray:
    small = 1e-12 * np.trace(square) / len(square)
    return np.linalg.solve(square + (doubt + small) * np.eye(len(square)), target)


def retraining_attack(view: Retraining, seed: int) -> list[Rate]:
    """After a quarter of the trainings, then after all; none if counterfactuals move too few records to judge."""
    rates = []
    for count in (max(1, view.trainings // 4), view.trainings):
        guess, _, truth = recovered(replace(view, trainings=count), seed)
        if len(np.unique(truth)) > 1 and np.bincount(truth).min() >= 5:
            rates.append(Rate.balanced(f"{count} trainings", view.holder, guess, truth))
    return rates


def undefended(view: Retraining, seed: int) -> list[Rate]:
    """Positive control: the penalty is built from the records, and the head has no noise."""
    count = TRAININGS if view.gram_noise else view.trainings
    clear = replace(view, tables=None, sigma=0.0, heads=None, gram_noise=0.0, trainings=count)
    return retraining_attack(clear, seed)


MOVED = (1, 2, 4)
LEVEL = 0.001
"""Error of the interval of the noise's deviation: both sides together."""


@dataclass(frozen=True)
class Tables:
    """Exact and released tables (bins x groups) by feature, and the accounted mu of all of them for one record."""

    holder: str
    exact: Mapping[str, np.ndarray]
    released: Mapping[str, np.ndarray]
    mu: float

    @property
    def noise(self) -> np.ndarray:
        return np.concatenate([(self.released[k] - t).ravel() for k, t in self.exact.items()])


def allowed(mu: float, moved: int) -> float:
    """At most so often can two sets be told apart that differ in `moved` records, by a release with this mu."""
    return float(norm.cdf(moved * mu / 2))


def allowed_rate(view: Tables, rate: Rate) -> float:
    return allowed(view.mu, next(k for k in MOVED if rate.attack.endswith(f" of {k}")))


def separation(view: Tables, attack: str) -> float:
    """By how many deviations of 1 the statistic of an attack moves for one record, before noise."""
    if attack == "cells":
        return math.sqrt(2 * len(view.exact))
    # group sizes: of each table the sum over its bins, weighted by the bins' number as their noise demands
    return math.sqrt(sum(2 / len(table) for table in view.exact.values()))


def property_inference(view: Tables, seed: int) -> list[Rate]:
    """For each number of records: by group sizes, then by the cells that these records move, the strongest."""
    noise = view.noise
    square, cells = float((noise**2).sum()), noise.size
    deviations = [math.sqrt(square / d) for d in (cells, *(chi2.ppf(p, cells) for p in (LEVEL / 2, 1 - LEVEL / 2)))]
    rates = []
    for attack in ("share", "cells"):
        for moved in MOVED:
            apart = moved * separation(view, attack)
            rate, low, high = (_told_apart(apart, deviation) for deviation in deviations)
            rates.append(Rate(f"{attack} of {moved}", view.holder, rate, low, high, 0.5))
    return rates


def _told_apart(apart: float, deviation: float) -> float:
    """How often two Gaussians of this deviation are distinguished by the best threshold."""
    if deviation == 0:
        return 1.0 if apart > 0 else 0.5
    return float(norm.cdf(apart / (2 * deviation)))


def exact_tables(view: Tables, seed: int) -> list[Rate]:
    """Positive control: the tables without noise."""
    return property_inference(replace(view, released=view.exact), seed)
