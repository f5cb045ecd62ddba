"""What a column of a party's table seems to be: a number, a date, a code, a category, or nothing to train on.

A guess is a proposal for people. It reads cells as a run would read them (data/tables), tries known writings in turn,
and takes one if nearly all cells fit. What occurs in few records is never listed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from secure_sccvfl.data.drafts.ranges import code_edges, public_dates, public_edges, public_range
from secure_sccvfl.data.tables.cells import PLAIN, Cells, plain_number
from secure_sccvfl.data.tables.problems import counted

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
"""More than this share of values in the lowest bin: people are told to write better edges."""
_CODE = re.compile(r"(^|_)(code|zip|plz|postcode|postal|occp|naics|sic|icd\d*)(_|$)", re.IGNORECASE)


@dataclass(frozen=True)
class Guess:
    """The entry of a column in a draft, None if it is left out, and what its party's people should look at."""

    name: str
    entry: dict[str, Any] | None
    notes: tuple[str, ...] = ()
    cells: Cells = field(default=PLAIN)


def guess(name: str, column: pd.Series, default: Cells = PLAIN) -> Guess:
    """What a column is. `default`: how this party writes numbers."""
    text = column.astype("string").str.strip()
    gap = PLAIN.gaps(text)
    if gap.all():
        return Guess(name, None, ("it is empty",))
    for found in (_dates(name, text, gap), _numbers(name, text, gap, default)):
        if found is not None:
            return found
    return _categories(name, text, gap)


def writing_of(columns: Sequence[pd.Series]) -> Cells:
    """The writing of numbers that reads the most columns; the plainest of those."""
    counts = {writing: 0 for writing in WRITINGS}
    for column in columns:
        text = column.astype("string").str.strip()
        known = text[~(PLAIN.gaps(text) | text.isin(MARKS).to_numpy(bool))]
        for writing in WRITINGS if len(known) else ():
            counts[writing] += bool(_share(writing.numbers(known)) >= NEARLY_ALL)
    return max(WRITINGS, key=lambda writing: counts[writing])


def values_and_rare(text: pd.Series) -> tuple[list[str], list[str]]:
    """Values in at least FLOOR records, in order, and the others."""
    counts = text.map(plain_number).value_counts()
    common = [str(value) for value in counts.index[counts >= FLOOR]]
    return in_order(common), [str(value) for value in counts.index[counts < FLOOR]]


def in_order(values: Sequence[str]) -> list[str]:
    """Numbers by their size, other values as words."""
    number = pd.to_numeric(pd.Series(values, dtype="string"), errors="coerce")
    by_size = len(values) > 0 and not number.isna().any()
    return [value for _, value in sorted(zip(number if by_size else values, values, strict=True))]


def _dates(name: str, text: pd.Series, gap: np.ndarray) -> Guess | None:
    known = text[~gap & ~text.isin(MARKS).to_numpy(bool)]
    if not len(known) or not known.iloc[0][:1].isdigit():
        return None
    fitting = []
    for form in FORMATS:
        dates = pd.to_datetime(known, format=form, errors="coerce")
        if dates.notna().mean() >= NEARLY_ALL:
            fitting.append((form, dates))
    if not fitting:
        return None
    form, dates = fitting[0]
    first, last = dates.min().date(), dates.max().date()
    low, high, unit = public_dates(first, last)
    entry = {"name": name, "kind": "date", "low": str(low), "high": str(high), "unit": unit, "format": form}
    notes = [f"{' and '.join(f for f, _ in fitting[:2])} both fit: see that {form} is right"] if fitting[1:] else []
    cells = Cells(format=form, origin=str(low), unit=unit)
    return _with_gaps(name, entry, text, gap, cells, notes)


def _numbers(name: str, text: pd.Series, gap: np.ndarray, default: Cells) -> Guess | None:
    marked = gap | text.isin(MARKS).to_numpy(bool)
    known = text[~marked]
    if not len(known):
        return None
    cells = next((w for w in (default, *WRITINGS) if _share(w.numbers(known)) >= NEARLY_ALL), None)
    if cells is None:
        return None
    numbers = cells.numbers(known)
    sentinels = _sentinels(numbers[np.isfinite(numbers)])
    values = numbers[np.isfinite(numbers) & ~np.isin(numbers, [float(mark) for mark in sentinels])]
    whole = bool((values == np.rint(values)).all())
    distinct, counts = np.unique(values, return_counts=True)
    notes = [f"{', '.join(sentinels)} read as gaps"] if sentinels else []
    below = distinct[distinct < 0]
    if len(below) == 1 and below[0] == np.rint(below[0]):
        notes.append(f"{below[0]:g} is the only value below 0: is it a mark of gaps? Then declare it in `na`")
    commas = (cells.decimal, cells.thousands) == (",", "")
    if commas and known.str.fullmatch(r"[+-]?\d{1,3},\d{3}").astype(bool).all():
        notes.append('is the comma a thousands mark? Then declare decimal = ".", thousands = ","')
    cells = replace(cells, na=tuple(sentinels))
    if len(distinct) < 2:
        return Guess(name, None, ("it is constant",))
    if whole and len(distinct) <= FEW_VALUES and counts.min() >= FLOOR and not _CODE.search(name):
        entry: dict[str, Any] = {"name": name, "kind": "category", "categories": [f"{v:g}" for v in distinct]}
        return _with_gaps(name, entry, text, gap, cells, notes)
    zeros = known.str.fullmatch(r"0\d+").astype(bool).any()
    if whole and not zeros and len(distinct) == len(values) > FEW_VALUES and _running(distinct):
        return Guess(name, None, ("every record has its own whole number: it looks like an identifier",))
    if distinct[-1] >= FAR * max(distinct[-2], 1):
        notes.append(f"{distinct[-1]:.12g} is far above all else: is it a mark of gaps? Then declare it in `na`")
    low, high = public_range(values)
    if whole and (zeros or _CODE.search(name)):
        entry = {"name": name, "kind": "code", "low": low, "high": high, "edges": code_edges(low, high)}
        return _with_gaps(name, entry, text, gap, cells, [*notes, "a code: cut it at edges that mean something"])
    edges = public_edges(values, low, high)
    if edges and np.mean(values < edges[1]) > CROWDED:
        notes.append("nearly all values lie in its lowest bin: write edges that part them")
    entry = {"name": name, "kind": "number", "low": low, "high": high, **({"edges": edges} if edges else {})}
    return _with_gaps(name, {**entry, "unit": ""}, text, gap, cells, notes)


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
        told = f"{counted(len(rare), 'value')} in fewer than {FLOOR} records each ({cells} in all)"
        notes.append(f"{told} read as {OTHER!r}; list one only if all may know that it occurs")
        entry |= {"categories": [*(value for value in listed if value != OTHER), OTHER], "other": OTHER}
    elif len(listed) < 2:
        return Guess(name, None, ("it is constant",))
    return _with_gaps(name, entry, text, gap, PLAIN, notes, CATEGORY_MARKS)


def _with_gaps(
    name: str,
    entry: dict[str, Any],
    text: pd.Series,
    gap: np.ndarray,
    cells: Cells,
    notes: Sequence[str],
    marks: Sequence[str] = MARKS,
) -> Guess:
    """The entry with the marks of gaps that were seen."""
    seen = [*_seen(text, marks), *cells.na]
    more: dict[str, Any] = {"na": seen} if seen else {}
    if gap.any() or seen:
        more["missing"] = True
    return Guess(name, {**entry, **more, "meaning": ""}, tuple(notes), replace(cells, na=()))


def _seen(text: pd.Series, marks: Sequence[str]) -> Iterator[str]:
    present = set(text[text.isin(marks)])
    return (mark for mark in marks if mark in present)


def _sentinels(values: np.ndarray) -> list[str]:
    """Numbers that stand for a gap: below zero where nothing else is, or far above everything else."""
    rest = values[~np.isin(values, [float(mark) for mark in SENTINELS])]
    if not len(rest):
        return []
    often = [mark for mark in SENTINELS if int((values == float(mark)).sum()) >= FLOOR]
    return [mark for mark in often if rest.min() >= 0 > float(mark) or float(mark) >= FAR * max(rest.max(), 1)]


def _running(distinct: np.ndarray) -> bool:
    """Whether whole numbers, each once, fill most of their range: numbered records."""
    return bool(np.ptp(distinct) < 2 * len(distinct))


def _share(values: np.ndarray) -> float:
    return float(np.isfinite(values).mean()) if len(values) else 0.0
