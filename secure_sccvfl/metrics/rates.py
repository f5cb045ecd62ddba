"""Rates of groups with their intervals, and copies of test records under a counterfactual model of the evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # reports read rates and import no torch
    from secure_sccvfl.data.dataset import Task
    from secure_sccvfl.data.party import AtHolder

NULL = "null_"
"""Prefix of a counterfactual model that was fitted with s permuted over the records: the permutation baseline."""
MIN_GROUP = 20
"""The least number of records that a rate of a group must rest on, by default."""
RATES = ("positive_rate", "tpr", "fpr")
DENOMINATORS = {"positive_rate": "rows", "tpr": "labels_1", "fpr": "labels_0"}
"""The denominator of each rate, by its name in tables of groups."""
CERTIFIED = "certified"
"""The share of records whose decision no values of the mediators change (`models.certificate`)."""
Z95 = 1.96


@dataclass(frozen=True)
class Copies:
    """Copy i is of record source[i] and counts weight[i]; both are public.

    target: for each record the group that its copies are moved to, or -1 if it has none. Only the holder of s has
    it: with two groups it would reveal the record's own.
    """

    source: np.ndarray
    weight: np.ndarray
    target: AtHolder = None


def figures_of_model(model: str, task: Task) -> tuple[str, ...]:
    """What is opened about the copies of a counterfactual model: of a permutation baseline, only its counterpart."""
    if task == "regression":
        return ("scg",)
    return ("fr",) if model.startswith(NULL) else ("scg", "fr", "net")


def reported_gaps(gaps: Mapping[str, float]) -> dict[str, float]:
    """The gaps of reports from the gaps of single rates, as far as these exist."""
    parity = {"dp_gap": gaps["positive_rate"]} if "positive_rate" in gaps else {}
    odds = [gaps[rate] for rate in ("tpr", "fpr") if rate in gaps]
    return parity | ({"eo_gap": max(odds)} if odds else {})


def rate_record(hits: int, rows: int) -> dict[str, float]:
    """A rate with its 95 % interval (Wilson) and its number of records, as reports have it."""
    low, high = wilson(hits / rows, rows)
    return {"value": hits / rows, "low": low, "high": high, "rows": rows}


def certified_words(mediators: Sequence[str]) -> str:
    """The certificate of a decision in words."""
    names = ", ".join(name.replace("_", " ") for name in mediators)
    return f"cannot change through {names}, whatever their values" if names else "cannot change: there is no mediator"


def wilson(rate: float, total: int) -> tuple[float, float]:
    """95 % Wilson interval of a proportion; it is also wide enough for a mean of shares between 0 and 1.

    The rate is always inside, also where rounding would leave a rate of 0 or 1 outside.
    """
    square = Z95 * Z95 / total
    middle = (rate + square / 2) / (1 + square)
    half = Z95 * math.sqrt(max(rate * (1 - rate), 0.0) / total + square / (4 * total)) / (1 + square)
    return min(max(middle - half, 0.0), rate), max(min(middle + half, 1.0), rate)
