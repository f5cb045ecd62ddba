"""Data sets: aligned records of all parties, with their label and protected attributes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from secure_sccvfl.data.features import DataError, Feature, check_disjoint
from secure_sccvfl.data.groups import check_count
from secure_sccvfl.data.party import Attribute

Task = Literal["binary", "multiclass", "regression"]


class DataWarning(UserWarning):
    """Something in the data that a reader should know; the run continues."""


@dataclass(frozen=True)
class PartyTable:
    """What one party holds: its columns as numbers (n x d), categories as indices, gaps as NaN."""

    name: str
    features: tuple[Feature, ...]
    values: np.ndarray

    def __post_init__(self) -> None:
        if not self.features:
            raise DataError(f"party {self.name!r} has no feature")
        if self.values.ndim != 2 or self.values.shape[1] != len(self.features):
            raise DataError(f"party {self.name!r}: {self.values.shape} does not fit {len(self.features)} columns")


@dataclass(frozen=True)
class Protected(Attribute):
    """A protected attribute with the group codes 0..g-1 of all records."""

    codes: np.ndarray
    meaning: str = ""

    def __post_init__(self) -> None:
        if len(self.groups) < 2:
            raise DataError(f"protected attribute {self.name!r} has one group only: {self.groups}")
        check_count(f"protected attribute {self.name!r}", self.columns)


@dataclass(frozen=True)
class Label:
    """The label and who holds it: class codes, or numbers scaled to 0..1 by their public range."""

    holder: str
    values: np.ndarray
    classes: tuple[str, ...] = ()
    meaning: str = ""


@dataclass(frozen=True)
class Dataset:
    """Aligned records of all parties. Only a pooled evaluation holds this; a party holds its own table."""

    name: str
    task: Task
    ids: np.ndarray
    parties: tuple[PartyTable, ...]
    label: Label
    protected: tuple[Protected, ...]

    def __post_init__(self) -> None:
        if self.task not in ("binary", "multiclass", "regression"):
            raise DataError(f"unknown task {self.task!r}; use binary, multiclass or regression")
        if len(self.parties) < 2:
            raise DataError(f"{self.name}: at least two parties are needed, got {len(self.parties)}")
        if not self.protected:
            raise DataError(f"{self.name}: no protected attribute is named")
        if self.task == "binary" and len(self.label.classes) != 2:
            raise DataError(f"{self.name}: a binary label needs two classes, got {self.label.classes}")
        check_disjoint({p.name: p.features for p in self.parties})
        for where in (self.label.holder, *(a.holder for a in self.protected)):
            if where not in {p.name for p in self.parties}:
                raise DataError(f"{self.name}: {where!r} holds the label or s but is not a party")

    @property
    def n(self) -> int:
        return len(self.ids)

    @property
    def features(self) -> tuple[Feature, ...]:
        return tuple(f for p in self.parties for f in p.features)

    @property
    def may_be_missing(self) -> tuple[str, ...]:
        return tuple(f.name for f in self.features if f.missing)

    @property
    def owners(self) -> dict[str, str]:
        return {f.name: table.name for table in self.parties for f in table.features}

    @property
    def values(self) -> np.ndarray:
        """All columns in one array; for a pooled evaluation, never for a party."""
        return np.hstack([p.values for p in self.parties])

    @property
    def outputs(self) -> int:
        """Logits of the head: one for two classes and for regression, else one per class."""
        return len(self.label.classes) if self.task == "multiclass" else 1

    def take(self, rows: np.ndarray) -> Dataset:
        return replace(
            self,
            ids=self.ids[rows],
            parties=tuple(replace(p, values=p.values[rows]) for p in self.parties),
            label=replace(self.label, values=self.label.values[rows]),
            protected=tuple(replace(a, codes=a.codes[rows]) for a in self.protected),
        )
