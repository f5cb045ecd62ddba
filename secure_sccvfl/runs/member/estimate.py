"""How many rounds, bytes and seconds a job will take: an estimate from measured runs, and never a promise.

The measured rows are in `measured_costs.json`: own data, default options, two classes, two groups. They are made by
`python launch/bench.py costs`, and results/bench-costs.md shows them. For each phase a sum of a few terms is fitted
with coefficients that are not negative, by least squares of relative errors:

- rounds: 1, the number of parties, log2 of the records. Width costs bytes and few rounds.
- bytes of a party, to each peer and with the dealer: 1, records, records x bins, bins^2. A number has five bins.
- seconds on the machine that measured, which all processes shared: the terms of bytes. Between hosts a round trip is
  added for every round.

`Estimate.off` is the largest factor by which leaving a measured row out misses that row. Other modes and tasks, and
exact evaluation, have no measured rows, so there is no estimate for them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from secure_sccvfl.data.party_data import Schema
from secure_sccvfl.training.modes.options import RunOptions

MEASURED = Path(__file__).with_name("measured_costs.json")
FIGURES = ("rounds", "bytes", "dealer_bytes", "seconds")


@dataclass(frozen=True)
class Shape:
    """What an estimate follows from."""

    rows: int
    bins: int
    parties: int

    @classmethod
    def of(cls, schema: Schema, rows: int) -> Shape:
        return cls(rows, sum(sum(own.values()) for own in schema.bins.values()), len(schema.parties))


@dataclass(frozen=True)
class Estimate:
    """Each phase's figures, their sums, and by which factor each figure was off on measured runs."""

    phases: Mapping[str, Mapping[str, float]]
    off: Mapping[str, float]

    @property
    def total(self) -> dict[str, float]:
        return {figure: sum(phase[figure] for phase in self.phases.values()) for figure in FIGURES}

    def as_record(self) -> dict[str, Any]:
        return {**asdict(self), "total": self.total}


def estimate(job: str, options: RunOptions, schema: Schema, rows: int, round_trip: float = 0.0) -> Estimate | None:
    """What a job on this many records takes; None where nothing like it was measured. round_trip: in seconds."""
    measured = [row for row in _measured() if row["job"] == job]
    usual = options.training.mode == "sealed" and options.evaluation.kind == "noisy"
    if not (measured and usual and schema.task == "binary" and len(schema.protected) == 1):
        return None
    phases = _fitted(measured, Shape.of(schema, rows))
    for phase in phases.values():
        phase["seconds"] += round_trip * phase["rounds"]
    return Estimate(phases, _off(job))


@cache
def _measured() -> tuple[dict[str, Any], ...]:
    return tuple(json.loads(MEASURED.read_text(encoding="utf-8"))["rows"])


def _rounds(shape: Shape) -> list[float]:
    return [1.0, float(shape.parties), math.log2(shape.rows)]


def _sizes(shape: Shape) -> list[float]:
    return [1.0, float(shape.rows), float(shape.rows * shape.bins), float(shape.bins**2)]


def _bytes(shape: Shape) -> list[float]:
    return [(shape.parties - 1) * size for size in _sizes(shape)]


def _dealt(shape: Shape) -> list[float]:
    """The dealer sends each correction to one party, in turn."""
    return [size / shape.parties for size in _sizes(shape)]


_TERMS: dict[str, Callable[[Shape], list[float]]] = {
    "rounds": _rounds,
    "bytes": _bytes,
    "dealer_bytes": _dealt,
    "seconds": _bytes,
}


def _fitted(measured: Sequence[Mapping[str, Any]], shape: Shape) -> dict[str, dict[str, float]]:
    """The figures of every phase at this shape, from these rows."""
    from scipy.optimize import nnls  # slow to import

    shapes = [Shape(row["rows"], row["bins"], row["parties"]) for row in measured]
    found: dict[str, dict[str, float]] = {}
    for phase in measured[0]["phases"]:
        found[phase] = {}
        for figure, terms in _TERMS.items():
            known = np.array([max(float(row["phases"][phase][figure]), 1e-9) for row in measured])
            columns = np.array([terms(one) for one in shapes])
            scale = columns.max(axis=0)
            weights, _ = nnls(columns / scale / known[:, None], np.ones(len(known)))
            found[phase][figure] = float(np.array(terms(shape)) / scale @ weights)
    return found


@cache
def _off(job: str) -> dict[str, float]:
    measured = [row for row in _measured() if row["job"] == job]
    worst = dict.fromkeys(FIGURES, 1.0)
    for left, row in enumerate(measured):
        others = [other for number, other in enumerate(measured) if number != left]
        guess = _fitted(others, Shape(row["rows"], row["bins"], row["parties"]))
        for figure in FIGURES:
            true = sum(phase[figure] for phase in row["phases"].values())
            told = sum(phase[figure] for phase in guess.values())
            worst[figure] = max(worst[figure], told / true if told > true else true / max(told, 1e-9))
    return {figure: round(factor, 2) for figure, factor in worst.items()}
