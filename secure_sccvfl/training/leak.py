"""V_leak: how well a linear adversary recovers s from the representations that enter fusion, measured in secret.

Before: each party holds its encodings of training and validation records, and the holder of s has it for both. After:
every party knows four figures of the validation records, and nobody an adversary, a guess or a group of a record.

The adversary is the head machinery with s as its label. The holder weighs its one-hot of s by the inverse size of
each group, so that the largest of the fitted values is the best guess where groups count alike. Owners whiten their
own columns first, alone: the adversary stays linear in the representations, and few, fixed steps are enough. In mode
`aware` no owner knows its selected columns, and they are only scaled.

| part, for each protected attribute | rounds |
|---|---|
| masks of the training records | 1 for each owner and band of 2^11 rows, and 2 |
| `STEPS` steps of least squares | 4 each |
| fitted values of validation records | masks, and 2 |
| guesses (two groups: one comparison; more: an argmax), right ones by group, balanced mean | 10 for two groups |
| opening | 2 |

Why it is opened only with `evaluation = exact`. Noise for a validation record would not cover the training records:
the adversary is fitted to their s without noise, and one of them may move many guesses. A charge to the evaluation
ledger would then promise what does not hold. So with noisy evaluation no adversary is trained, and nothing is opened.

A group with fewer than `floor` validation records takes no part in any figure; its holder leaves it out. It must be
out of all of them: a share of all records minus the shares of the large groups would be that of the small one, of one
person if it has one record. With fewer than two groups left only their number is told. The figures follow from s of
training records too, which the training ledger does not cover (SECURITY.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from secure_sccvfl.data.layout import one_hot
from secure_sccvfl.data.party import AtHolder, Blocks, Part
from secure_sccvfl.training.engine import Engine, Step

STEPS = 20
FARTHEST = 16.0
"""Whitened columns are cut here, which keeps them in the ring."""
_RIDGE = 0.02
_FLATTEST = 1e-4


@dataclass(frozen=True)
class Leak:
    """Share of validation records whose group the adversary recovers, and what it must be compared with.

    All of it is about the `groups` groups with enough records; the rest is None if these are fewer than two.
    balanced: mean over groups of the share in each. chance: what a guess without records reaches there. recovered:
    share of their records. largest: what naming the largest group reaches there.
    """

    balanced: float | None
    chance: float | None
    recovered: float | None
    largest: float | None
    groups: int

    @classmethod
    def of(cls, balanced: float, recovered: float, largest: float, groups: float) -> Leak:
        """From the four figures that are opened."""
        count = round(groups)
        if count < 2:
            return cls(None, None, None, None, count)
        return cls(balanced, 1 / count, recovered, largest, count)


def whitened(train: Blocks, check: Blocks) -> tuple[Blocks, Blocks]:
    """Party step, local: own columns of both parts with the means and covariance of the training ones taken out.

    Directions in which training records hardly differ become 0. The number of columns stays.
    """
    made: tuple[dict[int, np.ndarray], dict[int, np.ndarray]] = ({}, {})
    for rank, block in train.items():
        middle = block.mean(axis=0)
        values, vectors = np.linalg.eigh(np.atleast_2d(np.cov(block - middle, rowvar=False, bias=True)))
        flat = values <= _FLATTEST * max(values.max(initial=0.0), 1e-12)
        scale = np.where(flat, 0.0, 1 / np.sqrt(np.where(flat, 1.0, values)))
        for part, rows in zip(made, (block, check[rank]), strict=True):
            part[rank] = np.clip((rows - middle) @ (vectors * scale), -FARTHEST, FARTHEST)
    return made


def balanced_targets(codes: AtHolder, groups: int) -> AtHolder:
    """Step of the holder of s: its one-hot over the size of each group, at most 1; of two groups their difference."""
    if codes is None:
        return None
    sizes = np.bincount(codes, minlength=groups)
    weights = np.where(sizes > 0, sizes[sizes > 0].min() / np.maximum(sizes, 1), 0.0)
    weighted = one_hot(codes, groups) * weights
    return np.asarray(weighted[:, 1] - weighted[:, 0] if groups == 2 else weighted)


def group_weights(codes: np.ndarray, groups: int, floor: int) -> tuple[np.ndarray, float, int]:
    """Step of the holder of s: weights of right guesses by group, share of the largest, how many groups count.

    The weights give the balanced mean and the share of records (2 x groups); 0 for a group below the floor, and for
    all where fewer than two count.
    """
    sizes = np.bincount(codes, minlength=groups)
    counted = sizes >= max(floor, 1)
    number = int(counted.sum())
    if number < 2:
        return np.zeros((2, groups)), 0.0, number
    kept = np.where(counted, sizes, 0)
    balanced = counted / (number * np.maximum(sizes, 1))
    return np.stack([balanced, counted / kept.sum()]), float(kept.max() / kept.sum()), number


def leak_of(
    engine: Engine,
    rows: tuple[Any, Any],
    codes: tuple[AtHolder, AtHolder],
    attribute: tuple[int, int],
    curvature: Blocks,
    floor: int,
) -> Leak:
    """Fit the adversary on training records and count on validation records.

    rows and codes: of both parts. attribute: its number, and how many groups it has.
    """
    place, groups = attribute
    outputs = 1 if groups == 2 else groups
    guesser = engine.guessing(place)
    ridge = {rank: _RIDGE * bound for rank, bound in curvature.items()}
    batch = guesser.bind(rows[0], balanced_targets(codes[0], groups), ridge, outputs)
    descent = guesser.prepare(batch, None, Step(0.3, 0.5), curvature)
    head = guesser.steps(guesser.head(batch, outputs, "regression"), descent, STEPS)
    return Leak.of(*guesser.recovered(head, rows[1], codes[1], groups, floor))


def leaks(
    engine: Engine,
    parts: tuple[Part, Part],
    rows: tuple[Any, Any],
    curvature: Blocks,
    floor: int,
    audit: Callable[[str, Mapping[str, Any]], None],
) -> dict[str, dict[str, Any]]:
    """The leak of every protected attribute, by its name. parts: training and validation."""
    found = {}
    for place, (known, checked) in enumerate(zip(parts[0].protected, parts[1].protected, strict=True)):
        size = (place, len(known.groups))
        made = asdict(leak_of(engine, rows, (known.codes, checked.codes), size, curvature, floor))
        audit("leak of s from representations", {"attribute": known.name, **made})
        found[known.name] = made
    return found
