"""What training makes: a model with all that it was made from, and the values of lambda that were tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import expit

from secure_sccvfl.data.dataset import Task
from secure_sccvfl.data.party import AtHolder, Blocks, Party
from secure_sccvfl.discovery.decisions import RoleAssignment
from secure_sccvfl.discovery.noisy_tables import NoisyTables
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
class Model:
    """A trained consortium model: local parts per party, the head's handle, and how it was made.

    lam is None if it was chosen in secret; the temperature is then part of the head. aware: the encoders of a model
    that uses s, which then has to be given to it.
    """

    engine: Engine
    encoders: Mapping[int, Encoder]
    head: Any
    task: Task
    temperature: float
    lam: float | None
    finding: RoleAssignment
    sketches: tuple[NoisyTables, ...]
    generators: Mapping[str, Mapping[int, Generator]]
    trials: tuple[Trial, ...]
    frontier: tuple[tuple[float, Any], ...] = ()
    """Every lambda with its head, not calibrated; empty if the choice among them is secret."""
    aware: AwareEncoders | None = None
    control: Any = None
    """A head without mediators and proxies, trained beside the others for comparison."""
    validity: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By protected attribute: the sums of V_id, V_supp and sizes of edits, and the leak, where they were opened."""

    @property
    def roles(self) -> Roles:
        return self.finding.roles

    def encode(self, parties: Sequence[Party]) -> Blocks:
        return {p.rank: self.encoders[p.rank](p.inputs) for p in parties}

    def logits(self, parties: Sequence[Party], groups: AtHolder = None) -> np.ndarray:
        """Calibrated logits of these records. `groups`: their s at its holder, for a model that uses it."""
        rows: Any = self.encode(parties)
        if self.aware is not None:
            rows = self.engine.select(hypotheses(self.aware, parties), groups)
        return self.engine.logits(self.head, rows) / self.temperature


def with_leaks(
    validity: Mapping[str, Mapping[str, Any]], leak: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """The validity terms of each attribute with its leak, None where it was not measured."""
    return {name: {**told, "leak": leak.get(name)} for name, told in validity.items()}


def probabilities(logits: np.ndarray, task: Task) -> np.ndarray:
    """Probability of every class (records x classes): of several, those of each against the rest, to a sum of 1."""
    if task == "binary":
        positive = expit(logits[:, 0])
        return np.column_stack([1.0 - positive, positive])
    against_rest = expit(logits)
    return np.asarray(against_rest / against_rest.sum(axis=1, keepdims=True))
