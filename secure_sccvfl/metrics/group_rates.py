"""Rates of groups from which gaps are made, and how many records each must rest on."""

from __future__ import annotations

from collections.abc import Mapping

MIN_GROUP = 20
"""The least number of records that a rate of a group must rest on, by default."""
RATES = ("positive_rate", "tpr", "fpr")
DENOMINATORS = {"positive_rate": "rows", "tpr": "labels_1", "fpr": "labels_0"}
"""The denominator of each rate, by its name in tables of groups."""


def gaps_of(gaps: Mapping[str, float]) -> dict[str, float]:
    """The gaps of reports from the gaps of single rates, as far as these exist."""
    parity = {"dp_gap": gaps["positive_rate"]} if "positive_rate" in gaps else {}
    odds = [gaps[rate] for rate in ("tpr", "fpr") if rate in gaps]
    return parity | ({"eo_gap": max(odds)} if odds else {})
