"""The public feature dictionary: what a column means, which values it may take, and how its cells are written.

Ranges, edges and categories are agreed in public before any data is read. Bins for discovery and knots for encoders
come from here and never from records. Marks of gaps, decimal and thousands marks, date formats and a category for
other values are declared for a party or for one feature. Nothing undeclared is guessed: a cell that fits no declared
notation is reported as a problem and never read as another number.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import pandas as pd

from secure_sccvfl.protocols.config import wrong_kind
from secure_sccvfl.protocols.errors import InputError

SHOWN = 3
"""Number of values, ids or rows that a message shows."""
LONGEST_VALUE, LONGEST_LINE, MOST_IN_LINE = 40, 4000, 20
GAPS = ("", "NA", "nan")
"""Cells that are always gaps."""
DECIMALS, THOUSANDS = (".", ","), ("", ".", ",", " ", "'")
DAYS = {"days": 1.0, "months": 365.2425 / 12, "years": 365.2425}
"""Units of a date, in days."""
WRITING: dict[str, Any] = {"na": list, "decimal": str, "thousands": str, "format": str}
"""Settings that a party may declare for all its columns, with their kinds."""
_SPACES = str.maketrans("\u00a0\u202f", "  ")
_DAY = 86400.0


class DataError(InputError):
    """The data or its description cannot be used as it is; the message says why."""

    def __init__(self, message: str) -> None:
        super().__init__(message if len(message) <= LONGEST_LINE else f"{message[:LONGEST_LINE]} ...")


def cut(value: object) -> str:
    """A value in quotes; of a long one its beginning and its length."""
    text = str(value)
    return repr(text) if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]!r}... ({len(text)} characters)"


def short(line: str) -> str:
    return line if len(line) <= 3 * LONGEST_VALUE else f"{line[: 3 * LONGEST_VALUE]}..."


def some(values: Sequence[object]) -> str:
    return ", ".join(map(cut, values[:SHOWN])) + (", ..." if len(values) > SHOWN else "")


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@dataclass(frozen=True, eq=False)
class CellProblem:
    """Cells of one column that cannot be used: which, what is wrong with them, what to do, and some of them.

    `bad` marks rows; a problem with a whole column (it is missing, or has one class only) marks none.
    """

    column: str
    reason: str
    todo: str
    bad: np.ndarray
    sample: str = ""

    @property
    def count(self) -> int:
        return int(self.bad.sum())

    @property
    def what(self) -> str:
        many = f"{counted(self.count, 'value')} " if self.count else ""
        return f"{many}{self.reason}" + (f": {self.sample}" if self.sample else "")

    def line(self, ids: pd.Index) -> str:
        """For a message: with the first ids that it is about."""
        names = [str(name) for name in ids[self.bad][: SHOWN + 1]]
        where = f" (at {some(names)})" if names else ""
        return f"{self.column}: {self.what}{where}; {self.todo}"


def whole_column(column: str, reason: str, todo: str, rows: int) -> CellProblem:
    """A problem with a column, not about cells."""
    return CellProblem(column, reason, todo, np.zeros(rows, bool))


def refuse(owner: str, problems: Sequence[CellProblem], ids: pd.Index) -> None:
    """Raise one DataError for all problems of a party, or none if there are none."""
    if not problems:
        return
    lines = [problem.line(ids) for problem in problems[:MOST_IN_LINE]]
    if len(lines) == 1:
        raise DataError(f"{owner}: {lines[0]}")
    more = f"; and {len(problems) - MOST_IN_LINE} more" if len(problems) > MOST_IN_LINE else ""
    numbered = "; ".join(f"({number}) {line}" for number, line in enumerate(lines, 1))
    raise DataError(f"{owner}: {len(problems)} problems: {numbered}{more}; `sccvfl check` lists them with their rows")


@dataclass(frozen=True)
class Cells:
    """How the cells of one column are written.

    na: cells that are gaps, besides empty ones. decimal, thousands: marks inside numbers. format, origin, unit: of a
    date, which reads as the number of units since its origin. other: the category of all values that are not listed.
    """

    na: tuple[str, ...] = ()
    decimal: str = "."
    thousands: str = ""
    format: str = ""
    origin: str = ""
    unit: str = ""
    other: str = ""

    def __post_init__(self) -> None:
        if self.decimal not in DECIMALS:
            raise DataError(f"decimal must be one of {' '.join(DECIMALS)}, not {cut(self.decimal)}")
        if self.thousands not in THOUSANDS or self.thousands == self.decimal:
            raise DataError(
                f'thousands must be one of . , \' or " ", and not the decimal mark, but it is {cut(self.thousands)}'
            )
        if self.format:
            _check_format(self.format)
            if self.unit not in DAYS:
                raise DataError(f"the unit of a date must be {', '.join(DAYS)}, not {cut(self.unit)}")

    def __repr__(self) -> str:
        """What differs from plain cells: digests of a description stand for it."""
        settings = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default]
        return f"Cells({', '.join(settings)})"

    @property
    def dated(self) -> bool:
        return bool(self.format)

    def gaps(self, text: pd.Series) -> np.ndarray:
        marks = {*GAPS, *self.na}
        plain = text.map(plain_number, na_action="ignore") if self.na else text
        return (text.isna() | text.isin(marks) | plain.isin(marks)).to_numpy(bool)

    def numbers(self, text: pd.Series) -> np.ndarray:
        """The number of each cell; NaN where it is none in this writing."""
        if self.dated:
            return self._dates(text)
        if self.decimal != "." or self.thousands:
            text = self._plainly_written(text)
        return pd.to_numeric(text, errors="coerce").to_numpy(dtype=float, na_value=np.nan)

    def _plainly_written(self, text: pd.Series) -> pd.Series:
        """Numbers as a program writes them; other cells become gaps."""
        if self.thousands == " ":
            text = text.str.translate(_SPACES)
        mark, point = re.escape(self.thousands), re.escape(self.decimal)
        groups = rf"|\d{{1,3}}(?:{mark}\d{{3}})+" if self.thousands else ""
        fits = text.str.fullmatch(rf"[+-]?(?:\d+{groups})(?:{point}\d*)?(?:[eE][+-]?\d+)?", na=False)
        if self.thousands:
            text = text.str.replace(self.thousands, "", regex=False)
        return text.str.replace(self.decimal, ".", regex=False).where(fits.astype(bool), None)

    def _dates(self, text: pd.Series) -> np.ndarray:
        read = pd.to_datetime(text, format=self.format, errors="coerce")
        since = (read - pd.Timestamp(self.origin)).dt.total_seconds().to_numpy(dtype=float, na_value=np.nan)
        return np.asarray(since / (_DAY * DAYS[self.unit]))

    def text(self, number: float) -> str:
        """A number as a cell that reads as it."""
        if self.dated:
            seconds = round(number * DAYS[self.unit] * _DAY)
            return (as_date(self.origin) + datetime.timedelta(seconds=seconds)).strftime(self.format)
        return f"{number:.12g}".replace(".", self.decimal)

    def bound(self, number: float) -> str:
        """A number as people read it in a message: a date as a date."""
        if not self.dated:
            return f"{number:g}"
        return f"{as_date(self.origin) + datetime.timedelta(days=number * DAYS[self.unit]):%Y-%m-%d}"

    def entry(self) -> dict[str, Any]:
        settings = {"na": list(self.na), "thousands": self.thousands, "format": self.format, "other": self.other}
        return {key: value for key, value in settings.items() if value} | (
            {"decimal": self.decimal} if self.decimal != "." else {}
        )


PLAIN = Cells()


def cells_of(where: str, kind: str, row: Mapping[str, Any], party: Mapping[str, Any]) -> Cells:
    """How a feature's cells are written: by its own entry, else as its party declares for all its columns."""
    wanted = {"category": ("na", "other"), "date": ("na", "format")}.get(kind, ("na", "decimal", "thousands"))
    settings: dict[str, Any] = {}
    for key in wanted:
        if key in row or (key in party and key in WRITING):
            settings[key] = value = row.get(key, party.get(key))
            if (odd := wrong_kind(value, WRITING.get(key, str))) is not None:
                raise DataError(f"{where}: {key} {short(odd)}")
    if extra := sorted({*WRITING, "other"} & set(row) - set(wanted)):
        raise DataError(f"{where}: {extra[0]} does not go with kind {kind!r}")
    if "na" in settings:
        settings["na"] = tuple(dict.fromkeys(plain_number(str(mark).strip()) for mark in settings["na"]))
    if kind == "date":
        origin = as_date(row.get("low"), f"{where}: low")
        settings |= {"origin": f"{origin:%Y-%m-%d}", "unit": row.get("unit") or "days"}
        settings.setdefault("format", "%Y-%m-%d")
    if "other" in settings:
        settings["other"] = plain_number(settings["other"].strip())
    try:
        return Cells(**settings)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None


def as_date(value: object, what: str = "a date") -> datetime.datetime:
    """A date of a description: as TOML writes one, or in quotes."""
    if isinstance(value, datetime.datetime):
        return value.replace(tzinfo=None)
    if isinstance(value, datetime.date):
        return datetime.datetime(value.year, value.month, value.day)
    try:
        if isinstance(value, str):
            return datetime.datetime.strptime(value, "%Y-%m-%d")
    except ValueError:
        pass
    raise DataError(f"{what} must be a date such as 1950-01-31, not {cut(value)}")


def since(value: object, cells: Cells, what: str) -> float:
    """A date of a description as the number that cells of the same date read as."""
    days = (as_date(value, what) - as_date(cells.origin)).total_seconds() / _DAY
    return days / DAYS[cells.unit]


def plain_number(text: str) -> str:
    """A whole number written as 3.0 (as in tables with gaps) reads as 3."""
    return text.removesuffix(".0") if text.removesuffix(".0").lstrip("-").isdigit() else text


def _check_format(form: str) -> None:
    """A format of dates must read back what it writes."""
    day = datetime.datetime(2001, 2, 3)
    try:
        good = datetime.datetime.strptime(day.strftime(form), form)
    except ValueError:
        good = None
    if good is None or good.year != day.year or "%z" in form or "%Z" in form:
        raise DataError(f'format must be one of dates such as "%d.%m.%Y", without a time zone, not {cut(form)}')


Kind = Literal["number", "category", "code"]
MISSING = "(missing)"
DEFAULT_BINS = 5
CELL_KEYS = (*WRITING, "other")
NOTES = ("measurement", "manipulability", "confounders", "relation")
"""What people should know of a column before they decide its role."""
MANIPULABLE = ("none", "some", "free")
"""How far a person can change the value: not at all, with time or means, at will."""


def check_entries(where: str, table: object, wanted: Mapping[str, Any], optional: Mapping[str, Any]) -> None:
    """Raise DataError unless a table has all wanted entries and each entry has the right kind."""
    if not isinstance(table, dict):
        raise DataError(f"{where} must be a table with {', '.join(wanted)}, not {cut(table)}")
    for key, kind in {**wanted, **optional}.items():
        if key not in table:
            if key in wanted:
                raise DataError(f"{where}: no {key!r}")
            continue
        if (odd := wrong_kind(table[key], kind)) is not None:
            raise DataError(f"{where}: {key} {short(odd)}")


@dataclass(frozen=True)
class Feature:
    """One column. `code` is a number that stands for a category and is cut at public edges.

    `frequent`: codes that have a bin and a column of their own, after those of the edges. Like edges they are public,
    from a code book or published statistics: chosen by counts of own records they would tell of these.
    `cells` says how cells are written; a date is a number whose cells are dates. Digests of a description cover it.
    `labels` are words for the categories, in their order, for people who read a report. The notes at the end are for
    those who decide roles: how it is measured, how far a person can change it, what confounds it, and how it is known
    to relate to s. They change no model, so no digest of a description covers them (`repr=False`).
    """

    name: str
    kind: Kind
    low: float = math.nan
    high: float = math.nan
    edges: tuple[float, ...] = ()
    categories: tuple[str, ...] = ()
    missing: bool = False
    meaning: str = ""
    unit: str = ""
    labels: tuple[str, ...] = ()
    cells: Cells = field(default=PLAIN, repr=False)
    frequent: tuple[float, ...] = field(default=(), repr=False)
    measurement: str = field(default="", repr=False)
    manipulability: str = field(default="", repr=False)
    confounders: str = field(default="", repr=False)
    relation: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not self.name:
            raise DataError("a feature has no name")
        if self.manipulability not in ("", *MANIPULABLE):
            raise DataError(
                f"{self.name}: manipulability must be {', '.join(MANIPULABLE)}, not {self.manipulability!r}"
            )
        if self.kind not in ("number", "category", "code"):
            raise DataError(f"{self.name}: unknown kind {self.kind!r}; use number, category, code or date")
        if self.kind == "category":
            if len(self.categories) < 2 and not self.missing:
                raise DataError(f"{self.name}: a category needs at least two values, got {self.categories}")
            if len(set(self.categories)) != len(self.categories):
                raise DataError(f"{self.name}: a category is listed twice in {self.categories}")
            if both := set(self.cells.na) & set(self.categories):
                raise DataError(f"{self.name}: {some(sorted(both))} cannot be a gap and a category")
            if self.cells.other and self.cells.other not in self.categories:
                raise DataError(f"{self.name}: other = {cut(self.cells.other)} must be one of its categories")
            if self.labels and len(self.labels) != len(self.categories):
                raise DataError(f"{self.name}: {len(self.labels)} labels for {len(self.categories)} categories")
            return
        if self.frequent:
            self._check_frequent()
        if self.kind == "code" and not self.edges:
            raise DataError(f"{self.name}: a code needs public edges")
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise DataError(f"{self.name}: needs a public range low < high, got {self.low}..{self.high}")
        if self.edges and (
            list(self.edges) != sorted(set(self.edges)) or self.edges[0] != self.low or self.edges[-1] != self.high
        ):
            raise DataError(f"{self.name}: edges must rise from {self.low} to {self.high}, got {self.edges}")

    def _check_frequent(self) -> None:
        if self.kind != "code":
            raise DataError(f"{self.name}: frequent is for kind code; a category lists its values, with other = ...")
        if len(set(self.frequent)) < len(self.frequent):
            raise DataError(f"{self.name}: a frequent code is listed twice in {self.frequent}")
        if outside := [code for code in self.frequent if not self.low <= code <= self.high]:
            raise DataError(f"{self.name}: frequent code {outside[0]:g} lies outside {self.low:g}..{self.high:g}")

    @property
    def cuts(self) -> np.ndarray:
        """Public bin edges of a number or code: as declared, else DEFAULT_BINS equal steps."""
        return np.array(self.edges if self.edges else np.linspace(self.low, self.high, DEFAULT_BINS + 1))

    @property
    def bins(self) -> int:
        """Number of public bins, one more where missing values are allowed."""
        inner = len(self.categories) if self.kind == "category" else len(self.cuts) - 1
        return inner + len(self.frequent) + self.missing

    def read(self, raw: pd.Series, owner: str = "the table") -> np.ndarray:
        """The numbers of a column; DataError if a cell cannot be used."""
        values, problems = self.look(raw)
        refuse(owner, problems, raw.index)
        return values

    def look(self, raw: pd.Series) -> tuple[np.ndarray, list[CellProblem]]:
        """Text cells as numbers (a category becomes its index) and all cells that cannot be used.

        NaN marks a gap, and a cell that cannot be used.
        """
        text = raw.astype("string").str.strip()
        gap = self.cells.gaps(text)
        if self.kind == "category":
            values, problems = self._categories(text, gap)
        else:
            values, problems = self._numbers(text, gap)
        if gap.any() and not self.missing:
            problems.append(CellProblem(self.name, "missing", "declare `missing = true` or fill them in", gap))
        return values, problems

    def _categories(self, text: pd.Series, gap: np.ndarray) -> tuple[np.ndarray, list[CellProblem]]:
        text = text.map(plain_number, na_action="ignore")
        index = {c: float(i) for i, c in enumerate(self.categories)}
        values = text.map(index).to_numpy(dtype=float, na_value=np.nan)
        bad = np.isnan(values) & ~gap
        if not bad.any():
            return values, []
        if self.cells.other:
            return np.where(bad, index[self.cells.other], values), []
        todo = "list them in `categories` if all may know that they occur, or name one for the rest, `other = ...`"
        return values, [
            CellProblem(self.name, "not in the public dictionary", todo, bad, some(sorted(set(text[bad]))))
        ]

    def _numbers(self, text: pd.Series, gap: np.ndarray) -> tuple[np.ndarray, list[CellProblem]]:
        values, problems = self.cells.numbers(text.where(~gap, None)), []
        bad = np.isnan(values) & ~gap
        if bad.any():
            form = f"not a date in the format {self.cells.format}" if self.cells.dated else "not a number"
            marks = "another `format = ...`" if self.cells.dated else "`decimal` and `thousands` marks"
            todo = f"declare {marks} or gaps, `na = [...]`, or put them right"
            problems.append(CellProblem(self.name, form, todo, bad, some(sorted(set(text[bad])))))
        out = (values < self.low) | (values > self.high)
        if out.any():
            low, high = self.cells.bound(self.low), self.cells.bound(self.high)
            todo, sample = "widen `low` and `high`, or put them right", self.cells.bound(values[out][0])
            problems.append(CellProblem(self.name, f"outside the public range {low}..{high}", todo, out, sample))
        return np.where(out, np.nan, values), problems

    def text(self, value: float) -> str:
        """A value as a cell that reads as it."""
        if math.isnan(value):
            return ""
        return self.categories[int(value)] if self.kind == "category" else self.cells.text(value)

    def bin_index(self, values: np.ndarray) -> np.ndarray:
        """Public bin of every value; a gap falls into the last bin."""
        if self.kind == "category":
            inner = np.nan_to_num(values, nan=0.0).astype(int)
        else:
            inside = self.cuts[1:-1]
            inner = np.searchsorted(inside, np.nan_to_num(values, nan=self.low), side="right")
            for at, code in enumerate(self.frequent, len(self.cuts) - 1):
                inner = np.where(values == code, at, inner)
        return np.where(np.isnan(values), self.bins - 1, inner)

    def middle(self, at: int) -> float:
        """A code in this bin: the middle of a cut, or the next half that is not frequent; a frequent code itself."""
        if at >= len(self.cuts) - 1:
            return self.frequent[at - len(self.cuts) + 1]
        low, high = self.cuts[at : at + 2]
        value = (low + high) / 2
        while value in self.frequent:
            value = (value + low) / 2
        return float(value)

    @classmethod
    def of(cls, row: Mapping[str, Any], party: Mapping[str, Any] = MappingProxyType({})) -> Feature:
        """Read one entry of a feature dictionary; unknown keys are refused.

        `party`: how cells of this party are written where the entry does not say.
        """
        where = f"feature {row.get('name')!r}" if isinstance(row, dict) else "a feature"
        dated = isinstance(row, dict) and row.get("kind") == "date"
        bounds = {} if dated else {"low": float, "high": float}
        kinds = {"categories": list, "missing": bool, "meaning": str, "unit": str, **bounds}
        kinds |= dict.fromkeys(NOTES, str)
        check_entries(where, row, {"name": str, "kind": str}, {**kinds, "labels": list})
        keys = {"name", "kind", "low", "high", "edges", "labels", "frequent", *CELL_KEYS, *kinds}
        if extra := set(row) - keys:
            raise DataError(f"{where}: unknown keys {sorted(extra)}")
        cells = cells_of(where, row["kind"], row, party)
        fields = {key: value for key, value in row.items() if key not in CELL_KEYS} | {"cells": cells}
        if dated:
            fields |= _date_fields(where, row, cells)
        if "edges" in fields:
            edges = fields["edges"]
            if not isinstance(edges, list) or len(edges) < 2 or any(wrong_kind(v, float) for v in edges):
                raise DataError(
                    f"{row.get('name')}: edges must be public numbers, agreed before any record is read, "
                    f"not {cut(fields['edges'])}"
                )
            fields["edges"] = tuple(float(v) for v in fields["edges"])
            fields.setdefault("low", fields["edges"][0])
            fields.setdefault("high", fields["edges"][-1])
        if "frequent" in fields:
            if not isinstance(row["frequent"], list) or any(wrong_kind(v, float) for v in row["frequent"]):
                raise DataError(f"{where}: frequent must be a list of public codes, not {cut(row['frequent'])}")
            fields["frequent"] = tuple(float(v) for v in row["frequent"])
        if "categories" in fields:
            fields["categories"] = tuple(plain_number(str(v).strip()) for v in fields["categories"])
        if "labels" in fields:
            fields["labels"] = tuple(str(v) for v in fields["labels"])
        for bound in ("low", "high"):
            if bound in fields:
                fields[bound] = float(fields[bound])
        return cls(**fields)

    def entry(self) -> dict[str, Any]:
        entry: dict[str, Any] = {"name": self.name, "kind": "date" if self.cells.dated else self.kind}
        if self.kind == "category":
            entry["categories"] = list(self.categories)
        else:
            entry |= {"low": self._bound(self.low), "high": self._bound(self.high)}
        lists: dict[str, Any] = {"edges": [self._bound(edge) for edge in self.edges], "labels": list(self.labels)}
        lists |= {"frequent": list(self.frequent)}
        unit = self.cells.unit if self.cells.dated else self.unit
        words = {"missing": self.missing, "meaning": self.meaning, "unit": unit, **self.cells.entry()}
        words |= {name: getattr(self, name) for name in NOTES}
        return entry | {key: value for key, value in (lists | words).items() if value}

    def _bound(self, number: float) -> float | str:
        return self.cells.bound(number) if self.cells.dated else number


def _date_fields(where: str, row: Mapping[str, Any], cells: Cells) -> dict[str, Any]:
    if row.get("unit", "days") not in DAYS:
        raise DataError(f"{where}: the unit of a date must be {', '.join(DAYS)}, not {cut(row['unit'])}")
    fields: dict[str, Any] = {"kind": "number", "unit": f"{cells.unit} since {cells.origin}"}
    fields |= {bound: since(row.get(bound), cells, f"{where}: {bound}") for bound in ("low", "high")}
    if isinstance(row.get("edges"), list):
        fields["edges"] = [since(edge, cells, f"{where}: an edge") for edge in row["edges"]]
    return fields


def dictionary(parties: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[Feature, ...]]:
    """The features of every party of a description; a message names the party."""
    features = {}
    for name, party in parties.items():
        try:
            features[name] = tuple(Feature.of(row, party) for row in party["features"])
        except DataError as error:
            raise DataError(f"{name}: {error}") from None
    return features


def check_disjoint(parties: Mapping[str, Sequence[Feature]]) -> None:
    owner: dict[str, str] = {}
    for party, features in parties.items():
        for feature in features:
            if feature.name in owner:
                raise DataError(f"column {feature.name!r} is named by {owner[feature.name]!r} and {party!r}")
            owner[feature.name] = party
