"""Mutual information of each column with s, in plaintext: how well the roles agree with the data.

Estimated from counts over public bins, in nats. Such an estimate is above zero by chance. Its control is the same
estimate with s permuted over the records: the mean, and the value that one permutation in twenty exceeds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from secure_sccvfl.data.layout import one_hot
from secure_sccvfl.data.party import Party
from secure_sccvfl.data.randomness import stream

SHUFFLES = 200
HIGH = 0.95


def mutual_information(counts: np.ndarray) -> float:
    """Of a table of counts (bins x groups), in nats."""
    joint = counts.astype(float) / counts.sum()
    alone = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0, keepdims=True)
    seen = joint > 0
    return max(0.0, float((joint[seen] * np.log(joint[seen] / alone[seen])).sum()))


def information(
    parties: Sequence[Party], codes: np.ndarray, groups: int, seed: int, shuffles: int = SHUFFLES
) -> dict[str, dict[str, float]]:
    """By column: `mi` with s, and `null` and `null_high`, its mean and 95 % quantile under permuted s."""
    bins = {name: columns for party in parties for name, columns in party.bins().items()}
    stacked = np.ascontiguousarray(np.hstack(list(bins.values())).T, dtype=np.float32)  # counts below 2^24
    cuts = np.cumsum([columns.shape[1] for columns in bins.values()])[:-1]

    def each(s: np.ndarray) -> list[float]:
        return [mutual_information(c) for c in np.split(stacked @ one_hot(s, groups, np.float32), cuts)]

    rng = stream(seed, "information")
    null = np.array([each(rng.permutation(codes)) for _ in range(shuffles)])
    return {
        name: {"mi": mi, "null": float(column.mean()), "null_high": float(np.quantile(column, HIGH))}
        for name, mi, column in zip(bins, each(codes), null.T, strict=True)
    }
