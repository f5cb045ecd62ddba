"""A user's own files: the TOML description of a data set and the tables of its parties.

Every error in such a file has a one-line message. It names the file and the entry and says what is wanted.
"""

from __future__ import annotations

import difflib
import gzip
import tomllib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from protocols.alignment.ids import IdRule
from protocols.errors import InputError
from secure_sccvfl.data.features import check_entries
from secure_sccvfl.data.tables.cells import WRITING
from secure_sccvfl.data.tables.problems import SHOWN, DataError, Finding, cut, refuse, short, some, whole_column

LONGEST_ID = 1000
TASKS = ("binary", "multiclass", "regression")


def read_description(path: Path) -> dict[str, Any]:
    """The public part of a data set: everything in its TOML file, the shape of each entry checked."""
    try:
        spec: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise DataError(f"cannot read the description {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path.name} is not saved as UTF-8; save it so") from None
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{path.name} is not a valid TOML file: {error}") from None
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
        check_entries(where, party, wanted, WRITING)
        if odd := sorted(set(party) - {*wanted, *WRITING}):
            raise DataError(f"{where}: unknown keys {odd}; there is {', '.join([*wanted, *WRITING])}")
        if not party["features"]:
            raise DataError(f"{file}: party {name!r} has no feature")
    _check_label(file, spec)
    _check_protected(file, spec)


def _check_label(file: str, spec: Mapping[str, Any]) -> None:
    wanted = {"low": float, "high": float} if spec["task"] == "regression" else {"classes": list}
    words = {"meaning": str, "labels": list, "file": str}
    check_entries(f"{file}: label", spec["label"], {"party": str, "column": str, **wanted}, words)
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
        wanted = {"party": str, "column": str, "groups": list}
        words = {"meaning": str, "labels": list, "file": str}
        check_entries(f"{file}: protected attribute", entry, wanted, words)
        what, groups = f"protected attribute {entry['column']!r}", [str(g) for g in entry["groups"]]
        _is_party(spec, entry, what)
        if len(set(groups)) != len(groups) or len(groups) < 2:
            raise DataError(f"{file}: {what} needs at least two groups, none twice, got {groups}")


def _is_party(spec: Mapping[str, Any], entry: Mapping[str, Any], what: str) -> None:
    if entry["party"] not in spec["parties"]:
        known = ", ".join(spec["parties"])
        raise DataError(f"{what} is held by {entry['party']!r}, which is no party; there is {known}")


def id_rule(entry: Any, file: str) -> IdRule:
    """The rule for ids of a description of this name."""
    try:
        if entry is None:
            raise InputError("id is missing: name the column with the id of each record")
        return IdRule.of(entry)
    except InputError as error:
        raise DataError(f"{file}: {error}") from None


def read_table(path: Path, rule: IdRule, owner: str) -> pd.DataFrame:
    """A table as text, one record per row, each with its own id: in column `rule.name`, written by the rule."""
    table = identified(open_table(path, owner, rule.columns[0]), rule, owner)
    check_table(table, rule.name, owner, path.name)
    return table


def identified(table: pd.DataFrame, rule: IdRule, owner: str) -> pd.DataFrame:
    """The table with the ids that a rule makes; columns that are the id, in part, stay as they are."""
    if rule.plain:
        own = table[rule.name].str.normalize("NFC").str.strip() if rule.name in table else None
    else:
        try:
            own = pd.Series(rule.apply(table, owner), table.index, "string") if len(table) else None
        except InputError as error:
            raise DataError(str(error)) from None
    return table if own is None else table.assign(**{rule.name: own})


def open_table(path: Path, owner: str, id_column: str | None = None) -> pd.DataFrame:
    """A table as text, whatever its ids. The header of a CSV file tells what stands between its columns."""
    return _parquet(path, owner) if path.suffix == ".parquet" else _csv(path, owner, id_column)


def check_table(table: pd.DataFrame, id_column: str, owner: str, name: str) -> None:
    """Raise DataError unless every record of a text table has an id, and no id occurs twice."""
    if id_column not in table:
        raise DataError(f"{owner}: {name!r} has no id column {cut(id_column)}; it has {named(table)}")
    if table.empty:
        raise DataError(f"{owner}: {name!r} has no records, only a header")
    refuse(owner, id_findings(table[id_column], name), pd.RangeIndex(1, len(table) + 1))


def id_findings(ids: pd.Series, name: str) -> list[Finding]:
    """Records without an id, and ids that occur twice, in a table of this name."""
    column, found = str(ids.name), []
    empty = (ids.isna() | (ids.str.strip() == "")).to_numpy(bool)
    if empty.any():
        found.append(Finding(column, f"missing in {name!r}", "give every record its own id", empty))
    long = (ids.str.len() > LONGEST_ID).fillna(False).to_numpy(bool)
    if long.any():
        found.append(
            Finding(column, f"longer than {LONGEST_ID} characters in {name!r}", "is this the id column?", long)
        )
    twice = ids.duplicated().to_numpy(bool) & ~empty
    if twice.any():
        seen = some(ids[twice].iloc[: SHOWN + 1].tolist())
        found.append(Finding(column, f"repeated in {name!r}", "keep one record of each id", twice, seen))
    return found


def absent(column: str, name: str, table: pd.DataFrame) -> Finding:
    """A column that a table of this name should have."""
    close = difflib.get_close_matches(column, map(str, table.columns), 1)
    hint = f"did you mean {cut(close[0])}?" if close else f"it has {named(table)}"
    return whole_column(column, f"{name!r} has no column {cut(column)}", hint, len(table))


def _csv(path: Path, owner: str, id_column: str | None) -> pd.DataFrame:
    """Cells as they are. A row with more cells than the header is refused: pandas would shift its columns."""
    how: dict[str, Any] = {"dtype": "string", "keep_default_na": False, "index_col": False, "encoding": "utf-8-sig"}
    try:
        how["sep"] = _separator(path, id_column)
        head = pd.read_csv(path, header=None, nrows=1, **how).iloc[0]
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            table = pd.read_csv(path, **how)
    except pd.errors.EmptyDataError:
        raise DataError(f"{owner}: {path.name!r} is empty") from None
    except UnicodeDecodeError:
        raise DataError(f"{owner}: {path.name!r} is not text in UTF-8; save it so") from None
    except (pd.errors.ParserError, pd.errors.ParserWarning):
        raise DataError(
            f"{owner}: {path.name!r}: a row has more cells than the header, or a quote is not closed"
        ) from None
    if head.duplicated().any():
        raise DataError(f"{owner}: {path.name!r} has two columns named {cut(head[head.duplicated()].iloc[0])}")
    return table


def _separator(path: Path, id_column: str | None) -> str:
    """What stands between the columns of a CSV file: by it the header has the id column, or the most columns."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig") as file:
        head = next(iter(file), "").rstrip("\r\n")
    cells = {mark: [cell.strip().strip('"') for cell in head.split(mark)] for mark in (",", ";", "\t")}
    return max(cells, key=lambda mark: (id_column in cells[mark], len(cells[mark])))


def _parquet(path: Path, owner: str) -> pd.DataFrame:
    try:
        return pd.read_parquet(path).astype("string")
    except ImportError:
        raise DataError(
            f"{owner}: {path.name!r}: install the extra `parquet` to read it, or save it as CSV"
        ) from None
    except ValueError:
        raise DataError(f"{owner}: {path.name!r} is not a parquet file") from None


def named(table: pd.DataFrame) -> str:
    """The names of a table's columns, only the first ones if there are many."""
    return ", ".join(short(str(name)) for name in table.columns[:12]) + (", ..." if len(table.columns) > 12 else "")
