"""Checks of data before a run: a pooled data set, or one party's table against the description.

`check` works offline: it reads this party's files alone, cell by cell as a run would, and sends nothing. It lists
everything that is wrong, where, and the line to change. What a run would accept but people should know (constant
columns, identifiers, copies of the label) comes as warnings.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from secure_sccvfl.data.dataset import Dataset, DataWarning
from secure_sccvfl.data.drafts import OTHER, WRITINGS, public_range, values_and_rare
from secure_sccvfl.data.features import (
    LONGEST_LINE,
    SHOWN,
    CellProblem,
    DataError,
    Feature,
    counted,
    cut,
    whole_column,
)
from secure_sccvfl.data.files import (
    Held,
    Reader,
    Tables,
    columns_by_file,
    id_problems,
    id_rule,
    identified,
    ids_as_written,
    open_with_id,
    read_description,
    toml,
)
from secure_sccvfl.data.groups import columns_of
from secure_sccvfl.data.sources import all_names, column_names
from secure_sccvfl.data.splits import record_groups

LEAK_AUC = 0.98


@dataclass(frozen=True)
class DataReport:
    """What a reader should know about the records before trusting a number."""

    rows: int
    distinct: int
    leaks: tuple[tuple[str, float], ...]

    @property
    def repeated(self) -> int:
        return self.rows - self.distinct


def lone_auc(values: np.ndarray, label: np.ndarray, category: bool) -> float:
    """AUC of one column alone; a category is scored by its label rate, since that is how a leak looks."""
    from sklearn.metrics import roc_auc_score  # slow to import, and a party's process does not need it

    scores = np.nan_to_num(values, nan=-1.0)
    if category:
        _, index = np.unique(scores, return_inverse=True)
        scores = (np.bincount(index, weights=label) / np.bincount(index))[index]
    auc = float(roc_auc_score(label, scores))
    return max(auc, 1 - auc)


def examine(data: Dataset) -> DataReport:
    """Count repeated records and warn about columns that alone reveal the label."""
    leaks: list[tuple[str, float]] = []
    if data.task != "regression":
        for feature, values in zip(data.features, data.values.T, strict=True):
            for code in range(1 if data.task == "binary" else 0, len(data.label.classes)):
                auc = lone_auc(values, (data.label.values == code).astype(float), feature.kind != "number")
                if auc > LEAK_AUC:
                    leaks.append((feature.name, auc))
                    message = f"column {feature.name!r} alone has AUC {auc:.3f}: does it contain the label?"
                    warnings.warn(message, DataWarning, stacklevel=2)
                    break
    distinct = len(np.unique(record_groups(data)))
    if distinct < data.n:
        message = f"{data.n - distinct} of {data.n} records repeat another one; copies stay on one side"
        warnings.warn(message, DataWarning, stacklevel=2)
    return DataReport(data.n, distinct, tuple(leaks))


ALL_DIFFERENT = 20
"""From so many records on, a column of whole numbers that are all different is a trap."""


@dataclass(frozen=True)
class Problem:
    """Something that a run would refuse. Rows count from the first record; `place` is the line of the description."""

    column: str
    what: str
    count: int
    rows: tuple[int, ...]
    ids: tuple[str, ...]
    todo: str
    place: str = ""

    def lines(self) -> Iterator[str]:
        where = ", ".join(f"{row} (id {name})" for row, name in zip(self.rows, self.ids, strict=True))
        more = ", ..." if self.count > len(self.rows) else ""
        yield f"{self.column}: {self.what}" + (f"; row {where}{more}" if where else "")
        yield f"  {self.place + ': ' if self.place else ''}{self.todo}"


@dataclass(frozen=True)
class Checked:
    party: str
    file: str
    records: int
    columns: int
    problems: tuple[Problem, ...]
    warnings: tuple[str, ...]

    def as_record(self) -> dict[str, Any]:
        return {"ok": not self.problems, **asdict(self)}


def check(description: Path, party: str, file: Path | None = None, following: Collection[str] = ()) -> Checked:
    """One party's table (or another file in its place) against a description.

    following: the columns that a policy card lets follow from s, which must have two values or more.
    """
    spec = read_description(description)
    if party not in spec["parties"]:
        raise DataError(f"{description.name} has no party {cut(party)}; available: {', '.join(spec['parties'])}")
    entry = spec["parties"][party]
    if file is not None:
        entry["file"] = str(file.resolve())
    path = description.parent / entry["file"]
    if not path.is_file():
        raise DataError(f"{party}: no file {entry['file']!r}; name another one with --file")
    rule = id_rule(spec["id"], description.name)
    wanted, own_id = columns_by_file(spec), entry.get("id", "")
    reader = Reader(spec, Tables(description.parent, rule, wanted))
    table = open_with_id(path, party, rule, wanted[entry["file"]], own_id)
    lost = [column for column in rule.columns if column not in table]
    if lost or table.empty:
        lack = f"id column {cut(own_id or lost[0])}" if lost else "records"
        problem = Problem(rule.name, f"{path.name!r} has no {lack}", 0, (), (), f"it has {column_names(table)}")
        return Checked(party, path.name, len(table), 0, (problem,), ())
    written = ids_as_written(table, rule)
    try:
        table = identified(table, rule, party)
    except DataError as error:
        problem = Problem(rule.name, str(error), 0, (), (), "write ids so that the rule for ids can read them")
        return Checked(party, path.name, len(table), 0, (problem,), ())
    ids = table[rule.name].fillna("")
    order = np.argsort(ids.to_numpy(object), kind="stable")
    reader.tables.tables[entry["file"]] = table.iloc[order].set_index(rule.name)
    locations = _Locations(description, written)
    in_file_order = np.arange(len(table))
    problems = [locations.problem(one, in_file_order) for one in id_problems(table[rule.name], path.name, written)]
    held, cell_problems = reader.look(party)
    features = {feature.name: feature for feature in reader.features[party]}
    for one in cell_problems:
        readable = one.column in features and one.column in table
        todo = _todo(features[one.column], one, table[one.column]) if readable else one.todo
        problems.append(locations.problem(one, order, todo if len(todo) <= LONGEST_LINE else one.todo))
    clean = set(features) - {one.column for one in cell_problems}
    for name in sorted(clean & set(following)):
        if len(np.unique(features[name].bin_index(held.table.values[:, list(features).index(name)]))) < 2:
            reason = "the policy card lets it follow from s, but all records have one value"
            problems.append(locations.problem(whole_column(name, reason, "give it role N", len(table)), order))
    warned = [*_traps(reader, held, clean, table), *_unused(reader, party, table, {*rule.columns, rule.name})]
    return Checked(party, path.name, len(table), len(features), tuple(problems), tuple(warned))


class _Locations:
    """Where problems are: rows of the file, ids, and lines of the description."""

    def __init__(self, description: Path, ids: pd.Index) -> None:
        self.name, self.ids = description.name, ids.to_numpy(object)
        self.text = description.read_text(encoding="utf-8-sig").splitlines()

    def problem(self, cells: CellProblem, order: np.ndarray, todo: str | None = None) -> Problem:
        rows = np.sort(order[cells.bad])[:SHOWN] if len(cells.bad) == len(order) else order[:0]
        shown = tuple(cut(name)[1:-1] if len(name) <= 40 else cut(name) for name in self.ids[rows])
        numbers = tuple(int(row) + 1 for row in rows)
        line = self._line(cells.column)
        return Problem(cells.column, cells.what, cells.count, numbers, shown, todo or cells.todo, line)

    def _line(self, column: str) -> str:
        named = re.compile(rf"\b(name|column)\s*=\s*{re.escape(toml(column))}")
        numbers = [number for number, line in enumerate(self.text, 1) if named.search(line)]
        return f"{self.name}:{numbers[0]}" if numbers else ""


def _todo(feature: Feature, cells: CellProblem, column: pd.Series) -> str:
    """What to write into the line of a feature, as far as its own cells tell."""
    text = column.astype("string").str.strip()
    if cells.reason == "missing":
        return "write `missing = true`, or fill the cells in"
    if feature.kind == "category":
        listed, rare = values_and_rare(text[np.isin(text, _bad_cells(feature, text))])
        more = [*feature.categories, *listed]
        if rare:
            one = feature.cells.other or OTHER
            rest = more if one in more else [*more, one]
            return f"write `categories = {toml(rest)}, other = {toml(one)}` (tells no rare value), or put them right"
        return f"write `categories = {toml(more)}` if all may know that these occur, or put them right"
    if cells.reason.startswith("outside") and not feature.cells.dated:
        numbers = feature.cells.numbers(text.where(~feature.cells.gaps(text), None))
        low, high = public_range(np.append(numbers[np.isfinite(numbers)], [feature.low, feature.high]))
        bounds = {"low": min(low, feature.low)} if np.nanmin(numbers) < feature.low else {}
        bounds |= {"high": max(high, feature.high)} if np.nanmax(numbers) > feature.high else {}
        line = ", ".join(f"{key} = {toml(value)}" for key, value in bounds.items())
        return f"write `{line}` if that range may be public, or put the cells right"
    if cells.reason == "not a number":
        present = text[~feature.cells.gaps(text)]
        fits = next((w for w in WRITINGS if np.isfinite(w.numbers(present)).all()), None)
        if fits is not None:
            marks = f"decimal = {toml(fits.decimal)}, thousands = {toml(fits.thousands)}"
            return f"write `{marks}`: all cells read as numbers so"
        listed, _ = values_and_rare(text[np.isin(text, _bad_cells(feature, text))])
        if listed:
            return f"write `na = {toml([*feature.cells.na, *listed])}, missing = true` if these are gaps"
    return cells.todo


def _bad_cells(feature: Feature, text: pd.Series) -> list[str]:
    kinds = pd.Series(text.dropna().unique(), dtype="string")
    return [
        str(value)
        for problem in feature.look(kinds)[1]
        if problem.reason != "missing"
        for value in kinds[problem.bad]
    ]


def _traps(reader: Reader, held: Held, clean: set[str], table: pd.DataFrame) -> Iterator[str]:
    """What this party alone can see and a run would not refuse."""
    for feature, values in zip(held.table.features, held.table.values.T, strict=True):
        if feature.name not in clean:
            continue
        present = values[~np.isnan(values)]
        if len(np.unique(present)) < 2:
            yield f"{feature.name}: all records have one value; the column carries nothing"
            continue
        whole = feature.kind == "number" and bool((present == np.rint(present)).all()) and not feature.cells.dated
        if whole and len(present) >= ALL_DIFFERENT and len(np.unique(present)) == len(present):
            yield f"{feature.name}: every record has its own value; is it an identifier? Then leave it out"
        if feature.cells.other:
            unlisted = _unlisted(feature, table[feature.name])
            if unlisted:
                yield f"{feature.name}: {counted(unlisted, 'cell')} with values that are not listed read as other"
        yield from _copies(reader, held, feature, values)
    for attribute in held.protected.values():
        sizes = np.bincount(attribute.codes, minlength=len(attribute.groups))
        if lost := [group for group, size in zip(attribute.groups, sizes, strict=True) if size == 0]:
            yield f"{attribute.name}: no record of {lost}; what is released of it is noise"


def _unlisted(feature: Feature, column: pd.Series) -> int:
    text = column.astype("string").str.strip()
    strict = Feature(feature.name, "category", categories=feature.categories, missing=True)
    _, problems = strict.look(text.where(~feature.cells.gaps(text), None))
    return sum(problem.count for problem in problems)


def _copies(reader: Reader, held: Held, feature: Feature, values: np.ndarray) -> Iterator[str]:
    """A column from which alone this party's label, or protected attribute, follows."""
    held_codes = [(a.name, "protected", a.groups, a.codes) for a in held.protected.values()]
    if held.label is not None and held.label.classes:
        held_codes.append((reader.spec["label"]["column"], "the label", held.label.classes, held.label.values))
    for name, what, groups, codes in held_codes:
        of_group = [codes == group for group in range(len(groups))]
        aucs = [
            lone_auc(values, one.astype(float), feature.kind != "number") for one in of_group if 0 < one.mean() < 1
        ]
        if aucs and max(aucs) > LEAK_AUC:
            yield f"{feature.name}: nearly a copy of {name!r}, which is {what} (AUC {max(aucs):.3f}); leave it out?"


def _unused(reader: Reader, party: str, table: pd.DataFrame, keys: set[str]) -> Iterator[str]:
    entries = [entry for entry in (reader.spec["label"], *reader.spec["protected"]) if entry["party"] == party]
    used = {
        *keys,
        reader.spec["parties"][party].get("id"),
        *(f.name for f in reader.features[party]),
        *(name for e in entries for name in columns_of(e)),
    }
    if spare := [name for name in all_names(table) if name not in used]:
        yield f"not used: {', '.join(spare[:12])}{', ...' if len(spare) > 12 else ''}"
