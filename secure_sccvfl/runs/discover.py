"""Private discovery as a job: noisy tables and refreshes under MPC, then scores and roles at every party.

Options are those of `RunOptions`. The statistics are about all records. With conditional scores or risk gains they
leave out the validation part, and the residuals are fitted on it.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from secure_sccvfl.accounting.calibration import check_target
from secure_sccvfl.data.party_data import PartyData, Schema
from secure_sccvfl.discovery.decisions import RoleAssignment
from secure_sccvfl.discovery.discovery import Discovery, check_support
from secure_sccvfl.discovery.noisy_tables import NoisyTables
from secure_sccvfl.discovery.secure_statistics import SecureStatistics
from secure_sccvfl.protocols.config import ConfigError, SessionConfig
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.releases.charging import Charger
from secure_sccvfl.releases.ledgers import LEDGER, agree_on_run, open_budget, raise_cap, spent_figures
from secure_sccvfl.releases.record_key import record_key
from secure_sccvfl.runs.alignment import RecordsJob, placed, split_records
from secure_sccvfl.runs.files import OWN_RECORDS, AuditLog
from secure_sccvfl.runs.jobs import Progress
from secure_sccvfl.runs.train import compare_public
from secure_sccvfl.training.modes.base import discovery_releases, planned_spread
from secure_sccvfl.training.modes.options import RunOptions


class DiscoveryJob(RecordsJob):
    """Job "discovery"."""

    def __init__(self, config: SessionConfig, rank: int) -> None:
        if RunOptions.of(config.options).privacy.cached_tables:
            raise ConfigError("discovery is about all records: it opens its own tables, and uses no cached ones")
        try:
            super().__init__(config, rank)
            about = self._about(self.data)
            check_target(self.options.privacy.epsilon, self.options.privacy.delta, len(about))
            self.card = self.options.policy(self.data.schema)
            if self.card is not None:
                check_support(self.card, self.data.part(about).parties)
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def _about(self, data: PartyData) -> np.ndarray:
        if self.options.train_config().discovery.holds_out:
            return np.sort(np.concatenate([data.split.train, data.split.test]))
        return np.arange(len(data.ids))

    @staticmethod
    def releases(schema: Schema, options: RunOptions) -> ReleasePlan:
        return ReleasePlan(discovery_releases(schema, options))

    def compute(self, session: Session, progress: Progress) -> dict[str, Any]:
        options, schema = self.options, self.data.schema
        compare_public(session, schema, self.card)
        data = split_records(session, options, self.data, progress)
        about = self._about(data)
        part, _ = placed(session, options, data, about)
        ledgers = options.ledger_folder(session)
        raise_cap(session, ledgers / LEDGER, options.privacy.cap_decision, self.certificates)
        budget, ledger = open_budget(ledgers, options.privacy.epsilon, options.privacy.delta, part.rows)
        records = record_key(session, ledger.parent, schema.id_rule).record_set(data.ids[about])
        multiplier = planned_spread(session, options, schema, budget, records, ()).multiplier
        name = agree_on_run(session, ledgers)
        same_records = options.data.align != "hidden"
        charger = Charger(
            session,
            budget,
            multiplier,
            name,
            records,
            options.privacy.noise,
            reserve=options.privacy.reserve,
            same_records=same_records,
        )
        statistics = SecureStatistics(session, schema.bins, schema.group_holders, part.rows, charger, part.membership)
        audit = AuditLog(session.folder / "audit.jsonl" if session.folder is not None else None)
        config = options.train_config().discovery
        features = sum(len(party_features) for party_features in schema.features)
        discovery = Discovery(
            statistics,
            part.parties,
            part.protected,
            features,
            config,
            options.data.seed,
            self.card,
            audit,
            records.digest if same_records else OWN_RECORDS,
            schema.owners,
            may_be_missing=schema.may_be_missing,
        )
        beyond = discovery.conditional(data.part(data.split.validation).parties)
        noisy_tables: tuple[NoisyTables, ...] = ()
        assignment: RoleAssignment | None = None
        rounds = (
            options.privacy.table_releases + options.privacy.late_table_releases + 1
        )  # nothing is trained in between
        for number in range(rounds):
            progress("sketch" if number == 0 else f"refresh {number}", number, rounds)
            noisy_tables, assignment = discovery.refresh(number, noisy_tables, assignment, beyond)
        if assignment is None:
            raise ConfigError("no sketch was released")
        assignment = discovery.with_confidence(noisy_tables, assignment, beyond)
        return {
            "ok": True,
            "dataset": schema.name,
            "parties": session.parties,
            "align": options.data.align,
            "records": part.count,
            **assignment.as_record(),
            "releases": noisy_tables[0].releases,
            "deviation": noisy_tables[0].deviation,
            "own_tables": {s.attribute: {k: t.tolist() for k, t in s.tables.items()} for s in noisy_tables},
            "noise": options.privacy.noise,
            "privacy": {**spent_figures(budget.account, options.privacy.noise, [name]), "ledger": str(ledger)},
            "cost": asdict(session.total_cost),
        }
