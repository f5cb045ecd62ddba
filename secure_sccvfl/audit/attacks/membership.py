"""Membership inference: was this record used in training? From one answer of the model for each candidate.

The adversary knows features and label of every candidate, and gets the model's answer for it. `confidence` looks at
the margin of the true class. `per class` does so within each class. `lira` compares the margin with those of shadow
models (Carlini et al. 2022): heads trained on random halves of the candidates, so that each candidate is in about
half of them. Thresholds and the choice among the three are made on candidates whose membership the adversary knows,
and tested on the others. Half of the candidates are members: chance is 1/2.

The positive control is a head that memorises: so many random features that it fits every label.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import norm

from secure_sccvfl.audit.attacks.heads import fit_head
from secure_sccvfl.audit.attacks.view import CHOSEN, Rate, strongest_guesses, threshold_guesses
from secure_sccvfl.data.randomness import stream

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
    seen = np.array([_shadow_margins(view, used) for used in inside])
    real = margins(view.answers, view.label)
    sides = []
    for side in (inside, ~inside):
        count = side.sum(axis=0)
        mean = (seen * side).sum(axis=0) / count
        spread = np.sqrt((((seen - mean) ** 2) * side).sum() / side.sum())  # pooled: few shadow models
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
