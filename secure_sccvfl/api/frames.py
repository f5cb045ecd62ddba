"""DataFrames to a data set and back: the form of a notebook and the form that every other package takes.

A data set made here means the same as one read from files: both go through the same reader and the same checks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from secure_sccvfl.data.dataset import Dataset
from secure_sccvfl.data.drafts import FEW_VALUES, MOST_CATEGORIES, in_order
from secure_sccvfl.data.features import GAPS, DataError, Feature, refuse
from secure_sccvfl.data.files import (
    Reader,
    Tables,
    check_description,
    check_table,
    description_text,
    look_at,
    read_whole,
)
from secure_sccvfl.data.groups import factors_of
from secure_sccvfl.protocols.alignment.ids import IdRule
from secure_sccvfl.protocols.records.private import private

Entry = Mapping[str, Any]
Holder = tuple[str, str] | tuple[str, str, Sequence[Any]] | Entry
"""Who holds the label or s: (party, column), (party, column, values), or an entry as in a description."""

KEYS = {
    "classes": {"party", "column", "classes", "low", "high", "meaning"},
    "groups": {"party", "column", "groups", "ordered", "cells", "cross", "meaning"},
}
"""The entries of a label and of a protected attribute."""
MOST_CLASSES = 20
SOURCE = "frames"
"""The name of a description made here, in messages."""


def read_frames(
    frames: Mapping[str, pd.DataFrame],
    label: Holder,
    protected: Holder | Sequence[Holder],
    features: Mapping[str, Entry] | None = None,
    id: str = "id",
    task: str | None = None,
    name: str = "frames",
) -> tuple[Dataset, tuple[str, ...]]:
    """One table per party, aligned by id, as a data set; and the columns whose values were read off."""
    if not isinstance(frames, Mapping):
        raise DataError(f"frames must name the party of each table, {{'bank': df, ...}}, and be no {_kind(frames)}")
    if features is not None and not (
        isinstance(features, Mapping) and all(isinstance(e, Mapping) for e in features.values())
    ):
        raise DataError(
            "features must have an entry for each column, such as {'age': {'kind': 'number', 'low': 0, ...}}"
        )
    frames = {str(k): as_frame(v, f"the table of {k!r}") for k, v in frames.items()}
    tables = Tables(Path(), IdRule((id,)))
    for party, frame in frames.items():
        text = as_text(frame, id)
        check_table(text, id, party, party)
        tables.tables[party] = text.set_index(id).sort_index()
    read_off: list[str] = []
    target = _label_entry(tables, label, task, read_off)
    listed = isinstance(protected, (list, tuple)) and all(
        isinstance(one, (list, tuple, Mapping)) for one in protected
    )
    attributes: Sequence[Any] = list(protected) if listed else [protected]
    if not attributes:
        raise DataError("protected names no attribute: give (party, column)")
    groups = [_entry(tables, attribute, "groups", read_off) for attribute in attributes]
    taken = {target["column"], *(factor.column for entry in groups for factor in factors_of(entry, SOURCE))}
    if features is not None:
        features = {str(name): entry for name, entry in features.items()}
        _check_known(frames, features)
    parties = {
        party: {"file": party, "features": _dictionary(frame, features, {id, *taken}, read_off)}
        for party, frame in frames.items()
    }
    kind = task or _task_of(target)
    spec = {"name": name, "task": kind, "id": id, "label": target, "protected": groups, "parties": parties}
    check_description(spec, SOURCE)
    data = read_whole(Reader(spec, tables), SOURCE)
    for attribute in data.protected:
        pairs = {*zip(attribute.codes.tolist(), data.label.values.tolist(), strict=True)}
        if len(pairs) == len(attribute.groups) == len(data.label.classes):
            raise DataError(
                f"protected attribute {attribute.name!r} is the label in other words: it cannot be protected"
            )
    return data, tuple(read_off)


def as_frame(value: Any, what: str) -> pd.DataFrame:
    """A DataFrame with one column of each name, which are texts; DataError for anything else."""
    if not isinstance(value, pd.DataFrame):
        raise DataError(f"{what} must be a DataFrame with named columns, not {_kind(value)}: pd.DataFrame makes one")
    table = value.rename(columns=str)
    if not table.columns.is_unique:
        raise DataError(f"{what} has two columns {table.columns[table.columns.duplicated()][0]!r}: rename one")
    return table


def _kind(value: Any) -> str:
    return type(value).__name__


def as_text(frame: pd.DataFrame, id: str) -> pd.DataFrame:
    """Cells as a CSV file would have them; an index with the name of the id column becomes that column."""
    if id not in frame and frame.index.name == id:
        frame = frame.reset_index()
    text = frame.astype("string")
    return text.set_axis([str(column) for column in frame.columns], axis=1)


def infer_feature(name: str, column: pd.Series) -> dict[str, Any]:
    """A dictionary entry from the values that occur.

    A range or a list of categories that was read off the records reveals some: use this only for data that may
    be pooled. A number is cut at its quintiles.

    >>> infer_feature("job", pd.Series(["clerk", "nurse", None]))
    {'name': 'job', 'kind': 'category', 'categories': ['clerk', 'nurse'], 'missing': True}
    >>> infer_feature("age", pd.Series(range(20, 71)))["edges"]
    [20.0, 30.0, 40.0, 50.0, 60.0, 70.0]
    """
    present = column[~column.isna() & ~column.isin(GAPS)]
    gaps = {"missing": True} if len(present) < len(column) else {}
    numeric = pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)
    if numeric and not np.isfinite(present.to_numpy(dtype=float)).all():
        raise DataError(f"{name}: a value is infinite; put it right, or leave the record out")
    if numeric and present.nunique() > FEW_VALUES:
        edges = np.unique(np.quantile(present.to_numpy(dtype=float), np.linspace(0, 1, 6)))
        return {"name": name, "kind": "number", "edges": [float(v) for v in edges], **gaps}
    categories = values_of(present)
    if len(categories) > MOST_CATEGORIES:
        raise DataError(f"{name}: {len(categories)} different values; is it free text? Drop it, or declare it")
    return {"name": name, "kind": "category", "categories": categories, **gaps}


def values_of(column: pd.Series) -> list[str]:
    """The values that occur, as text; numbers in their order."""
    return in_order(column.dropna().astype("string").str.strip().str.removesuffix(".0").unique().tolist())


def _entry(tables: Tables, holder: Holder, values: str, read_off: list[str]) -> dict[str, Any]:
    """Party, column and values of the label or of s; without given values, those that occur."""
    if isinstance(holder, Mapping):
        entry = dict(holder)
        if missing := {"party", "column"} - set(entry):
            raise DataError(f"the entry {entry} names no {min(missing)}")
        if unknown := set(entry) - KEYS[values]:
            raise DataError(f"the entry of {entry['column']!r} has unknown keys {sorted(unknown)}")
    elif isinstance(holder, (list, tuple)) and len(holder) in (2, 3):
        entry = dict(zip(("party", "column", values), holder, strict=False))
    else:
        raise DataError(f"name the holder as (party, column) or (party, column, values), not {holder!r}")
    entry |= {key: str(entry[key]) for key in ("party", "column")}
    if values in entry and not isinstance(entry[values], (list, tuple, np.ndarray)):
        raise DataError(f"the values of {entry['column']!r} must be a list, not {entry[values]!r}")
    if values in entry:
        entry[values] = [str(value) for value in entry[values]]
    elif not {"low", "cells", "cross"} & set(entry):
        column = _column(tables, entry)
        entry[values] = values_of(column)
        read_off.append(entry["column"])
    return entry


def _label_entry(tables: Tables, label: Holder, task: str | None, read_off: list[str]) -> dict[str, Any]:
    entry = _entry(tables, label, "classes", read_off)
    classes = entry["classes"] if entry["column"] in read_off else []
    if classes and (task == "regression" or (task is None and len(classes) > MOST_CLASSES)):
        del entry["classes"]
        numbers = pd.to_numeric(_column(tables, entry), errors="coerce")
        if numbers.isna().any():
            raise DataError(f"label {entry['column']!r}: {len(classes)} different values, and not all are numbers")
        entry |= {"low": float(numbers.min()), "high": float(numbers.max())}
    return entry


def _column(tables: Tables, entry: Entry) -> pd.Series:
    party, column = entry.get("party"), entry.get("column")
    if party not in tables.tables:
        raise DataError(f"{party!r} holds {column!r} but has no frame; available: {', '.join(tables.tables)}")
    if column not in tables.tables[party]:
        raise DataError(f"the frame of {party!r} has no column {column!r}")
    return tables.tables[party][column]


def _task_of(label: Entry) -> str:
    if "low" in label:
        return "regression"
    return "binary" if len(label["classes"]) == 2 else "multiclass"


def _check_known(frames: Mapping[str, pd.DataFrame], features: Mapping[str, Entry]) -> None:
    for name in features:
        if not any(name in frame for frame in frames.values()):
            raise DataError(f"feature {name!r} is in the dictionary but in no frame")


def _dictionary(
    frame: pd.DataFrame, features: Mapping[str, Entry] | None, taken: set[str], read_off: list[str]
) -> list[dict[str, Any]]:
    """Entries of one party: as declared, or for all its columns from the values that occur."""
    columns = [column for column in frame.columns if column not in taken]
    if features is not None:
        return [{"name": name, **features[name]} for name in columns if name in features]
    read_off += columns
    entries = [infer_feature(name, frame[name]) for name in columns]
    for entry in entries:
        if entry["kind"] == "category" and len(entry["categories"]) + entry.get("missing", False) < 2:
            raise DataError(f"column {entry['name']!r} has one value only, so it carries nothing: leave it out")
    return entries


def read_records(parties: Sequence[Sequence[Feature]], frame: pd.DataFrame) -> list[np.ndarray]:
    """Cells of new records, party by party; a missing column or a value out of range raises DataError."""
    frame = as_frame(frame, "the table of new records")
    looked = [look_at(features, frame, "the frame") for features in parties]
    refuse("new records", [problem for _, problems in looked for problem in problems], frame.index)
    return [values for values, _ in looked]


def to_frames(data: Dataset, id: str = "id", label: str = "y") -> dict[str, pd.DataFrame]:
    """One table per party, as it would bring it: its features, and the label or s if it is the holder.

    The label of a regression is a share of its public range.
    """
    frames = {}
    for table in data.parties:
        frame = pd.DataFrame({id: data.ids})
        for feature, values in zip(table.features, table.values.T, strict=True):
            frame[feature.name] = _cells(feature, values)
        if table.name == data.label.holder:
            frame[label] = _named(data.label.values, data.label.classes) if data.label.classes else data.label.values
        for attribute in data.protected:
            if attribute.holder == table.name:
                sizes = [len(factor.groups) for factor in attribute.columns]
                for factor, codes in zip(attribute.columns, np.unravel_index(attribute.codes, sizes), strict=True):
                    frame[factor.column] = _named(codes, factor.groups)
        frames[table.name] = frame
    return frames


def _cells(feature: Feature, values: np.ndarray) -> Any:
    if feature.kind == "category":
        return _named(values, feature.categories)
    plain = feature.cells.decimal == "." and not feature.cells.dated
    return _short(values) if plain else [feature.text(value) for value in values]


def _named(codes: np.ndarray, names: Sequence[str]) -> list[str | None]:
    return [None if math.isnan(code) else names[int(code)] for code in codes]


def _short(values: np.ndarray) -> np.ndarray:
    return values.astype(np.int64) if (np.mod(values, 1) == 0).all() else values


def describe_dataset(data: Dataset, files: Mapping[str, str], id: str = "id", label: str = "y") -> str:
    """The description of a data set as TOML, for tables of these files."""
    target: dict[str, Any] = {"party": data.label.holder, "column": label, "meaning": data.label.meaning}
    target |= {"classes": list(data.label.classes)} if data.label.classes else {"low": 0.0, "high": 1.0}
    protected = []
    for a in data.protected:
        entries = [factor.entry() for factor in a.columns]
        groups = {"column": a.name, "cross": entries} if len(entries) > 1 else entries[0]
        protected.append({"party": a.holder, **groups, "meaning": a.meaning})
    parties = {t.name: {"file": files[t.name], "features": [f.entry() for f in t.features]} for t in data.parties}
    spec = {"name": data.name, "task": data.task, "id": id, "label": target, "protected": protected}
    return description_text({**spec, "parties": parties})


def write_files(data: Dataset, folder: Path, id: str = "id", label: str = "y") -> Path:
    """One CSV file per party and the description next to them; only their owner may read them.

    Returns the path of the description.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    names = {table.name: f"party-{rank}.csv" for rank, table in enumerate(data.parties)}
    for party, frame in to_frames(data, id, label).items():
        with open(folder / names[party], "w", newline="", encoding="utf-8", opener=private) as file:
            frame.to_csv(file, index=False)
    path = folder / "data.toml"
    with open(path, "w", encoding="utf-8", opener=private) as file:
        file.write(describe_dataset(data, names, id, label))
    return path
