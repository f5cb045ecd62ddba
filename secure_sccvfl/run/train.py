"""A whole run in secret at one party: alignment, discovery with refreshes, generators, training, model files.

What it opens is in `plan` and, with reasons, in SECURITY.md. Options are those of `RunOptions`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accounting.records import RecordSet
from protocols.config import ConfigError, SessionConfig
from protocols.errors import ProtocolError
from protocols.records.chain import unused_name
from protocols.records.releases import ReleasePlan
from protocols.session.runtime import Session
from protocols.steps.alignment import check_alignment
from secure_sccvfl.data.party_data import Schema
from secure_sccvfl.discovery.inputs import check_support
from secure_sccvfl.discovery.secure_statistics import SecureStatistics
from secure_sccvfl.modes import gradient_mode
from secure_sccvfl.modes.aware import declared
from secure_sccvfl.modes.base import Workplace, keep_gradients, mode_plan, noise_multiplier_of
from secure_sccvfl.modes.options import RunOptions
from secure_sccvfl.policy.card import PolicyCard
from secure_sccvfl.privacy.charging import Charger, refusals_in_one_line
from secure_sccvfl.privacy.ledgers import keep_copy, open_budget, spent_figures
from secure_sccvfl.privacy.record_tags import record_key
from secure_sccvfl.run.audit_log import AuditLog
from secure_sccvfl.run.checkpoints import Checkpoints
from secure_sccvfl.run.costs import PhaseMeter
from secure_sccvfl.run.jobs import Progress
from secure_sccvfl.run.model_files import HeldOut, PartyModel, save_model, trained_networks
from secure_sccvfl.training.secure import SecureEngine
from secure_sccvfl.training.trainer import Hooks, Model, Problem, State


def compare_public(session: Session, schema: Schema, card: PolicyCard | None) -> None:
    """Compare description and card: each host has its own files, and the session's digest does not cover them."""
    own = hashlib.sha256(repr((schema.digest(), None if card is None else card.digest())).encode()).digest()
    if len(set(session.swap_bytes("description and card", own))) > 1:
        raise ProtocolError("the parties' descriptions of the data or policy cards differ: give all the same files")


class TrainJob:
    """Job "train"."""

    def __init__(self, config: SessionConfig, rank: int) -> None:
        self.options = RunOptions.of(config.options)
        self.data = self.options.load(rank, len(config.parties))
        gradient_mode(self.options.mode).check(self.options, self.data.schema)
        self.card = self.options.policy(self.data.schema)
        self.aware = declared(self.card) if self.options.mode == "aware" else None
        if self.card is not None:
            check_support(self.card, self.data.part(self.data.split.train).parties)

    def plan(self) -> ReleasePlan:
        return mode_plan(self.data.schema, self.options)

    def run(self, session: Session, progress: Progress) -> dict[str, Any]:
        with refusals_in_one_line():
            return self._run(session, progress)

    def _run(self, session: Session, progress: Progress) -> dict[str, Any]:
        data, options, folder = self.data, self.options, session.folder
        meter = PhaseMeter(session)
        with meter.phase("alignment"):
            progress("alignment", 0, 1)
            name, place, parts, kept = self._begin(session)
        budget, ledger = open_budget(place, options.epsilon, options.delta, len(data.split.train))
        charger = Charger(session, budget, noise_multiplier_of(options), name, parts["train"], options.noise)
        audit = AuditLog(unused_name(folder / "audit.jsonl") if folder is not None else None)
        audit("run", {"run": name, "records": parts["train"].digest, "options": asdict(options)})
        hooks = Hooks(progress, audit, kept.keep if kept is not None else lambda state: None)
        state = self._resume(session, kept, charger, audit) if options.resume else None
        trained = gradient_mode(options.mode).train(self._workplace(session, charger, hooks, meter, state))
        model = trained.model
        if trained.shown and folder is not None:
            keep_gradients(folder, trained.shown)
        digests = {part: known.digest for part, known in parts.items()}
        mine = self._keep(session, trained.engine, model, name, digests)
        if folder is not None:
            keep_copy(ledger, folder)
        privacy = spent_figures(budget, options.noise)
        paid = {"epsilon_rdp": privacy["epsilon_rdp"], "mask": model.roles.digest()}
        audit("trained", {"lambda": model.lam, "temperature": model.temperature, **paid, "model": mine})
        return {
            "ok": True,
            "run": name,
            **self._facts(),
            **model.finding.as_record(),
            "lambda": model.lam,
            "temperature": model.temperature,
            "trials": [asdict(t) for t in model.trials],
            "validity": model.validity,
            "steps": trained.steps,
            "privacy": privacy,
            "model": mine,
            "cost": meter.costs,
        }

    def _begin(self, session: Session) -> tuple[str, Path, dict[str, RecordSet], Checkpoints | None]:
        """Agree on everything needed before an opening: name of the run, ledgers, sets of records, checkpoints."""
        data, options, schema, folder = self.data, self.options, self.data.schema, session.folder
        compare_public(session, schema, self.card)
        name, place = session.agree_on_name(), options.ledger_folder(session)
        parts = record_key(session, place).parts(data.ids, data.split)
        kept: Checkpoints | None = None
        if folder is not None and options.checkpoints:
            known = options.settings(schema.digest(), " ".join(part.digest for part in parts.values()))
            kept = Checkpoints(folder / "checkpoints", name, known)
        if options.resume and kept is not None:
            kept.check()  # before anything is opened or a ledger is touched
        check_alignment(session, data.ids, schema.parties)
        return name, place, parts, kept

    def _resume(self, session: Session, kept: Checkpoints | None, charger: Charger, audit: AuditLog) -> State:
        """The state of the run; ledgers catch up with charges that a fault cut short."""
        if kept is None:
            raise ConfigError("to resume, a run needs its folder and checkpoints")
        state = kept.resume(session, self.data.schema.task)
        differed = charger.catch_up()
        audit("resumed", {"checkpoint": kept.number, "of run": kept.run, "ledgers differed": differed})
        return state

    def _workplace(
        self, session: Session, charger: Charger, hooks: Hooks, meter: PhaseMeter, state: State | None
    ) -> Workplace:
        """What the mode trains with at this party."""
        data, schema = self.data, self.data.schema
        rows = len(data.split.train)
        statistics = SecureStatistics(session, schema.bins, schema.group_holders, rows, charger)
        return Workplace(
            engine=SecureEngine(session, schema.label_holder, schema.group_holders),
            statistics=statistics,
            schema=schema,
            problem=Problem(
                schema.task,
                schema.outputs,
                data.part(data.split.train),
                data.part(data.split.validation),
                schema.owners,
                schema.layouts,
            ),
            options=self.options,
            charger=charger,
            hooks=hooks,
            phase=meter.phase,
            card=self.card,
            state=state,
        )

    def _facts(self) -> dict[str, Any]:
        """What the result says about data and settings."""
        options, data, schema = self.options, self.data, self.data.schema
        return {
            "engine": "crypten",
            "mode": options.mode,
            "aware": None if self.aware is None else self.aware.as_record(),
            "dataset": schema.name,
            "pooled": options.pooled,
            "parties": list(schema.parties),
            "seed": options.seed,
            "split": options.split if options.pooled else "by id",
            "owners": schema.owners,
            "rows": {k: len(getattr(data.split, k)) for k in ("train", "validation", "test")},
        }

    def _keep(self, session: Session, engine: SecureEngine, model: Model, name: str, parts: Mapping[str, str]) -> str:
        """Save this party's part of the model."""
        weight, bias = engine.unscaled(model.head)
        options = self.options
        own = PartyModel(
            run=name,
            rank=session.rank,
            parties=session.parties,
            schema=self.data.schema.digest(),
            task=model.task,
            temperature=model.temperature,
            lam=model.lam,
            roles=dict(model.roles.of),
            proxies=model.roles.proxies,
            generator=options.train_config().generator,
            seed=options.seed,
            held_out=HeldOut(options.split, options.pooled, options.evaluation, parts),
            encoder=model.encoders[session.rank],
            sketches=model.sketches,
            weight=weight,
            bias=bias,
            moments=model.moments,
            aware=self.aware,
            networks=trained_networks(model.generators, session.rank),
            policy={} if self.card is None else {"version": self.card.version, "approved": self.card.approved_on},
        )
        return save_model(own, session.folder / "model") if session.folder is not None else ""
