"""One party's part of a description, drafted from its own table.

A draft holds only what the description would hold: names, kinds, rounded ranges, categories that are not rare, marks
of gaps. What only this party's people should know (how many rare values there are, what was left out) is in its
notes, which are shown to them and not written. Each column is a proposal: cells are read as in a run, known notations
are tried in turn, and one is taken if nearly all cells fit.

Ranges are rounded outward to a grid, so a bound says between which two grid points the extreme lies, and no more. The
grid has steps of 1, 2 or 5 times a power of ten, at most ten over the range of the values; for dates it has whole
months, years or decades. Zero stays zero where no value is negative: all such columns have it.

`merged` makes one description of the drafts of all parties, without anybody's data.
"""

from __future__ import annotations

import datetime
import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from secure_sccvfl.data.features import (
    PLAIN,
    WRITING,
    Cells,
    DataError,
    check_disjoint,
    check_entries,
    counted,
    cut,
    dictionary,
    plain_number,
)
from secure_sccvfl.data.files import check_description, check_table, read_toml, toml
from secure_sccvfl.data.groups import columns_of
from secure_sccvfl.data.id_shapes import IdShape, check_shapes, id_entry
from secure_sccvfl.data.sources import column_names, open_table
from secure_sccvfl.protocols.config import SessionConfig
from secure_sccvfl.protocols.records.private import private

FLOOR = 5
"""A value in fewer records is not listed: a listed category publishes that it occurs."""
NEARLY_ALL = 0.95
"""A column is of a kind if this share of its cells is; `check` then lists the others."""
FEW_VALUES, MOST_CATEGORIES = 10, 50
"""Whole numbers with at most so many values are a category, and no category has more than so many."""
OTHER = "other"
WRITINGS = (
    PLAIN,
    *(Cells(decimal=",", thousands=mark) for mark in ("", ".", " ")),
    *(Cells(thousands=mark) for mark in (",", "'", " ")),
)
"""Writings of numbers, the plainest first."""
FORMATS = (
    *("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y"),
    *("%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%d.%m.%Y %H:%M"),
)
MARKS = ("?", "N/A", "n/a", "#N/A", "NULL", "null", "None", "NaN", "<NA>", "-", "--", ".", "*", "missing", "unknown")
"""Texts that are gaps in a column of numbers or dates; in a category only those that no category is called."""
CATEGORY_MARKS = ("?", "N/A", "n/a", "#N/A", "NULL", "null", "NaN", "<NA>")
SENTINELS = (*(f"-{'9' * digits}" for digits in range(1, 10)), *("9" * digits for digits in range(3, 10)))
FAR = 5
"""A sentinel above all values is one if it is this many times the next largest; another such value is asked about."""
CROWDED = 0.9
"""More than this share of values in the lowest bin: a note asks for better edges."""
_CODE = re.compile(r"(^|_)(code|zip|plz|postcode|postal|occp|naics|sic|icd\d*)(_|$)", re.IGNORECASE)


@dataclass(frozen=True)
class Guess:
    """The entry of a column in a draft, None if it is left out, and what its party's people should look at."""

    name: str
    entry: dict[str, Any] | None
    notes: tuple[str, ...] = ()
    cells: Cells = PLAIN


def guess(name: str, column: pd.Series, default: Cells = PLAIN, category: bool = False) -> Guess:
    """What a column is. `default`: how this party writes numbers. category: its people say that it is one."""
    text = column.astype("string").str.strip()
    gap = PLAIN.gaps(text)
    if gap.all():
        return Guess(name, None, ("it is empty",))
    if category:
        return _categories(name, text, gap)
    return _dates(name, text, gap) or _numbers(name, text, gap, default) or _categories(name, text, gap)


def writing_of(columns: Sequence[pd.Series]) -> Cells:
    """The writing of numbers that reads the most columns; the plainest of those."""
    counts = {writing: 0 for writing in WRITINGS}
    for column in columns:
        text = column.astype("string").str.strip()
        cells = text[~(PLAIN.gaps(text) | text.isin(MARKS).to_numpy(bool))]
        for writing in WRITINGS if len(cells) else ():
            counts[writing] += bool(_share(writing.numbers(cells)) >= NEARLY_ALL)
    return max(WRITINGS, key=lambda writing: counts[writing])


def values_and_rare(text: pd.Series) -> tuple[list[str], list[str]]:
    """Values in at least FLOOR records, in order, and the others."""
    counts = text.map(plain_number).value_counts()
    common = [str(value) for value in counts.index[counts >= FLOOR]]
    return in_order(common), [str(value) for value in counts.index[counts < FLOOR]]


def in_order(values: Sequence[str]) -> list[str]:
    number = pd.to_numeric(pd.Series(values, dtype="string"), errors="coerce")
    by_size = len(values) > 0 and not number.isna().any()
    return [value for _, value in sorted(zip(number if by_size else values, values, strict=True))]


def _dates(name: str, text: pd.Series, gap: np.ndarray) -> Guess | None:
    present = text[~gap & ~text.isin(MARKS).to_numpy(bool)]
    if not len(present) or not present.iloc[0][:1].isdigit():
        return None
    read = [(form, pd.to_datetime(present, format=form, errors="coerce")) for form in FORMATS]
    fitting = [(form, dates) for form, dates in read if dates.notna().mean() >= NEARLY_ALL]
    if not fitting:
        return None
    form, dates = fitting[0]
    low, high, unit = public_dates(dates.min().date(), dates.max().date())
    entry = {"name": name, "kind": "date", "low": str(low), "high": str(high), "unit": unit, "format": form}
    notes = [f"{' and '.join(f for f, _ in fitting[:2])} both fit: see that {form} is right"] if fitting[1:] else []
    cells = Cells(format=form, origin=str(low), unit=unit)
    return _with_gaps(entry, text, gap, cells, notes)


def _numbers(name: str, text: pd.Series, gap: np.ndarray, default: Cells) -> Guess | None:
    marked = gap | text.isin(MARKS).to_numpy(bool)
    present = text[~marked]
    if not len(present):
        return None
    cells = next((w for w in (default, *WRITINGS) if _share(w.numbers(present)) >= NEARLY_ALL), None)
    if cells is None:
        return None
    numbers = cells.numbers(present)
    sentinels = _sentinels(numbers[np.isfinite(numbers)])
    values = numbers[np.isfinite(numbers) & ~np.isin(numbers, [float(mark) for mark in sentinels])]
    whole = bool((values == np.rint(values)).all())
    distinct, counts = np.unique(values, return_counts=True)
    notes = [f"{', '.join(sentinels)} read as gaps"] if sentinels else []
    below = distinct[distinct < 0]
    if len(below) == 1 and below[0] == np.rint(below[0]):
        notes.append(f"{below[0]:g} is the only value below 0: is it a mark of gaps? Then declare it in `na`")
    commas = (cells.decimal, cells.thousands) == (",", "")
    if commas and present.str.fullmatch(r"[+-]?\d{1,3},\d{3}").astype(bool).all():
        notes.append('is the comma a thousands mark? Then declare decimal = ".", thousands = ","')
    cells = replace(cells, na=tuple(sentinels))
    if len(distinct) < 2:
        return Guess(name, None, ("it is constant",))
    if whole and len(distinct) <= FEW_VALUES and counts.min() >= FLOOR and not _CODE.search(name):
        entry: dict[str, Any] = {"name": name, "kind": "category", "categories": [f"{v:g}" for v in distinct]}
        return _with_gaps(entry, text, gap, cells, notes)
    zeros = present.str.fullmatch(r"0\d+").astype(bool).any()
    numbered = len(distinct) == len(values) > FEW_VALUES and np.ptp(distinct) < 2 * len(distinct)
    if whole and not zeros and numbered:  # each once, filling most of their range
        return Guess(name, None, ("every record has its own whole number: it looks like an identifier",))
    if distinct[-1] >= FAR * max(distinct[-2], 1):
        notes.append(f"{distinct[-1]:.12g} is far above all else: is it a mark of gaps? Then declare it in `na`")
    low, high = public_range(values)
    if whole and (zeros or _CODE.search(name)):
        entry = {"name": name, "kind": "code", "low": low, "high": high, "edges": code_edges(low, high)}
        return _with_gaps(entry, text, gap, cells, [*notes, "a code: cut it at edges that mean something"])
    if whole and len(distinct) <= FEW_VALUES:
        notes.append(f"only {len(distinct)} whole numbers: if they are codes of categories, add --category {name}")
    edges = public_edges(values, low, high)
    if edges and np.mean(values < edges[1]) > CROWDED:
        notes.append("nearly all values lie in its lowest bin: write edges that part them")
    entry = {"name": name, "kind": "number", "low": low, "high": high, **({"edges": edges} if edges else {})}
    return _with_gaps({**entry, "unit": ""}, text, gap, cells, notes)


def _categories(name: str, text: pd.Series, gap: np.ndarray) -> Guess:
    marks = text.isin(CATEGORY_MARKS).to_numpy(bool)
    listed, rare = values_and_rare(text[~gap & ~marks])
    if len(listed) + len(rare) == int((~gap & ~marks).sum()) or len(listed) < 1 or len(listed) > MOST_CATEGORIES:
        many = counted(len(listed) + len(rare), "different value")
        return Guess(name, None, (f"{many}: free text or an identifier",))
    notes = []
    entry: dict[str, Any] = {"name": name, "kind": "category", "categories": listed}
    if rare:
        cells = int(text.map(plain_number, na_action="ignore").isin(rare).sum())
        values = f"{counted(len(rare), 'value')} in fewer than {FLOOR} records each ({cells} in all)"
        notes.append(f"{values} read as {OTHER!r}; list one only if all may know that it occurs")
        entry |= {"categories": [*(value for value in listed if value != OTHER), OTHER], "other": OTHER}
    elif len(listed) < 2:
        return Guess(name, None, ("it is constant",))
    return _with_gaps(entry, text, gap, PLAIN, notes, CATEGORY_MARKS)


def _with_gaps(
    entry: dict[str, Any],
    text: pd.Series,
    gap: np.ndarray,
    cells: Cells,
    notes: list[str],
    marks: Sequence[str] = MARKS,
) -> Guess:
    """The entry with the marks of gaps that were seen."""
    seen = [*(mark for mark in marks if mark in set(text[text.isin(marks)])), *cells.na]
    more = ({"na": seen} if seen else {}) | ({"missing": True} if gap.any() or seen else {})
    return Guess(entry["name"], {**entry, **more, "meaning": ""}, tuple(notes), replace(cells, na=()))


def _sentinels(values: np.ndarray) -> list[str]:
    """Numbers that stand for a gap: below zero where nothing else is, or far above everything else."""
    rest = values[~np.isin(values, [float(mark) for mark in SENTINELS])]
    if not len(rest):
        return []
    often = [mark for mark in SENTINELS if int((values == float(mark)).sum()) >= FLOOR]
    return [mark for mark in often if rest.min() >= 0 > float(mark) or float(mark) >= FAR * max(rest.max(), 1)]


def _share(values: np.ndarray) -> float:
    return float(np.isfinite(values).mean()) if len(values) else 0.0


STEPS = 10
"""At most so many steps of the grid over the range of the values."""
SKEWED = 0.5
"""More than this share of values in the lowest of five equal parts: bins get smaller towards 0."""


def friendly_step(width: float) -> float:
    """The least of 1, 2, 5 times a power of ten that is at least this.

    >>> [friendly_step(width) for width in (0.03, 1, 5.6, 1817)]
    [0.05, 1.0, 10.0, 2000.0]
    """
    power = math.floor(math.log10(width))
    scaled = [digit * 10.0 ** (power + more) for more in (0, 1) for digit in (1, 2, 5)]
    return next(_rounded(step) for step in scaled if step >= width * (1 - 1e-9))


def public_range(values: np.ndarray) -> tuple[float, float]:
    """Low and high around numbers.

    >>> public_range(np.array([19, 75])), public_range(np.array([250, 18424])), public_range(np.array([0, 100]))
    ((10.0, 80.0), (0.0, 20000.0), (0.0, 110.0))
    >>> public_range(np.array([-3.5, 2.0]))
    (-4.0, 3.0)
    """
    low, high = float(values.min()), float(values.max())
    step = friendly_step((high - low) / STEPS if high > low else max(abs(high), 1.0) / STEPS)
    below = math.ceil(_rounded(low / step)) - 1
    above = math.floor(_rounded(high / step)) + 1
    if low >= 0:
        below = max(below, 0)
    elif high <= 0:
        above = min(above, 0)
    return _rounded(below * step), _rounded(above * step)


def public_edges(values: np.ndarray, low: float, high: float) -> list[float]:
    """Edges of bins where equal steps would put most values into one; none otherwise.

    They are fixed parts of the range (a 20th, a tenth, a fifth, a half), whole where all values are. So they tell
    nothing of the values but that most are small.

    >>> public_edges(np.array([0, 0, 0, 1, 13]), 0, 14.0), public_edges(np.array([0.5, 0.6, 6.5]), 0, 7.0)
    ([0.0, 1.0, 2.0, 3.0, 7.0, 14.0], [0.0, 0.35, 0.7, 1.4, 3.5, 7.0])
    """
    if low != 0 or np.mean(values < high / 5) <= SKEWED:
        return []
    parts = [_rounded(high / divisor) for divisor in (20, 10, 5, 2)]
    if (values == np.rint(values)).all():
        parts = [float(math.ceil(part)) for part in parts]
    return sorted({0.0, *parts, high})


def code_edges(low: float, high: float) -> list[float]:
    """Edges that cut the range of a code into equal parts of the grid."""
    step = friendly_step((high - low) / STEPS)
    inner = np.arange(1, math.ceil(_rounded((high - low) / step))) * step + low
    return [low, *(_rounded(float(edge)) for edge in inner), high]


def public_dates(first: datetime.date, last: datetime.date) -> tuple[datetime.date, datetime.date, str]:
    """Low and high around dates, and the unit that suits them.

    >>> [str(day) for day in public_dates(datetime.date(2019, 3, 5), datetime.date(2019, 11, 30))[:2]]
    ['2019-03-01', '2019-12-01']
    >>> [str(day) for day in public_dates(datetime.date(1931, 3, 5), datetime.date(2001, 11, 30))[:2]]
    ['1930-01-01', '2010-01-01']
    """
    years = last.year - first.year
    before = first - datetime.timedelta(days=1)
    if years < 2:
        after = (last.replace(day=1) + datetime.timedelta(days=32)).replace(day=1)
        return before.replace(day=1), after, "days"
    step = 10 if years >= 30 else 1
    low = max(before.year // step * step, 1)
    return datetime.date(low, 1, 1), datetime.date((last.year // step + 1) * step, 1, 1), "years"


def _rounded(number: float) -> float:
    return float(f"{number:.12g}")


MOST_CLASSES = 20
ABOUT = """\
# Draft of {party}'s part of a description, made by `sccvfl init` from its own table.
#
# EVERYTHING IN THIS FILE BECOMES PUBLIC among the parties. Somebody at {party} must read and approve it first.
# - Ranges are rounded outward to a grid and are not the least and largest values. Still, they tell their size.
# - A listed category, class or group tells that it occurs. Values in fewer than {floor} records are not listed.
# - id_shape tells how ids are written (characters, lengths, zeros in front), for a comparison; it holds no id.
# - Write units and meanings. Delete the line of a column that must not be used.
"""


@dataclass(frozen=True)
class Draft:
    """A party's part of a description; `notes` are for its own people."""

    party: str
    file: str
    id: str
    id_shape: IdShape
    features: tuple[dict[str, Any], ...]
    writing: dict[str, str]
    label: dict[str, Any] | None = None
    task: str | None = None
    protected: tuple[dict[str, Any], ...] = ()
    notes: tuple[tuple[str, str], ...] = ()

    def text(self) -> str:
        head: dict[str, Any] = {"party": self.party, "id": self.id, "id_shape": self.id_shape.as_entry()}
        head |= {"file": self.file, **self.writing}
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
    path: Path,
    party: str,
    *,
    id_column: str | None = None,
    label: str | None = None,
    protected: Sequence[str] = (),
    category: Sequence[str] = (),
) -> Draft:
    """The draft of a party that holds this table. category: columns that are categories although coded as numbers."""
    table, key = _table(path, party, id_column)
    ids = _ids(table, key)
    check_table(table.assign(**{key: ids}), key, party, path.name, todo=REPAIR)
    named = [("id", key), ("label", label), *(("protected", name) for name in protected)]
    for what, column in (*named, *(("category", name) for name in category)):
        if column is not None and column not in table:
            raise DataError(
                f"{party}: --{what}: {path.name!r} has no column {cut(column)}; it has {column_names(table)}"
            )
    if label is not None and label in protected:
        raise DataError(f"{party}: column {cut(label)} is the label and cannot be protected too")
    taken = {key, label, *protected}
    columns = [str(name) for name in table if name not in taken]
    default = writing_of([table[name] for name in (*columns, *([label] if label else []))])
    guesses = [guess(name, table[name], default, name in category) for name in columns]
    notes = [(one.name, f"left out: {note}" if one.entry is None else note) for one in guesses for note in one.notes]
    entries = [_written(one.entry, one.cells, default) for one in guesses if one.entry is not None]
    if not entries:
        raise DataError(f"{party}: {path.name!r} has no column to train on besides id, label and protected columns")
    task, target = (None, None) if label is None else _label(table[label], default, notes)
    groups = tuple(_groups(table[name], "groups", notes) for name in protected)
    shape = IdShape.of_ids(ids)
    return Draft(party, path.name, key, shape, tuple(entries), _marks(default), target, task, groups, tuple(notes))


Keep = Literal["first", "last", "none"]
REPAIR = "keep one record of each id (--duplicates first writes such a file), or name another id column with --id"


def without_duplicates(path: Path, party: str, id_column: str | None, keep: Keep) -> tuple[Path, list[int]]:
    """Write a copy of a table in which every record has an id and no id occurs twice, next to it.

    keep: which of the records with one id stay. Returns the new file and the rows that were left out; if there is
    nothing to leave out, the table itself.
    """
    table, key = _table(path, party, id_column)
    ids = _ids(table, key)
    left = ids.duplicated(keep=False if keep == "none" else keep).to_numpy(bool) | (ids == "").to_numpy(bool)
    if not left.any():
        return path, []
    copy = path.with_name(f"{path.name.partition('.')[0]}-unique.csv")
    if copy.exists():
        raise DataError(f"{party}: {copy} is there already: use it (sccvfl init {copy}), or remove it")
    with open(copy, "x", newline="", encoding="utf-8", opener=private) as file:
        table[~left].to_csv(file, index=False)
    return copy, [int(row) + 1 for row in np.flatnonzero(left)]


def _ids(table: pd.DataFrame, key: str) -> pd.Series:
    return table[key].fillna("").str.normalize("NFC").str.strip()


def _table(path: Path, party: str, id_column: str | None) -> tuple[pd.DataFrame, str]:
    """A party's table, and its id column: as given, or guessed."""
    if not party or set(party) & set("/\\") or party.startswith("."):
        raise DataError(f"--party {cut(party)} must be a plain name, which the draft's file is named after")
    if not path.is_file():
        raise DataError(f"{party}: no file {str(path)!r}")
    table = open_table(path, party, () if id_column is None else (id_column,))
    if table.empty:
        raise DataError(f"{party}: {path.name!r} has no records, only a header")
    if id_column is not None and id_column not in table:
        close = difflib.get_close_matches(id_column, map(str, table), 1)
        meant = f"did you mean {cut(close[0])}?" if close else f"it has {column_names(table)}"
        raise DataError(f"{party}: --id: {path.name!r} has no column {cut(id_column)}; {meant}")
    return table, id_column or _guessed_id(table, party, path.name)


def _guessed_id(table: pd.DataFrame, party: str, name: str) -> str:
    """The column that names records: by its name, or the first one; its values differ, or nearly all do."""
    ids = {str(c): table[c].fillna("").str.strip() for c in table}
    nearly = [c for c, cells in ids.items() if cells[cells != ""].nunique() >= NEARLY_ALL * len(cells)]
    whole = [c for c in nearly if ids[c].ne("").all() and not ids[c].duplicated().any()]
    named = [c for c in (*whole, *nearly) if c.lower().endswith(("id", "key", "nr", "no", "number"))]
    candidates = [
        *(c for c in nearly if c.lower() == "id"),
        *named,
        *(c for c in nearly if c == str(table.columns[0])),
    ]
    if not candidates:
        raise DataError(
            f"{party}: which column of {name!r} is the id? Name it with --id; it has {column_names(table)}"
        )
    return candidates[0]


def _label(column: pd.Series, default: Cells, notes: list[tuple[str, str]]) -> tuple[str, dict[str, Any]]:
    numbers = default.numbers(column.str.strip())
    if column.nunique() > MOST_CLASSES and not pd.isna(numbers).any():
        low, high = public_range(numbers)
        return "regression", {"column": str(column.name), "low": low, "high": high, "meaning": ""}
    entry = _groups(column, "classes", notes)
    return "binary" if len(entry["classes"]) == 2 else "multiclass", entry


def _groups(column: pd.Series, values: str, notes: list[tuple[str, str]]) -> dict[str, Any]:
    text = column.str.strip()
    gap = PLAIN.gaps(text)
    listed, rare = values_and_rare(text[~gap])
    if len(listed) < 2 or len(listed) > MOST_CLASSES:
        raise DataError(
            f"column {cut(column.name)} has {counted(len(listed), 'value')} in {FLOOR} records or more: the label "
            f"and protected attributes need 2 to {MOST_CLASSES}; for a protected number write public cells = [...], "
            "their edges, into the description"
        )
    for number, what in ((len(rare), f"in fewer than {FLOOR} records, not listed"), (int(gap.sum()), "missing")):
        if number:
            notes.append(
                (str(column.name), f"{counted(number, 'value')} {what}: decide what becomes of such records")
            )
    return {"column": str(column.name), values: listed, "meaning": ""}


def _written(entry: dict[str, Any], cells: Cells, default: Cells) -> dict[str, Any]:
    """An entry that says how its numbers are written if that differs from its party's default."""
    writing = replace(cells, format="", origin="", unit="")
    if entry["kind"] not in ("number", "code") or writing == default:
        return entry
    return {**entry, "decimal": writing.decimal, "thousands": writing.thousands}


def _marks(cells: Cells) -> dict[str, str]:
    marks = {"decimal": cells.decimal if cells.decimal != "." else "", "thousands": cells.thousands}
    return {key: value for key, value in marks.items() if value}


JOBS = ("selftest", "train", "evaluate")
PORT = 7100
_WANTED: dict[str, Any] = {"party": str, "id": str, "file": str, "features": list}
_OPTIONAL: dict[str, Any] = {"id_shape": dict, "label": dict, "task": str, "protected": list, **WRITING}


def read_draft(path: Path) -> dict[str, Any]:
    """A party's draft, as its people left it."""
    draft = read_toml(path, "draft")
    check_entries(path.name, draft, _WANTED, _OPTIONAL)
    if odd := sorted(set(draft) - {*_WANTED, *_OPTIONAL}):
        raise DataError(f"{path.name}: unknown keys {odd}; a draft is what `sccvfl init` writes")
    return draft


def merged(drafts: Sequence[Mapping[str, Any]], name: str, ids: Sequence[str] = ()) -> dict[str, Any]:
    """One description; DataError if the drafts do not fit together. ids: rules of `data.id_shapes` for ids."""
    parties = [draft["party"] for draft in drafts]
    if len(set(parties)) < len(parties) or len(parties) < 2:
        raise DataError(f"a description needs drafts of two parties or more, each once, not of {', '.join(parties)}")
    shapes = {d["party"]: IdShape.of(d["id_shape"], f"draft of {d['party']}") for d in drafts if "id_shape" in d}
    check_shapes(shapes, ids)
    holders = [draft for draft in drafts if "label" in draft]
    if len(holders) != 1:
        names = ", ".join(draft["party"] for draft in holders) or "none"
        raise DataError(f"one party must have the label (`sccvfl init --label COLUMN`), not {names}")
    protected = [{"party": draft["party"], **entry} for draft in drafts for entry in draft.get("protected", ())]
    if not protected:
        raise DataError("no draft has a protected attribute (`sccvfl init --protected COLUMN`)")
    spec = {
        "name": name,
        "task": holders[0].get("task", "binary"),
        "id": id_entry(holders[0]["id"], ids),
        "label": {"party": holders[0]["party"], **holders[0]["label"]},
        "protected": protected,
        "parties": {
            draft["party"]: {
                key: draft[key]
                for key in ("file", "id", *WRITING, "features")
                if key in draft and (key != "id" or draft["id"] != holders[0]["id"])
            }
            for draft in drafts
        },
    }
    check_description(spec, name)
    check_disjoint(dictionary(spec["parties"]))
    columns = {row["name"] for one in spec["parties"].values() for row in one["features"]}
    for name, party in ((name, e["party"]) for e in (spec["label"], *protected) for name in columns_of(e)):
        if name in columns:
            column = f"column {cut(name)} of {party}"
            raise DataError(f"{column} is the label or protected, and a feature too: take it out of the features")
    return spec


def session_text(spec: Mapping[str, Any], dataset: str, addresses: Mapping[str, str]) -> str:
    """A session file for all hosts; a party without an address gets one to fill in."""
    names = list(spec["parties"])
    if strangers := sorted(set(addresses) - set(names)):
        raise DataError(f"--address names {', '.join(strangers)}, which is no party; available: {', '.join(names)}")
    hosts = [addresses.get(name, f"{name.replace(' ', '-')}.example:{PORT}") for name in names]
    SessionConfig(tuple(hosts), names=tuple(names), jobs=JOBS, options={"dataset": dataset})
    lines = ["# The same file on every host, with the description next to it."]
    lines += [f"parties = {toml(hosts)}", f"names = {toml(names)}", f"jobs = {toml(list(JOBS))}"]
    return "\n".join([*lines, "", "[data]", f"dataset = {toml(dataset)}", ""])
