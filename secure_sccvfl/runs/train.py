"""A whole run under MPC at one party: alignment, discovery with refreshes, generators, training, model files.

What it opens is in `plan` and, with reasons, in SECURITY.md. Options are those of `RunOptions`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from secure_sccvfl.accounting.records import RecordSet
from secure_sccvfl.data.catalogue import is_benchmark
from secure_sccvfl.data.party import Part
from secure_sccvfl.data.party_data import Schema
from secure_sccvfl.data.splits import PARTS, SHARES, expected_rows
from secure_sccvfl.discovery.cached_releases import CachedReleases
from secure_sccvfl.discovery.discovery import check_support
from secure_sccvfl.discovery.secure_statistics import SecureStatistics
from secure_sccvfl.discovery.statistics import Statistics
from secure_sccvfl.policy.card import PolicyCard
from secure_sccvfl.protocols.config import ConfigError, SessionConfig
from secure_sccvfl.protocols.dealing.verification import MacKey
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.protocols.operations.noise import NoiseKind
from secure_sccvfl.protocols.records.chain import read_chain, unused_name
from secure_sccvfl.protocols.records.key_mark import check_key
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.releases.catalogue import HEAD, RANGE_CHECK
from secure_sccvfl.releases.charging import Charger
from secure_sccvfl.releases.ledgers import (
    LEDGER,
    agree_on_run,
    claim_private_head,
    keep_copy,
    open_budget,
    raise_cap,
    session_that_finished_head,
    spent_figures,
)
from secure_sccvfl.releases.record_key import record_key
from secure_sccvfl.runs.alignment import RecordsJob, aligned_part, placed, split_records
from secure_sccvfl.runs.cached_tables import (
    WHOLE,
    About,
    TableFile,
    agreed_tables,
    check_tabled,
    tables_in_words,
    tables_record,
)
from secure_sccvfl.runs.checkpoints import Checkpoints, saved_key
from secure_sccvfl.runs.files import CARD, DESCRIPTION, OWN_RECORDS, RUN, TABLES, AuditLog, describe_data, run_names
from secure_sccvfl.runs.jobs import PhaseMeter, Progress
from secure_sccvfl.runs.model_files import HeldOut, PartyModel, no_weights, save_model, trained_networks
from secure_sccvfl.training.modes import gradient_mode
from secure_sccvfl.training.modes.base import PartyContext, keep_gradients, mode_plan, planned_spread
from secure_sccvfl.training.modes.options import RunOptions
from secure_sccvfl.training.modes.sealed import declared
from secure_sccvfl.training.secure import SecureEngine
from secure_sccvfl.training.shared import SharedModule
from secure_sccvfl.training.trainer import Hooks, Model, Problem, State


def compare_public(session: Session, schema: Schema, card: PolicyCard | None) -> None:
    """Compare description and card: each host has its own files, and the session's digest does not cover them."""
    digest = hashlib.sha256(repr((schema.digest(), None if card is None else card.digest())).encode()).digest()
    if len(set(session.swap_bytes("description and card", digest))) > 1:
        raise ProtocolError("the parties' descriptions of the data or policy cards differ: give all the same files")


def check_covered(config: SessionConfig, options: RunOptions) -> None:
    """Raise if the session file asks for row shards together with something that they do not cover."""
    mode, head = options.training.mode, options.model.head
    if config.shards and (mode != "sealed" or head != "linear"):
        raise ConfigError(
            f"[shards] does not cover mode {mode} with head {head}: use mode sealed with head linear, or no shards"
        )
    if config.shards and options.evaluation.baselines:
        raise ConfigError("[shards] does not cover evaluation.baselines: leave one of them out")


CHECKPOINTS, MODEL = "checkpoints", "model"
_ELSEWHERE = 2
"""A party's answer about the head of a run that resumes: another copy of its folder may have a model."""


class TrainJob(RecordsJob):
    """Job "train"."""

    def __init__(self, config: SessionConfig, rank: int) -> None:
        check_covered(config, RunOptions.of(config.options))
        super().__init__(config, rank)
        gradient_mode(self.options.training.mode).check(self.options, self.data.schema)
        self.card, self.records_digest = self.options.policy(self.data.schema), ""
        self.aware = declared(self.card) if self.options.training.mode == "aware" else None
        if self.card is not None:
            rows = self.options.train_config().training_rows(self.data.split)
            check_support(self.card, self.data.part(rows).parties)

    @staticmethod
    def releases(schema: Schema, options: RunOptions) -> ReleasePlan:
        return mode_plan(schema, options)

    @classmethod
    def public_plan(cls, config: SessionConfig) -> ReleasePlan:
        check_covered(config, RunOptions.of(config.options))
        return super().public_plan(config)

    def mac_key(self, out: Path) -> tuple[MacKey | None, Path]:
        """This party's part of the key of the tags in its checkpoints, if it resumes; the folder with its mark."""
        check_key(out / MODEL)
        return saved_key(out / CHECKPOINTS) if self.options.session.resume else None, out / MODEL

    def compute(self, session: Session, progress: Progress) -> dict[str, Any]:
        options, folder = self.options, session.folder
        meter = PhaseMeter(session)
        with meter.phase("alignment"):
            progress("alignment", 0, 1)
            name, ledgers, parts, checkpoints = self._begin(session, progress)
            trained_with = RecordSet.union([parts["train"], parts["validation"]]) if self.joins else parts["train"]
            problem = self._problem(session)
            raise_cap(session, ledgers / LEDGER, options.privacy.cap_decision, self.certificates)
            budget, ledger = open_budget(ledgers, options.privacy.epsilon, options.privacy.delta, problem.train.rows)
            about = About(self.data.schema.digest(), self._digests(parts, trained_with), options.data.align)
            tables = (
                agreed_tables(session, ledgers, options, budget, about) if options.privacy.cached_tables else None
            )
            if tables is not None:
                check_tabled(tables, problem.tabled)
                problem = replace(problem, released=tables.tabled)
            before = run_names(folder) if folder is not None and options.session.resume else ()
            spread = planned_spread(session, options, self.data.schema, budget, trained_with, before, tables)
            noise: tuple[float, NoiseKind] = (
                spread.multiplier,
                options.privacy.noise if tables is None else tables.noise,
            )
        if folder is not None:
            self._keep_public(folder)
        same_records = options.data.align != "hidden"
        charger = Charger(
            session,
            budget,
            noise[0],
            name,
            trained_with,
            noise[1],
            reserve=options.privacy.reserve,
            same_records=same_records,
            heads=spread.heads,
        )
        audit = AuditLog(unused_name(folder / "audit.jsonl") if folder is not None else None)
        records = trained_with.digest if same_records else OWN_RECORDS
        audit(RUN, {"run": name, "records": records, "options": options.flat()})
        if tables is not None:
            logging.getLogger("party").info("%s", tables_in_words(tables, options.privacy.private_model))
            audit(TABLES, tables_record(tables))
        hooks = Hooks(progress, audit, checkpoints.keep if checkpoints is not None else lambda state: None)
        state = self._resume(session, checkpoints, charger, audit, ledgers) if options.session.resume else None
        begun = charger.begun = checkpoints.run if checkpoints is not None and options.session.resume else name
        own_tables = CachedReleases(
            (begun,), session.rank, about.schema, about.records, *noise, align=options.data.align
        )
        statistics = self._statistics(session, problem.train, charger, tables, TableFile(ledgers, own_tables, name))
        lasting = options.privacy.private_model and ledgers != folder
        claim = partial(claim_private_head, ledgers, begun, name) if lasting else lambda: None
        engine = SecureEngine(session, self.data.schema.label_holder, self.data.schema.group_holders, claim)
        trained = gradient_mode(options.training.mode).train(
            PartyContext(
                engine,
                statistics,
                self.data.schema,
                problem,
                options,
                charger,
                hooks,
                meter.phase,
                self.card,
                state,
            )
        )
        model = trained.model
        if trained.shown and folder is not None:
            keep_gradients(folder, trained.shown)
        digests = {part: part_of.digest for part, part_of in parts.items()}
        charged = f"{begun} {HEAD.charged_as()}" if options.privacy.private_model else ""
        mine = self._keep(session, trained.engine, model, name, digests, charged)
        if folder is not None:
            keep_copy(ledger, folder)
        sessions = run_names(folder) if folder is not None else (name,)
        privacy = spent_figures(budget.account, charger.noise, sessions)
        paid = {"epsilon_rdp": privacy["epsilon_rdp"]} if same_records else {}  # otherwise each has its own
        summary = {"lambda": model.lam, "temperature": model.temperature, **paid, "mask": model.roles.digest()}
        audit("trained", {**summary, "model": mine})
        return {
            "ok": True,
            "run": name,
            "tables": None if tables is None else tables_record(tables),
            **self._facts(problem),
            **model.assignment.as_record(),
            "lambda": model.lam,
            "private_model": options.privacy.private_model,
            "temperature": model.temperature,
            "trials": [asdict(t) for t in model.trials],
            "validity": model.validity,
            "steps": trained.steps,
            "privacy": privacy,
            "model": mine,
            "cost": meter.costs,
            "crypten_operations": meter.operations,
        }

    def _begin(
        self, session: Session, progress: Progress
    ) -> tuple[str, Path, dict[str, RecordSet], Checkpoints | None]:
        """Agree on everything needed before an opening: name of the run, ledgers, sets of records, checkpoints."""
        data, options, schema, folder = self.data, self.options, self.data.schema, session.folder
        compare_public(session, schema, self.card)
        ledgers = options.ledger_folder(session)
        name = agree_on_run(session, ledgers)
        key = record_key(session, ledgers, schema.id_rule)
        parts, self.records_digest = key.parts(data.ids, data.split), key.record_set(data.ids).digest
        checkpoints: Checkpoints | None = None
        if folder is not None and options.session.checkpoints:
            settings = options.settings(schema.digest(), " ".join(part.digest for part in parts.values()))
            checkpoints = Checkpoints(folder / CHECKPOINTS, name, settings)
        if options.session.resume and checkpoints is not None:
            checkpoints.check()  # before anything is opened or a ledger is touched
        self.data = split_records(session, options, data, progress)
        if options.data.align == "revealed":
            parts = key.parts(self.data.ids, self.data.split)
        return name, ledgers, parts, checkpoints

    def _problem(self, session: Session) -> Problem:
        """Run by all parties together: the records to train and to validate with, as this party may know them."""
        data, schema = self.data, self.data.schema
        share = SHARES[0] + SHARES[1] if self.joins else SHARES[0]
        train, _ = placed(session, self.options, data, self.options.train_config().training_rows(data.split), share)
        validation = aligned_part(session, self.options, data, "validation")
        facts = schema.task, schema.outputs, train, validation, schema.owners, schema.layouts
        return Problem(*facts, self.options.tabled(schema))

    def _keep_public(self, folder: Path) -> None:
        """Copy the description and the card, which all have: a report can be made again without the originals."""
        if not is_benchmark(self.options.data.dataset):
            shutil.copyfile(self.options.data.dataset, folder / DESCRIPTION)
        if self.card is not None:
            (folder / CARD).write_text(json.dumps(self.card.to_json(), indent=1) + "\n", encoding="utf-8")

    def _resume(
        self, session: Session, checkpoints: Checkpoints | None, charger: Charger, audit: AuditLog, ledgers: Path
    ) -> State:
        """The state of the run; ledgers catch up with charges that a fault cut short."""
        if checkpoints is None:
            raise ConfigError("to resume, a run needs its folder and checkpoints")
        state = checkpoints.resume(session, self.data.schema.task)
        private = self.options.privacy.private_model
        answer = int(private and session.folder is not None and self._followed(session.folder))
        if private and not answer and session_that_finished_head(ledgers, checkpoints.run):
            answer = _ELSEWHERE
        answers = session.tell_all("finished model", answer) if private else []
        if _ELSEWHERE in answers and not state.trials:
            raise ProtocolError(
                f"party {answers.index(_ELSEWHERE)} has finished the head of this run, and its folder does not know "
                "of it: go on with the folder that does, not with an older copy, or train a new run, which is charged"
            )
        if any(answers) and not state.trials:
            raise ProtocolError(
                "a party has a model of this run already, or the check of its head was opened: train a new run, "
                "which is charged"
            )
        differed = charger.catch_up()
        audit("resumed", {"checkpoint": checkpoints.number, "of run": checkpoints.run, "ledgers differed": differed})
        return state

    def _followed(self, folder: Path) -> bool:
        """Whether anything may have followed from a head of this run: another one would be a second, free release.

        Decisions follow from a model. One bit follows from a private head before it becomes a model, and a run that
        it has stopped must not be tried with other noise until it passes.
        """
        if (folder / MODEL / "model.json").exists():
            return True
        logs = folder.glob("releases*.jsonl")
        return any(entry.get("release") == RANGE_CHECK.name for log in logs for entry in read_chain(log))

    @property
    def joins(self) -> bool:
        return self.options.train_config().joins

    def _digests(self, parts: Mapping[str, RecordSet], trained_with: RecordSet) -> dict[str, str]:
        """Of the records that tables are about, of the other parts, and of all together."""
        whole = RecordSet.union(list(parts.values()))
        digests = {part: part_of.digest for part, part_of in parts.items()}
        return {**digests, "train": trained_with.digest, WHOLE: whole.digest}

    def _statistics(
        self, session: Session, train: Part, charger: Charger, tables: CachedReleases | None, file: TableFile
    ) -> Statistics:
        """Statistics of s: opened under MPC and kept, or those that were kept before."""
        schema, membership = self.data.schema, train.membership
        if tables is not None and membership is not None:
            membership.set_count(tables.common)
        where = file.keep if tables is None else None
        given = session, schema.bins, schema.group_holders, train.rows, charger, membership
        return SecureStatistics(*given, keep=where, cached=tables)

    def _facts(self, problem: Problem) -> dict[str, Any]:
        options, data, schema = self.options, self.data, self.data.schema
        rows = {name: len(getattr(data.split, name)) for name in PARTS}
        if self.joins:
            rows |= {"train": len(data.split.train_and_validation), "validation": 0}
        if problem.train.membership is not None:  # a noisy number is known, and what the split leaves of all records
            rows = dict(zip(PARTS, expected_rows(problem.train.count, self.joins), strict=True))
        return {
            "engine": "crypten",
            "mode": options.training.mode,
            "aware": None if self.aware is None else self.aware.as_record(),
            "dataset": schema.name,
            "data": describe_data(options.data.dataset, schema),
            "pooled": options.data.pooled,
            "parties": list(schema.parties),
            "seed": options.data.seed,
            "generator_seed": options.drawn_seed,
            "split": options.data.split if options.data.pooled else "by id",
            "owners": schema.owners,
            "align": options.data.align,
            "security": options.session.security,
            "rows": rows,
        }

    def _keep(
        self,
        session: Session,
        engine: SecureEngine,
        model: Model,
        name: str,
        parts: Mapping[str, str],
        charged: str,
    ) -> str:
        """Save this party's part of the model. charged: the key of its head's charge."""
        module = model.head if isinstance(model.head, SharedModule) else None
        weight, bias = engine.unscaled(model.head) if module is None else no_weights(module.outputs)
        session.flush()  # with a folder or without: all parties send alike
        options = self.options
        party_model = PartyModel(
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
            seed=options.data.seed,
            generator_seed=options.model.generator_seed,
            held_out=HeldOut(
                options.data.split,
                options.data.pooled,
                options.evaluation.kind,
                parts,
                options.evaluation.controls,
                options.data.align,
                self.records_digest,
                options.evaluation.certificate,
                options.evaluation.baselines,
            ),
            encoder=model.encoders[session.rank],
            noisy_tables=model.noisy_tables,
            weight=weight,
            bias=bias,
            aware=self.aware,
            networks=trained_networks(model.generators, session.rank),
            policy={} if self.card is None else {"version": self.card.version, "approved": self.card.approved_on},
            predictions=options.privacy.predictions,
            charged=charged,
            module=None if module is None else module.spec,
            layers={} if module is None else module.weights,
            baselines={name: engine.unscaled(head) for name, head in model.baselines.items()},
        )
        return save_model(party_model, session.folder / MODEL) if session.folder is not None else ""
