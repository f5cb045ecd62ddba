"""Inference of another party's columns: from what a view shows, from opened gradients, and from answers of the model.

The attacker is a party. It knows its own columns of every record, and the others' columns of some (a leaked file). Of
the other records it holds what the view shows. It guesses each column by regression on its categories or bins. The
control is the same attacker without the view: columns of different parties depend on each other anyway.

*Opened gradients* (as CAFE, Jin et al. 2021). A party of a `split` run is shown the gradient in its own activations,
a number for each record and step. The positive control is what CAFE is about: a server that is also sent the gradient
of another party's first layer, summed over a batch. With the numbers of each record known, these sums are linear in
the records, and as many steps as records in the batch give every value.

*Answers* (Luo et al. 2021). The adversary receives predictions, knows its own columns and, in the worst case assumed
here, the whole model and the distribution of every column. What is left of a score without its own columns' part is a
known linear function of the others' columns: one equation for many unknowns. `by_equations` takes the solution
nearest to the distribution (ESA, by the pseudo-inverse). `by_generator` trains a network from own columns and answer
to a distribution over the others' columns whose scores must fit (GRN). The better one is chosen on other people. The
positive control gets as many answers per person, each of another model, as there are unknowns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from sklearn.linear_model import RidgeClassifier
from torch import nn

from secure_sccvfl.audit.attacks.view import CHOSEN, Columns, Rate, Shown, folds, mean_rate, strongest_guesses
from secure_sccvfl.data.randomness import stream, torch_seed

BATCH = 32


def _guess(training: np.ndarray, codes: np.ndarray, unknown: np.ndarray) -> np.ndarray:
    mean, scale = training.mean(axis=0), np.maximum(training.std(axis=0), 1e-9)
    model = RidgeClassifier(class_weight="balanced").fit((training - mean) / scale, codes)
    return np.asarray(model.predict((unknown - mean) / scale))


def feature_inference(view: Columns, seed: int) -> list[Rate]:
    """Balanced hit rate, averaged over the others' columns: of own columns alone, then with the view."""
    by_source: dict[str, list[Rate]] = {"own": [], view.holder: []}
    for known_codes, truth in view.targets.values():
        for name, rates in by_source.items():
            sides = [
                np.hstack([o, s]) if name != "own" else o for o, s in zip(view.own_columns, view.shown, strict=True)
            ]
            rates.append(Rate.balanced(name, view.holder, _guess(sides[0], known_codes, sides[1]), truth))
    return [mean_rate(name, view.holder, rates) for name, rates in by_source.items()]


def shown_columns(view: Columns, seed: int) -> list[Rate]:
    """Positive control: the view shows the first of the others' columns, one indicator for each value."""
    name, (training, unknown) = next(iter(view.targets.items()))
    values = int(max(training.max(), unknown.max())) + 1
    shown = (np.eye(values)[training], np.eye(values)[unknown])
    return feature_inference(Columns(view.holder, view.own_columns, shown, {name: (training, unknown)}), seed)


def _halves(view: Shown, seed: int) -> tuple[Columns, Columns]:
    """The view with the others' columns of either half known."""
    half = folds(np.zeros(len(view.own_columns), int), 2, seed)
    halves = []
    for given in (half == 0, half == 1):
        targets = {name: (codes[given], codes[~given]) for name, codes in view.targets.items()}
        own_columns, shown = ((part[given], part[~given]) for part in (view.own_columns, view.signals))
        halves.append(Columns(view.holder, own_columns, shown, targets))
    return halves[0], halves[1]


def gradient_reconstruction(view: Shown, seed: int) -> list[Rate]:
    """Own columns alone, then with the gradients of all steps: each record guessed once."""
    first, second = (feature_inference(part, seed) for part in _halves(view, seed))
    return [mean_rate(one.attack, view.holder, [one, other]) for one, other in zip(first, second, strict=True)]


def solve_batch(factors: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """The records of a batch from sums of them with known factors (equations x records)."""
    scale = np.maximum(np.linalg.norm(factors, axis=1, keepdims=True), 1e-300)
    return np.asarray(np.linalg.lstsq(factors / scale, sums / scale, rcond=1e-13)[0])


def summed_gradients(view: Shown, seed: int) -> list[Rate]:
    """Positive control: gradients of the others' first layer are opened as sums over batches, one for each step."""
    names, rates = list(view.targets), []
    bins = [int(view.targets[name].max()) + 1 for name in names]
    whole = np.hstack([np.eye(k)[view.targets[name]] for name, k in zip(names, bins, strict=True)])
    size = min(BATCH, view.signals.shape[1])
    if size < 2:
        return []
    count = len(whole) // size
    solved = np.zeros_like(whole[: count * size])
    for k in range(count):
        rows = slice(k * size, (k + 1) * size)
        factors = view.signals[rows].T
        solved[rows] = solve_batch(factors, factors @ whole[rows])
    for name, piece in zip(names, np.split(solved, np.cumsum(bins)[:-1], axis=1), strict=True):
        rates.append(Rate.balanced(name, view.holder, piece.argmax(axis=1), view.targets[name][: len(solved)]))
    return [mean_rate("sums of a batch", view.holder, rates)]


EPOCHS = 60


@dataclass(frozen=True)
class Answers:
    """Answers about people of whom the adversary holds some columns.

    own_columns: those. codes: the others' bins (n x features), the truth. bins: how many each feature has. weight:
    what each bin adds to an answer (all bins x answers). answers: what is left of them without the own columns' part.
    """

    holder: str
    own_columns: np.ndarray
    codes: np.ndarray
    bins: tuple[int, ...]
    weight: np.ndarray
    answers: np.ndarray

    def __post_init__(self) -> None:
        if sum(self.bins) != len(self.weight) or len(self.bins) != self.codes.shape[1]:
            raise ValueError(f"view of {self.holder!r}: weights of {len(self.weight)} bins for {sum(self.bins)}")

    @property
    def indicators(self) -> np.ndarray:
        return np.hstack([np.eye(k)[self.codes[:, j]] for j, k in enumerate(self.bins)])

    @property
    def shares(self) -> np.ndarray:
        """How frequent each bin is: the adversary knows it."""
        return np.asarray(self.indicators.mean(axis=0))


def _decide(view: Answers, estimate: np.ndarray) -> np.ndarray:
    """The bin of each feature that gained most over its share: the best guess for balanced rates."""
    ratio = (estimate - view.shares) / np.maximum(view.shares, 1e-3)
    pieces = np.split(ratio, np.cumsum(view.bins)[:-1], axis=1)
    return np.column_stack([piece.argmax(axis=1) for piece in pieces])


def by_equations(view: Answers) -> np.ndarray:
    """The solution of the equations that is nearest to the shares of the bins."""
    left = view.answers - view.shares @ view.weight
    return _decide(view, view.shares + left @ np.linalg.pinv(view.weight))


def by_generator(view: Answers, seed: int, epochs: int = EPOCHS) -> np.ndarray:
    """A network from own columns and answer to the others' bins, trained until its records get these answers."""
    scale = np.maximum(view.answers.std(axis=0), 1e-9)
    given = np.hstack([view.own_columns, (view.answers - view.answers.mean(axis=0)) / scale])
    x, weight = (torch.tensor(v, dtype=torch.float32) for v in (given, view.weight / scale))
    wanted = torch.tensor(view.answers / scale, dtype=torch.float32)
    shares = torch.tensor(view.shares, dtype=torch.float32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "generative inversion"))
        net = nn.Sequential(nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, len(shares)))
        optimiser = torch.optim.Adam(net.parameters(), lr=1e-2)

        def generated() -> torch.Tensor:
            logits = net(x) + torch.log(shares + 1e-3)
            return torch.cat([piece.softmax(dim=1) for piece in logits.split(list(view.bins), dim=1)], dim=1)

        for _ in range(epochs):
            optimiser.zero_grad()
            guess = generated()
            apart = ((guess @ weight - wanted) ** 2).mean()
            unlike = ((guess.mean(dim=0) - shares) ** 2).sum()
            (apart + 10 * unlike).backward()
            optimiser.step()
        with torch.no_grad():
            return _decide(view, generated().double().numpy())


def _rate(name: str, view: Answers, guess: np.ndarray) -> Rate:
    columns = range(view.codes.shape[1])
    return mean_rate(name, view.holder, [Rate.balanced(name, "", guess[:, j], view.codes[:, j]) for j in columns])


def feature_inversion(view: Answers, seed: int) -> list[Rate]:
    """Both ways, then for every column the one chosen on other people. Balanced rates, averaged over columns."""
    guesses = {"equations": by_equations(view), "generative": by_generator(view, seed)}
    columns = range(view.codes.shape[1])
    guesses[CHOSEN] = np.column_stack(
        [strongest_guesses({k: g[:, j] for k, g in guesses.items()}, view.codes[:, j], seed) for j in columns]
    )
    return [_rate(name, view, guess) for name, guess in guesses.items()]


def unmetered(view: Answers, seed: int) -> list[Rate]:
    """Positive control: as many answers per person as unknowns, each of a model of its own."""
    weight = stream(seed, "unmetered answers").normal(size=(len(view.weight), len(view.weight)))
    many = replace(view, weight=weight, answers=view.indicators @ weight)
    return [_rate("equations", many, by_equations(many))]
