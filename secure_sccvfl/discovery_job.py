"""Private discovery as a job: noisy tables and refreshes in secret, then scores and roles at every party.

Options: `dataset`, `seed`, `refreshes`, `epsilon`, `delta`, `noise`, `rule`, `conditional`, and `ledger`, the folder
that keeps what was spent on each set of records, at each party, from run to run. Each party uses its own columns
of the data set and the holder its protected attribute; the rest of a description is public.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from accounting.accountant import epsilon_of
from accounting.budget import Budget
from accounting.calibration import check_target, noise_multiplier
from protocols.config import ConfigError, SessionConfig
from protocols.noise import copies
from protocols.releases import ReleasePlan
from protocols.runtime import Session
from secure_sccvfl.audit import AuditLog
from secure_sccvfl.charging import Charger, records_digest, refusals_in_one_line
from secure_sccvfl.data import load
from secure_sccvfl.discovery import Discovery, DiscoveryConfig, Finding, Sketch
from secure_sccvfl.engine import Held
from secure_sccvfl.jobs import Progress
from secure_sccvfl.parties import make_parties
from secure_sccvfl.secure_statistics import SecureStatistics

DEFAULTS: dict[str, Any] = {
    "dataset": "german",
    "seed": 0,
    "refreshes": 4,
    "epsilon": 8.0,
    "delta": 1e-5,
    "noise": "dealer+holder",
    "rule": "fractions",
    "conditional": False,
    "ledger": "ledgers",
}


@dataclass(frozen=True)
class Seen:
    """A protected attribute where it is held, and its public part elsewhere."""

    name: str
    groups: tuple[str, ...]
    codes: Held


class DiscoveryJob:
    """What is public is read here; a party's own columns are picked in `run`."""

    def __init__(self, config: SessionConfig) -> None:
        if unknown := set(config.options) - set(DEFAULTS):
            raise ConfigError(f"discovery has no option {sorted(unknown)[0]!r}")
        self.options = {**DEFAULTS, **config.options}
        try:
            self.data = load(self.options["dataset"])
            self.config = DiscoveryConfig(rule=self.options["rule"], conditional=self.options["conditional"])
            self.about, self.others = self._records()
            check_target(self.options["epsilon"], self.options["delta"], len(self.about))
        except ValueError as error:
            raise ConfigError(str(error)) from error
        if len(self.data.parties) != len(config.parties):
            raise ConfigError(f"{self.data.name} has {len(self.data.parties)} parties, not {len(config.parties)}")
        copies(self.options["noise"], len(config.parties))
        if self.options["refreshes"] < 0:
            raise ConfigError(f"refreshes must be at least 0, not {self.options['refreshes']}")
        self.rounds = self.options["refreshes"] + 1
        self.columns = {r: {f.name: f.bins for f in t.features} for r, t in enumerate(self.data.parties)}
        names = [t.name for t in self.data.parties]
        self.holders = [names.index(a.holder) for a in self.data.protected]

    def plan(self) -> ReleasePlan:
        counts = [len(a.groups) for a in self.data.protected]
        told = ["scores"] + ["p-values"] * (self.config.rule == "fdr")
        told += ["residual-scores"] * self.config.conditional
        return ReleasePlan(
            [
                *SecureStatistics.releases(
                    self.columns,
                    counts,
                    tables=[f"sketch-{number}" for number in range(self.rounds)],
                    dependence=["residuals"] * self.config.conditional,
                ),
                *SecureStatistics.announcements(self.columns, told, self.rounds),
            ]
        )

    def run(self, session: Session, progress: Progress) -> dict[str, Any]:
        with refusals_in_one_line():
            return self._run(session, progress)

    def _run(self, session: Session, progress: Progress) -> dict[str, Any]:
        options, data, about = self.options, self.data, self.about
        records = records_digest(data.ids[about])
        place = Path(options["ledger"]) / f"{data.name}-{records[:12]}" / f"party-{session.rank}"
        place.mkdir(parents=True, exist_ok=True)
        budget = Budget.open(place / "ledger.jsonl", records, options["epsilon"], options["delta"], len(about))
        releases = self.rounds + self.config.conditional
        multiplier = noise_multiplier(options["epsilon"], options["delta"], releases)
        charger = Charger(session, budget, multiplier, session.agree_on_name())
        statistics = SecureStatistics(session, self.columns, self.holders, len(about), charger, options["noise"])
        audit = AuditLog(session.folder / "audit.jsonl" if session.folder is not None else None)
        own = make_parties(data)[session.rank]
        seen = [
            Seen(a.name, a.groups, a.codes[about] if holder == session.rank else None)
            for a, holder in zip(data.protected, self.holders, strict=True)
        ]
        discovery = Discovery(
            statistics,
            [own.take(about)],
            seen,
            len(data.features),
            self.config,
            options["seed"],
            audit=audit,
            records=records,
        )
        residual = discovery.residual([own.take(self.others)]) if self.config.conditional else None
        sketches: tuple[Sketch, ...] = ()
        finding: Finding | None = None
        for number in range(self.rounds):
            progress("sketch" if number == 0 else f"refresh {number}", number, self.rounds)
            sketches, finding = discovery.refresh(number, sketches, finding, residual)
        if finding is None:
            raise ConfigError("no sketch was released")
        return {
            "ok": True,
            "dataset": data.name,
            "parties": session.parties,
            "records": len(about),
            **finding.as_record(),
            "releases": sketches[0].releases,
            "deviation": sketches[0].deviation,
            "own_tables": {s.attribute: {k: t.tolist() for k, t in s.tables.items()} for s in sketches},
            "noise": options["noise"],
            "privacy": {
                "epsilon_rdp": epsilon_of(budget.events, options["delta"]),
                "delta": options["delta"],
                "cap": options["epsilon"],
                "ledger": str(place / "ledger.jsonl"),
            },
            "cost": asdict(session.total_cost),
        }

    def _records(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows that the statistics are about; and, for conditional scores, a public fifth that they are not about."""
        if not self.config.conditional:
            return np.arange(self.data.n), np.arange(0)
        digests = [hashlib.sha256(str(name).encode()).digest()[0] for name in self.data.ids]
        aside = np.array(digests) % 5 == 0
        return np.flatnonzero(~aside), np.flatnonzero(aside)
