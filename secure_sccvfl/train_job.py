"""A whole run in secret at one party: alignment, discovery with refreshes, generators, training, model files.

What it opens is in `plan` and, with reasons, in SECURITY.md. Options are those of `RunOptions`.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accounting.budget import Budget
from accounting.calibration import noise_multiplier
from protocols.alignment import check_alignment
from protocols.config import ConfigError, SessionConfig
from protocols.releases import ReleasePlan
from protocols.runtime import Session
from secure_sccvfl.audit import AuditLog
from secure_sccvfl.charging import Charger, records_digest
from secure_sccvfl.checkpoints import Checkpoints
from secure_sccvfl.jobs import Progress
from secure_sccvfl.model_files import PartyModel, save_model
from secure_sccvfl.phases import PhaseMeter
from secure_sccvfl.release_plan import sealed_plan
from secure_sccvfl.run_options import RunOptions
from secure_sccvfl.secure_engine import SecureEngine
from secure_sccvfl.secure_statistics import SecureStatistics
from secure_sccvfl.training import Hooks, Model, State, Trainer, warmup_steps


def open_budget(options: RunOptions, session: Session, name: str, records: str, rows: int) -> tuple[Budget, Path]:
    """This party's ledger for these records.

    It belongs to the data: without a folder of its own it lies beside the description of the data. Public
    benchmark data have nothing to protect, so there the ledger is of the run alone.
    """
    if options.ledger or not options.pooled:
        folder = Path(options.ledger) if options.ledger else Path(options.dataset).parent / "sccvfl-ledgers"
        place = folder / f"{name}-{records[:12]}" / f"party-{session.rank}"
    elif session.folder is not None:
        place = session.folder
    else:
        raise ConfigError("a run needs a folder for its ledger")
    place.mkdir(parents=True, exist_ok=True)
    return Budget.open(place / "ledger.jsonl", records, options.epsilon, options.delta, rows), place / "ledger.jsonl"


class TrainJob:
    """Job "train"."""

    def __init__(self, config: SessionConfig, rank: int) -> None:
        self.options = RunOptions.of(config.options)
        if self.options.mode != "sealed":
            raise ConfigError(f"mode {self.options.mode!r} is not available in this job yet")
        self.data = self.options.load(rank, len(config.parties))
        self.card = self.options.policy()

    def plan(self) -> ReleasePlan:
        return sealed_plan(self.data.scheme, self.options)

    def run(self, session: Session, progress: Progress) -> dict[str, Any]:
        data, options, scheme = self.data, self.options, self.data.scheme
        config, folder = options.train_config(), session.folder
        meter = PhaseMeter(session)
        with meter.phase("alignment"):
            progress("alignment", 0, 1)
            check_alignment(session, data.ids, scheme.parties)
            name = session.agree_on_name()
        records = records_digest(data.ids)
        budget, ledger = open_budget(options, session, scheme.name, records, len(data.split.train))
        multiplier = noise_multiplier(options.epsilon, options.delta, options.charged)
        charger = Charger(session, budget, multiplier, name)
        rows = len(data.split.train)
        statistics = SecureStatistics(session, scheme.bins, scheme.group_holders, rows, charger, options.noise)
        engine = SecureEngine(session, statistics, scheme.label_holder, scheme.group_holders)
        audit = AuditLog(unused_name(folder / "audit.jsonl") if folder is not None else None)
        audit("run", {"run": name, "records": records, "options": asdict(options)})
        kept = Checkpoints(folder / "checkpoints", name) if folder is not None and options.checkpoints else None
        hooks = Hooks(progress, audit, kept.keep if kept is not None else lambda state: None)
        train, validation = (data.part(rows) for rows in (data.split.train, data.split.validation))
        with meter.phase("inputs"):
            trainer = Trainer(
                engine, train, validation, scheme.task, scheme.outputs, config, options.seed, self.card, hooks
            )
        state: State | None = None
        if options.resume:
            if kept is None:
                raise ConfigError("to resume, a run needs its folder and checkpoints")
            state = kept.resume(session, scheme.task)
            audit("resumed", {"checkpoint": kept.number, "of run": kept.run})
        model = trainer.run(state=state, phase=meter.phase)
        mine = self._keep(session, engine, model, name)
        if folder is not None and ledger.parent != folder:
            for path in ledger.parent.glob("ledger.jsonl*"):
                shutil.copyfile(path, folder / path.name)
        spent = budget.spent
        audit("trained", {"lambda": model.lam, "temperature": model.temperature, "model": mine})
        return {
            "ok": True,
            "run": name,
            "engine": "crypten",
            "mode": options.mode,
            "dataset": scheme.name,
            "pooled": options.pooled,
            "parties": list(scheme.parties),
            "seed": options.seed,
            "split": options.split if options.pooled else "by id",
            "owners": {f.name: scheme.parties[rank] for rank, own in enumerate(scheme.features) for f in own},
            "rows": {k: len(getattr(data.split, k)) for k in ("train", "validation", "test")},
            **model.finding.as_record(),
            "lambda": model.lam,
            "temperature": model.temperature,
            "trials": [asdict(t) for t in model.trials],
            "steps": warmup_steps(config) + sum(t.steps for t in model.trials),
            "privacy": {
                "epsilon_rdp": spent.renyi,
                "epsilon_pld": spent.pld,
                "delta": options.delta,
                "cap": options.epsilon,
                "noise": options.noise,
                "releases": len(budget.events),
            },
            "model": mine,
            "cost": meter.costs,
        }

    def _keep(self, session: Session, engine: SecureEngine, model: Model, name: str) -> str:
        """Save this party's part of the model."""
        weight, bias = engine.unscaled(model.head)
        own = PartyModel(
            name,
            session.rank,
            session.parties,
            self.data.scheme.digest(),
            model.task,
            model.temperature,
            model.lam,
            dict(model.roles.of),
            self.options.train_config().generator,
            self.options.seed,
            model.encoders[session.rank],
            model.sketches,
            weight,
            bias,
        )
        return save_model(own, session.folder / "model") if session.folder is not None else ""


def unused_name(path: Path) -> Path:
    """The first name of path, path-1, path-2, ... that is not taken: a resumed run adds to what is there."""
    taken = 0
    found = path
    while found.exists():
        taken += 1
        found = path.with_stem(f"{path.stem}-{taken}")
    return found
