"""Common judges: one counterfactual model per split, fitted on records that training never used.

Every method is scored on the same edited test records, so a method cannot look stable by editing little. The
harness runs judges. A consortium that cannot pool records gets its own generator's numbers instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from secure_sccvfl.data.randomness import stream
from secure_sccvfl.data.registry import Registry, imported

if TYPE_CHECKING:
    from secure_sccvfl.data.dataset import Dataset
    from secure_sccvfl.data.layout import Layout

MIN_GROUP = 5


class JudgeError(ValueError):
    """The judge was given records it must not see, or nothing to edit."""


@dataclass(frozen=True)
class EditedRecords:
    """A judge's result: row `source[i]` of the held-out part becomes `inputs[i]`, with this weight."""

    judge: str
    source: np.ndarray
    inputs: np.ndarray
    weight: np.ndarray
    target: np.ndarray


@dataclass(frozen=True)
class Case:
    """What a judge edits.

    A case has held-out records, their groups, the group that each is to move to (-1: none), and the names of the
    features that may change.
    """

    inputs: np.ndarray
    codes: np.ndarray
    target: np.ndarray
    layout: Layout
    edited: tuple[str, ...]
    groups: int
    seed: int

    @property
    def usable(self) -> np.ndarray:
        """Groups that are large enough to move to."""
        return np.flatnonzero(np.bincount(self.codes) >= MIN_GROUP)


@dataclass(frozen=True)
class Judge:
    """One way to edit records.

    `place` is a function from a case to edited records. `title` and `mark` (symbol, and its name) are for plots.
    `about` says where edited values come from, for the page.
    """

    place: str
    title: str
    mark: tuple[str, str]
    about: str

    @property
    def edit(self) -> Callable[[Case], EditedRecords]:
        function: Callable[[Case], EditedRecords] = imported(self.place)
        return function


JUDGES: Registry[Judge] = Registry(
    "judge",
    {
        "ot": Judge(
            "secure_sccvfl.evaluation.judges.transport:edit",
            "OT judge",
            ("o", "circle"),
            "takes them from the most similar real record of the other group (optimal transport)",
        ),
        "cvae": Judge(
            "secure_sccvfl.evaluation.judges.autoencoder:edit",
            "cVAE judge",
            ("s", "square"),
            "draws them from a model of that group (autoencoder)",
        ),
    },
    JudgeError,
)
FIRST = JUDGES.names[0]
"""The judge to use where one is enough."""
OWN = "own"
"""The name of a run's own generator when it is the judge."""


def _targets(codes: np.ndarray, usable: np.ndarray, seed: int) -> np.ndarray:
    """Another group for every record, drawn evenly from the groups large enough; -1 when there is none."""
    rng = stream(seed, "judge-targets")
    order = rng.permuted(np.tile(usable, (len(codes), 1)), axis=1)
    first, second = order[:, 0], order[:, min(1, order.shape[1] - 1)]
    target = np.where(first != codes, first, second)
    return np.where(target == codes, -1, target)


def judge(
    kind: str,
    held_out: Dataset,
    used_ids: np.ndarray,
    edited: tuple[str, ...],
    seed: int,
    attribute: int = 0,
) -> EditedRecords:
    """Edited copies of the held-out records; only `edited` changes. Raises when any record was used in training."""
    from secure_sccvfl.data.layout import Layout  # slow to import, and a report needs the table alone

    asked = JUDGES.get(kind)
    seen = np.intersect1d(held_out.ids, used_ids)
    if len(seen):
        raise JudgeError(f"the judge would see {len(seen)} training records, such as {seen[0]!r}")
    if not edited:
        raise JudgeError("no feature to edit")
    features = tuple(sorted(held_out.features, key=lambda f: f.name))
    layout = Layout.of(features)
    order = [held_out.features.index(f) for f in features]
    inputs = layout.encode(held_out.values[:, order])
    protected = held_out.protected[attribute]
    usable = np.flatnonzero(np.bincount(protected.codes) >= MIN_GROUP)
    if not len(usable):
        raise JudgeError(f"no group has {MIN_GROUP} held-out records")
    target = _targets(protected.codes, usable, seed)
    found = asked.edit(Case(inputs, protected.codes, target, layout, edited, len(protected.groups), seed))
    back = np.concatenate([layout.columns([f.name]) for f in held_out.features])
    return replace(found, judge=kind, inputs=found.inputs[:, back])
