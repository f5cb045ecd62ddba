"""What is wrong with a party's table, all of it at once, in lines that stay short whatever a cell holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from protocols.errors import InputError

SHOWN = 3
"""So many values, ids or rows stand in a message."""
LONGEST_VALUE, LONGEST_LINE, MOST_IN_LINE = 40, 4000, 20


class DataError(InputError):
    """The data or its description cannot be used as it is; the message says why."""

    for_operator = True

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
class Finding:
    """Cells of one column that cannot be used: which, what is wrong with them, what to do, and some of them.

    `bad` marks rows; a finding about a whole column (it is missing, or has one class only) marks none.
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
        known = [str(name) for name in ids[self.bad][: SHOWN + 1]]
        where = f" (at {some(known)})" if known else ""
        return f"{self.column}: {self.what}{where}; {self.todo}"


def whole_column(column: str, reason: str, todo: str, rows: int) -> Finding:
    """A finding about a column, not about cells."""
    return Finding(column, reason, todo, np.zeros(rows, bool))


def refuse(owner: str, findings: Sequence[Finding], ids: pd.Index) -> None:
    """Raise one DataError for all findings of a party, or none if there are none."""
    if not findings:
        return
    lines = [finding.line(ids) for finding in findings[:MOST_IN_LINE]]
    if len(lines) == 1:
        raise DataError(f"{owner}: {lines[0]}")
    more = f"; and {len(findings) - MOST_IN_LINE} more" if len(findings) > MOST_IN_LINE else ""
    told = "; ".join(f"({number}) {line}" for number, line in enumerate(lines, 1))
    raise DataError(f"{owner}: {len(findings)} problems: {told}{more}; `sccvfl check` lists them with their rows")
