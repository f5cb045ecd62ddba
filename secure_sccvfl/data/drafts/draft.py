"""One party's part of a description, drafted from its own table.

A draft holds nothing but what the description would hold: names, kinds, rounded ranges, categories that are not rare,
marks of gaps. What only this party's people should know (how many rare values there are, what was left out) is in its
notes, which are shown to them and not written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from secure_sccvfl.data.drafts.guesses import FLOOR, PLAIN, Cells, guess, values_and_rare, writing_of
from secure_sccvfl.data.drafts.ranges import public_range
from secure_sccvfl.data.files import named, open_table
from secure_sccvfl.data.tables.problems import DataError, counted, cut
from secure_sccvfl.data.tables.toml import toml

MOST_CLASSES = 20
ABOUT = """\
# Draft of {party}'s part of a description, made by `sccvfl init` from its own table.
#
# EVERYTHING IN THIS FILE BECOMES PUBLIC among the parties. Somebody at {party} must read and approve it first.
# - Ranges are rounded outward to a grid and are not the least and largest values. Still, they tell their size.
# - A listed category, class or group tells that it occurs. Values in fewer than {floor} records are not listed.
# - Write units and meanings. Delete the line of a column that shall not be used.
"""


@dataclass(frozen=True)
class Draft:
    """A party's part of a description; `notes` are for its own people."""

    party: str
    file: str
    id: str
    features: tuple[dict[str, Any], ...]
    writing: dict[str, str]
    label: dict[str, Any] | None = None
    task: str | None = None
    protected: tuple[dict[str, Any], ...] = ()
    notes: tuple[tuple[str, str], ...] = ()

    def text(self) -> str:
        """The draft as a file."""
        head: dict[str, Any] = {"party": self.party, "id": self.id, "file": self.file, **self.writing}
        if self.label is not None:
            head |= {"task": self.task, "label": self.label}
        if self.protected:
            head["protected"] = list(self.protected)
        lines = [
            ABOUT.format(party=self.party, floor=FLOOR),
            *(f"{key} = {toml(value)}" for key, value in head.items()),
        ]
        return "\n".join([*lines, "features = [", *(f"  {toml(entry)}," for entry in self.features), "]", ""])


def draft_of(
    path: Path, party: str, *, id_column: str | None = None, label: str | None = None, protected: Sequence[str] = ()
) -> Draft:
    """The draft of a party that holds this table."""
    if not party or set(party) & set("/\\") or party.startswith("."):
        raise DataError(f"--party {cut(party)} must be a plain name, which the draft's file is named after")
    if not path.is_file():
        raise DataError(f"{party}: no file {str(path)!r}")
    table = open_table(path, party, id_column)
    if table.empty:
        raise DataError(f"{party}: {path.name!r} has no records, only a header")
    key = id_column or _guessed_id(table, party, path.name)
    for what, column in (("id", key), ("label", label), *(("protected", name) for name in protected)):
        if column is not None and column not in table:
            raise DataError(f"{party}: --{what}: {path.name!r} has no column {cut(column)}; it has {named(table)}")
    taken = {key, label, *protected}
    columns = [str(name) for name in table if name not in taken]
    default = writing_of([table[name] for name in (*columns, *([label] if label else []))])
    guesses = [guess(name, table[name], default) for name in columns]
    notes = [(one.name, f"left out: {note}" if one.entry is None else note) for one in guesses for note in one.notes]
    entries = [_written(one.entry, one.cells, default) for one in guesses if one.entry is not None]
    if not entries:
        raise DataError(f"{party}: {path.name!r} has no column to train on beside id, label and protected columns")
    task, target = (None, None) if label is None else _label(table[label], default, notes)
    groups = tuple(_groups(table[name], "groups", notes) for name in protected)
    return Draft(party, path.name, key, tuple(entries), _marks(default), target, task, groups, tuple(notes))


def _guessed_id(table: pd.DataFrame, party: str, name: str) -> str:
    """The column that names records: each value once, by its name or else the first such."""
    whole = [c for c in table if table[c].str.strip().ne("").all() and not table[c].duplicated().any()]
    by_name = [c for c in whole if str(c).lower() == "id"]
    by_name += [c for c in whole if str(c).lower().endswith(("id", "key", "nr", "no", "number"))]
    found = [*by_name, *(c for c in whole if c == table.columns[0])]
    if not found:
        raise DataError(f"{party}: which column of {name!r} is the id? Name it with --id; it has {named(table)}")
    return str(found[0])


def _label(column: pd.Series, default: Cells, notes: list[tuple[str, str]]) -> tuple[str, dict[str, Any]]:
    """Task and entry of the label: classes, or the range of a number."""
    numbers = default.numbers(column.str.strip())
    if column.nunique() > MOST_CLASSES and not pd.isna(numbers).any():
        low, high = public_range(numbers)
        return "regression", {"column": str(column.name), "low": low, "high": high, "meaning": ""}
    entry = _groups(column, "classes", notes)
    return "binary" if len(entry["classes"]) == 2 else "multiclass", entry


def _groups(column: pd.Series, values: str, notes: list[tuple[str, str]]) -> dict[str, Any]:
    """The values of the label or of a protected attribute."""
    text = column.str.strip()
    gap = PLAIN.gaps(text)
    listed, rare = values_and_rare(text[~gap])
    if len(listed) < 2 or len(listed) > MOST_CLASSES:
        raise DataError(
            f"column {cut(column.name)} has {counted(len(listed), 'value')} in {FLOOR} records or more: the label "
            f"and protected attributes need 2 to {MOST_CLASSES}; cut a number into groups first"
        )
    for number, what in ((len(rare), f"in fewer than {FLOOR} records, not listed"), (int(gap.sum()), "missing")):
        if number:
            notes.append(
                (str(column.name), f"{counted(number, 'value')} {what}: decide what becomes of such records")
            )
    return {"column": str(column.name), values: listed, "meaning": ""}


def _written(entry: dict[str, Any], cells: Cells, default: Cells) -> dict[str, Any]:
    """An entry that says how its numbers are written if that differs from its party's default."""
    own = replace(cells, format="", origin="", unit="")
    if entry["kind"] not in ("number", "code") or own == default:
        return entry
    return {**entry, "decimal": own.decimal, "thousands": own.thousands}


def _marks(cells: Cells) -> dict[str, str]:
    told = {"decimal": cells.decimal if cells.decimal != "." else "", "thousands": cells.thousands}
    return {key: value for key, value in told.items() if value}
