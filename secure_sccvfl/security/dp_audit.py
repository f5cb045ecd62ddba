"""An empirical lower bound on the epsilon of a sketch, beside the accountant's upper bound.

Two data sets: the training records of a run, without and with a canary record, once in every group of s. No two
canaries share a cell of a table, so each is a test of its own between neighbouring data sets. The sketch is
released many times from each, through the real protocol; each release is the only one of a budget of its own,
since it is one release that is audited. The adversary knows all records and asks only whether the canary is in:
it adds up the cells that the canary would fall into, which is the likelihood-ratio test for Gaussian noise and
moves by the whole sensitivity. Noise is the dealer's copy alone, the one that is charged.

The threshold is the one that would serve best if the claim were true, so it does not depend on the samples; they
give Clopper-Pearson bounds on its false and true positives, which hold together with 95 % confidence. From them:
`epsilon_low`, the epsilon at delta of the weakest Gaussian mechanism they allow (it uses that the noise is
Gaussian, so few releases suffice), and `epsilon_low_any`, ln((tpr - delta) / fpr), for any mechanism whatever.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from scipy import optimize, stats

from accounting.accountant import Epsilons, epsilons
from accounting.budget import Budget
from accounting.calibration import noise_multiplier
from accounting.events import Event, Sensitivity
from protocols.config import ConfigError, SessionConfig
from protocols.releases import ReleasePlan
from protocols.runtime import Session
from secure_sccvfl.charging import Charger
from secure_sccvfl.data import Dataset
from secure_sccvfl.engine import Held
from secure_sccvfl.jobs import Progress
from secure_sccvfl.parties import make_parties
from secure_sccvfl.party_data import PartyData
from secure_sccvfl.record_tags import RecordKey
from secure_sccvfl.run_options import RunOptions
from secure_sccvfl.secure_statistics import SecureStatistics
from secure_sccvfl.splits import Split

RELEASES = 1000
WORLDS = ("without", "with")
CONFIDENCE = 0.95
Counts = tuple[int, int, int, int]
"""False positives, true positives, and out of how many each."""
Bound = Callable[..., float]


class CanaryAudit:
    """Job "canary-audit": `releases` sketches of each data set; other options as for a run."""

    def __init__(self, config: SessionConfig, rank: int) -> None:
        given = dict(config.options)
        self.releases = int(given.pop("releases", RELEASES))
        self.options = RunOptions.of(given)
        if not self.options.pooled:  # no ledger is asked: each release is the only one of a budget in memory
            raise ConfigError(
                "the audit releases many sketches that no ledger counts: for public benchmark data only"
            )
        self.data: PartyData = self.options.load(rank, len(config.parties))
        self.names = [f"{world}-{k}" for world in WORLDS for k in range(self.releases)]

    def plan(self) -> ReleasePlan:
        scheme = self.data.scheme
        return ReleasePlan(SecureStatistics.releases(scheme.bins, scheme.group_counts, tables=self.names))

    def run(self, session: Session, progress: Progress) -> dict[str, Any]:
        data, scheme, options = self.data, self.data.scheme, self.options
        canary, groups = data.split.validation[:1], scheme.group_counts[0]
        own = data.party.take(canary).bins()
        features = sum(len(f) for f in scheme.features)
        sensitivity = math.sqrt(features * len(scheme.group_counts))
        multiplier = noise_multiplier(options.epsilon, options.delta, options.charged)
        cells: dict[str, list[list[float]]] = {}
        for number, world in enumerate(WORLDS):
            rows = np.concatenate([data.split.train, *([canary] * (groups if world == "with" else 0))])
            records = RecordKey.throw_away().tags(data.ids[rows])
            charger = Charger(session, self._budget(), multiplier, world, records, "dealer")
            statistics = SecureStatistics(session, scheme.bins, scheme.group_holders, len(rows), charger)
            columns, made = data.party.take(rows).bins(), []
            codes = [self._codes(a.codes, rows, groups) for a in data.protected]
            for k in range(self.releases):
                if k % 100 == 0:
                    progress(f"sketches {world} the canary", number * self.releases + k, 2 * self.releases)
                charger.budget = self._budget()
                tables = statistics.group_sums(columns, codes, scheme.group_counts, f"{world}-{k}", sensitivity)[0]
                made.append(sum(tables[name].T @ own[name][0] for name in own).tolist())
            cells[world] = made
        return {
            "ok": True,
            "cells": cells,
            "multiplier": charger.event("audited", Sensitivity.of_counts(sensitivity)).multiplier_added,
            "sensitivity": sensitivity,
            "delta": options.delta,
        }

    def _codes(self, codes: Held, rows: np.ndarray, groups: int) -> Held:
        """Groups of the records; canaries at the end have one each."""
        if codes is None:
            return None
        known = codes[rows]
        if len(rows) > len(self.data.split.train):
            known[-groups:] = np.arange(groups) % (codes.max() + 1)
        return known

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


def audit(without: np.ndarray, with_canary: np.ndarray, multiplier: float, delta: float) -> Audit:
    """Bounds from one statistic per sample: the canary's cells minus what the other records put there, over what
    the canary would add; so around 0 without it and around 1 with it."""
    claimed, sizes = _claimed(multiplier, delta), (len(without), len(with_canary))

    def counts(bound: Bound) -> Counts:
        place = _best_place(bound, multiplier, sizes)
        return int((without > place).sum()), int((with_canary > place).sum()), *sizes

    middle = counts(_mu_low)
    mu = max(0.0, _mu_low(*middle))
    tail = partial(_any_low, delta)
    return Audit(
        samples=sum(sizes),
        delta=delta,
        epsilon_low=epsilon_of_mu(mu, delta),
        epsilon_low_any=max(0.0, *(_any_low(delta, *c) for c in (middle, counts(tail)))),
        epsilon_high=claimed.renyi,
        epsilon_high_tight=claimed.pld,
        mu_low=mu,
        mu_claimed=1 / multiplier,
        false_positives=middle[0] / sizes[0],
        true_positives=middle[1] / sizes[1],
        confidence=CONFIDENCE,
    )


@lru_cache(maxsize=16)
def _claimed(multiplier: float, delta: float) -> Epsilons:
    return epsilons([Event("audited", 1.0, multiplier, "audit")], delta)


def _best_place(bound: Bound, multiplier: float, sizes: tuple[int, int]) -> float:
    """The threshold that would give the best bound if the claim were true."""
    places = np.linspace(-2 * multiplier, 1 + 2 * multiplier, 41)
    chances = stats.norm.sf(np.stack([places, places - 1], axis=1) / multiplier)
    promised = [bound(*np.rint(pair * sizes).astype(int), *sizes) for pair in chances]
    return float(places[int(np.argmax(promised))])


def of_results(results: list[dict[str, Any]], data: Dataset, split: Split) -> Audit:
    """The audit of a session by an adversary that knows all records: all parties' cells together."""
    canary = split.validation[:1]
    bins = {name: block for party in make_parties(data) for name, block in party.bins().items()}
    codes, groups = data.protected[0].codes[split.train], len(data.protected[0].groups)
    alike = np.sum([block[split.train] @ block[canary[0]] for block in bins.values()], axis=0)
    others = np.array([alike[codes == g].sum() for g in range(groups)])
    sums = {w: np.sum([np.array(r["cells"][w]) for r in results], axis=0) for w in WORLDS}
    without, with_canary = (((sums[w] - others) / len(bins)).reshape(-1) for w in WORLDS)
    return audit(without, with_canary, results[0]["multiplier"], results[0]["delta"])


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


def _rates(false: int, true: int, total: int, other: int, error: float) -> tuple[float, float]:
    """The largest false and the smallest true positive rate, each at half of the error."""
    half = error / 2
    high = 1.0 if false == total else float(stats.beta.ppf(1 - half, false + 1, total - false))
    low = 0.0 if true == 0 else float(stats.beta.ppf(half, true, other - true + 1))
    return high, low


def _mu_low(false: int, true: int, total: int, other: int) -> float:
    high, low = _rates(false, true, total, other, 1 - CONFIDENCE)
    return float(stats.norm.ppf(low) - stats.norm.ppf(high)) if low > 0 and high < 1 else -math.inf


def _any_low(delta: float, false: int, true: int, total: int, other: int) -> float:
    high, low = _rates(false, true, total, other, (1 - CONFIDENCE) / 2)  # it is asked at two thresholds
    return math.log((low - delta) / high) if low > delta else -math.inf
