"""Records whose counterfactuals are known: German Credit with mediators simulated from a latent-variable model."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression

from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.dataset import Dataset
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.splits import Split, make_split
from secure_sccvfl.evaluation import counterfactual_fits
from secure_sccvfl.evaluation.scoring import Predictor
from secure_sccvfl.models.cvae import CvaeConfig
from secure_sccvfl.models.encoders import plain_encoding

MEDIATORS = (
    "checking_status",
    "credit_history",
    "duration",
    "employment_since",
    "property",
    "residence_since",
)


def shorten_autoencoder(patch: pytest.MonkeyPatch) -> None:
    """For tests that run every counterfactual model and ask nothing of how good the autoencoder is."""
    patch.setattr(counterfactual_fits, "CvaeConfig", lambda: CvaeConfig(epochs=5))


@dataclass(frozen=True)
class World:
    """Records as they are and as they would be in the other group, and a predictor trained on the former."""

    factual: Dataset
    inputs: np.ndarray
    other: np.ndarray
    split: Split
    predict: Predictor

    @property
    def used(self) -> np.ndarray:
        return self.factual.ids[np.concatenate([self.split.train, self.split.validation])]

    @property
    def fixed(self) -> tuple[str, ...]:
        return tuple(f.name for f in self.factual.features if f.name not in MEDIATORS)

    @property
    def flip_rate(self) -> float:
        """The true one, on the test part."""
        before, after = (self.predict(inputs[self.split.test]) > 0 for inputs in (self.inputs, self.other))
        return float((before != after).mean())


def _with_values(data: Dataset, columns: dict[str, np.ndarray]) -> Dataset:
    parties = []
    for party in data.parties:
        values = party.values.copy()
        for at, feature in enumerate(party.features):
            if feature.name in columns:
                values[:, at] = columns[feature.name]
        parties.append(replace(party, values=values))
    return replace(data, parties=tuple(parties))


def _mediators(data: Dataset, effect: float, rng: np.random.Generator) -> tuple[dict[str, np.ndarray], ...]:
    """Each mediator under the own group and under the other one.

    A latent score is the sum of what the fixed features explain, `effect` times the real difference between groups,
    and noise that is the record's own. The score's rank among all records gives the value.
    """
    names, codes = [f.name for f in data.features], data.protected[0].codes
    fixed = data.values[:, [at for at, name in enumerate(names) if name not in MEDIATORS]]
    fixed = (fixed - fixed.mean(axis=0)) / np.maximum(fixed.std(axis=0), 1e-9)
    shared = 0.7 * np.eye(len(MEDIATORS)) + 0.3
    noise = rng.multivariate_normal(np.zeros(len(MEDIATORS)), shared, data.n)
    factual: dict[str, np.ndarray] = {}
    counterfactual: dict[str, np.ndarray] = {}
    for at, name in enumerate(MEDIATORS):
        values = data.values[:, names.index(name)]
        ranks = np.argsort(np.argsort(values + 1e-6 * rng.random(data.n)))
        real = norm.ppf((ranks + 0.5) / data.n)
        gram = fixed.T @ fixed + 10 * np.eye(fixed.shape[1])
        explained = fixed @ np.linalg.solve(gram, fixed.T @ real)
        shift = effect * (real[codes == 1].mean() - real[codes == 0].mean())
        rest = explained + np.sqrt(max(1 - explained.var(), 0.2)) * noise[:, at]
        latent = np.sort(rest + shift * codes)
        for mediators, group in ((factual, codes), (counterfactual, 1 - codes)):
            ranked = np.searchsorted(latent, rest + shift * group).clip(0, data.n - 1)
            mediators[name] = np.sort(values)[ranked]
    return factual, counterfactual


RIDGE = 5e-3
"""Of the head that gives the labels, and of the one that is judged."""


def _head(layout: Layout, inputs: np.ndarray, label: np.ndarray) -> Predictor:
    """A linear head over the parties' encoding."""
    ridge = RIDGE * len(label)
    model = LogisticRegression(C=1 / ridge, max_iter=1000).fit(plain_encoding(layout, inputs), label)
    return lambda rows: model.decision_function(plain_encoding(layout, rows))[:, None]


def simulate(effect: float, seed: int) -> World:
    """A world in which the group moves the mediators `effect` times as much as it really does."""
    data, rng = load("german"), np.random.default_rng(seed)
    layout = Layout.of(data.features)
    factual, counterfactual = (_with_values(data, columns) for columns in _mediators(data, effect, rng))
    inputs, other = layout.encode(factual.values), layout.encode(counterfactual.values)
    truth = _head(layout, layout.encode(data.values), data.label.values)
    label = (rng.random(data.n) < expit(truth(inputs)[:, 0])).astype(int)
    factual = replace(factual, label=replace(factual.label, values=label))
    split = make_split(factual, "iid", seed)
    predict = _head(layout, inputs[split.train], label[split.train])
    return World(factual, inputs, other, split, predict)
