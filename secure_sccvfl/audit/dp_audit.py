"""An empirical lower bound on the epsilon of each kind of release of a run, next to the accountant's upper bound.

Two data sets differ in one record, the canary. All parties know who is in the data, so a release must hide what the
record is. Every kind that the run is charged for (`canaries.py`) is released many times from each data set, through
the real protocol. Each release is the only one of its own budget, since one release is audited. The adversary knows
all records and decides only which of the two data sets it sees: it takes the sum of what was opened along the
direction in which the canary moves it, the likelihood-ratio test for Gaussian noise. Noise is the dealer's alone.

`bounds.py` turns the samples into lower bounds. Bounds from a few hundred releases are far below the accounted
epsilon, so noise that is too small by a third may pass them. The audit therefore also recomputes the noise that was
drawn, as what was opened minus the exact value, and tests its deviation against the charged one (`noise_tests.py`).
All records are constructed, so no record of a user is involved and no ledger is charged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from accounting.budget import Budget
from accounting.records import RecordSet
from protocols.config import SessionConfig
from protocols.operations import noise
from protocols.operations.noise import NoiseKind
from protocols.records.releases import ReleasePlan
from protocols.session.runtime import Session
from secure_sccvfl.audit.bounds import CONFIDENCE, Audit, audit
from secure_sccvfl.audit.canaries import CHANGED, KEPT, WORLDS, Canary, HeadCanary, canaries_of, charged_kinds
from secure_sccvfl.releases.charging import Charger
from secure_sccvfl.runs.jobs import Progress
from secure_sccvfl.training.modes.base import noise_multiplier_of
from secure_sccvfl.training.modes.options import RunOptions

RELEASES = 1000


@dataclass(frozen=True)
class Opened:
    """What one party saw of many releases, and the noise that was charged for.

    values: releases x numbers, empty for parties that see only what the first sees. deviation: of all noise
    contributions to a number together.
    """

    values: np.ndarray
    multiplier: float
    sensitivity: float
    deviation: float


def release_often(
    canary: Canary,
    session: Session,
    options: RunOptions,
    planned: float,
    world: str,
    times: int,
    kind: NoiseKind = "dealer",
    report: Callable[[str, int, int], None] = lambda *step: None,
) -> Opened:
    """Run by all parties together: releases of one data set, each with a budget of its own in memory.

    planned: the noise multiplier that a run with these options plans for its statistics.
    """
    records = RecordSet(np.arange(canary.rows, dtype=np.uint64))
    multiplier, values = canary.multiplier_of(options, planned), []
    for number in range(times):
        if number % 100 == 0:
            report(f"{canary.name}, the canary {world}", number, times)
        budget = Budget.in_memory(*canary.terms(options))
        charger = Charger(session, budget, multiplier, f"{canary.name} {world} {number}", records, kind)
        values.append(canary.release(session, charger, world))
    (event,) = budget.events
    deviation = noise.deviation(kind, event.sigma, session.parties, canary.holders)
    return Opened(np.array(values), event.multiplier, event.sensitivity, deviation)


class CanaryAudit:
    """Job "canary-audit": `releases` of each kind from each data set; other options as for a run.

    everything: audit every charged kind of the catalogue, not only what a run with these options releases.
    """

    def __init__(self, config: SessionConfig, rank: int) -> None:
        settings = dict(config.options)
        self.releases = int(settings.pop("releases", RELEASES))
        everything = bool(settings.pop("everything", False))
        self.options = RunOptions.of(settings)
        self.parties = len(config.parties)
        schema = self.options.schema(self.parties)
        self.multiplier = noise_multiplier_of(self.options, schema)
        kinds = charged_kinds() if everything else charged_kinds(self.options, schema)
        found = canaries_of(kinds, self.options, schema)
        self.canaries = [canary for canary in found if isinstance(canary, Canary)]

    def plan(self) -> ReleasePlan:
        times = len(WORLDS) * self.releases
        return ReleasePlan([release for canary in self.canaries for release in canary.plan(self.parties, times)])

    def run(self, session: Session, progress: Progress) -> dict[str, Any]:
        """Bounds are for `of_results`, which sees all parties' parts."""
        return {"ok": True, "audited": {c.name: self._audited(session, c, progress) for c in self.canaries}}

    def _audited(self, session: Session, canary: Canary, progress: Progress) -> dict[str, Any]:
        given = (canary, session, self.options, self.multiplier)
        opened = {world: release_often(*given, world, self.releases, report=progress) for world in WORLDS}
        last = opened[CHANGED]
        return {
            "values": {world: found.values.tolist() for world, found in opened.items()},
            "multiplier": last.multiplier,
            "sensitivity": last.sensitivity,
            "deviation": last.deviation,
            "delta": canary.terms(self.options)[1],
        }


def of_results(
    results: Sequence[Mapping[str, Any]], canaries: Sequence[Canary | HeadCanary], confidence: float = CONFIDENCE
) -> dict[str, Audit]:
    """The audits of a session by name, by an adversary that knows all records and all parties' values."""
    return {
        canary.name: canary.audit(confidence=confidence)
        if isinstance(canary, HeadCanary)
        else audit_of(canary, [result["audited"][canary.name] for result in results], confidence)
        for canary in canaries
    }


def audit_of(canary: Canary, seen: Sequence[Mapping[str, Any]], confidence: float = CONFIDENCE) -> Audit:
    """The audit of one kind from all parties' results: the statistic is along the direction of the difference."""
    ranks, first = range(len(seen)), seen[0]
    exact = {world: np.concatenate([canary.exact(len(seen), rank, world) for rank in ranks]) for world in WORLDS}
    opened = {world: np.hstack([np.array(part["values"][world]) for part in seen]) for world in WORLDS}
    moved = exact[CHANGED] - exact[KEPT]
    kept, changed = ((opened[world] - exact[KEPT]) @ moved / (moved @ moved) for world in WORLDS)
    reach = float(np.linalg.norm(moved)) / first["sensitivity"]
    drawn = np.concatenate([opened[world] - exact[world] for world in WORLDS]) / first["deviation"]
    return audit(kept, changed, first["multiplier"], first["delta"], confidence, reach, drawn)
