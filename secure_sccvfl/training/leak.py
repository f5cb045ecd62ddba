"""V_leak: how well a linear adversary recovers s from the representations that enter fusion, measured under MPC.

Before: each party holds its encodings of training and validation records, and the holder of s has it for both. After:
every party knows four figures of the validation records, and nobody an adversary, a guess or a group of a record.

The adversary fits s by least squares with a ridge: w = (C X^T X / n + ridge)^-1 C X^T t / n. The holder weighs its
one-hot of s by the inverse size of each group (t), so that the largest of the fitted values is the best guess where
groups count equally. Second-order training inverts that matrix next to its own, without a further round. Where
training is of another kind, or the rows are activations of mode `split`, an optimizer is prepared for it alone.

| part, for each protected attribute | rounds |
|---|---|
| X^T t, truncated; times the inverse, truncated | 4 |
| weights for unscaled columns; fitted values of validation records | 4 |
| guesses (two groups: one comparison; more: an argmax), right ones by group, balanced mean | 8 for two groups |
| opening | 2 |

Why it is opened only with `evaluation = exact`. Noise for a validation record would not cover the training records:
the adversary is fitted to their s without noise, and one of them may move many guesses. A charge to the evaluation
ledger would then promise what does not hold. So with noisy evaluation no adversary is trained, and nothing is opened.

A group with fewer than `floor` validation records takes no part in any figure; its holder leaves it out. It must be
out of all of them: a share of all records minus the shares of the large groups would be that of the small one, of one
person if it has one record. With fewer than two groups left only their number is opened. The figures follow from s of
training records too, which the training ledger does not cover (SECURITY.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from secure_sccvfl.data.layout import one_hot
from secure_sccvfl.data.party import AtHolder, Attribute, Blocks
from secure_sccvfl.training.engine import Engine
from secure_sccvfl.training.grid import Bounds, Grid

RIDGE = 0.02
"""Of an adversary on its own rows, as a share of the curvature of a column."""
FLATTEST = 1e-6
"""Added to that curvature: columns may be constant."""


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


def adversaries(engine: Engine, descent: Any, known: Sequence[Attribute]) -> tuple[Any, ...]:
    """For every protected attribute of the training records a head that guesses it."""
    found = []
    for place, attribute in enumerate(known):
        groups = len(attribute.groups)
        targets = balanced_targets(attribute.codes, groups)
        found.append(engine.fit_adversary(descent, targets, 1 if groups == 2 else groups, place))
    return tuple(found)


def adversaries_alone(
    engine: Engine, batch: Any, flat: Blocks, curvature: float, known: Sequence[Attribute]
) -> tuple[Any, ...]:
    """The same by a descent of their own. `flat`: each owner's bound on the curvature of loss and ridge."""
    none = {rank: np.zeros_like(bound) for rank, bound in flat.items()}
    grid = Grid((0.0,), (0.0,), curvature, guesses=True)
    return adversaries(engine, engine.second_order(batch, None, grid, Bounds(flat, none, none)), known)


def leaks(
    engine: Engine,
    guessers: Sequence[Any],
    check: Any,
    known: Sequence[Attribute],
    floor: int,
    audit: Callable[[str, Mapping[str, Any]], None],
) -> dict[str, dict[str, Any]]:
    """The leak of every protected attribute, by its name. check, known: of validation records."""
    found = {}
    for place, (guesser, attribute) in enumerate(zip(guessers, known, strict=True)):
        figures = engine.recovered(guesser, check, attribute.codes, place, len(attribute.groups), floor)
        made = asdict(Leak.of(*figures))
        audit("leak of s from representations", {"attribute": attribute.name, **made})
        found[attribute.name] = made
    return found
