"""Cells of a party's table: how they are written, what each one reads as, and what is wrong with the others.

Marks of gaps, decimal and thousands marks, date formats and a category for other values are declared in the
description, for a party or for one feature, and are public like a range. Nothing undeclared is guessed: a cell that
fits no declared notation is reported as a problem and never read as another number.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pandas as pd

from protocols.config import wrong_kind
from protocols.errors import InputError

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
    """A line that may quote a long value, cut."""
    return line if len(line) <= 3 * LONGEST_VALUE else f"{line[: 3 * LONGEST_VALUE]}..."


def some(values: Sequence[object]) -> str:
    """The first few of several values."""
    return ", ".join(map(cut, values[:SHOWN])) + (", ..." if len(values) > SHOWN else "")


def counted(number: int, noun: str) -> str:
    """1 value, 2 values."""
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
        """How many cells, and what is wrong with them."""
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

    na: cells that are gaps, beside empty ones. decimal, thousands: marks inside numbers. format, origin, unit: of a
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
        """Which cells are gaps."""
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
        """Its settings in a description."""
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
