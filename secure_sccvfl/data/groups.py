"""Groups of a protected attribute, as a description declares them: a list, cells of a number, or a crossing.

    { party = "clinic", column = "sex", groups = ["f", "m"] }                        groups without an order
    { party = "clinic", column = "stage", groups = ["1", "2", "3"], ordered = true } groups in their order
    { party = "clinic", column = "age", cells = [17, 30, 45, 60, 100] }              a number, in public cells
    { party = "clinic", column = "sex x age", cross = [ { column = "sex", groups = ["f", "m"] },
                                                        { column = "age", cells = [17, 45, 100] } ] }

Cells include their lower edge; the last one also its upper edge. The groups of a crossing are all combinations, the
last column fastest. Every message is one line, and nothing is read of a file before an entry is accepted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import numpy as np
import pandas as pd

from secure_sccvfl.data.features import PLAIN, CellProblem, DataError, check_entries, cut, short, some
from secure_sccvfl.protocols.config import wrong_kind

MOST_GROUPS = 20
"""Most groups without an order: each has a share of its own in every table."""
FORMS = ("groups", "cells", "cross")
Structure = tuple[tuple[int, bool], ...]
"""The number of groups of each crossed column, and whether they have an order; () for a list of groups."""


@dataclass(frozen=True)
class Factor:
    """One column that groups follow from. edges: of a number's cells."""

    column: str
    groups: tuple[str, ...]
    ordered: bool = False
    edges: tuple[float, ...] = ()

    def look(self, column: pd.Series) -> tuple[np.ndarray, list[CellProblem]]:
        """The group of each cell, and the cells that are in none (which read as 0)."""
        if not self.edges:
            return look_at_codes(column, self.groups, "protected attribute")
        values = PLAIN.numbers(column.astype("string").str.strip())
        bad = ~((values >= self.edges[0]) & (values <= self.edges[-1]))
        codes = np.searchsorted(self.edges[1:-1], np.where(bad, self.edges[0], values), side="right")
        if not bad.any():
            return codes, []
        reason = f"outside the cells {self.edges[0]:g} to {self.edges[-1]:g} of the protected attribute"
        seen = some(sorted({str(value) for value in column[bad].fillna("")}))
        todo = "widen the cells so that they cover it, or leave such records out"
        return codes, [CellProblem(self.column, reason, todo, bad, seen)]

    def entry(self) -> dict[str, Any]:
        """As a description declares it, for a column of group names."""
        return {"column": self.column, "groups": list(self.groups), **({"ordered": True} if self.ordered else {})}


def look_at_codes(column: pd.Series, values: tuple[str, ...], what: str) -> tuple[np.ndarray, list[CellProblem]]:
    """The index of each cell among the declared values, and the cells with others (which read as 0)."""
    text = column.astype("string").str.strip().str.removesuffix(".0")
    codes = text.map({v: i for i, v in enumerate(values)}).to_numpy(dtype=float, na_value=np.nan)
    bad = np.isnan(codes)
    if not bad.any():
        return codes.astype(int), []
    seen = some(sorted({str(value) for value in column[bad].fillna("")}))
    reason = f"not among {short(str(list(values)))} of the {what}"
    todo = "leave such records out, put them right, or declare the value if all may know that it occurs"
    return np.where(bad, 0, codes).astype(int), [CellProblem(str(column.name), reason, todo, bad, seen)]


def factors_of(entry: Mapping[str, Any], file: str) -> tuple[Factor, ...]:
    """The columns that the groups of an entry follow from; DataError for one that cannot be used."""
    what = f"{file}: protected attribute {entry['column']!r}"
    given = [form for form in FORMS if form in entry]
    if len(given) != 1:
        raise DataError(
            f"{what} needs groups = [...]; for a number, public cells = [...], their edges; or cross = [...]"
            if not given
            else f"{what} has {' and '.join(given)}: give one of them"
        )
    parts = entry.get("cross", [entry])
    if "cross" in entry and len(parts) < 2:
        raise DataError(f"{what}: cross needs two columns or more")
    factors = tuple(_factor(part, f"{what}: cross" if "cross" in entry else what) for part in parts)
    if len({factor.column for factor in factors}) < len(factors):
        raise DataError(f"{what}: cross names a column twice")
    check_count(what, factors)
    return factors


def check_count(what: str, factors: tuple[Factor, ...]) -> None:
    """Refuse too many groups without an order, such as the values of a number without cells."""
    count = math.prod(len(factor.groups) for factor in factors if not factor.ordered)
    if count > MOST_GROUPS:
        raise DataError(
            f"{what} has {count} groups without an order, and at most {MOST_GROUPS} are possible: merge some, write "
            "ordered = true if they have one, or cut a number into public cells = [...]"
        )


def _factor(entry: Any, what: str) -> Factor:
    check_entries(what, entry, {"column": str}, {"groups": list, "cells": list, "ordered": bool})
    edges = entry.get("cells", ())
    if "cells" in entry:
        wrong = len(edges) < 3 or any(wrong_kind(edge, float) for edge in edges)
        if wrong or list(edges) != sorted(set(edges)) or not all(map(math.isfinite, edges)):
            raise DataError(f"{what}: cells are three public edges or more, which rise, not {cut(edges)}")
        names = tuple(f"{low:g} to {high:g}" for low, high in pairwise(edges))
        return Factor(entry["column"], names, True, tuple(float(edge) for edge in edges))
    groups = tuple(str(group) for group in entry.get("groups", ()))
    if len(set(groups)) != len(groups) or len(groups) < 2:
        raise DataError(f"{what} needs at least two groups, none twice, got {list(groups)}")
    return Factor(entry["column"], groups, bool(entry.get("ordered", False)))


def structure_of(record: Iterable[Iterable[Any]]) -> Structure:
    """A structure as a file has it."""
    return tuple((int(size), bool(ordered)) for size, ordered in record)


def names_of(factors: tuple[Factor, ...]) -> tuple[str, ...]:
    """The groups of a crossing of these columns."""
    return tuple(", ".join(parts) for parts in product(*(factor.groups for factor in factors)))


def beyond_a_list(factors: tuple[Factor, ...]) -> tuple[Factor, ...]:
    """The same, or () for what is a plain list of groups: the form in which an attribute keeps it."""
    return factors if len(factors) > 1 or factors[0].ordered else ()


def columns_of(entry: Mapping[str, Any]) -> list[str]:
    """The columns of the holder's file that an entry names."""
    return [part["column"] for part in entry.get("cross", [entry])]


def read_codes(
    factors: tuple[Factor, ...], column: Callable[[str], pd.Series]
) -> tuple[np.ndarray, list[CellProblem]]:
    """The group of each record, and the cells that are in none. column: a column of the holder's file."""
    looked = [factor.look(column(factor.column).astype("string")) for factor in factors]
    sizes = [len(factor.groups) for factor in factors]
    codes = np.ravel_multi_index([codes for codes, _ in looked], sizes)
    return codes, [problem for _, problems in looked for problem in problems]
