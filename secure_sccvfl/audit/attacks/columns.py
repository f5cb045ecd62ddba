"""Feature inference: learn another party's columns from what a view shows, beside what own columns tell already.

The attacker is a party. It knows its own columns of every record, and the others' columns of some (a leaked file).
Of the other records it holds what the view shows. It guesses each column by regression on its categories or bins.
The control is the same attacker without the view: columns of different parties depend on each other anyway.
"""

from __future__ import annotations

import numpy as np
from sklearn.linear_model import RidgeClassifier

from secure_sccvfl.audit.attacks.choice import mean_rate
from secure_sccvfl.audit.attacks.view import Columns, Rate


def _guess(known: np.ndarray, codes: np.ndarray, unknown: np.ndarray) -> np.ndarray:
    mean, scale = known.mean(axis=0), np.maximum(known.std(axis=0), 1e-9)
    model = RidgeClassifier(class_weight="balanced").fit((known - mean) / scale, codes)
    return np.asarray(model.predict((unknown - mean) / scale))


def feature_inference(view: Columns, seed: int) -> list[Rate]:
    """Balanced hit rate, averaged over the others' columns: of own columns alone, then with the view.

    A ridge has nothing random in it, so the seed has no effect.
    """
    found: dict[str, list[Rate]] = {"own": [], view.holder: []}
    for known_codes, truth in view.targets.values():
        for name, rates in found.items():
            sides = [np.hstack([o, s]) if name != "own" else o for o, s in zip(view.own, view.shown, strict=True)]
            rates.append(Rate.balanced(name, view.holder, _guess(sides[0], known_codes, sides[1]), truth))
    return [mean_rate(name, view.holder, rates) for name, rates in found.items()]


def shown_columns(view: Columns, seed: int) -> list[Rate]:
    """Positive control: the view shows the first of the others' columns, one indicator for each value."""
    name, (known, unknown) = next(iter(view.targets.items()))
    values = int(max(known.max(), unknown.max())) + 1
    shown = (np.eye(values)[known], np.eye(values)[unknown])
    return feature_inference(Columns(view.holder, view.own, shown, {name: (known, unknown)}), seed)
