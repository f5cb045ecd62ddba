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
from secure_sccvfl.data.features import Feature, check_disjoint, dictionary
from secure_sccvfl.data.files import absent, id_rule, read_description, read_table
from secure_sccvfl.data.tables.problems import (
    DataError,
    Finding,
    cut,
    refuse,
    short,
    some,
    whole_column,
)

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


def codes_of(column: pd.Series, values: tuple[str, ...], what: str, owner: str = "the table") -> np.ndarray:
    """The number of each cell among the values that may occur; DataError for another one."""
    codes, found = look_at_codes(column, values, what)
    refuse(owner, found, column.index)
    return codes


def look_at_codes(column: pd.Series, values: tuple[str, ...], what: str) -> tuple[np.ndarray, list[Finding]]:
    """The number of each cell among the values that may occur, and the cells with others (which read as 0)."""
    text = column.astype("string").str.strip().str.removesuffix(".0")
    codes = text.map({v: i for i, v in enumerate(values)}).to_numpy(dtype=float, na_value=np.nan)
    bad = np.isnan(codes)
    if not bad.any():
        return codes.astype(int), []
    seen = some(sorted({str(value) for value in column[bad].fillna("")}))
    reason = f"not among {short(str(list(values)))} of the {what}"
    todo = "leave such records out, put them right, or declare the value if all may know that it occurs"
    return np.where(bad, 0, codes).astype(int), [Finding(str(column.name), reason, todo, bad, seen)]


def _not_present(codes: np.ndarray, values: tuple[str, ...], what: str, column: str) -> list[Finding]:
    """A class or group without a record, where its records are no secret."""
    present = np.unique(codes)
    if len(present) < 2:
        told = f"the {what}: only {cut(values[int(present[0])])} occurs; at least two are needed"
        return [whole_column(column, told, "bring records of both", len(codes))]
    if lost := [v for i, v in enumerate(values) if i not in present]:
        return [
            whole_column(column, f"the {what}: no record of {lost}", "bring some, or do not declare it", len(codes))
        ]
    return []


def warn_absent(codes: np.ndarray, groups: tuple[str, ...], name: str, owner: str) -> None:
    """Tell the holder alone that a group has no record.

    A refusal would tell the others about s, and nobody charged for that.
    """
    sizes = np.bincount(codes, minlength=len(groups))
    if lost := [group for group, size in zip(groups, sizes, strict=True) if size == 0]:
        warnings.warn(
            f"{owner}: protected attribute {name!r}: no training record of {lost}; what is released of it is noise",
            DataWarning,
            stacklevel=3,
        )


class Tables:
    """Tables by file name, each read once, indexed by id."""

    def __init__(self, folder: Path, rule: IdRule) -> None:
        self.folder, self.rule = folder, rule
        self.tables: dict[str, pd.DataFrame] = {}

    def get(self, name: str, owner: str) -> pd.DataFrame:
        if name not in self.tables:
            path = self.folder / name
            if not path.is_file():
                raise DataError(f"{owner}: no file {name!r} next to the description")
            table = read_table(path, self.rule, owner)
            self.tables[name] = table.set_index(self.rule.name).sort_index()
        return self.tables[name]


def _same_ids(reference: pd.Index, other: pd.Index, who: str) -> None:
    if len(reference) == len(other) and bool((reference == other).all()):
        return
    odd = list(reference.symmetric_difference(other))
    raise DataError(f"ids of {who} do not match the first party's: {len(odd)} differ, such as {some(odd)}")


@dataclass(frozen=True)
class Held:
    """Everything that one party holds: its columns, and label and protected attributes (by place) if it has them."""

    table: PartyTable
    label: Label | None
    protected: dict[int, Protected]


class Reader:
    """Reads what single parties hold, file by file, and checks that ids match among what was read."""

    def __init__(self, spec: dict[str, Any], tables: Tables) -> None:
        self.spec, self.tables = spec, tables
        self.features = dictionary(self.spec["parties"])
        self.ids: pd.Index | None = None

    @classmethod
    def of(cls, path: Path) -> Reader:
        """A reader for the files beside a description."""
        spec = read_description(path)
        return cls(spec, Tables(path.parent, id_rule(spec["id"], path.name)))

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(str(c) for c in self.spec["label"].get("classes", ()))

    def table(self, name: str) -> PartyTable:
        """A party's columns; DataError for all cells that cannot be used."""
        found: list[Finding] = []
        table = self._features(name, found)
        self._refuse(name, found)
        return table

    def held(self, name: str, *, all_present: bool = False) -> Held:
        """All that a party holds; one DataError for everything in it that cannot be used.

        all_present: refuse a group without a record. In a run that would tell of s, and nobody charged for it.
        """
        held, found = self.look(name, all_present=all_present)
        self._refuse(name, found)
        return held

    def look(self, name: str, *, all_present: bool = False) -> tuple[Held, list[Finding]]:
        """All that a party holds, and everything in it that cannot be used."""
        found: list[Finding] = []
        table = self._features(name, found)
        label = self._label(found) if self.spec["label"]["party"] == name else None
        protected = {
            place: self._protected(entry, found, all_present)
            for place, entry in enumerate(self.spec["protected"])
            if entry["party"] == name
        }
        return Held(table, label, protected), found

    def _refuse(self, name: str, found: list[Finding]) -> None:
        refuse(name, found, pd.Index([]) if self.ids is None else self.ids)

    def _features(self, name: str, found: list[Finding]) -> PartyTable:
        features, file = self.features[name], self.spec["parties"][name]["file"]
        frame = self.tables.get(file, name)
        self._same_ids(frame.index, name)
        columns = []
        for feature in features:
            values, odd = np.full(len(frame), np.nan), [absent(feature.name, file, frame)]
            if feature.name in frame:
                values, odd = feature.look(frame[feature.name])
            columns.append(values)
            found += odd
        return PartyTable(name, features, np.column_stack(columns) if columns else np.zeros((len(frame), 0)))

    def _label(self, found: list[Finding]) -> Label:
        entry = self.spec["label"]
        party, meaning = entry["party"], entry.get("meaning", "")
        column = self._column(entry, "label", found)
        if self.spec["task"] == "regression":
            bounds = {"name": entry["column"], "kind": "number", "low": entry["low"], "high": entry["high"]}
            label = Feature.of(bounds, self.spec["parties"][party])
            values, odd = label.look(column) if column.name is not None else (np.zeros(len(column)), [])
            found += odd
            return Label(party, (values - label.low) / (label.high - label.low), (), meaning)
        codes = self._codes(column, self.classes, "label", found, all_present=True)
        return Label(party, codes, self.classes, meaning)

    def _protected(self, entry: dict[str, Any], found: list[Finding], all_present: bool) -> Protected:
        groups, what = tuple(str(g) for g in entry["groups"]), "protected attribute"
        codes = self._codes(self._column(entry, what, found), groups, what, found, all_present=all_present)
        return Protected(entry["column"], entry["party"], groups, codes, entry.get("meaning", ""))

    @staticmethod
    def _codes(
        column: pd.Series, values: tuple[str, ...], what: str, found: list[Finding], *, all_present: bool
    ) -> np.ndarray:
        if column.name is None:
            return np.zeros(len(column), int)
        codes, odd = look_at_codes(column, values, what)
        if all_present and not odd:
            odd = _not_present(codes, values, what, str(column.name))
        found += odd
        return codes

    def _column(self, entry: dict[str, Any], what: str, found: list[Finding]) -> pd.Series:
        """The column of an entry; one without a name if the file lacks it."""
        file, column = entry.get("file", self.spec["parties"][entry["party"]]["file"]), entry["column"]
        frame = self.tables.get(file, entry["party"])
        self._same_ids(frame.index, f"{entry['party']} ({what})")
        if column in {f.name for features in self.features.values() for f in features}:
            todo = "take it out of the features"
            found.append(whole_column(column, f"the {what} is also listed as a feature", todo, len(frame)))
        if column not in frame:
            found.append(absent(column, file, frame))
            return pd.Series([None] * len(frame), frame.index, dtype="string")
        return frame[column]

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
    held = [reader.held(party, all_present=True) for party in spec["parties"]]
    if not held:
        raise DataError(f"{name}: no party")
    label = next(one.label for one in held if one.label is not None)
    by_place = {place: attribute for one in held for place, attribute in one.protected.items()}
    protected = tuple(by_place[place] for place in sorted(by_place))
    data = Dataset(spec["name"], spec["task"], reader.known_ids, tuple(one.table for one in held), label, protected)
    for table in data.parties:
        warn_constant(table)
    return data


def warn_constant(table: PartyTable) -> None:
    """Warn about columns that are constant."""
    for feature, values in zip(table.features, table.values.T, strict=True):
        if len(np.unique(values[~np.isnan(values)])) < 2:
            warnings.warn(
                f"{table.name}: column {feature.name!r} is constant and carries nothing", DataWarning, stacklevel=3
            )
