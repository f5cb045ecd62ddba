"""Checks of a data set before training: repeated records, and columns that reveal the label."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from secure_sccvfl.data.dataset import Dataset, DataWarning
from secure_sccvfl.data.splits import record_groups

LEAK_AUC = 0.98


@dataclass(frozen=True)
class DataReport:
    """What a reader should know about the records before trusting a number."""

    rows: int
    distinct: int
    leaks: tuple[tuple[str, float], ...]

    @property
    def repeated(self) -> int:
        return self.rows - self.distinct


def lone_auc(values: np.ndarray, label: np.ndarray, category: bool) -> float:
    """AUC of one column alone; a category is scored by its label rate, since that is how a leak looks."""
    from sklearn.metrics import roc_auc_score  # slow to import, and a party's process does not need it

    scores = np.nan_to_num(values, nan=-1.0)
    if category:
        _, index = np.unique(scores, return_inverse=True)
        scores = (np.bincount(index, weights=label) / np.bincount(index))[index]
    auc = float(roc_auc_score(label, scores))
    return max(auc, 1 - auc)


def examine(data: Dataset) -> DataReport:
    """Count repeated records and warn about columns that alone reveal the label."""
    leaks: list[tuple[str, float]] = []
    if data.task != "regression":
        for feature, values in zip(data.features, data.values.T, strict=True):
            for code in range(1 if data.task == "binary" else 0, len(data.label.classes)):
                auc = lone_auc(values, (data.label.values == code).astype(float), feature.kind != "number")
                if auc > LEAK_AUC:
                    leaks.append((feature.name, auc))
                    message = f"column {feature.name!r} alone has AUC {auc:.3f}: does it contain the label?"
                    warnings.warn(message, DataWarning, stacklevel=2)
                    break
    distinct = len(np.unique(record_groups(data)))
    if distinct < data.n:
        message = f"{data.n - distinct} of {data.n} records repeat another one; copies stay on one side"
        warnings.warn(message, DataWarning, stacklevel=2)
    return DataReport(data.n, distinct, tuple(leaks))
