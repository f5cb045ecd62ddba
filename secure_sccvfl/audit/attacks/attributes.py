"""Attribute inference: learn s from the values that a View shows, balanced over groups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.nn import functional as F

from secure_sccvfl.audit.attacks.view import Rate, View

EPOCHS = (10, 20, 40, 80)
ATTACKERS = ("logreg", "boosting")
ATTACK_ROWS = 8000


def _standard(view: View, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    values, codes = view.known
    if len(values) > ATTACK_ROWS:
        rows = rng.permutation(len(values))[:ATTACK_ROWS]
        values, codes = values[rows], codes[rows]
    mean, scale = values.mean(axis=0), np.maximum(values.std(axis=0), 1e-9)
    return (values - mean) / scale, codes, (view.unknown[0] - mean) / scale


def _mlp(
    x: np.ndarray, codes: np.ndarray, test: np.ndarray, seed: int, epochs: tuple[int, ...]
) -> dict[int, np.ndarray]:
    """The paper's attacker, read out after some epochs."""
    groups = int(codes.max()) + 1
    weight = torch.tensor(len(codes) / (groups * np.maximum(np.bincount(codes, minlength=groups), 1)))
    out = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, groups))
        optimiser = torch.optim.Adam(net.parameters(), lr=5e-3)
        data, label = torch.tensor(x, dtype=torch.float32), torch.as_tensor(codes, dtype=torch.long)
        for epoch in range(1, max(epochs) + 1):
            for rows in torch.randperm(len(data)).split(128):
                optimiser.zero_grad()
                F.cross_entropy(net(data[rows]), label[rows], weight=weight.float()).backward()
                optimiser.step()
            if epoch in epochs:
                with torch.no_grad():
                    out[epoch] = net(torch.tensor(test, dtype=torch.float32)).argmax(dim=1).numpy()
    return out


def guesses(
    view: View, seed: int, attackers: Sequence[str] = ATTACKERS, epochs: tuple[int, ...] = EPOCHS
) -> dict[str, np.ndarray]:
    """Guesses for the records whose secret is unknown, by attacker; the network once for each count of epochs."""
    x, codes, test = _standard(view, np.random.default_rng(seed))
    by_attacker = {f"mlp{k}": guess for k, guess in (_mlp(x, codes, test, seed, epochs) if epochs else {}).items()}
    if "logreg" in attackers:
        linear = LogisticRegression(max_iter=2000, class_weight="balanced").fit(x, codes)
        by_attacker["logreg"] = linear.predict(test)
    if "boosting" in attackers:
        boosted = HistGradientBoostingClassifier(max_iter=40, max_depth=3, class_weight="balanced", random_state=seed)
        by_attacker["boosting"] = boosted.fit(x, codes).predict(test)
    return by_attacker


def attribute_inference(view: View, seed: int) -> list[Rate]:
    """All attackers on one view; a report takes the one that is strongest on average over seeds."""
    truth = view.unknown[1]
    return [Rate.balanced(name, view.holder, guess, truth) for name, guess in guesses(view, seed).items()]


def planted(view: View, seed: int) -> list[Rate]:
    """Positive control: the same attackers on a view with one more column that follows the secret.

    Given the secret it is a unit normal, means two apart: of two groups, .84 is the best possible balanced rate.
    """
    rng = np.random.default_rng(seed)
    parts = [
        (np.column_stack([values, 2.0 * codes + rng.normal(size=len(codes))]), codes)
        for values, codes in (view.known, view.unknown)
    ]
    rates = attribute_inference(View(view.holder, parts[0], parts[1]), seed)
    return sorted(rates, key=lambda r: r.rate)


def strongest(rates: list[Rate]) -> Rate:
    return max(rates, key=lambda r: r.rate)
