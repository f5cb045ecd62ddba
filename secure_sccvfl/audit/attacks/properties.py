"""Property inference on released tables: how many training records belong to a group, or have a value within it.

The adversary holds all noisy tables of a run and knows two training sets that may have been used: they differ in the
group of k records. `share` uses the sizes of the groups alone, which every table reveals. `cells` knows which records
these are, and weighs exactly the cells that they move: the strongest test. The chance is 1/2. What differential
privacy allows is Phi(k mu / 2), where mu is the accounted ratio of a record's movement to the noise of all tables
together (group privacy of a Gaussian release).

The noise is that of the run: released tables minus exact ones, which only the evaluation has. The interval is of its
deviation, from the number of cells.

The positive control is a release without noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import chi2, norm

from secure_sccvfl.audit.attacks.view import Rate

MOVED = (1, 2, 4)
LEVEL = 0.001
"""Error of the interval of the noise's deviation: both sides together."""


@dataclass(frozen=True)
class Tables:
    """Exact and released tables (bins x groups) by feature, and the accounted mu of all of them for one record."""

    holder: str
    exact: Mapping[str, np.ndarray]
    released: Mapping[str, np.ndarray]
    mu: float

    @property
    def noise(self) -> np.ndarray:
        return np.concatenate([(self.released[k] - t).ravel() for k, t in self.exact.items()])


def allowed(mu: float, moved: int) -> float:
    """At most so often can two sets be told apart that differ in `moved` records, by a release with this mu."""
    return float(norm.cdf(moved * mu / 2))


def allowed_rate(view: Tables, rate: Rate) -> float:
    """The bound of a rate of `property_inference`."""
    return allowed(view.mu, next(k for k in MOVED if rate.attack.endswith(f" of {k}")))


def separation(view: Tables, attack: str) -> float:
    """By how many deviations of 1 the statistic of an attack moves for one record, before noise."""
    if attack == "cells":
        return math.sqrt(2 * len(view.exact))
    # group sizes: of each table the sum over its bins, weighted by the bins' number as their noise demands
    return math.sqrt(sum(2 / len(table) for table in view.exact.values()))


def property_inference(view: Tables, seed: int) -> list[Rate]:
    """For each number of records: by group sizes, then by the cells that these records move. The strongest is last.

    Nothing is random, so the seed has no effect.
    """
    noise = view.noise
    square, cells = float((noise**2).sum()), noise.size
    deviations = [math.sqrt(square / d) for d in (cells, *(chi2.ppf(p, cells) for p in (LEVEL / 2, 1 - LEVEL / 2)))]
    made = []
    for attack in ("share", "cells"):
        for moved in MOVED:
            apart = moved * separation(view, attack)
            rate, low, high = (_told_apart(apart, deviation) for deviation in deviations)
            made.append(Rate(f"{attack} of {moved}", view.holder, rate, low, high, 0.5))
    return made


def _told_apart(apart: float, deviation: float) -> float:
    """How often two Gaussians of this deviation are distinguished by the best threshold."""
    if deviation == 0:
        return 1.0 if apart > 0 else 0.5
    return float(norm.cdf(apart / (2 * deviation)))


def exact_tables(view: Tables, seed: int) -> list[Rate]:
    """Positive control: the tables without noise."""
    return property_inference(replace(view, released=view.exact), seed)
