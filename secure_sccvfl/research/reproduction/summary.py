"""Rows over seeds from the scores of single seeds: means with intervals, and differences paired by seed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from secure_sccvfl.audit.attacks.catalogue import ATTACKS
from secure_sccvfl.evaluation.summary import RATES, deviation, interval, reduction, signed

Row = dict[str, Any]
YARDSTICK = "drop_m"
"""The method that others are compared with by seed: dropping the mediators never flips a decision through them."""
COMPARED = ("acc", "auc")
PLAIN = "erm"
"""Plain training: flip rates are also reported as a share of its flip rate."""


class Key(NamedTuple):
    """What a row is about."""

    dataset: str
    split: str
    method: str
    judge: str | None
    metric: str


Values = Mapping[Key, Mapping[int, float]]
"""By row, the value of each seed."""


def short_name(dataset: str) -> str:
    """A data set without its path: `acs-income:dir/file.csv` is acs-income, `dir/loans.toml` is loans."""
    for mark in (":", "@"):
        if dataset.startswith("acs-") and mark in dataset:
            return dataset.split(mark)[0]
    return Path(dataset).stem


STATES = {"ca": "California", "co": "Colorado"}
TITLES = {
    "german": "German Credit",
    "heart": "UCI Heart (Cleveland), unique rows",
    "compas": "COMPAS persons, other partition than the paper's",
    "mobility": "CPS 1994-95, stand-in for ACSMobility",
}
"""Data sets that stand for those of the paper, and how they differ from them."""


def title_of(dataset: str) -> str:
    """A data set's name for a table: which records these are, where the paper has others."""
    task, mark, place = dataset.replace("@", ":").partition(":")
    if not mark or not task.startswith(("acs-income", "acs-mobility")):
        return TITLES.get(short_name(dataset), short_name(dataset))
    found = re.search(r"(?:^|[_-])([a-z]{2})-?(\d{4})", Path(place).name.lower())
    where = f"{STATES.get(found[1], found[1].upper())} {found[2]}" if found else "records of a file"
    told = "" if where == "California 2018" else " (the paper: California 2018)"
    name = {"acs-income": "ACS Income", "acs-income-sex": "ACS Income, by sex"}.get(task, "ACS Mobility")
    return f"{name}, {where}{told}"


def summarise(finished: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Rows over seeds, and differences paired by seed. `aia_logits`, `aia_z`: the attacker strongest on average."""
    values: dict[Key, dict[int, float]] = defaultdict(dict)
    for result in finished:
        job = result["job"]
        for s in result["scores"]:
            if s["value"] is not None and np.isfinite(s["value"]):
                key = Key(short_name(job["dataset"]), job["split"], s["method"], s["judge"], s["metric"])
                values[key][job["seed"]] = s["value"]
    rows = []
    for key, seeds in values.items():
        found = np.array(list(seeds.values()))
        rows.append(_row(key, interval(found, key.metric.startswith(RATES)), len(found), deviation(found)))
    return [*rows, *_strongest(rows), *_differences(values), *_cuts(values)]


def _row(key: Key, found: tuple[float, float, float], seeds: int, sd: float | None) -> Row:
    """sd: standard deviation over seeds, of what has one value for each of them."""
    figures = dict(zip(("mean", "low", "high"), found, strict=True))
    return {**key._asdict(), **figures, "sd": sd, "seeds": seeds}


def _strongest(rows: Iterable[Row]) -> list[Row]:
    best: dict[tuple[str, str, str, str], Row] = {}
    views = [name for _, attack in ATTACKS.items() if attack.takes == "view" for name in attack.columns]
    for row in rows:
        for view in views:
            if row["metric"].startswith(view + "_"):
                where = (row["dataset"], row["split"], row["method"], view)
                if where not in best or row["mean"] > best[where]["mean"]:
                    best[where] = {**row, "metric": view, "attacker": row["metric"].removeprefix(view + "_")}
    return list(best.values())


def _pairs(key: Key, values: Values, other: str) -> tuple[np.ndarray, np.ndarray]:
    """Values of a row and of another method's, for the seeds that both have."""
    own, reference = values[key], values.get(key._replace(method=other), {})
    seeds = sorted(set(own) & set(reference))
    return np.array([own[s] for s in seeds]), np.array([reference[s] for s in seeds])


def _differences(values: Values) -> list[Row]:
    """How far each method is above dropping the mediators, paired by seed. Signed, so not cut at 0."""
    rows = []
    for key in values:
        if key.metric in COMPARED and key.judge is None and key.method != YARDSTICK:
            own, reference = _pairs(key, values, YARDSTICK)
            if len(own):
                apart = own - reference
                row = key._replace(metric=f"{key.metric}_vs_{YARDSTICK}")
                rows.append(_row(row, signed(apart), len(own), deviation(apart)))
    return rows


def _cuts(values: Values) -> list[Row]:
    """By which share flip rates are below those of plain training."""
    rows = []
    for key in values:
        if key.metric == "fr" and key.method != PLAIN:
            own, plain = _pairs(key, values, PLAIN)
            if len(own) and plain.mean() > 0:
                mean, low, high = reduction(own, plain)
                rows.append(_row(key._replace(metric="fr_cut"), (mean, low, min(high, 1.0)), len(own), None))
    return rows
