"""The sealed method, mode `aware`, and the simple baselines of every table, on the plaintext engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from secure_sccvfl.audit.attacks.view import TorchLogits
from secure_sccvfl.data.layout import unit_cuts
from secure_sccvfl.data.party import Party
from secure_sccvfl.evaluation.metrics import AwarePredictor, Predictor
from secure_sccvfl.evaluation.prepared import Fitted, Prepared, train_plainly
from secure_sccvfl.models.encoders import Encoder, PlainEncoder
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.training.config import TrainConfig
from secure_sccvfl.training.model import Model
from secure_sccvfl.training.modes import MODES
from secure_sccvfl.training.plain import Head, ModuleHead
from secure_sccvfl.training.trainer import AwareTrainer


def with_inputs(parties: tuple[Party, ...], inputs: np.ndarray) -> list[Party]:
    """The parties with their columns of these records, which are in the joint input space of all parties."""
    pieces = np.split(inputs, np.cumsum([p.layout.width for p in parties])[:-1], axis=1)
    return [replace(p, inputs=own) for p, own in zip(parties, pieces, strict=True)]


def model_predictor(model: Model, parties: tuple[Party, ...]) -> Predictor:
    """The sealed model as a function of the joint input space of all parties."""
    return lambda inputs: model.logits(with_inputs(parties, inputs))


def sealed(ready: Prepared, config: TrainConfig, roles: Roles | None = None) -> Fitted:
    """The sealed method with other settings, and the roles of the prepared seed or these."""
    given = (ready.data, ready.split, ready.parties, config, ready.budget, ready.seed)
    return fitted_model(train_plainly(*given, roles=roles or ready.roles)[0], ready)


def fitted_model(model: Model, ready: Prepared) -> Fitted:
    notes = {"lambda": _known_lambda(model), "temperature": model.temperature}
    predict = model_predictor(model, ready.parties)
    return Fitted(
        predict, sealed_white_box(model, ready.parties), _encodings(model, ready.parties), notes, model=model
    )


def _known_lambda(model: Model) -> float:
    """The model's lambda, which is known in plaintext."""
    if model.lam is None:
        raise ValueError("the pooled plaintext evaluation needs models that were trained with exact evaluation")
    return model.lam


def linear_head(model: Model, parties: tuple[Party, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Weight and bias of a linear head: logits are affine in the encoding, so n + 1 evaluations recover them."""
    widths = [model.encoders[p.rank].columns for p in parties]
    probe = np.vstack([np.zeros(sum(widths)), np.eye(sum(widths))])
    blocks = np.split(probe, np.cumsum(widths)[:-1], axis=1)
    values = model.engine.logits(model.head, {p.rank: b for p, b in zip(parties, blocks, strict=True)})
    return values[1:] - values[0], values[0]


def sealed_white_box(model: Model, parties: tuple[Party, ...]) -> TorchLogits:
    """The sealed model in torch, for an attacker who knows everything (plain encoders only)."""
    if isinstance(model.head, ModuleHead):
        head, width = model.head, sum(model.encoders[p.rank].columns for p in parties)
        encode = affine_white_box(np.eye(width), np.zeros(width), model.encoders, parties)
        return lambda x: head.in_torch(encode(x)) / model.temperature
    weight, bias = linear_head(model, parties)
    return affine_white_box(weight / model.temperature, bias / model.temperature, model.encoders, parties)


def affine_white_box(
    weight: np.ndarray, bias: np.ndarray, encoders: Mapping[int, Encoder], parties: tuple[Party, ...]
) -> TorchLogits:
    """A head on plain encoders in torch, as a function of all parties' input space."""
    head, offset = torch.tensor(weight), torch.tensor(bias)
    means, shown = [], []
    for party in parties:
        encoder = encoders[party.rank]
        if not isinstance(encoder, PlainEncoder):
            raise TypeError(f"no white box for encoder {type(encoder).__name__}")
        means.append(encoder.mean)
        shown.append(encoder.shown)
    mean, head = torch.tensor(np.concatenate(means)), torch.tensor(np.concatenate(shown))[:, None] * head

    def logits(x: torch.Tensor) -> torch.Tensor:
        columns, at = [], 0
        for party in parties:
            for block in party.layout.blocks:
                part = x[:, at + block.start : at + block.stop]
                if not block.one_hot:
                    edges = torch.tensor(unit_cuts(block.feature))
                    steps = ((part[:, :1] - edges[:-1]) / edges.diff()).clamp(0.0, 1.0)
                    missing = part[:, 1:]
                    steps = torch.where(missing > 0.5, 0.5, steps) if missing.shape[1] else steps
                    part = torch.cat([steps, missing], dim=1)
                columns.append(part)
            at += party.layout.width
        return (torch.cat(columns, dim=1) - mean) @ head + offset

    return logits


def _encodings(model: Model, parties: tuple[Party, ...]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda inputs: np.hstack([model.encoders[p.rank](p.inputs) for p in with_inputs(parties, inputs)])


def scc(ready: Prepared) -> Fitted:
    """SCC-VFL with the defaults."""
    return fitted_model(ready.model, ready)


def erm(ready: Prepared) -> Fitted:
    """Plain training: the same encoders and head, lambda = 0, no proxy penalty and no noise."""
    return sealed(ready, replace(ready.config.only(0.0), guard=0.0, private=False))


def _without_m(ready: Prepared, config: TrainConfig, roles: Roles) -> Fitted:
    """Train on columns with the mediators blanked, and blank them in every record that is scored."""
    keep = np.ones(ready.inputs.shape[1])
    keep[ready.columns(ready.roles.named("M"))] = 0.0
    parties, at = [], 0
    for p in ready.parties:
        parties.append(replace(p, inputs=p.inputs * keep[at : at + p.layout.width]))
        at += p.layout.width
    fitted = sealed(replace(ready, parties=tuple(parties)), config, roles)
    mask = torch.tensor(keep)
    return Fitted(lambda inputs: fitted.predict(inputs * keep), lambda x: fitted.white_box(x * mask))


def drop_m(ready: Prepared) -> Fitted:
    """ERM without the mediators and without noise: the trivial way to a flip rate of 0."""
    return _without_m(ready, replace(ready.config.only(0.0), guard=0.0, private=False), ready.roles)


def drop_m_guard(ready: Prepared) -> Fitted:
    """ERM without the mediators, with the proxy penalty and the noise of the default run.

    Without proxies it is `drop_m` with the noise of a private model.
    """
    roles = ready.roles.with_role("N", ready.roles.named("M"))
    return _without_m(ready, ready.config.only(_known_lambda(ready.model)), roles)


def _linear(weight: np.ndarray, bias: np.ndarray) -> Fitted:
    w, b = torch.tensor(weight), torch.tensor(bias)
    return Fitted(lambda inputs: inputs @ weight + bias, lambda x: x @ w + b)


def logistic(ready: Prepared) -> Fitted:
    """Logistic regression on pooled one-hot columns (ridge regression when the label is a number)."""
    rows = ready.split.train
    inputs, label = ready.inputs[rows], ready.data.label.values[rows]
    if ready.data.task == "regression":
        x = np.hstack([inputs, np.ones((len(inputs), 1))])
        weight = np.linalg.solve(x.T @ x + np.eye(x.shape[1]), x.T @ label)
        return _linear(weight[:-1, None], weight[-1:])
    model = LogisticRegression(max_iter=3000).fit(inputs, label)
    return _linear(model.coef_.T, model.intercept_)


def majority(ready: Prepared) -> Fitted:
    """The most frequent class (or the mean) of the training part."""
    label, width = ready.data.label.values[ready.split.train], ready.inputs.shape[1]
    if ready.data.task == "regression":
        return _linear(np.zeros((width, 1)), np.array([label.mean()]))
    rates = np.clip(np.bincount(label, minlength=len(ready.data.label.classes)) / len(label), 1e-6, None)
    bias = np.log(rates[1:] / rates[:1]) if ready.data.task == "binary" else np.log(rates)
    return _linear(np.zeros((width, len(bias))), bias)


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
    return AwarePredictor(lambda inputs, codes: model.logits(with_inputs(parties, inputs), codes))


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
