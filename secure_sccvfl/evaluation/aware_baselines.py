"""Methods that look at group means or at s itself, on the plaintext engine: `parity`, `pcf` and `aware`.

The last two use s at every decision. They are compared here on public data. A run in secret does so only if it is
declared (mode `aware`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import torch

from secure_sccvfl.audit.attacks.view import TorchLogits
from secure_sccvfl.data.dataset import Task
from secure_sccvfl.data.party import Party
from secure_sccvfl.evaluation.baselines import affine_white_box, erm, model_predictor
from secure_sccvfl.evaluation.metrics import AwarePredictor, Predictor
from secure_sccvfl.evaluation.prepared import Fitted, Prepared, train_plainly
from secure_sccvfl.models.aware import make_aware
from secure_sccvfl.models.generators import make_generator
from secure_sccvfl.training.aware import AwareTrainer
from secure_sccvfl.training.config import TrainConfig
from secure_sccvfl.training.engine import CURVATURE, Step
from secure_sccvfl.training.modes import MODES
from secure_sccvfl.training.plain import Head, Penalty, PlainEngine
from secure_sccvfl.training.trainer import Model

PARITY_WEIGHT = 30.0
PARITY_STEPS = 600
CLOSE = 1e-6


def aware(ready: Prepared) -> Fitted:
    """Mode `aware` at its own lambda: s selects the encoding of each record, and moves along with an edit."""
    return aware_of(ready, replace(ready.config, lambdas=MODES.get("aware").lambdas))


def aware_of(ready: Prepared, config: TrainConfig) -> Fitted:
    """The same with other settings."""
    first = replace(ready.data, protected=ready.data.protected[:1])
    given = (first, ready.split, ready.parties, config, ready.budget, ready.seed)
    model, _ = train_plainly(*given, roles=ready.roles, driver=AwareTrainer)
    predict = aware_predictor(model, ready.parties)
    codes = ready.data.protected[0].codes[ready.split.test]
    return Fitted(predict, _aware_white_box(model, ready.parties, codes), notes={"lambda": model.lam or 0.0})


def predictor_of(model: Model, parties: tuple[Party, ...]) -> Predictor:
    """Any model of the plaintext engine as a predictor."""
    return model_predictor(model, parties) if model.aware is None else aware_predictor(model, parties)


def aware_predictor(model: Model, parties: tuple[Party, ...]) -> AwarePredictor:
    """A model that uses s as a function of all parties' input space and of the records' groups."""
    cuts = np.cumsum([p.layout.width for p in parties])[:-1]

    def predict(inputs: np.ndarray, codes: np.ndarray) -> np.ndarray:
        pieces = np.split(inputs, cuts, axis=1)
        return model.logits([replace(p, inputs=u) for p, u in zip(parties, pieces, strict=True)], codes)

    return AwarePredictor(predict)


def _aware_white_box(model: Model, parties: tuple[Party, ...], codes: np.ndarray) -> TorchLogits:
    """In torch, for records of these groups: in every group the logit is affine in the plain encoding."""
    if model.aware is None:
        raise ValueError("this model does not use s")
    head: Head = model.head
    made, at = {p.rank: model.aware[p.rank] for p in parties}, 0
    weights, bias = [], np.tile(head.bias, (made[parties[0].rank].groups, 1))
    for party in parties:
        encoder = made[party.rank]
        own, plain = head.weight[at : at + encoder.columns], encoder.plain.columns
        extra = own[plain:].reshape(encoder.groups - 1, len(encoder.mediators), own.shape[1])
        member = (np.eye(encoder.groups) - encoder.shares)[:, 1:]
        weight = np.tile(own[:plain], (encoder.groups, 1, 1))
        weight[:, encoder.mediators] += np.einsum("gk,kmo->gmo", member, extra)
        bias = bias - np.einsum("gc,gco->go", encoder.offsets, weight)
        weights.append(weight)
        at += encoder.columns
    whole = np.concatenate(weights, axis=1) / model.temperature
    boxes = [
        affine_white_box(w, b / model.temperature, model.encoders, parties) for w, b in zip(whole, bias, strict=True)
    ]
    member = torch.tensor(np.eye(len(boxes))[codes])[:, :, None]
    return lambda x: (torch.stack([box(x) for box in boxes], dim=1) * member).sum(dim=1)


def pcf(ready: Prepared) -> Fitted:
    """Factual and counterfactual predictions of ERM, averaged by the shares of the groups.

    After Zhou et al., "Counterfactual fairness by combining factual and counterfactual predictions", NeurIPS 2024.
    Counterfactuals are the run's own edits. The white box takes those of the test records as they are.
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
    generators = [
        make_generator(p.layout, sketch.tables, sketch.deviation, ready.roles, config, ready.seed, known)
        for p in ready.parties
        for known in [p.inputs[ready.split.train]]
    ]
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
    head = engine.steps(head, engine.prepare(batch, penalty, step, {0: bound}), PARITY_STEPS)
    cuts = np.cumsum(ready.widths)[:-1]

    def predict(inputs: np.ndarray) -> np.ndarray:
        pieces = zip(ready.parties, np.split(inputs, cuts, axis=1), strict=True)
        return engine.logits(head, {p.rank: model.encoders[p.rank](u) for p, u in pieces})

    return Fitted(predict, affine_white_box(head.weight, head.bias, model.encoders, ready.parties))
