"""Methods of the tables that no run uses: `parity` and `pcf`, ablations, and the method with other settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import torch

from secure_sccvfl.data.dataset import Task
from secure_sccvfl.evaluation.baselines import affine_white_box, erm, fitted_model, sealed
from secure_sccvfl.evaluation.metrics import AwarePredictor
from secure_sccvfl.evaluation.prepared import Fitted, Prepared, train_plainly
from secure_sccvfl.models.aware import make_aware
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.releases.noise import SpendingPlan
from secure_sccvfl.training.config import TrainConfig
from secure_sccvfl.training.engine import CURVATURE, Step
from secure_sccvfl.training.plain import Penalty, PlainEngine

PARITY_WEIGHT = 30.0
PARITY_STEPS = 600
CLOSE = 1e-6


def pcf(ready: Prepared) -> Fitted:
    """Factual and counterfactual predictions of ERM, averaged by the shares of the groups.

    After Zhou et al., "Counterfactual fairness by combining factual and counterfactual predictions", NeurIPS 2024.
    Counterfactuals are made by the run's own generator. The white box takes those of the test records as they are.
    """
    plain, task = erm(ready), ready.data.task
    versions = _versions(ready)
    test = ready.split.test
    inputs, codes = ready.inputs[test], ready.data.protected[0].codes[test]
    moved = [(weight, torch.tensor(edited - inputs)) for weight, edited in versions(inputs, codes)]

    def predict(inputs: np.ndarray, codes: np.ndarray) -> np.ndarray:
        made = [weight * _chances(torch.tensor(plain.predict(v)), task) for weight, v in versions(inputs, codes)]
        return np.asarray(_scores(torch.stack(made).sum(dim=0), task))

    def white_box(x: torch.Tensor) -> torch.Tensor:
        made = [weight * _chances(plain.white_box(x + by), task) for weight, by in moved]
        return _scores(torch.stack(made).sum(dim=0), task)

    return Fitted(AwarePredictor(predict), white_box)


Versions = Callable[[np.ndarray, np.ndarray], Iterator[tuple[float, np.ndarray]]]
"""From records and their groups to (weight, records as members of one group): of all groups, and several draws."""


def _versions(ready: Prepared) -> Versions:
    sketch, config = ready.model.sketches[0], ready.config.generator
    generators = list(ready.generators(ready.roles, config).values())
    sizes = np.maximum(np.mean([table.sum(axis=0) for table in sketch.tables.values()], axis=0), 1.0)
    shares, cuts = sizes / sizes.sum(), np.cumsum(ready.widths)[:-1]

    def versions(inputs: np.ndarray, codes: np.ndarray) -> Iterator[tuple[float, np.ndarray]]:
        for target, draw in product(range(len(shares)), range(config.draws)):
            made = inputs.copy()
            for source in np.unique(codes[codes != target]):
                rows = codes == source
                pieces = zip(generators, np.split(inputs[rows], cuts, axis=1), strict=True)
                goal = np.full(int(rows.sum()), target)
                made[rows] = np.hstack([edit(u, int(source), goal, draw) for edit, u in pieces])
            yield shares[target] / config.draws, made

    return versions


def _chances(logits: torch.Tensor, task: Task) -> torch.Tensor:
    """What is averaged: probabilities of classes, or the value itself."""
    if task == "regression":
        return logits
    return torch.sigmoid(logits) if task == "binary" else torch.softmax(logits, dim=1)


def _scores(chances: torch.Tensor, task: Task) -> torch.Tensor:
    """Back to logits."""
    if task == "regression":
        return chances
    return torch.logit(chances, eps=CLOSE) if task == "binary" else torch.log(chances.clamp(min=CLOSE))


def parity(ready: Prepared) -> Fitted:
    """A head that leans on no difference between group means of M and P: their directions are penalised."""
    model, task = ready.model, ready.data.task
    roles = ready.roles.with_role("M", ready.roles.named("P"))
    blocks = {p.rank: model.encoders[p.rank](p.inputs[ready.split.train]) for p in ready.parties}
    made = [make_aware(p.layout, model.encoders[p.rank], model.sketches[0], roles) for p in ready.parties]
    gram = np.zeros((sum(b.shape[1] for b in blocks.values()),) * 2)
    for offset, share in zip(np.hstack([m.offsets for m in made]), made[0].shares, strict=True):
        gram += share * np.outer(offset, offset)
    ridge = {rank: np.full(block.shape[1], ready.config.ridge) for rank, block in blocks.items()}
    engine = PlainEngine()
    batch = engine.bind(blocks, ready.data.label.values[ready.split.train], ridge)
    bound = CURVATURE[task] * batch.rows.var(axis=0) + batch.ridge + PARITY_WEIGHT * np.abs(gram).sum(axis=1)
    penalty = Penalty((), gram, np.zeros_like(gram))
    step = Step(lam=PARITY_WEIGHT)
    head = engine.head(batch, ready.data.outputs, task)
    head = engine.steps(head, engine.first_order(batch, penalty, step, {0: bound}), PARITY_STEPS)
    cuts = np.cumsum(ready.widths)[:-1]

    def predict(inputs: np.ndarray) -> np.ndarray:
        pieces = zip(ready.parties, np.split(inputs, cuts, axis=1), strict=True)
        return engine.logits(head, {p.rank: model.encoders[p.rank](u) for p, u in pieces})

    return Fitted(predict, affine_white_box(head.weight, head.bias, model.encoders, ready.parties))


def no_masks(ready: Prepared) -> Fitted:
    """Ablation: every feature is a mediator."""
    return sealed(ready, ready.config, Roles(dict.fromkeys(ready.roles.of, "M")))


def no_guard(ready: Prepared) -> Fitted:
    """Ablation: no proxy penalty."""
    return sealed(ready, replace(ready.config, guard=0.0))


def with_roles(config: TrainConfig, budget: SpendingPlan | None = None) -> Callable[[Prepared], Fitted]:
    """The sealed method with other settings and the roles of the default run, as if a card had decided them."""
    return lambda ready: _trained(ready, config, budget, ready.roles)


def with_config(config: TrainConfig, budget: SpendingPlan | None = None) -> Callable[[Prepared], Fitted]:
    """The sealed method with other settings and its own discovery; scored on the roles of the default run."""
    return lambda ready: _trained(ready, config, budget, None)


def _trained(ready: Prepared, config: TrainConfig, budget: SpendingPlan | None, roles: Roles | None) -> Fitted:
    given = (ready.data, ready.split, ready.parties, config, ready.budget if budget is None else budget, ready.seed)
    return fitted_model(train_plainly(*given, roles=roles, tabled=roles)[0], ready)
