"""An empirical lower bound on the epsilon of each kind of release of a run, beside the accountant's upper bound.

Two data sets differ in s of one training record, the canary. All parties know who is in the data, so a release must
hide the record's s. What the run releases (`canaries.py`: its sketch, risk gains if it has them) is released many
times from each data set, through the real protocol. Each release is the only one of its own budget, since one
release is audited. The adversary knows all records and asks only which of two groups the canary is in. In every
table it weighs cells as the canary's row would fill them, subtracts those of one group from those of the other and
adds these up: for sums, the likelihood-ratio test for Gaussian noise. Noise is the dealer's copy alone.

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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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
from secure_sccvfl.data.features import Feature
from secure_sccvfl.data.party import AtHolder, make_parties
from secure_sccvfl.data.party_data import PartyAttribute, PartyData
from secure_sccvfl.data.splits import Split
from secure_sccvfl.discovery.inputs import indicators
from secure_sccvfl.discovery.secure_statistics import SecureStatistics
from secure_sccvfl.modes.base import noise_multiplier_of
from secure_sccvfl.modes.options import RunOptions
from secure_sccvfl.privacy.charging import Charger
from secure_sccvfl.privacy.kinds import Facts
from secure_sccvfl.privacy.record_tags import RecordKey
from secure_sccvfl.run.jobs import Progress
from secure_sccvfl.security.canaries import Canary, Groups, audited_as, canaries_of

RELEASES = 1000
WORLDS = ("kept", "changed")
CONFIDENCE = 0.95
MIDDLE = 0.5
Rate = np.ndarray | float


class CanaryAudit:
    """Job "canary-audit": `releases` of each kind from each data set; other options as for a run."""

    def __init__(self, config: SessionConfig, rank: int) -> None:
        given = dict(config.options)
        self.releases = int(given.pop("releases", RELEASES))
        self.options = RunOptions.of(given)
        if not is_benchmark(self.options.dataset):  # no ledger is asked: each release has its own budget in memory
            raise ConfigError(
                "the audit releases many sketches that no ledger counts: for public benchmark data only"
            )
        self.data: PartyData = self.options.load(rank, len(config.parties))
        self.canaries = canaries_of(self.options)

    def plan(self) -> ReleasePlan:
        schema = self.data.schema
        facts = Facts(schema.bins, schema.group_counts, refreshes=self.releases - 1)
        kinds = [audited_as(canary, world) for canary in self.canaries for world in WORLDS]
        return ReleasePlan(release for kind in kinds for release in kind.releases(facts))

    def run(self, session: Session, progress: Progress) -> dict[str, Any]:
        found = {canary.name: self._audited(session, canary, progress) for canary in self.canaries}
        return {"ok": True, "audited": found, "delta": self.options.delta}

    def _audited(self, session: Session, canary: Canary, progress: Progress) -> dict[str, Any]:
        """What this party sees of all releases of one kind: in each, a number for every group."""
        data, schema = self.data, self.data.schema
        sizes = _sizes(schema.features, schema.group_counts)
        rows = canary.records(data.split.train, sizes)
        columns = canary.columns(data.part(rows).parties, data.part(data.split.validation).parties)
        records = RecordKey.throw_away().tags(data.ids[rows])
        multiplier = noise_multiplier_of(self.options)
        cells: dict[str, list[list[float]]] = {}
        for number, world in enumerate(WORLDS):
            charger = Charger(session, self._budget(), multiplier, world, records, "dealer")
            statistics = SecureStatistics(session, schema.bins, schema.group_holders, len(rows), charger)
            codes, made = [self._codes(a, rows, world) for a in data.protected], []
            for k in range(self.releases):
                if k % 100 == 0:
                    title = f"{canary.name}, the canary's s {world}"
                    progress(title, number * self.releases + k, 2 * self.releases)
                charger.budget = self._budget()
                name = audited_as(canary, world).charged_as(k)
                parts = canary.released(statistics, columns, codes, sizes, name)
                seen = [sum(part[name].T @ columns[name][0] for name in columns) for part in parts]
                made.append(np.concatenate(seen).tolist())
            cells[world] = made
        (charged,) = charger.budget.events
        return {"cells": cells, "multiplier": charged.multiplier, "sensitivity": charged.sensitivity}

    @staticmethod
    def _codes(attribute: PartyAttribute, rows: np.ndarray, world: str) -> AtHolder:
        """Groups of the records at their holder."""
        return None if attribute.codes is None else _in_world(attribute.codes[rows], len(attribute.groups), world)

    def _budget(self) -> Budget:
        return Budget.in_memory(self.options.epsilon, self.options.delta)


def _sizes(features: Sequence[Sequence[Feature]], counts: Sequence[int]) -> Groups:
    return Groups(tuple(f.bins for own in features for f in own), tuple(counts))


@dataclass(frozen=True)
class Audit:
    """Both bounds on the epsilon of one release at delta; `holds` says that they do not contradict each other.

    reach: how much of the charged movement the canary made. `mu_claimed` is for all of it.
    """

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
    reach: float = 1.0

    @property
    def holds(self) -> bool:
        return max(self.epsilon_low, self.epsilon_low_any) <= self.epsilon_high

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


def audit(
    kept: np.ndarray,
    changed: np.ndarray,
    multiplier: float,
    delta: float,
    confidence: float = CONFIDENCE,
    reach: float = 1.0,
) -> Audit:
    """Bounds from one statistic per sample: around 0 if s of the canary was kept, around 1 if it was changed.

    multiplier: as claimed. The deviation of the statistic is that over `reach`.
    """
    claimed, sizes = _claimed(multiplier, delta), (len(kept), len(changed))
    error = (1 - confidence) / 2

    def rates(place: float) -> tuple[Rate, Rate]:
        return _rates((kept > place).sum(), (changed > place).sum(), *sizes, error)

    middle = rates(MIDDLE)
    mu = max(0.0, float(_mu_low(*middle)))
    far = rates(_far_place(multiplier / reach, delta, sizes, error))
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
        reach=reach,
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


def of_results(
    results: Sequence[Mapping[str, Any]],
    data: Dataset,
    split: Split,
    canaries: Sequence[Canary],
    confidence: float = CONFIDENCE,
) -> dict[str, Audit]:
    """The audits of a session by name, by an adversary that knows all records and all parties' cells."""
    delta = results[0]["delta"]
    seen = {canary: [r["audited"][canary.name] for r in results] for canary in canaries}
    return {c.name: _judged(c, parts, data, split, delta, confidence) for c, parts in seen.items()}


def _judged(
    canary: Canary,
    seen: Sequence[Mapping[str, Any]],
    data: Dataset,
    split: Split,
    delta: float,
    confidence: float,
) -> Audit:
    rows = canary.records(split.train, _sizes([data.features], [len(a.groups) for a in data.protected]))
    parties = make_parties(data)
    blocks = canary.columns([p.take(rows) for p in parties], [p.take(split.validation) for p in parties])
    groups = {world: _groups(data, rows, world) for world in WORLDS}
    exact = {
        world: np.sum([canary.exact(block.T @ chosen).T @ block[0] for block in blocks.values()], axis=0)
        for world, chosen in groups.items()
    }
    sign = groups["changed"][0] - groups["kept"][0]
    moved = float((exact["changed"] - exact["kept"]) @ sign)
    sums = {world: np.sum([np.array(part["cells"][world]) for part in seen], axis=0) for world in WORLDS}
    kept, other = ((sums[world] - exact["kept"]) @ sign / moved for world in WORLDS)
    weight = math.sqrt(sum(float(block[0] @ block[0]) for block in blocks.values()) * float(sign @ sign))
    reach = moved / weight / seen[0]["sensitivity"]
    return audit(kept, other, seen[0]["multiplier"], delta, confidence, reach)


def _groups(data: Dataset, rows: np.ndarray, world: str) -> np.ndarray:
    """One-hot groups of all attributes side by side, in one of the two data sets."""
    counts = [len(attribute.groups) for attribute in data.protected]
    codes = [_in_world(a.codes[rows], count, world) for a, count in zip(data.protected, counts, strict=True)]
    return indicators(codes, counts, slice(None)).astype(float)


def _in_world(codes: np.ndarray, groups: int, world: str) -> np.ndarray:
    """Groups of the records in one of the two data sets; the first record is the canary."""
    if world == "kept":
        return codes
    return np.concatenate([[changed(codes[0], groups)], codes[1:]])


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
