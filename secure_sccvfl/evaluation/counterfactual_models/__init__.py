"""Common judges: one counterfactual model per split, which edits the held-out records.

Every method is scored on the same edited test records, so a method cannot look stable by editing little. The
harness runs judges. A consortium that cannot pool records gets its own generator's numbers instead.

A judge says what it is fitted on. One that is fitted on held-out records never sees a training record. One that is
fitted on all rows sees features and groups of training records too. No judge sees a label or a model.
`shuffled` gives the null control: where s means nothing, a sound judge edits next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from secure_sccvfl.data.randomness import stream
from secure_sccvfl.data.registry import Registry, imported

if TYPE_CHECKING:
    from secure_sccvfl.data.dataset import Dataset
    from secure_sccvfl.data.layout import Layout

MIN_GROUP = 5
FittedOn = Literal["held-out", "all rows"]


class CounterfactualError(ValueError):
    """The judge was given records it must not see, or nothing to edit."""


@dataclass(frozen=True)
class Counterfactuals:
    """A judge's result: row `source[i]` of the held-out part becomes `inputs[i]`, with this weight."""

    judge: str
    source: np.ndarray
    inputs: np.ndarray
    weight: np.ndarray
    target: np.ndarray


@dataclass(frozen=True)
class Records:
    """Records in input space and the groups they are in. There is no label among them."""

    inputs: np.ndarray
    codes: np.ndarray


@dataclass(frozen=True)
class Case:
    """What a judge is given.

    A case has held-out records to edit, their groups, the group that each is to move to (-1: none), and the records
    that the judge is fitted on. `edited`: the features that may change. `fixed`: those that do not follow from the
    group (role N).
    """

    inputs: np.ndarray
    codes: np.ndarray
    target: np.ndarray
    layout: Layout
    edited: tuple[str, ...]
    groups: int
    seed: int
    fitted_on: Records
    fixed: tuple[str, ...] = ()

    @property
    def usable(self) -> np.ndarray:
        """Groups that are large enough to move to."""
        return large_enough(self.fitted_on.codes)

    @property
    def movable(self) -> np.ndarray:
        """Held-out records that have a group to move to."""
        rows = np.flatnonzero(self.target >= 0)
        if not len(rows):
            raise CounterfactualError(f"no two groups have {MIN_GROUP} records each")
        return rows


@dataclass(frozen=True)
class CounterfactualModel:
    """One way to edit records.

    `place` is a function from a case to edited records. `title` and `mark` (symbol, and its name) are for plots.
    `about` says where edited values come from, for the page.
    """

    place: str
    title: str
    mark: tuple[str, str]
    about: str
    fitted_on: FittedOn = "held-out"

    @property
    def edit(self) -> Callable[[Case], Counterfactuals]:
        function: Callable[[Case], Counterfactuals] = imported(self.place)
        return function


COUNTERFACTUAL_MODELS: Registry[CounterfactualModel] = Registry(
    "judge",
    {
        "all": CounterfactualModel(
            "secure_sccvfl.evaluation.counterfactual_models.marginal:edit",
            "marginal judge",
            ("^", "triangle"),
            "moves each column to its distribution in that group, as far as chance does not explain the difference",
            "all rows",
        ),
        "kr_all": CounterfactualModel(
            "secure_sccvfl.evaluation.counterfactual_models.conditional:edit",
            "conditional judge",
            ("v", "triangle down"),
            "moves one column after another, given the fixed columns and the mediators before it",
            "all rows",
        ),
        "marg": CounterfactualModel(
            "secure_sccvfl.evaluation.counterfactual_models.marginal:edit",
            "marginal judge, held-out",
            ("+", "plus"),
            "moves each column to its distribution in that group among the test records alone",
        ),
        "ot": CounterfactualModel(
            "secure_sccvfl.evaluation.counterfactual_models.transport:edit",
            "OT judge",
            ("o", "circle"),
            "takes them from the most similar real record of the other group (optimal transport)",
        ),
        "cvae": CounterfactualModel(
            "secure_sccvfl.evaluation.counterfactual_models.autoencoder:edit",
            "cVAE judge",
            ("s", "square"),
            "draws them from a model of that group (autoencoder)",
        ),
    },
    CounterfactualError,
)
RUN_MODELS = ("all", "kr_all")
"""The judges whose edited records a run in secret is scored on."""
FIRST = RUN_MODELS[0]
"""The judge to use where one is enough."""
OWN = "own"
"""The name of a run's own generator when it is the judge."""


def large_enough(codes: np.ndarray) -> np.ndarray:
    """Groups of at least `MIN_GROUP` records."""
    return np.flatnonzero(np.bincount(codes) >= MIN_GROUP)


def _targets(codes: np.ndarray, usable: np.ndarray, seed: int) -> np.ndarray:
    """Another group for every record, drawn evenly from the groups large enough; -1 when there is none."""
    rng = stream(seed, "judge-targets")
    order = rng.permuted(np.tile(usable, (len(codes), 1)), axis=1)
    first, second = order[:, 0], order[:, min(1, order.shape[1] - 1)]
    target = np.where(first != codes, first, second)
    return np.where(target == codes, -1, target)


def shuffled(data: Dataset, seed: int, attribute: int = 0) -> Dataset:
    """The same records with one protected attribute permuted over them, so that nothing depends on it."""
    protected = list(data.protected)
    codes = stream(seed, "judge-null", attribute).permutation(protected[attribute].codes)
    protected[attribute] = replace(protected[attribute], codes=codes)
    return replace(data, protected=tuple(protected))


def _allowed(
    asked: CounterfactualModel, held_out: Dataset, used_ids: np.ndarray, everyone: Dataset | None
) -> Dataset:
    """The data set whose features and groups this judge is fitted on."""
    seen = np.intersect1d(held_out.ids, used_ids)
    if len(seen):
        raise CounterfactualError(f"the judge would see {len(seen)} training records, such as {seen[0]!r}")
    if asked.fitted_on == "held-out":
        return held_out
    if everyone is None:
        raise CounterfactualError(f"the {asked.title} is fitted on all rows, and they were not given")
    if not np.isin(held_out.ids, everyone.ids).all():
        raise CounterfactualError("held-out records are missing among all rows")
    return everyone


def make_counterfactuals(
    kind: str,
    held_out: Dataset,
    used_ids: np.ndarray,
    edited: tuple[str, ...],
    seed: int,
    attribute: int = 0,
    *,
    everyone: Dataset | None = None,
    fixed: tuple[str, ...] = (),
) -> Counterfactuals:
    """Edited copies of the held-out records; only `edited` changes. Raises when any of them was used in training.

    `everyone`: all rows of the benchmark, for the judges that are fitted on them. The others do not get it.
    """
    from secure_sccvfl.data.layout import Layout  # slow to import, and a report needs the table alone

    asked = COUNTERFACTUAL_MODELS.get(kind)
    allowed = _allowed(asked, held_out, used_ids, everyone)
    if not edited:
        raise CounterfactualError("no feature to edit")
    features = tuple(sorted(held_out.features, key=lambda f: f.name))
    layout = Layout.of(features)
    order = [held_out.features.index(f) for f in features]

    def records(data: Dataset) -> Records:
        return Records(layout.encode(data.values[:, order]), data.protected[attribute].codes)

    own = records(held_out)
    known = own if allowed is held_out else records(allowed)
    usable = large_enough(known.codes)
    if not len(usable):
        raise CounterfactualError(f"no group has {MIN_GROUP} {asked.fitted_on.removesuffix(' rows')} records")
    target = _targets(own.codes, usable, seed)
    groups = len(held_out.protected[attribute].groups)
    found = asked.edit(Case(own.inputs, own.codes, target, layout, edited, groups, seed, known, fixed))
    back = np.concatenate([layout.columns([f.name]) for f in held_out.features])
    return replace(found, judge=kind, inputs=found.inputs[:, back])
