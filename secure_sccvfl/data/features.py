"""The public feature dictionary: what a column means and which values it may take.

Ranges, edges and categories are agreed in public before any data is read. Bins for discovery and knots for encoders
come from here and never from records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd

from protocols.config import wrong_kind
from protocols.errors import InputError

Kind = Literal["number", "category", "code"]
MISSING = "(missing)"
DEFAULT_BINS = 5
NOTES = ("measurement", "manipulability", "confounders", "relation")
"""What people should know of a column before they decide its role."""
MANIPULABLE = ("none", "some", "free")
"""How far a person can change the value: not at all, with time or means, at will."""


class DataError(InputError):
    """The data or its description cannot be used as it is; the message says why."""

    for_operator = True


def check_entries(where: str, table: object, wanted: Mapping[str, Any], optional: Mapping[str, Any]) -> None:
    """Raise DataError unless a table has all wanted entries and each entry has the right kind."""
    if not isinstance(table, dict):
        raise DataError(f"{where} must be a table with {', '.join(wanted)}, not {table!r}")
    for key, kind in {**wanted, **optional}.items():
        if key not in table:
            if key in wanted:
                raise DataError(f"{where}: no {key!r}")
            continue
        if (odd := wrong_kind(table[key], kind)) is not None:
            raise DataError(f"{where}: {key} {odd}")


@dataclass(frozen=True)
class Feature:
    """One column. `code` is a number that stands for a category and is cut at public edges.

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
            raise DataError(f"{self.name}: unknown kind {self.kind!r}; use number, category or code")
        if self.kind == "category":
            if len(self.categories) < 2 and not self.missing:
                raise DataError(f"{self.name}: a category needs at least two values, got {self.categories}")
            if len(set(self.categories)) != len(self.categories):
                raise DataError(f"{self.name}: a category is listed twice in {self.categories}")
            if self.labels and len(self.labels) != len(self.categories):
                raise DataError(f"{self.name}: {len(self.labels)} labels for {len(self.categories)} categories")
            return
        if self.kind == "code" and not self.edges:
            raise DataError(f"{self.name}: a code needs public edges")
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise DataError(f"{self.name}: needs a public range low < high, got {self.low}..{self.high}")
        if self.edges and (
            list(self.edges) != sorted(set(self.edges)) or self.edges[0] != self.low or self.edges[-1] != self.high
        ):
            raise DataError(f"{self.name}: edges must rise from {self.low} to {self.high}, got {self.edges}")

    @property
    def cuts(self) -> np.ndarray:
        """Public bin edges of a number or code: as declared, else DEFAULT_BINS equal steps."""
        return np.array(self.edges if self.edges else np.linspace(self.low, self.high, DEFAULT_BINS + 1))

    @property
    def bins(self) -> int:
        """Number of public bins, one more where missing values are allowed."""
        inner = len(self.categories) if self.kind == "category" else len(self.cuts) - 1
        return inner + self.missing

    def read(self, raw: pd.Series) -> np.ndarray:
        """Turn text cells into numbers (a category becomes its index); NaN marks an allowed gap."""
        text = raw.astype("string").str.strip()
        gap = (text.isna() | text.isin(["", "NA", "nan"])).to_numpy(bool)
        if gap.any() and not self.missing:
            raise DataError(f"{self.name}: {int(gap.sum())} missing values; declare `missing = true` or fill them in")
        if self.kind == "category":
            text = text.map(_plain_number, na_action="ignore")
            index = {c: float(i) for i, c in enumerate(self.categories)}
            values = text.map(index).to_numpy(dtype=float, na_value=np.nan)
            bad = np.isnan(values) & ~gap
            if bad.any():
                seen = sorted(set(text[bad]))[:5]
                raise DataError(f"{self.name}: categories not in the public dictionary: {seen}")
            return values
        values = pd.to_numeric(text.where(~gap, None), errors="coerce").to_numpy(dtype=float, na_value=np.nan)
        bad = np.isnan(values) & ~gap
        if bad.any():
            raise DataError(f"{self.name}: not a number: {sorted(set(text[bad]))[:5]}")
        out = (values < self.low) | (values > self.high)
        if out.any():
            raise DataError(
                f"{self.name}: {int(out.sum())} values outside the public range {self.low:g}..{self.high:g}, "
                f"such as {values[out][0]:g}"
            )
        return values

    def bin_index(self, values: np.ndarray) -> np.ndarray:
        """Public bin of every value; a gap falls into the last bin."""
        if self.kind == "category":
            inner = np.nan_to_num(values, nan=0.0).astype(int)
        else:
            inside = self.cuts[1:-1]
            inner = np.searchsorted(inside, np.nan_to_num(values, nan=self.low), side="right")
        return np.where(np.isnan(values), self.bins - 1, inner)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Feature:
        """Read one entry of a feature dictionary; unknown keys are refused."""
        where = f"feature {row.get('name')!r}" if isinstance(row, dict) else "a feature"
        kinds = {"low": float, "high": float, "categories": list, "missing": bool, "meaning": str, "unit": str}
        kinds |= dict.fromkeys(NOTES, str)
        check_entries(where, row, {"name": str, "kind": str}, {**kinds, "labels": list})
        extra = set(row) - {"name", "kind", "edges", "labels", *kinds}
        if extra:
            raise DataError(f"{where}: unknown keys {sorted(extra)}")
        fields = dict(row)
        if "edges" in fields:
            edges = fields["edges"]
            if not isinstance(edges, list) or len(edges) < 2 or any(wrong_kind(v, float) for v in edges):
                raise DataError(
                    f"{row.get('name')}: edges must be public numbers, agreed before any record is read, "
                    f"not {fields['edges']!r}"
                )
            fields["edges"] = tuple(float(v) for v in fields["edges"])
            fields.setdefault("low", fields["edges"][0])
            fields.setdefault("high", fields["edges"][-1])
        if "categories" in fields:
            fields["categories"] = tuple(_plain_number(str(v).strip()) for v in fields["categories"])
        if "labels" in fields:
            fields["labels"] = tuple(str(v) for v in fields["labels"])
        for bound in ("low", "high"):
            if bound in fields:
                fields[bound] = float(fields[bound])
        return cls(**fields)


def _plain_number(text: str) -> str:
    """A whole number written as 3.0 (as in tables with gaps) reads as 3."""
    return text.removesuffix(".0") if text.removesuffix(".0").lstrip("-").isdigit() else text


def check_disjoint(parties: Mapping[str, Sequence[Feature]]) -> None:
    """A column belongs to one party."""
    owner: dict[str, str] = {}
    for party, features in parties.items():
        for feature in features:
            if feature.name in owner:
                raise DataError(f"column {feature.name!r} is named by {owner[feature.name]!r} and {party!r}")
            owner[feature.name] = party
