"""Can s or y of a record be told from what someone holds? One attack, its control, and a test of every column.

The adversary gets the truth of a random half of the records and guesses the other half. Then the halves are
swapped, so that every record is guessed once. Within the half it knows, the adversary chooses by cross-validation
what of its view to use besides its own columns, and with which attacker (logistic regression, boosted trees, a
network), both together: `FEW` or `MANY` of the columns most related to the truth, all of them if they are at most
`ALL`, or all signals of opened gradients together (also without its own columns). Where it has own columns, the rest
must beat them by more than one standard error. So the strongest attacker decides, and nothing is chosen on the
records it is tested on: a view that reveals nothing mostly leaves it with the guesses of the control. Rates are
balanced over groups.

The control is the better of two attackers with own columns alone: the one that it chooses for them, and the one that
it chose with the view. Otherwise a view of noise could gain by leading to a luckier choice.

Why signals are used together: each of them may reveal next to nothing of s while a combination of them reveals it
(attacks/labels.py). Columns picked one by one would miss that.

`dependence` looks for any relation between any column and the truth. It compares the largest between-group sum of
squares with the largest under shuffled truths. It holds its level whatever the number of columns, and notices one
telling column among thousands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from secure_sccvfl.audit.attacks.attributes import EPOCHS, guesses
from secure_sccvfl.audit.attacks.view import View, balanced, folds
from secure_sccvfl.data.randomness import stream, torch_seed
from secure_sccvfl.evaluation.scoring import one_thread

FEW, MANY, ALL = 4, 32, 256
"""How many columns of a view an attacker tries: those most related to the truth, or all if these are few enough."""
SIGNALS, SIGNALS_ALONE = -1, -2
"""In the place of a number of columns: all signals of gradients, next to own columns or without them."""
FOLDS = 5
SHUFFLES = 1999
RESAMPLES = 20_000
CHOICES = ("logreg", "boosting", "mlp20")
"""The attackers to choose from; the other read-outs of the network are for the curves."""
Attempt = Callable[..., dict[str, np.ndarray]]
"""(rows to fit, rows to guess, columns of the view or signals, attackers, epochs of the network) -> guesses."""


@dataclass(frozen=True)
class Inference:
    """Truth of the guessed records, guesses of the chosen attacker, and of each that is made to use the view.

    each: with `MANY` columns, or with signals alone where there are any. without: the chosen attacker on own columns.
    """

    truth: np.ndarray
    chosen: np.ndarray
    each: dict[str, np.ndarray]
    without: np.ndarray | None = None

    def against(self, control: Inference | None) -> np.ndarray | None:
        """The guesses to compare with; None: chance. `control`: an inference from own columns alone."""
        if control is None or self.without is None:
            return None if control is None else control.chosen
        return max(control.chosen, self.without, key=lambda guess: float(balanced(guess[None], self.truth)[0]))


@dataclass(frozen=True)
class Held:
    """Own columns, what the run showed, and signals of gradients; None: nothing of it."""

    own_columns: np.ndarray | None = None
    seen: np.ndarray | None = None
    signals: np.ndarray | None = None

    def columns(self, width: int, truth: np.ndarray, training: np.ndarray) -> np.ndarray:
        """What an attacker uses; columns of the view are picked on the records that it knows."""
        base = np.zeros((len(truth), 0)) if self.own_columns is None else self.own_columns
        if self.signals is not None and width in (SIGNALS, SIGNALS_ALONE):
            return np.hstack([base, self.signals]) if width == SIGNALS else self.signals
        if self.seen is None or not width:
            return base
        related = np.argsort(-_between(self.seen[training], truth[training]), kind="stable")[:width]
        return np.hstack([base, self.seen[:, related]])


def infer(
    own_columns: np.ndarray | None,
    seen: np.ndarray | None,
    truth: np.ndarray,
    seed: int,
    signals: np.ndarray | None = None,
) -> Inference:
    """Attack every record, each half with the truth of the other.

    own_columns: held before. seen: what the run showed. signals: of gradients that it showed, to be used together.
    """
    half = folds(truth, 2, seed)
    held = Held(own_columns, seen, signals if signals is not None and signals.shape[1] else None)
    first, second = (infer_half(held, truth, half == number, seed) for number in (0, 1))
    return Inference(
        np.concatenate([first.truth, second.truth]),
        np.concatenate([first.chosen, second.chosen]),
        {name: np.concatenate([guess, second.each[name]]) for name, guess in first.each.items()},
        None if first.without is None or second.without is None else np.concatenate([first.without, second.without]),
    )


def infer_half(held: Held, truth: np.ndarray, training: np.ndarray, seed: int) -> Inference:
    """Attack the records that are not in `training`, with the truth of those that are."""
    widths = [0] * (held.own_columns is not None)
    if held.seen is not None:
        columns = held.seen.shape[1]
        widths += sorted({min(width, columns) for width in (FEW, MANY, ALL) if width != ALL or columns <= ALL})
    if held.signals is not None:
        widths += [SIGNALS, SIGNALS_ALONE]

    def attempt(
        known: np.ndarray, unknown: np.ndarray, width: int, attackers: Sequence[str], epochs: tuple[int, ...]
    ) -> dict[str, np.ndarray]:
        columns = held.columns(width, truth, known)
        view = View("adversary", (columns[known], truth[known]), (columns[unknown], truth[unknown]))
        return guesses(view, torch_seed(seed, "security attack"), attackers, epochs)

    with one_thread():
        width, name = _choose(attempt, truth, training, widths, seed)
        by_width = {w: attempt(training, ~training, w, CHOICES, EPOCHS) for w in {width, widths[-1]}}
        if held.own_columns is not None and 0 not in by_width:
            by_width[0] = attempt(training, ~training, 0, (name,), (20,) if name == CHOICES[-1] else ())
    without = None if held.own_columns is None else by_width[0][name]
    return Inference(truth[~training], by_width[width][name], by_width[widths[-1]], without)


def _trials(
    truth: np.ndarray, training: np.ndarray, count: int, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """What to fit on and what to test on, for each part of the known half."""
    part = np.full(len(truth), -1)
    part[training] = folds(truth[training], count, seed)
    return ((training & (part != k), part == k) for k in range(count))


def _choose(
    attempt: Attempt, truth: np.ndarray, training: np.ndarray, widths: list[int], seed: int
) -> tuple[int, str]:
    """The columns and the attacker with the highest cross-validated rate.

    Where the adversary has own columns, what it uses besides must beat them by more than one standard error.
    """
    rates = np.zeros((FOLDS, len(widths), len(CHOICES)))
    for fold, (fit, look) in enumerate(_trials(truth, training, FOLDS, seed)):
        for index, width in enumerate(widths):
            guesses = attempt(fit, look, width, CHOICES, (20,))
            rates[fold, index] = balanced(np.array([guesses[name] for name in CHOICES]), truth[look])
    score = rates.mean(axis=0)
    if widths[0] == 0:
        baseline = int(score[0].argmax())
        better = rates - rates[:, :1, baseline : baseline + 1]
        beyond = better.mean(axis=0) - better.std(axis=0, ddof=1) / np.sqrt(FOLDS)
        score = np.vstack([score[:1] - score[0, baseline], beyond[1:]])
    best, name = np.unravel_index(int(score.argmax()), score.shape)
    return widths[int(best)], CHOICES[int(name)]


def _standard(columns: np.ndarray) -> np.ndarray:
    """Columns of mean 0 and length 1; a constant one becomes 0."""
    centred = columns - columns.mean(axis=0)
    length = np.sqrt((centred**2).sum(axis=0))
    return np.divide(centred, length, out=np.zeros_like(centred), where=length > 1e-6 * np.abs(columns).max(axis=0))


def _between(columns: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Between-group share of the variance of each column: squared sums of the groups over their sizes."""
    groups = [truth == g for g in np.unique(truth)]
    scaled = _standard(columns)
    return np.sum([scaled[g].sum(axis=0) ** 2 / g.sum() for g in groups], axis=0)


def dependence(seen: np.ndarray, truth: np.ndarray, seed: int) -> float:
    """p-value that no column of a view is related to the truth, all columns together."""
    if not seen.shape[1]:
        return 1.0
    rng, scaled = stream(seed, "security shuffles"), _standard(seen)
    real = float(_between(seen, truth).max())
    largest = np.zeros(SHUFFLES)
    groups, sizes = np.unique(truth, return_counts=True)
    for start in range(0, SHUFFLES, 500):
        shuffled = np.stack([rng.permutation(truth) for _ in range(min(500, SHUFFLES - start))], axis=1)
        total = np.zeros((scaled.shape[1], shuffled.shape[1]), np.float32)
        for group, size in zip(groups, sizes, strict=True):
            total += (scaled.T @ (shuffled == group).astype(np.float32)) ** 2 / size
        largest[start : start + shuffled.shape[1]] = total.max(axis=0)
    return float((1 + (largest >= real * (1 - 1e-6)).sum()) / (SHUFFLES + 1))


def gain_interval(
    attack: np.ndarray, control: np.ndarray | None, truth: np.ndarray, level: float
) -> tuple[float, float, float]:
    """Balanced rate of an attack minus its control's (or chance), with a paired bootstrap interval over records."""
    rng = stream(0, "security bootstrap")
    groups = np.unique(truth)
    drawn, gain = np.zeros(RESAMPLES), 0.0
    for group in groups:
        rows = truth == group
        hit = (attack[rows] == group).astype(int)
        base = 1 / len(groups) if control is None else (control[rows] == group).astype(int)
        difference = hit - base
        values, counts = np.unique(difference, return_counts=True)
        drawn += rng.multinomial(rows.sum(), counts / rows.sum(), RESAMPLES) @ values / rows.sum() / len(groups)
        gain += float(difference.mean()) / len(groups)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return gain, float(low), float(high)
