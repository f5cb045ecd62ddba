"""What the gradient modes compute under MPC, without discovery: jobs for three parties, with their releases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from secure_sccvfl.accounting.budget import Budget
from secure_sccvfl.accounting.records import RecordSet
from secure_sccvfl.metrics.exact import SecureEvaluation
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.releases.charging import Charger
from secure_sccvfl.research.split.mode import SplitConfig, SplitTrainer, split_releases
from secure_sccvfl.training.engine import Step
from secure_sccvfl.training.modes.dp import DpConfig, Score, dp_releases, train_dp
from secure_sccvfl.training.secure import SecureEngine
from secure_sccvfl.training.trainer import Problem
from tests.contract import engines
from tests.support.gradient_modes import EVERYONE, GROUP_HOLDERS, LABEL_HOLDER, PARTIES, generators_of, german, parts
from tests.support.gradient_modes import predictions as shown

Made = tuple[Callable[[Session], tuple[Any, ...]], ReleasePlan]
"""A job, which returns tensors of the head if there is one, and its plan."""


def dp() -> Made:
    """Two sampled steps."""
    config, ready = DpConfig(units=2, steps=2, sampling=0.5), german()
    columns = [Score(parts(ready, rank)[0].parties[0], 1, 0).columns for rank in EVERYONE]
    records = RecordSet(ready.split.train.astype(np.uint64))

    def job(session: Session) -> tuple[Any, ...]:
        charger = Charger(session, Budget.in_memory(8.0, 1e-5), 4.0, "a run", records)
        train_dp(session, parts(ready, session.rank)[0], LABEL_HOLDER, columns, config, charger, 0)
        return ()

    return job, ReleasePlan(dp_releases(columns, config))


def split() -> Made:
    """A step without consistency and two with it, early stopping, the range check, and logits of the head."""
    config, ready = SplitConfig(hidden=4, warmup=1, steps=2, patience=2), german()

    def job(session: Session) -> tuple[Any, ...]:
        engine = SecureEngine(session, LABEL_HOLDER, GROUP_HOLDERS)
        train, validation, test = parts(ready, session.rank)
        problem, generators = Problem("binary", 1, train, validation), generators_of(ready, session.rank)
        model = SplitTrainer(engine, problem, ready.roles, generators, config, 0).run()
        (party,) = test.parties
        model.engine.logits(model.head, {session.rank: model.encoder(party.inputs)})
        return model.head.weights.weight, model.head.weights.bias

    return job, ReleasePlan([shown(), *split_releases(PARTIES, config)])


def aware() -> Made:
    """Encodings and edits that s selects, a descent on them, and decisions."""
    problem = engines.Problem((3, 2, 4))

    def job(session: Session) -> tuple[Any, ...]:
        local, engine = problem.of(session.rank, 3), SecureEngine(session, 0, [2])
        rows = engine.select(local.deltas[0], local.s)
        batch = engine.bind(rows, local.y, local.ridge)
        penalty = engine.join([engine.counterfactuals(local.deltas, local.s)], [])
        head = local.trained(engine, batch, penalty, Step(0.1, 0.5, 0.7, 0.2), 2)
        SecureEvaluation(session, "binary", 0, 2).decisions(engine.shared_logits(head, rows))
        return head.weights.weight, head.weights.bias

    return job, ReleasePlan(engines.releases(3).values())


JOBS = {"dp": dp, "split": split, "aware": aware}
