"""An empirical lower bound on the epsilon of each kind of release of a run, beside the accountant's upper bound.

Two data sets differ in one record, the canary. All parties know who is in the data, so a release must hide what the
record is. Every kind that the run is charged for (`canaries.py`) is released many times from each data set, through
the real protocol. Each release is the only one of its own budget, since one release is audited. The adversary knows
all records and asks only which of the two data sets it sees: it takes the sum of what was opened along the direction
in which the canary moves it, the likelihood-ratio test for Gaussian noise. Noise is the dealer's copy alone.

`bounds.py` turns the samples into lower bounds. Bounds from a few hundred releases are far below the accounted
epsilon, so noise that is too small by a third may pass them. The audit therefore also recomputes the noise that was
drawn, as what was opened less the exact value, and tests its deviation against the charged one (`noise_tests.py`). A
kind that is charged but has no canary makes the audit fail.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from accounting.budget import Budget
from protocols.config import ConfigError, SessionConfig
from protocols.records.releases import Release, ReleasePlan
from protocols.session.runtime import Session
from secure_sccvfl.audit.bounds import CONFIDENCE, Audit, audit
from secure_sccvfl.audit.canaries import (
    Canary,
    CountsCanary,
    Groups,
    audited_as,
    canaries_of,
    charged_kinds,
    without_canary,
)
from secure_sccvfl.audit.constructed import WORLDS, Constructed, release_often, terms_of
from secure_sccvfl.audit.head_noise import HeadCanary
from secure_sccvfl.data.catalogue import is_benchmark
from secure_sccvfl.data.dataset import Dataset
from secure_sccvfl.data.features import Feature
from secure_sccvfl.data.layout import one_hot
from secure_sccvfl.data.party import AtHolder, Attribute, make_parties
from secure_sccvfl.data.party_data import PartyData
from secure_sccvfl.data.splits import Split
from secure_sccvfl.discovery.secure_statistics import SecureStatistics
from secure_sccvfl.releases.charging import Charger
from secure_sccvfl.releases.kinds import Facts
from secure_sccvfl.releases.record_tags import RecordKey
from secure_sccvfl.runs.jobs import Progress
from secure_sccvfl.training.modes.base import noise_multiplier_of
from secure_sccvfl.training.modes.options import RunOptions

RELEASES = 1000


class CanaryAudit:
    """Job "canary-audit": `releases` of each kind from each data set; other options as for a run.

    everything: audit every charged kind of the catalogue, not only what a run with these options releases.
    """

    def __init__(self, config: SessionConfig, rank: int) -> None:
        given = dict(config.options)
        self.releases = int(given.pop("releases", RELEASES))
        everything = bool(given.pop("everything", False))
        self.options = RunOptions.of(given)
        if not is_benchmark(
            self.options.data.dataset
        ):  # no ledger is asked: each release has its own budget in memory
            raise ConfigError(
                "the audit releases many sketches that no ledger counts: for public benchmark data only"
            )
        self.data: PartyData = self.options.load(rank, len(config.parties))
        self.multiplier = noise_multiplier_of(self.options, self.data.schema)
        kinds = charged_kinds() if everything else charged_kinds(self.options, self.data.schema)
        self.canaries = canaries_of(kinds, self.options, self.data.schema)
        self.missing = without_canary(kinds)

    def plan(self) -> ReleasePlan:
        schema = self.data.schema
        facts = Facts(schema.bins, schema.group_counts, refreshes=self.releases - 1)
        planned: list[Release] = []
        for canary in self.canaries:
            if isinstance(canary, CountsCanary):
                kinds = [audited_as(canary, world) for world in WORLDS]
                planned += [release for kind in kinds for release in kind.releases(facts)]
            elif not isinstance(canary, HeadCanary):
                planned += canary.plan(len(schema.parties), len(WORLDS) * self.releases)
        return ReleasePlan(planned)

    def run(self, session: Session, progress: Progress) -> dict[str, Any]:
        """Bounds are for `of_results`, which sees all parties' parts. A kind without a canary is not ok."""
        found = {canary.name: self._audited(session, canary, progress) for canary in self.canaries}
        return {"ok": not self.missing, "audited": found, "without canary": self.missing}

    def _audited(self, session: Session, canary: Canary, progress: Progress) -> dict[str, Any]:
        if isinstance(canary, CountsCanary):
            return self._of_records(session, canary, progress)
        if isinstance(canary, HeadCanary):
            return {}  # it trains in the clear, in `of_results`
        opened = {
            world: release_often(
                canary, session, self.options, self.multiplier, world, self.releases, report=progress
            )
            for world in WORLDS
        }
        last = opened[WORLDS[-1]]
        return {
            "values": {world: found.values.tolist() for world, found in opened.items()},
            "multiplier": last.multiplier,
            "sensitivity": last.sensitivity,
            "deviation": last.deviation,
            "delta": terms_of(canary, self.options)[1],
        }

    def _of_records(self, session: Session, canary: CountsCanary, progress: Progress) -> dict[str, Any]:
        """What this party sees of all releases of one kind: in each, a number for every group."""
        data, schema = self.data, self.data.schema
        sizes = _sizes(schema.features, schema.group_counts)
        rows = canary.records(data.split.train, sizes)
        columns = canary.columns(data.part(rows).parties, data.part(data.split.validation).parties)
        records = RecordKey.throw_away().tags(data.ids[rows])
        cells: dict[str, list[list[float]]] = {}
        for number, world in enumerate(WORLDS):
            charger = Charger(session, self._budget(), self.multiplier, world, records, "dealer")
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
        return {
            "cells": cells,
            "multiplier": charged.multiplier,
            "sensitivity": charged.sensitivity,
            "delta": self.options.privacy.delta,
        }

    @staticmethod
    def _codes(attribute: Attribute, rows: np.ndarray, world: str) -> AtHolder:
        """Groups of the records at their holder."""
        return None if attribute.codes is None else _in_world(attribute.codes[rows], len(attribute.groups), world)

    def _budget(self) -> Budget:
        return Budget.in_memory(self.options.privacy.epsilon, self.options.privacy.delta)


def _sizes(features: Sequence[Sequence[Feature]], counts: Sequence[int]) -> Groups:
    return Groups(tuple(f.bins for own in features for f in own), tuple(counts))


def of_results(
    results: Sequence[Mapping[str, Any]],
    data: Dataset,
    split: Split,
    canaries: Sequence[Canary],
    confidence: float = CONFIDENCE,
) -> dict[str, Audit]:
    """The audits of a session by name, by an adversary that knows all records and all parties' cells."""
    found = {}
    for canary in canaries:
        seen = [result["audited"][canary.name] for result in results]
        if isinstance(canary, CountsCanary):
            found[canary.name] = _judged(canary, seen, data, split, confidence)
        elif isinstance(canary, HeadCanary):
            found[canary.name] = canary.audit(confidence=confidence)
        else:
            found[canary.name] = judge_constructed(canary, seen, confidence)
    return found


def judge_constructed(
    canary: Constructed, seen: Sequence[Mapping[str, Any]], confidence: float = CONFIDENCE
) -> Audit:
    """The audit of one kind from all parties' results: the statistic is along the direction of the difference."""
    ranks, first = range(len(seen)), seen[0]
    exact = {world: np.concatenate([canary.exact(len(seen), rank, world) for rank in ranks]) for world in WORLDS}
    sums = {world: np.hstack([np.array(part["values"][world]) for part in seen]) for world in WORLDS}
    moved = exact["changed"] - exact["kept"]
    kept, other = ((sums[world] - exact["kept"]) @ moved / (moved @ moved) for world in WORLDS)
    reach = float(np.linalg.norm(moved)) / first["sensitivity"]
    noise = np.concatenate([sums[world] - exact[world] for world in WORLDS]) / first["deviation"]
    return audit(kept, other, first["multiplier"], first["delta"], confidence, reach, noise)


def _judged(
    canary: CountsCanary, seen: Sequence[Mapping[str, Any]], data: Dataset, split: Split, confidence: float
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
    return audit(kept, other, seen[0]["multiplier"], seen[0]["delta"], confidence, reach)


def _groups(data: Dataset, rows: np.ndarray, world: str) -> np.ndarray:
    """One-hot groups of all attributes side by side, in one of the two data sets."""
    counts = [len(attribute.groups) for attribute in data.protected]
    codes = [_in_world(a.codes[rows], count, world) for a, count in zip(data.protected, counts, strict=True)]
    return np.hstack([one_hot(own, count) for own, count in zip(codes, counts, strict=True)])


def _in_world(codes: np.ndarray, groups: int, world: str) -> np.ndarray:
    """Groups of the records in one of the two data sets; the first record is the canary."""
    if world == "kept":
        return codes
    return np.concatenate([[changed(codes[0], groups)], codes[1:]])


def changed(code: int, groups: int) -> int:
    """The canary's other group."""
    return (int(code) + 1) % groups
