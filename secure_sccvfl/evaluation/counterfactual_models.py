"""Counterfactual models of the evaluation: each makes counterfactuals of the held-out records of a split.

Every method is scored on the same counterfactuals, so a method cannot look stable by changing records little. A
consortium that cannot pool records gets the figures of its own generator instead. A model states what it is fitted
on: held-out records alone, or features and groups of all records. No model sees a label or a predictor. `shuffled`
gives the permutation baseline: where s means nothing, a sound model changes next to nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from secure_sccvfl.data.randomness import stream
from secure_sccvfl.data.registry import Registry, imported

if TYPE_CHECKING:
    from secure_sccvfl.data.dataset import Dataset
    from secure_sccvfl.data.groups import Structure
    from secure_sccvfl.data.layout import Layout

MIN_GROUP = 5
FITS = "secure_sccvfl.evaluation.counterfactual_fits"
FittedOn = Literal["held-out", "all rows"]


class CounterfactualError(ValueError):
    """The model was given records that it must not see, or nothing to change."""


@dataclass(frozen=True)
class Counterfactuals:
    """Row `source[i]` of the held-out part becomes `inputs[i]`, of group `target[i]`, with this weight."""

    model: str
    source: np.ndarray
    inputs: np.ndarray
    weight: np.ndarray
    target: np.ndarray


@dataclass(frozen=True)
class Records:
    """Records in input space and their groups, without labels."""

    inputs: np.ndarray
    codes: np.ndarray


@dataclass(frozen=True)
class Case:
    """The input of a model: held-out records, their groups, and the group that each moves to (-1: none).

    edited: the features that may change. fixed: those that do not depend on the group (role N). fitted_on: the
    records that the model is fitted on. structure: of the groups.
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
    structure: Structure = ()

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
    """function: "module:attribute" of a function from a case to counterfactuals.

    title and mark (symbol, and its name) are for plots; about says where changed values come from, for the page.
    """

    function: str
    title: str
    mark: tuple[str, str]
    about: str
    fitted_on: FittedOn = "held-out"

    @property
    def edit(self) -> Callable[[Case], Counterfactuals]:
        function: Callable[[Case], Counterfactuals] = imported(self.function)
        return function


COUNTERFACTUAL_MODELS: Registry[CounterfactualModel] = Registry(
    "counterfactual model",
    {
        "all": CounterfactualModel(
            f"{FITS}:by_marginals",
            "marginal model",
            ("^", "triangle"),
            "moves each column to its distribution in that group, as far as chance does not explain the difference",
            "all rows",
        ),
        "kr_all": CounterfactualModel(
            f"{FITS}:by_conditionals",
            "conditional model",
            ("v", "triangle down"),
            "moves one column after another, given the fixed columns and the mediators before it",
            "all rows",
        ),
        "marg": CounterfactualModel(
            f"{FITS}:by_marginals",
            "marginal model, held-out",
            ("+", "plus"),
            "moves each column to its distribution in that group among the test records alone",
        ),
        "ot": CounterfactualModel(
            f"{FITS}:by_transport",
            "OT model",
            ("o", "circle"),
            "takes them from the most similar real record of the other group (optimal transport)",
        ),
        "cvae": CounterfactualModel(
            f"{FITS}:by_autoencoder",
            "cVAE model",
            ("s", "square"),
            "draws them from a model of that group (autoencoder)",
        ),
    },
    CounterfactualError,
)
RUN_MODELS = ("all", "kr_all")
"""The models whose counterfactuals a run under MPC is scored on."""
FIRST = RUN_MODELS[0]
"""The model to use where one is enough."""
OWN = "own"
"""The name of a run's own generator when it makes the counterfactuals."""


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
    model: CounterfactualModel, held_out: Dataset, used_ids: np.ndarray, everyone: Dataset | None
) -> Dataset:
    """The data set whose features and groups this model may be fitted on."""
    seen = np.intersect1d(held_out.ids, used_ids)
    if len(seen):
        raise CounterfactualError(f"the model would see {len(seen)} training records, such as {seen[0]!r}")
    if model.fitted_on == "held-out":
        return held_out
    if everyone is None:
        raise CounterfactualError(f"the {model.title} is fitted on all rows; pass them as `everyone`")
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
    """Counterfactuals of the held-out records; only `edited` changes. Raises if any of them was used in training.

    everyone: all rows of the benchmark, for models that are fitted on them. The others do not get it.
    """
    from secure_sccvfl.data.layout import Layout  # slow to import, and reports need the registry alone

    model = COUNTERFACTUAL_MODELS.get(kind)
    allowed = _allowed(model, held_out, used_ids, everyone)
    if not edited:
        raise CounterfactualError("no feature to change")
    features = tuple(sorted(held_out.features, key=lambda f: f.name))
    layout = Layout.of(features)
    order = [held_out.features.index(f) for f in features]

    def records(data: Dataset) -> Records:
        return Records(layout.encode(data.values[:, order]), data.protected[attribute].codes)

    tested = records(held_out)
    fitted_on = tested if allowed is held_out else records(allowed)
    usable = large_enough(fitted_on.codes)
    if not len(usable):
        raise CounterfactualError(f"no group has {MIN_GROUP} {model.fitted_on.removesuffix(' rows')} records")
    target = _targets(tested.codes, usable, seed)
    s = held_out.protected[attribute]
    counterfactuals = model.edit(
        Case(tested.inputs, tested.codes, target, layout, edited, len(s.groups), seed, fitted_on, fixed, s.structure)
    )
    back = np.concatenate([layout.columns([f.name]) for f in held_out.features])
    return replace(counterfactuals, model=kind, inputs=counterfactuals.inputs[:, back])


LEAST_AUC = 0.65
"""A classifier of s takes changed mediators for those of the target group."""
MOST_MMD = 0.70
"""Distance of changed mediators to the target group, as a share of the distance of unchanged ones."""
MOST_NULL = 0.25
"""Flip rate of plain training under permuted s, as a share of its flip rate under the true s."""


def failed_checks(figures: Mapping[str, float]) -> tuple[str, ...]:
    """The checks that a model fails, by the figures of its counterfactuals. A check without figures is passed."""
    finite = {name: value for name, value in figures.items() if math.isfinite(value)}
    failed = {
        "AUC": finite.get("edit_auc", LEAST_AUC) < LEAST_AUC,
        "MMD": finite.get("edit_mmd_ratio", MOST_MMD) > MOST_MMD,
        "null": finite.get("edit_erm_null", 0.0) > MOST_NULL * finite.get("edit_erm", math.inf),
    }
    return tuple(name for name, fails in failed.items() if fails)
