"""Files of a data set: its TOML description, the tables of its parties, and the records that they hold.

A description names one table per party (a file that `sources` reads), the id column, who holds the label and the
protected attributes, and the public feature dictionary. Rows are aligned by id and sorted by it, so the order of rows
in a file has no meaning. Every error has a one-line message that names the file and the entry and says what is
expected.
"""

from __future__ import annotations

import difflib
import json
import tomllib
import warnings
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from secure_sccvfl.accounting.plain_text import plain
from secure_sccvfl.data.dataset import Dataset, DataWarning, Label, PartyTable, Protected
from secure_sccvfl.data.features import (
    SHOWN,
    WRITING,
    CellProblem,
    DataError,
    Feature,
    check_entries,
    cut,
    dictionary,
    refuse,
    some,
    whole_column,
)
from secure_sccvfl.data.groups import beyond_a_list, columns_of, factors_of, look_at_codes, names_of, read_codes
from secure_sccvfl.data.sources import all_names, column_names, is_csv, open_table
from secure_sccvfl.data.table_rows import TableRows, stamp_of
from secure_sccvfl.protocols.alignment.ids import IdRule
from secure_sccvfl.protocols.errors import InputError

LONGEST_ID = 1000
TASKS = ("binary", "multiclass", "regression")
PARTY_KEYS: dict[str, Any] = {"id": str, **WRITING}
"""What a party may declare besides its file and features; id: its own name for the id column."""
_WORDS: dict[str, Any] = {"meaning": str, "labels": list, "file": str}

_ABOUT = """\
# The description of {name}, the same for every party. All of it is public among them: ranges, categories, classes,
# groups and marks. Each party's people approve their part before it is used.
"""


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The content of a TOML file, whatever is in it."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise DataError(f"cannot read the {what} {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path.name} is not saved as UTF-8; save it so") from None
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{path.name} is not a valid TOML file: {error}") from None


def read_description(path: Path) -> dict[str, Any]:
    """The public part of a data set: everything in its TOML file, the shape of each entry checked."""
    spec = read_toml(path, "description")
    check_description(spec, path.name)
    return spec


def check_description(spec: Mapping[str, Any], file: str) -> None:
    """Raise DataError unless every entry of a description has its shape; `file` names the description in messages."""
    check_entries(file, spec, {"name": str, "task": str, "label": dict, "protected": list}, {})
    id_rule(spec.get("id"), file)
    check_entries(file, spec, {"parties": dict}, {})
    if "/" in spec["name"] or "\\" in spec["name"]:
        raise DataError(f"{file}: name {spec['name']!r} must be a plain name, which files are named after")
    if spec["task"] not in TASKS:
        raise DataError(f"{file}: unknown task {spec['task']!r}; use binary, multiclass or regression")
    for name, party in spec["parties"].items():
        where, wanted = f"{file}: party {cut(name)}", {"file": str, "features": list}
        check_entries(where, party, wanted, PARTY_KEYS)
        if odd := sorted(set(party) - {*wanted, *PARTY_KEYS}):
            raise DataError(f"{where}: unknown keys {odd}; available: {', '.join([*wanted, *PARTY_KEYS])}")
        if not party["features"]:
            raise DataError(f"{file}: party {name!r} has no feature")
        if party.get("id"):
            _check_own_id(where, name, spec, id_rule(spec["id"], file))
    _check_label(file, spec)
    _check_protected(file, spec)


def _check_own_id(where: str, name: str, spec: Mapping[str, Any], rule: IdRule) -> None:
    """A party's own name for the id column: it takes the place of the common name in this party's file."""
    own, party = spec["parties"][name]["id"], spec["parties"][name]
    if len(rule.columns) > 1:
        raise DataError(f"{where}: an id of several columns has the same names at all parties: take out id = {own!r}")
    holds = [entry for entry in (spec["label"], *spec["protected"]) if entry.get("party") == name]
    used = {row.get("name") for row in party["features"] if isinstance(row, dict)}
    used |= {entry.get("column") for entry in holds}
    if clash := used & {own, rule.columns[0]}:
        raise DataError(f"{where}: column {min(map(str, clash))!r} is the id: rename it where it is something else")


def _check_label(file: str, spec: Mapping[str, Any]) -> None:
    wanted = {"low": float, "high": float} if spec["task"] == "regression" else {"classes": list}
    check_entries(f"{file}: label", spec["label"], {"party": str, "column": str, **wanted}, _WORDS)
    _is_party(spec, spec["label"], "label")
    classes = [str(c) for c in spec["label"].get("classes", ())]
    if len(set(classes)) != len(classes):
        raise DataError(f"{file}: the label names a class twice in {classes}")
    if spec["task"] == "binary" and len(classes) != 2:
        raise DataError(f"{file}: a binary label needs two classes, got {classes}")


def _check_protected(file: str, spec: Mapping[str, Any]) -> None:
    if not spec["protected"]:
        raise DataError(f"{file}: no protected attribute is named")
    for entry in spec["protected"]:
        forms = {"groups": list, "cells": list, "cross": list, **_WORDS}
        check_entries(f"{file}: protected attribute", entry, {"party": str, "column": str}, forms)
        _is_party(spec, entry, f"protected attribute {entry['column']!r}")
        factors, label = factors_of(entry, file), spec["label"]
        if entry["party"] == label["party"] and label["column"] in {factor.column for factor in factors}:
            raise DataError(f"{file}: column {label['column']!r} is the label and cannot be protected too")


def _is_party(spec: Mapping[str, Any], entry: Mapping[str, Any], what: str) -> None:
    if entry["party"] not in spec["parties"]:
        names = ", ".join(spec["parties"])
        raise DataError(f"{what} is held by {entry['party']!r}, which is no party; available: {names}")


def id_rule(entry: Any, file: str) -> IdRule:
    try:
        if entry is None:
            raise InputError("id is missing: name the column with the id of each record")
        return IdRule.of(entry)
    except InputError as error:
        raise DataError(f"{file}: {error}") from None


def read_table(path: Path, rule: IdRule, owner: str, wanted: Collection[str], own_id: str = "") -> pd.DataFrame:
    """The wanted columns of a table, one record per row, each with its own id: in column `rule.name`, by the rule.

    Its index has the ids as the file writes them; that is how people see them. own_id: the owner's name of the id.
    """
    table = open_with_id(path, owner, rule, wanted, own_id)
    written = ids_as_written(table, rule)
    table = identified(table, rule, owner)
    check_table(table, rule.name, owner, path.name, written)
    return table.set_axis(written, axis=0)


def open_with_id(path: Path, owner: str, rule: IdRule, wanted: Collection[str], own_id: str) -> pd.DataFrame:
    """The wanted columns of a table, with the id under its common name, if its owner calls it otherwise."""
    common, ids = rule.columns[0], id_columns(rule, own_id)
    table = open_table(path, owner, ids, wanted)
    if ids[0] == common:
        return table
    return table.drop(columns=common, errors="ignore").rename(columns={own_id: common}) if own_id in table else table


def id_columns(rule: IdRule, own_id: str) -> tuple[str, ...]:
    """The columns of ids in an owner's file; its own name for the id comes before the common one."""
    common = rule.columns[0]
    return rule.columns if len(rule.columns) > 1 or own_id in ("", common) else (own_id, common)


def ids_as_written(table: pd.DataFrame, rule: IdRule) -> pd.Index:
    """Every record's id as its file writes it, without spaces at the ends; of several columns, a list of texts."""
    if not set(rule.columns) <= set(table):
        return pd.Index(table.index.astype(str))
    cells = [table[name].fillna("").str.normalize("NFC").str.strip() for name in rule.columns]
    if len(cells) == 1:
        return pd.Index(cells[0].to_numpy(object))
    return pd.Index([json.dumps(texts, ensure_ascii=False) for texts in zip(*cells, strict=True)])


def identified(table: pd.DataFrame, rule: IdRule, owner: str) -> pd.DataFrame:
    """The table with the ids that a rule makes; columns that are the id, in part, stay as they are."""
    if rule.plain:
        ids = table[rule.name].str.normalize("NFC").str.strip() if rule.name in table else None
    else:
        try:
            ids = pd.Series(rule.apply(table, owner), table.index, "string") if len(table) else None
        except InputError as error:
            raise DataError(str(error)) from None
    return table if ids is None else table.assign(**{rule.name: ids})


def check_table(
    table: pd.DataFrame,
    id_column: str,
    owner: str,
    name: str,
    written: pd.Index | None = None,
    todo: str = "keep one record of each id",
) -> None:
    """Raise DataError unless every record of a text table has an id, and no id occurs twice.

    For the message, written: the ids as the table writes them. todo: what to do about ids that occur twice.
    """
    if id_column not in table:
        raise DataError(f"{owner}: {name!r} has no id column {cut(id_column)}; it has {column_names(table)}")
    if table.empty:
        raise DataError(f"{owner}: {name!r} has no records, only a header")
    refuse(owner, id_problems(table[id_column], name, written, todo), pd.RangeIndex(1, len(table) + 1))


def id_problems(
    ids: pd.Series, name: str, written: pd.Index | None = None, todo: str = "keep one record of each id"
) -> list[CellProblem]:
    """Records without an id, too long ids, and ids that occur twice, in a table of this name."""
    empty = (ids.isna() | (ids.str.strip() == "")).to_numpy(bool)
    long = (ids.str.len() > LONGEST_ID).fillna(False).to_numpy(bool)
    twice = ids.duplicated().to_numpy(bool) & ~empty
    seen = repeated_ids(ids, twice, written)
    column, where = str(ids.name), f"in {name!r}"
    problems = (
        CellProblem(column, f"missing {where}", "give every record its own id", empty),
        CellProblem(
            str(ids.name), f"longer than {LONGEST_ID} characters in {name!r}", "is this the id column?", long
        ),
        CellProblem(column, f"repeated {where}", todo, twice, seen),
    )
    return [problem for problem in problems if problem.count]


def repeated_ids(ids: pd.Series, twice: np.ndarray, written: pd.Index | None = None) -> str:
    """The first ids that occur twice, as their table writes them, with their rows, counted from the first record."""
    texts = []
    for name in ids[twice].unique()[:SHOWN]:
        rows = np.flatnonzero((ids == name).fillna(False).to_numpy(bool))
        names = dict.fromkeys(cut(ids.iloc[row] if written is None else written[row]) for row in rows)
        numbers = " and ".join(str(row + 1) for row in rows[:SHOWN]) + (" and others" if len(rows) > SHOWN else "")
        texts.append(f"{' and '.join(list(names)[:SHOWN])} in rows {numbers}")
    return "; ".join(texts) + ("; ..." if ids[twice].nunique() > SHOWN else "")


def absent(column: str, name: str, table: pd.DataFrame) -> CellProblem:
    close = difflib.get_close_matches(column, all_names(table), 1)
    hint = f"did you mean {cut(close[0])}?" if close else f"it has {column_names(table)}"
    return whole_column(column, f"{name!r} has no column {cut(column)}", hint, len(table))


def look_at(features: Sequence[Feature], frame: pd.DataFrame, name: str) -> tuple[np.ndarray, list[CellProblem]]:
    """The columns of these features as numbers, and all cells, or columns of this table, that cannot be used."""
    columns, problems = [np.zeros((len(frame), 0))], list[CellProblem]()
    for feature in features:
        values, odd = np.full(len(frame), np.nan), [absent(feature.name, name, frame)]
        if feature.name in frame:
            values, odd = feature.look(frame[feature.name])
        columns.append(values[:, None])
        problems += odd
    return np.hstack(columns), problems


def _not_present(codes: np.ndarray, values: tuple[str, ...], what: str, column: str) -> list[CellProblem]:
    """A class or group without a record, where its records are no secret."""
    present = np.unique(codes)
    if len(present) < 2:
        reason = f"the {what}: only {cut(values[int(present[0])])} occurs; at least two are needed"
        return [whole_column(column, reason, "bring records of both", len(codes))]
    if lost := [v for i, v in enumerate(values) if i not in present]:
        reason = f"the {what}: no record of {lost}"
        return [whole_column(column, reason, "bring some, or do not declare it", len(codes))]
    return []


def warn_absent(codes: np.ndarray, groups: tuple[str, ...], name: str, owner: str) -> None:
    """Warn the holder alone that a group has no record: a refusal would tell the others about s, uncharged."""
    sizes = np.bincount(codes, minlength=len(groups))
    if lost := [group for group, size in zip(groups, sizes, strict=True) if size == 0]:
        warnings.warn(
            f"{owner}: protected attribute {name!r}: no training record of {lost}; what is released of it is noise",
            DataWarning,
            stacklevel=3,
        )


def warn_constant(table: PartyTable) -> None:
    for feature, values in zip(table.features, table.values.T, strict=True):
        if len(np.unique(values[~np.isnan(values)])) < 2:
            message = f"{table.name}: column {feature.name!r} is constant and carries nothing"
            warnings.warn(message, DataWarning, stacklevel=3)


def columns_by_file(spec: Mapping[str, Any]) -> dict[str, set[str]]:
    """The columns of each file that a description names: features, the label, and protected attributes."""
    parties = spec["parties"]
    columns: defaultdict[str, set[str]] = defaultdict(set)
    for party in parties.values():
        columns[party["file"]].update(str(row["name"]) for row in party["features"])
    for entry in (spec["label"], *spec["protected"]):
        columns[entry.get("file", parties[entry["party"]]["file"])].update(columns_of(entry))
    return columns


class Tables:
    """Tables by file name, each read once, indexed by id. wanted: the columns of each that are read."""

    def __init__(self, folder: Path, rule: IdRule, wanted: Mapping[str, Collection[str]] | None = None) -> None:
        self.folder, self.rule, self.wanted = folder, rule, wanted or {}
        self.tables: dict[str, pd.DataFrame] = {}
        self.written: dict[str, pd.Index] = {}
        """The ids of each table as its file writes them, in the same order."""
        self.orders: dict[str, np.ndarray] = {}
        """The rows of each file in the order of their ids."""

    def get(self, name: str, owner: str, own_id: str = "") -> pd.DataFrame:
        if name not in self.tables:
            path = self.folder / name
            if not path.is_file():
                raise DataError(f"{owner}: no file {name!r} next to the description")
            table = read_table(path, self.rule, owner, self.wanted[name], own_id)
            self.orders[name] = np.argsort(table[self.rule.name].to_numpy(object), kind="stable")
            table = table.iloc[self.orders[name]]
            self.tables[name], self.written[name] = table.set_index(self.rule.name), table.index
        return self.tables[name]


@dataclass(frozen=True)
class Held:
    """Everything that one party holds: its columns, and its label and protected attributes (by number), if any."""

    table: PartyTable
    label: Label | None
    protected: dict[int, Protected]


class Reader:
    """Reads what single parties hold, file by file, and checks that ids match among what was read."""

    def __init__(self, spec: dict[str, Any], tables: Tables) -> None:
        self.spec, self.tables = spec, tables
        self.features = dictionary(self.spec["parties"])
        self.ids: pd.Index | None = None
        self.written: pd.Index | None = None

    @classmethod
    def of(cls, path: Path) -> Reader:
        spec = read_description(path)
        return cls(spec, Tables(path.parent, id_rule(spec["id"], path.name), columns_by_file(spec)))

    def keep_common(self) -> None:
        """Leave out the records that a file lacks; DataError if nothing is left."""
        parties, tables = self.spec["parties"], self.tables
        holders = [entry for entry in (self.spec["label"], *self.spec["protected"]) if "file" in entry]
        files = {party["file"]: name for name, party in parties.items()}
        files |= {entry["file"]: entry["party"] for entry in holders}
        frames = {file: tables.get(file, party, parties[party].get("id", "")) for file, party in files.items()}
        common = reduce(pd.Index.intersection, (frame.index for frame in frames.values()))
        if all(len(frame) == len(common) for frame in frames.values()):
            return
        sizes = ", ".join(f"{len(frame):,} in {file!r}" for file, frame in frames.items())
        if not len(common):
            raise DataError(
                f"no id is in all files ({sizes}): do they write ids equally? `sccvfl init --merge` compares"
            )
        left = f"{len(common):,} records are in all files and are kept; there are {sizes}"
        warnings.warn(left, DataWarning, stacklevel=2)
        for file, frame in frames.items():
            kept = frame.index.isin(common)
            tables.tables[file], tables.written[file] = frame[kept], tables.written[file][kept]

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(str(c) for c in self.spec["label"].get("classes", ()))

    @property
    def id_array(self) -> np.ndarray:
        return np.zeros(0, str) if self.ids is None else self.ids.to_numpy(str)

    def table(self, name: str) -> PartyTable:
        """A party's columns; DataError for all cells that cannot be used."""
        problems: list[CellProblem] = []
        table = self._features(name, problems)
        self._refuse(name, problems)
        return table

    def held(self, name: str, *, all_present: bool = False) -> Held:
        """All that a party holds; one DataError for everything in it that cannot be used.

        all_present: refuse a group without a record. In a run that would reveal something of s, uncharged.
        """
        held, problems = self.look(name, all_present=all_present)
        self._refuse(name, problems)
        return held

    def look(self, name: str, *, all_present: bool = False) -> tuple[Held, list[CellProblem]]:
        """All that a party holds, and everything in it that cannot be used."""
        problems: list[CellProblem] = []
        table = self._features(name, problems)
        return Held(table, *self._label_and_protected(name, problems, all_present)), problems

    def _label_and_protected(
        self, name: str, problems: list[CellProblem], all_present: bool
    ) -> tuple[Label | None, dict[int, Protected]]:
        label = self._label(problems) if self.spec["label"]["party"] == name else None
        return label, {
            number: self._protected(entry, problems, all_present)
            for number, entry in enumerate(self.spec["protected"])
            if entry["party"] == name
        }

    def held_in_parts(self, name: str) -> tuple[Held, TableRows] | None:
        """The same, with features that stay in their file; None if they cannot.

        The file is read twice: for what is held here, and for a look at every cell of its features, of which the two
        rows of `Held.table` are the least and the largest. If a cell cannot be used, the whole table is to be read:
        it tells what is wrong.
        """
        party = self.spec["parties"][name]
        path, own_id, features = self.tables.folder / party["file"], party.get("id", ""), self.features[name]
        if not is_csv(path) or not path.is_file():
            return None
        stamp = stamp_of(path)
        columns = columns_by_file({**self.spec, "parties": {**self.spec["parties"], name: {**party, "features": []}}})
        thin = Reader(self.spec, Tables(path.parent, self.tables.rule, columns))
        thin._frame(party["file"], name, name)
        ids = id_columns(thin.tables.rule, own_id)
        numbers = thin.tables.orders[party["file"]].astype(np.int32)  # workers are sent theirs with every feature
        rows = TableRows(path, name, ids, features, stamp, numbers)
        extremes = rows.extremes()
        if extremes is None:
            return None
        problems: list[CellProblem] = []
        label, protected = thin._label_and_protected(name, problems, False)
        thin._refuse(name, problems)
        self.ids, self.written = thin.ids, thin.written
        return Held(PartyTable(name, features, extremes), label, protected), rows

    def _refuse(self, name: str, problems: list[CellProblem]) -> None:
        refuse(name, problems, pd.Index([]) if self.written is None else self.written)

    def _features(self, name: str, problems: list[CellProblem]) -> PartyTable:
        features, file = self.features[name], self.spec["parties"][name]["file"]
        values, odd = look_at(features, self._frame(file, name, name), file)
        problems += odd
        return PartyTable(name, features, values)

    def _label(self, problems: list[CellProblem]) -> Label:
        entry = self.spec["label"]
        party, meaning = entry["party"], entry.get("meaning", "")
        column = self._column(entry, "label", problems)
        if self.spec["task"] == "regression":
            bounds = {"name": entry["column"], "kind": "number", "low": entry["low"], "high": entry["high"]}
            label = Feature.of(bounds, self.spec["parties"][party])
            values, odd = label.look(column) if column.name is not None else (np.zeros(len(column)), [])
            problems += odd
            return Label(party, (values - label.low) / (label.high - label.low), (), meaning)
        codes = np.zeros(len(column), int)
        if column.name is not None:
            codes, odd = look_at_codes(column, self.classes, "label")
            problems += odd or _not_present(codes, self.classes, "label", str(column.name))
        return Label(party, codes, self.classes, meaning)

    def _protected(self, entry: dict[str, Any], problems: list[CellProblem], all_present: bool) -> Protected:
        what, factors = "protected attribute", factors_of(entry, "the description")
        columns = {f.column: self._column({**entry, "column": f.column}, what, problems) for f in factors}
        groups, codes = names_of(factors), np.zeros(len(columns[factors[0].column]), int)
        if all(column.name is not None for column in columns.values()):
            codes, odd = read_codes(factors, columns.__getitem__)
            problems += odd or (_not_present(codes, groups, what, entry["column"]) if all_present else [])
        kept, meaning = beyond_a_list(factors), entry.get("meaning", "")
        return Protected(entry["column"], entry["party"], groups, codes, meaning, factors=kept)

    def _column(self, entry: dict[str, Any], what: str, problems: list[CellProblem]) -> pd.Series:
        """The column of an entry; one without a name if the file lacks it."""
        file, column = entry.get("file", self.spec["parties"][entry["party"]]["file"]), entry["column"]
        frame = self._frame(file, entry["party"], f"{entry['party']} ({what})")
        if column in {f.name for features in self.features.values() for f in features}:
            todo = "take it out of the features"
            problems.append(whole_column(column, f"the {what} is also listed as a feature", todo, len(frame)))
        if column not in frame:
            problems.append(absent(column, file, frame))
            return pd.Series([None] * len(frame), frame.index, dtype="string")
        return frame[column].astype("string")

    def _frame(self, file: str, party: str, who: str) -> pd.DataFrame:
        """A table, whose ids must be those of the first table."""
        frame = self.tables.get(file, party, self.spec["parties"][party].get("id", ""))
        ids, other = frame.index if self.ids is None else self.ids, frame.index
        self.ids, self.written = ids, self.tables.written.get(file, other)
        if len(ids) != len(other) or not bool((ids == other).all()):
            odd = list(ids.symmetric_difference(other))
            raise DataError(f"ids of {who} do not match the first party's: {len(odd)} differ, such as {some(odd)}")
        return frame


def load_toml(path: Path) -> Dataset:
    """Read a whole data set from its description; relative files are looked for next to it.

    Records that are not in all files are left out with a warning, as a run with hidden alignment leaves them out.
    """
    reader = Reader.of(path)
    reader.keep_common()
    return read_whole(reader, path.name)


def read_whole(reader: Reader, name: str) -> Dataset:
    """Everything that a reader can read; `name` stands for the description in messages."""
    spec = reader.spec
    held = [reader.held(party, all_present=True) for party in spec["parties"]]
    if not held:
        raise DataError(f"{name}: no party")
    label = next(one.label for one in held if one.label is not None)
    attributes = {number: attribute for one in held for number, attribute in one.protected.items()}
    protected = tuple(attributes[number] for number in sorted(attributes))
    data = Dataset(spec["name"], spec["task"], reader.id_array, tuple(one.table for one in held), label, protected)
    for table in data.parties:
        warn_constant(table)
    return data


def toml(value: Any) -> str:
    """A value as TOML writes it, on one line."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{toml_key(key)} = {toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    return json.dumps(int(value) if whole else value)


def toml_key(key: str) -> str:
    """A plain key, in quotes only where TOML needs them."""
    return key if key and all(c.isascii() and (c.isalnum() or c in "_-") for c in key) else toml(key)


def description_text(spec: Mapping[str, Any]) -> str:
    lines = [_ABOUT.format(name=plain(spec["name"]))]
    lines += [f"{key} = {toml(spec[key])}" for key in ("name", "task", "id", "label")]
    lines += ["protected = [", *(f"  {toml(entry)}," for entry in spec["protected"]), "]"]
    for party, entries in spec["parties"].items():
        lines += ["", f"[parties.{toml_key(party)}]"]
        lines += [f"{key} = {toml(value)}" for key, value in entries.items() if key != "features"]
        lines += ["features = [", *(f"  {toml(entry)}," for entry in entries["features"]), "]"]
    return "\n".join(lines) + "\n"


def read(name: str) -> Dataset:
    return load_toml(Path(name))


def words(name: str) -> dict[str, Any]:
    return read_description(Path(name))


def files(name: str) -> list[Path]:
    spec, path = words(name), Path(name)
    entries = [*spec["parties"].values(), spec["label"], *spec["protected"]]
    tables = {entry["file"] for entry in entries if "file" in entry}
    return [path, *(path.parent / table for table in sorted(tables))]
