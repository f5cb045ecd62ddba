"""A run's inputs, its state and reports, and the model that it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import expit

from secure_sccvfl.data.dataset import Task
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.party import AtHolder, Blocks, Part, Party
from secure_sccvfl.discovery.decisions import RoleAssignment
from secure_sccvfl.discovery.noisy_tables import NoisyTables
from secure_sccvfl.discovery.residuals import Conditional
from secure_sccvfl.models.aware import AwareEncoders, hypotheses
from secure_sccvfl.models.encoders import Encoder
from secure_sccvfl.models.generators import Generator
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.training.engine import Engine, Measures


@dataclass(frozen=True)
class Trial:
    """One value of lambda, and its measures on validation if these were opened."""

    lam: float
    validation: Measures | None
    steps: int


@dataclass(frozen=True)
class State:
    """The state of a run. Everything else follows from it, the data and the seed.

    Without a head, its training has not begun. head: in second-order training those of all lambdas. heads: those
    trained so far; in the end those of the trials, or of the lambda that is taken, and then the baselines.
    mode_arrays: what a gradient mode keeps at this party as well, such as the noisy Gram matrix of records'
    counterfactuals. refreshes: how many releases of the tables are behind it, late ones included. records: a noisy
    number of training records, where the exact one is secret.
    """

    head: Any
    noisy_tables: tuple[NoisyTables, ...] = ()
    refreshes: int = 0
    assignment: RoleAssignment | None = None
    conditional: tuple[Conditional, ...] | None = None
    trials: tuple[Trial, ...] = ()
    taken: int = 0
    heads: tuple[Any, ...] = ()
    mode_arrays: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    records: int = 0


@dataclass(frozen=True)
class Hooks:
    """Callbacks of a run: progress, decisions, and states to save."""

    progress: Callable[[str, int, int], None] = lambda phase, number, total: None
    audit: Callable[[str, Mapping[str, Any]], None] = lambda event, numbers: None
    keep: Callable[[State], None] = lambda state: None


@dataclass(frozen=True)
class Problem:
    """The learning task, with the part of the records that this process holds."""

    task: Task
    outputs: int
    train: Part
    validation: Part
    owners: Mapping[str, str] = field(default_factory=dict)
    """The party of every feature, for roles within parties; public."""
    layouts: Mapping[int, Layout] = field(default_factory=dict)
    """Of every party, from the public dictionary. Without them any column may change."""
    tabled: tuple[str, ...] = ()
    """The columns whose tables of s are used (`TrainConfig.tabled`); empty: all."""
    released: tuple[str, ...] | None = None
    """The columns that kept tables are about (empty: all), if they are of more than these; public."""

    @property
    def may_be_missing(self) -> tuple[str, ...]:
        """The columns with a table whose values may be missing; public."""
        blocks = [block for layout in self.layouts.values() for block in layout.blocks]
        names = [block.feature.name for block in blocks if block.feature.missing]
        return tuple(name for name in names if not self.tabled or name in self.tabled)


@dataclass(frozen=True)
class Model:
    """A trained consortium model: local parts per party, the head's handle, and its training settings.

    lam: None for a model of an earlier version, which chose it under MPC. aware: the encoders of a model that uses s,
    which then has to be given to it.
    """

    engine: Engine
    encoders: Mapping[int, Encoder]
    head: Any
    task: Task
    temperature: float
    lam: float | None
    assignment: RoleAssignment
    noisy_tables: tuple[NoisyTables, ...]
    generators: Mapping[str, Mapping[int, Generator]]
    trials: tuple[Trial, ...]
    frontier: tuple[tuple[float, Any], ...] = ()
    """Every lambda with its head, not calibrated; empty with noisy evaluation."""
    baselines: Mapping[str, Any] = field(default_factory=dict)
    """The heads of `training.config.BASELINES`, where they are trained."""
    aware: AwareEncoders | None = None
    validity: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By protected attribute: the sums of V_id, V_supp and sizes of changes, where they were opened."""

    @property
    def roles(self) -> Roles:
        return self.assignment.roles

    def encode(self, parties: Sequence[Party]) -> Blocks:
        return {p.rank: self.encoders[p.rank](p.inputs) for p in parties}

    def logits(self, parties: Sequence[Party], groups: AtHolder = None) -> np.ndarray:
        """Calibrated logits of these records. `groups`: their s at its holder, for a model that uses it."""
        rows: Any = self.encode(parties)
        if self.aware is not None:
            rows = self.engine.select(hypotheses(self.aware, parties), groups)
        return self.engine.logits(self.head, rows) / self.temperature


def with_leak(validity: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The validity terms of each attribute in the form of reports: `leak` was measured by earlier versions."""
    return {name: {**terms, "leak": None} for name, terms in validity.items()}


def probabilities(logits: np.ndarray, task: Task) -> np.ndarray:
    """Probability of every class (records x classes): of several, those of each against the rest, to a sum of 1."""
    if task == "binary":
        positive = expit(logits[:, 0])
        return np.column_stack([1.0 - positive, positive])
    against_rest = expit(logits)
    return np.asarray(against_rest / against_rest.sum(axis=1, keepdims=True))
