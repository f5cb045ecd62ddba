"""An empirical lower bound on the epsilon of a sketch, beside the accountant's upper bound.

Two data sets differ in s of one training record, the canary. All parties know who is in the data, so a release must
hide the record's s. The sketch is released many times from each data set, through the real protocol. Each release
is the only one of its own budget, since one release is audited. The adversary knows all records and asks only which
of two groups the canary is in. In every table it subtracts the cell of one group from the cell of the other and
adds these up, which is the likelihood-ratio test for Gaussian noise. A changed s moves two cells of each table,
sqrt(2) times what adding the record would. Noise is the dealer's copy alone.

Counts at a threshold give Clopper-Pearson bounds on false and true positives. There are two thresholds. The first
lies half-way between the two means, where the sum of both errors is least. It gives `epsilon_low`: the epsilon at
delta of the weakest Gaussian mechanism that the counts allow (it uses that the noise is Gaussian, so few releases
suffice). A mechanism without noise is told apart there too, whatever the number of releases. The second lies
further out, where it would serve best if the claim were true. Both thresholds give `epsilon_low_any`, ln((tpr -
delta) / fpr), for any mechanism. No threshold depends on the samples, and each has half of the error: all bounds
hold together with the stated confidence.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import optimize, stats

from accounting.accountant import Epsilons, epsilons
from accounting.budget import Budget
from accounting.events import Event
from protocols.config import ConfigError, SessionConfig
from protocols.records.releases import ReleasePlan
from protocols.session.runtime import Session
from secure_sccvfl.data.catalogue import is_benchmark
from secure_sccvfl.data.dataset import Dataset
from secure_sccvfl.data.layout import one_hot
from secure_sccvfl.data.party import AtHolder, make_parties
from secure_sccvfl.data.party_data import PartyAttribute, PartyData
from secure_sccvfl.data.splits import Split
from secure_sccvfl.discovery.secure_statistics import SecureStatistics
from secure_sccvfl.modes.base import noise_multiplier_of
from secure_sccvfl.modes.options import RunOptions
from secure_sccvfl.privacy.charging import Charger
from secure_sccvfl.privacy.kinds import Facts, Kind
from secure_sccvfl.privacy.record_tags import RecordKey
from secure_sccvfl.privacy.releases import SKETCH
from secure_sccvfl.run.jobs import Progress

RELEASES = 1000
WORLDS = ("kept", "changed")
CONFIDENCE = 0.95
MIDDLE = 0.5
Rate = np.ndarray | float


def _sketch_of(world: str) -> Kind:
    """The sketch under its own name for each world."""
    return replace(SKETCH, title=f"{world}-K for party P", charge=f"{world}-K")


class CanaryAudit:
    """Job "canary-audit": `releases` sketches of each data set; other options as for a run."""

    def __init__(self, config: SessionConfig, rank: int) -> None:
        given = dict(config.options)
        self.releases = int(given.pop("releases", RELEASES))
        self.options = RunOptions.of(given)
        if not is_benchmark(self.options.dataset):  # no ledger is asked: each release has its own budget in memory
            raise ConfigError(
                "the audit releases many sketches that no ledger counts: for public benchmark data only"
            )
        self.data: PartyData = self.options.load(rank, len(config.parties))

    def plan(self) -> ReleasePlan:
        schema = self.data.schema
        facts = Facts(schema.bins, schema.group_counts, refreshes=self.releases - 1)
        return ReleasePlan(release for world in WORLDS for release in _sketch_of(world).releases(facts))

    def run(self, session: Session, progress: Progress) -> dict[str, Any]:
        data, schema, options = self.data, self.data.schema, self.options
        rows = data.split.train
        own, columns = data.party.take(rows[:1]).bins(), data.party.take(rows).bins()
        features = sum(len(f) for f in schema.features)
        sensitivity = math.sqrt(features * len(schema.group_counts))
        multiplier = noise_multiplier_of(options)
        records = RecordKey.throw_away().tags(data.ids[rows])
        cells: dict[str, list[list[float]]] = {}
        for number, world in enumerate(WORLDS):
            charger = Charger(session, self._budget(), multiplier, world, records, "dealer")
            statistics = SecureStatistics(session, schema.bins, schema.group_holders, len(rows), charger)
            codes, made = [self._codes(a, rows, world) for a in data.protected], []
            for k in range(self.releases):
                if k % 100 == 0:
                    progress(f"sketches, the canary's s {world}", number * self.releases + k, 2 * self.releases)
                charger.budget = self._budget()
                parts = statistics.group_sums(
                    columns, codes, schema.group_counts, _sketch_of(world).charged_as(k), sensitivity
                )
                seen = [sum(part[name].T @ own[name][0] for name in own) for part in parts]
                made.append(np.concatenate(seen).tolist())
            cells[world] = made
        (charged,) = charger.budget.events
        return {"ok": True, "cells": cells, "multiplier": charged.multiplier, "delta": options.delta}

    @staticmethod
    def _codes(attribute: PartyAttribute, rows: np.ndarray, world: str) -> AtHolder:
        """Groups of the records at their holder; the first record is the canary."""
        if attribute.codes is None:
            return None
        codes = attribute.codes[rows]
        if world == "changed":
            codes[0] = changed(codes[0], len(attribute.groups))
        return codes

    def _budget(self) -> Budget:
        return Budget.in_memory(self.options.epsilon, self.options.delta)


@dataclass(frozen=True)
class Audit:
    """Both bounds on the epsilon of one release at delta; `holds` says that they do not contradict each other."""

    samples: int
    delta: float
    epsilon_low: float
    epsilon_low_any: float
    epsilon_high: float
    epsilon_high_tight: float
    mu_low: float
    mu_claimed: float
    false_positives: float
    true_positives: float
    confidence: float

    @property
    def holds(self) -> bool:
        return max(self.epsilon_low, self.epsilon_low_any) <= self.epsilon_high

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


@dataclass(frozen=True)
class Skipped:
    """No audit was made, and why."""

    reason: str

    def as_dict(self) -> dict[str, Any]:
        return {"skipped": self.reason}


def audit(
    kept: np.ndarray, changed: np.ndarray, multiplier: float, delta: float, confidence: float = CONFIDENCE
) -> Audit:
    """Bounds from one statistic per sample: around 0 if s of the canary was kept, around 1 if it was changed.

    multiplier: its deviation, as claimed.
    """
    claimed, sizes = _claimed(multiplier, delta), (len(kept), len(changed))
    error = (1 - confidence) / 2

    def rates(place: float) -> tuple[Rate, Rate]:
        return _rates((kept > place).sum(), (changed > place).sum(), *sizes, error)

    middle = rates(MIDDLE)
    mu = max(0.0, float(_mu_low(*middle)))
    far = rates(_far_place(multiplier, delta, sizes, error))
    return Audit(
        samples=sum(sizes),
        delta=delta,
        epsilon_low=epsilon_of_mu(mu, delta),
        epsilon_low_any=max(0.0, *(float(_any_low(*found, delta)) for found in (middle, far))),
        epsilon_high=claimed.renyi,
        epsilon_high_tight=claimed.pld,
        mu_low=mu,
        mu_claimed=1 / multiplier,
        false_positives=float((kept > MIDDLE).mean()),
        true_positives=float((changed > MIDDLE).mean()),
        confidence=confidence,
    )


@lru_cache(maxsize=16)
def _claimed(multiplier: float, delta: float) -> Epsilons:
    return epsilons([Event("audited", 1.0, multiplier, "audit")], delta)


def _far_place(multiplier: float, delta: float, sizes: tuple[int, int], error: float) -> float:
    """The threshold, from the middle on, that would give the best bound for any mechanism if the claim were true."""
    places = np.linspace(MIDDLE, 1 + 2 * multiplier, 41)
    false, true = stats.norm.sf(places / multiplier), stats.norm.sf((places - 1) / multiplier)
    promised = _any_low(*_rates(false * sizes[0], true * sizes[1], *sizes, error), delta)
    return float(places[int(np.argmax(promised))])


def of_results(results: list[dict[str, Any]], data: Dataset, split: Split, confidence: float = CONFIDENCE) -> Audit:
    """The audit of a session, by an adversary that knows all records and all parties' cells."""
    bins = {name: block for party in make_parties(data) for name, block in party.bins().items()}
    alike = np.sum([block[split.train] @ block[split.train[0]] for block in bins.values()], axis=0)
    signs, known = [], []
    for attribute in data.protected:
        codes, groups = attribute.codes[split.train], len(attribute.groups)
        signs.append(one_hot(np.array([changed(codes[0], groups)]), groups)[0] - one_hot(codes[:1], groups)[0])
        known.append(np.bincount(codes, alike, groups))
    sign, moved = np.concatenate(signs), 2 * len(bins) * len(signs)
    sums = {w: np.sum([np.array(r["cells"][w]) for r in results], axis=0) for w in WORLDS}
    kept, other = ((sums[w] - np.concatenate(known)) @ sign / moved for w in WORLDS)
    return audit(kept, other, results[0]["multiplier"], results[0]["delta"], confidence)


def changed(code: int, groups: int) -> int:
    """The canary's other group."""
    return (int(code) + 1) % groups


def epsilon_of_mu(mu: float, delta: float) -> float:
    """The epsilon at delta of a Gaussian mechanism whose means are mu deviations apart."""
    if mu <= 0:
        return 0.0

    def rest(epsilon: float) -> float:
        left = stats.norm.logcdf(-epsilon / mu + mu / 2)
        right = epsilon + stats.norm.logcdf(-epsilon / mu - mu / 2)
        return float(math.exp(left) - math.exp(right) - delta)

    if rest(0.0) <= 0:
        return 0.0
    return float(optimize.brentq(rest, 0.0, mu * mu + 20 * mu + 1))


def _rates(false: Rate, true: Rate, total: int, other: int, error: float) -> tuple[Rate, Rate]:
    """The largest false and the smallest true positive rate, each at half of the error."""
    half, tiny = error / 2, 1e-9
    high = np.where(false < total, stats.beta.ppf(1 - half, false + 1, np.maximum(total - false, tiny)), 1.0)
    low = np.where(true > 0, stats.beta.ppf(half, np.maximum(true, tiny), other - true + 1), 0.0)
    return high, low


def _mu_low(high: Rate, low: Rate) -> Rate:
    return np.asarray(stats.norm.ppf(low) - stats.norm.ppf(high))


def _any_low(high: Rate, low: Rate, delta: float) -> Rate:
    return np.where(low > delta, np.log(np.maximum(low - delta, 1e-300) / high), -np.inf)
