"""Noisy figures about test records follow from the head, and the head from training records.

The charge of an evaluation covers test records: its noise hides one of them in each sum. An adversary that chooses
the test records puts all of them where the two heads that a training record's s (or label) makes possible decide
differently. Then one training record moves every decision, far more than the noise hides. So the head itself must
hide the record: by a penalty from released tables (s) and by objective perturbation (all of the record).
"""

from __future__ import annotations

import numpy as np
from scipy.stats import beta

from secure_sccvfl.audit.attacks.training_data import fit_head, gram_of_records
from tests.support.private_head import epsilon_of, heads

TESTED = 250
NOISE = 8.5
"""Deviation of an evaluation's sums at its usual price: it hides one test record."""
DELTA = 1e-5
MIDDLE = TESTED / 2
RADIUS, SIGMA, RIDGE = 1.0, 2.0, 2.5
"""Of a private head: the longest record, deviation of its noise, and ridge, for sums over records."""


def noisy_count(head: np.ndarray, point: np.ndarray, rng: np.random.Generator) -> float:
    """The noisy number of positive decisions among test records that are all at one point."""
    return TESTED * float(point @ head > 0) + float(rng.normal(0, NOISE))


def between(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """A record (with its constant) to which two heads give logits of opposite signs: the adversary's choice."""
    low, high = first / np.linalg.norm(first), second / np.linalg.norm(second)
    point = low - high
    assert point @ first > 0 > point @ second
    return point


def training_set() -> tuple[np.ndarray, np.ndarray, np.ndarray, list[list[np.ndarray]]]:
    rng, n = np.random.default_rng(0), 80
    groups = rng.integers(0, 2, n)
    rows = rng.normal(size=(n, 3))
    label = (rows[:, 0] + rng.logistic(size=n) > 0).astype(float)
    counterfactuals = [[rng.normal(size=(n, 3)) * [1, 1, 0] for _ in range(2)]]
    return rows, label, groups, counterfactuals


def test_figures_reveal_s_of_a_training_record_if_the_penalty_is_built_from_records() -> None:
    """The other penalty is not a function of s: tests/unit/audit/attacks/test_model_attacks.py has the same heads."""
    rows, label, groups, counterfactuals = training_set()
    other = groups.copy()
    other[0] = 1 - other[0]
    fitted = []
    for codes in (groups, other):
        fitted.append(fit_head(rows, label, 0.005 * np.eye(3) + 3.0 * gram_of_records(counterfactuals, codes)))
    point, rng = between(*fitted), np.random.default_rng(1)
    figures = np.array([[noisy_count(head, point, rng) for head in fitted] for _ in range(200)])
    assert (figures[:, 0] > MIDDLE).all() and (figures[:, 1] < MIDDLE).all()


def epsilon_low(first: np.ndarray, second: np.ndarray, confidence: float = 1 - 1e-9) -> float:
    """A lower bound on epsilon at DELTA from samples of both worlds: a threshold in the middle, both directions."""
    error, epsilon = (1 - confidence) / 4, 0.0
    for a, b in ((first, second), (second, first)):
        for above in (True, False):
            hits, false = (int(((x > MIDDLE) == above).sum()) for x in (a, b))
            low = beta.ppf(error, hits, len(a) - hits + 1) if hits else 0.0
            high = beta.ppf(1 - error, false + 1, len(b) - false) if false < len(b) else 1.0
            if low > DELTA:
                epsilon = max(epsilon, float(np.log((low - DELTA) / high)))
    return epsilon


def figures_of_private_heads(sigma: float, ridge: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy figures in both worlds: a training record of the largest length is replaced by its opposite."""
    rng = np.random.default_rng(2)
    rows = np.column_stack([rng.uniform(-0.5, 0.5, (30, 1)), np.full(30, 0.1)])
    label = np.arange(30) % 2
    victim = np.array([[0.99, 0.1]])  # as long as rows may be: RADIUS
    worlds = [(np.vstack([rows, victim]), np.append(label, k)) for k in (1, 0)]
    exact = [heads(x, y, 1e-3, np.zeros((1, 2)))[0] for x, y in worlds]
    point = between(*exact)
    figures = []
    for x, y in worlds:
        noise = rng.normal(0, sigma, (count, 2)) if sigma else np.zeros((1, 2))
        drawn = np.resize(heads(x, y, ridge, noise), (count, 2))
        figures.append(TESTED * (drawn @ point > 0) + rng.normal(0, NOISE, count))
    return figures[0], figures[1]


def test_figures_reveal_the_label_of_a_training_record_through_a_head_without_noise() -> None:
    """The positive control: the adversary is right every time, and no finite epsilon fits."""
    first, second = figures_of_private_heads(0.0, 1e-3, 2000)
    assert (first > MIDDLE).all() and (second < MIDDLE).all()
    assert epsilon_low(first, second) > 4


def test_figures_of_a_private_head_stay_below_its_accounted_epsilon() -> None:
    """With a fiftieth of the noise they do not: the same adversary then refutes what is accounted."""
    accounted = epsilon_of(2 * RADIUS / SIGMA, RADIUS**2 / RIDGE, DELTA)
    assert 3 < accounted < 6
    seen = epsilon_low(*figures_of_private_heads(SIGMA, RIDGE, 6000))
    assert 0 < seen <= accounted
    assert epsilon_low(*figures_of_private_heads(SIGMA / 50, RIDGE, 6000)) > accounted
