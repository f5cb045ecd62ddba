"""Data sets, and how one is read from its TOML description: the embedded ones and a user's own.

A description names one CSV or parquet file per party, the id column, who holds the label and the protected
attributes, and the public feature dictionary. Rows are aligned by id and sorted by it, so the order of rows in a
file has no meaning.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from protocols.alignment.ids import IdRule
from secure_sccvfl.data.features import Feature, check_disjoint
from secure_sccvfl.data.files import DataError, id_rule, named, read_description, read_table

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
class Protected:
    """A protected attribute as group codes 0..g-1, and who holds it."""

    name: str
    holder: str
    groups: tuple[str, ...]
    codes: np.ndarray
    meaning: str = ""

    def __post_init__(self) -> None:
        if len(self.groups) < 2:
            raise DataError(f"protected attribute {self.name!r} has one group only: {self.groups}")


@dataclass(frozen=True)
class Label:
    """The label and who holds it: class codes, or numbers scaled to 0..1 by their public range."""

    holder: str
    values: np.ndarray
    classes: tuple[str, ...] = ()
    meaning: str = ""


@dataclass(frozen=True)
class Dataset:
    """Aligned records of all parties. Only the harness holds this; a party holds its own table."""

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
    def owners(self) -> dict[str, str]:
        """Feature -> its party."""
        return {f.name: table.name for table in self.parties for f in table.features}

    @property
    def values(self) -> np.ndarray:
        """All columns side by side; for the harness (duplicates, judges), never for a party."""
        return np.hstack([p.values for p in self.parties])

    @property
    def outputs(self) -> int:
        """Logits of the head: one for two classes and for regression, else one per class."""
        return len(self.label.classes) if self.task == "multiclass" else 1

    def take(self, rows: np.ndarray) -> Dataset:
        """The same data set with these rows only."""
        return replace(
            self,
            ids=self.ids[rows],
            parties=tuple(replace(p, values=p.values[rows]) for p in self.parties),
            label=replace(self.label, values=self.label.values[rows]),
            protected=tuple(replace(a, codes=a.codes[rows]) for a in self.protected),
        )


def codes_of(column: pd.Series, values: tuple[str, ...], what: str) -> np.ndarray:
    """The number of each cell among the values that may occur; DataError for another one."""
    text = column.astype("string").str.strip().str.removesuffix(".0")
    codes = text.map({v: i for i, v in enumerate(values)}).to_numpy(dtype=float, na_value=np.nan)
    if np.isnan(codes).any():
        bad = sorted({str(v) for v in column[np.isnan(codes)]})[:5]
        raise DataError(f"{what}: values {bad} are not among {list(values)}")
    return codes.astype(int)


def _check_present(codes: np.ndarray, values: tuple[str, ...], what: str) -> None:
    """Refuse a class or group without a record, where its records are no secret."""
    present = np.unique(codes)
    if len(present) < 2:
        raise DataError(f"{what}: only {values[int(present[0])]!r} occurs; at least two are needed")
    if absent := [v for i, v in enumerate(values) if i not in present]:
        raise DataError(f"{what}: no record of {absent}")


def warn_absent(codes: np.ndarray, groups: tuple[str, ...], name: str) -> None:
    """Tell the holder alone that a group has no record.

    A refusal would tell the others about s, and nobody charged for that.
    """
    sizes = np.bincount(codes, minlength=len(groups))
    if absent := [group for group, size in zip(groups, sizes, strict=True) if size == 0]:
        warnings.warn(
            f"protected attribute {name!r}: no training record of {absent}; what is released of it will be noise",
            DataWarning,
            stacklevel=3,
        )


class Tables:
    """Tables by file name, each read once, indexed by id."""

    def __init__(self, folder: Path, rule: IdRule) -> None:
        self.folder, self.rule = folder, rule
        self.tables: dict[str, pd.DataFrame] = {}

    def get(self, name: str, columns: list[str], owner: str) -> pd.DataFrame:
        if name not in self.tables:
            path = self.folder / name
            if not path.is_file():
                raise DataError(f"no file {name!r} next to the description")
            table = read_table(path, self.rule, owner)
            self.tables[name] = table.set_index(self.rule.name).sort_index()
        table = self.tables[name]
        lost = [c for c in columns if c not in table]
        if lost:
            raise DataError(f"{owner}: {name!r} has no column {lost[0]!r}; it has {named(table)}")
        return table[columns]


def _same_ids(reference: pd.Index, other: pd.Index, who: str) -> None:
    if len(reference) == len(other) and bool((reference == other).all()):
        return
    odd = list(reference.symmetric_difference(other)[:3])
    count = len(reference.symmetric_difference(other))
    raise DataError(f"ids of {who} do not match the first party's: {count} differ, such as {odd}")


class Reader:
    """Reads what single parties hold, file by file, and checks that ids match among what was read."""

    def __init__(self, spec: dict[str, Any], tables: Tables) -> None:
        self.spec, self.tables = spec, tables
        self.features = {
            name: tuple(Feature.of(row) for row in party["features"]) for name, party in self.spec["parties"].items()
        }
        self.ids: pd.Index | None = None

    @classmethod
    def of(cls, path: Path) -> Reader:
        """A reader for the files beside a description."""
        spec = read_description(path)
        return cls(spec, Tables(path.parent, id_rule(spec["id"], path.name)))

    def table(self, name: str) -> PartyTable:
        features = self.features[name]
        frame = self.tables.get(self.spec["parties"][name]["file"], [f.name for f in features], name)
        self._same_ids(frame.index, name)
        return PartyTable(name, features, np.column_stack([f.read(frame[f.name]) for f in features]))

    def label(self) -> Label:
        entry = self.spec["label"]
        if self.spec["task"] == "regression":
            label = Feature(name=entry["column"], kind="number", low=entry["low"], high=entry["high"])
            scaled = (label.read(self._column(entry, "label")) - label.low) / (label.high - label.low)
            return Label(entry["party"], scaled, (), entry.get("meaning", ""))
        codes = codes_of(self._column(entry, "label"), self.classes, "label")
        _check_present(codes, self.classes, "label")
        return Label(entry["party"], codes, self.classes, entry.get("meaning", ""))

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(str(c) for c in self.spec["label"].get("classes", ()))

    def protected(self, entry: dict[str, Any]) -> Protected:
        groups = tuple(str(g) for g in entry["groups"])
        what = f"protected attribute {entry['column']!r}"
        codes = codes_of(self._column(entry, what), groups, what)
        return Protected(entry["column"], entry["party"], groups, codes, entry.get("meaning", ""))

    def _column(self, entry: dict[str, Any], what: str) -> pd.Series:
        file = entry.get("file", self.spec["parties"][entry["party"]]["file"])
        frame = self.tables.get(file, [entry["column"]], what)
        self._same_ids(frame.index, what)
        if entry["column"] in {f.name for features in self.features.values() for f in features}:
            raise DataError(f"{what}: column {entry['column']!r} is also listed as a feature")
        return frame[entry["column"]]

    def _same_ids(self, index: pd.Index, who: str) -> None:
        if self.ids is None:
            self.ids = index
        _same_ids(self.ids, index, who)

    @property
    def known_ids(self) -> np.ndarray:
        return np.zeros(0, str) if self.ids is None else self.ids.to_numpy(str)


def load_toml(path: Path) -> Dataset:
    """Read a whole data set from its description; relative files are looked for beside it."""
    return read_whole(Reader.of(path), path.name)


def read_whole(reader: Reader, name: str) -> Dataset:
    """Everything that a reader can read; `name` stands for the description in messages."""
    spec = reader.spec
    tables = tuple(reader.table(party) for party in spec["parties"])
    if not tables:
        raise DataError(f"{name}: no party")
    label = reader.label()
    protected = tuple(reader.protected(entry) for entry in spec["protected"])
    for attribute in protected:
        _check_present(attribute.codes, attribute.groups, f"protected attribute {attribute.name!r}")
    data = Dataset(spec["name"], spec["task"], reader.known_ids, tables, label, protected)
    for table in data.parties:
        warn_constant(table)
    return data


def warn_constant(table: PartyTable) -> None:
    """Warn about columns that are constant."""
    for feature, values in zip(table.features, table.values.T, strict=True):
        if len(np.unique(values[~np.isnan(values)])) < 2:
            warnings.warn(f"column {feature.name!r} is constant and carries nothing", DataWarning, stacklevel=3)
