"""What a run is given, what it tells its surroundings, and its state, from which everything else follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from secure_sccvfl.data.dataset import Task
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.party import Part
from secure_sccvfl.discovery.decisions import RoleAssignment
from secure_sccvfl.discovery.evidence import Conditional
from secure_sccvfl.discovery.noisy_tables import NoisyTables
from secure_sccvfl.training.model import Trial


@dataclass(frozen=True)
class State:
    """The state of a run. Everything else follows from it, the data and the seed.

    Without a head, its training has not begun. head: in second-order training those of all lambdas. heads: those
    trained so far; in the end those of the trials, if one of them is chosen by what was opened. choice: the head
    chosen in secret. control: a head without mediators and proxies, for comparison. own: what a gradient mode keeps
    besides, at this party; the noisy Gram matrix of records' edits.
    refreshes: how many releases of the sketch are behind it, late ones included. records: a noisy number of training
    records, where the exact one is secret.
    """

    head: Any
    sketches: tuple[NoisyTables, ...] = ()
    refreshes: int = 0
    finding: RoleAssignment | None = None
    conditional: tuple[Conditional, ...] | None = None
    trials: tuple[Trial, ...] = ()
    taken: int = 0
    heads: tuple[Any, ...] = ()
    choice: Any = None
    control: Any = None
    own: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    records: int = 0


@dataclass(frozen=True)
class Hooks:
    """What a run tells its surroundings: its progress, its decisions, and states worth keeping."""

    progress: Callable[[str, int, int], None] = lambda phase, number, total: None
    audit: Callable[[str, Mapping[str, Any]], None] = lambda event, numbers: None
    keep: Callable[[State], None] = lambda state: None


@dataclass(frozen=True)
class Problem:
    """What is to be learned, from the records of which this process holds a part."""

    task: Task
    outputs: int
    train: Part
    validation: Part
    owners: Mapping[str, str] = field(default_factory=dict)
    """The party of every feature, for roles within parties; public."""
    layouts: Mapping[int, Layout] = field(default_factory=dict)
    """Of every party, from the public dictionary. Without them any column may be edited."""
    tabled: tuple[str, ...] = ()
    """The columns whose tables of s are used (`TrainConfig.tabled`); empty: all."""
    released: tuple[str, ...] | None = None
    """The columns that kept tables are about (empty: all), if they are of more than these; public."""
