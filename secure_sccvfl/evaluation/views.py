"""Views of adversaries on a model, for every attack of the catalogue: for `reproduce` and `security_eval`.

The model is trained on the plaintext engine, or put together from the shares of a finished run. Everything here is
made by the evaluation, which has all data in one place; each view says what its adversary has of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import block_diag

from secure_sccvfl.audit.attacks.columns import Answers
from secure_sccvfl.audit.attacks.labels import Completion
from secure_sccvfl.audit.attacks.training_data import MOST_RECORDS, TRAININGS, Edits, Membership, Retraining, Tables
from secure_sccvfl.audit.attacks.view import RADII, Columns, TorchLogits, View, WhiteBox
from secure_sccvfl.data.layout import Block, unit_cuts
from secure_sccvfl.data.party import Party
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.discovery.scores import group_sizes
from secure_sccvfl.evaluation.methods import Fitted, Prepared, linear_head
from secure_sccvfl.evaluation.scoring import Predictor, logits_of
from secure_sccvfl.models.certificate import range_gram
from secure_sccvfl.models.counterfactuals import EncodedCounterfactuals
from secure_sccvfl.models.encoders import Encoder, PlainEncoder, edit_radius, plain_encoding
from secure_sccvfl.models.table_generator import shift_direction
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.releases.mechanisms import SHORTENED, gram_sensitivity
from secure_sccvfl.training.config import TrainConfig
from secure_sccvfl.training.plain import ModuleHead
from secure_sccvfl.training.trainer import Model

LABEL_ROWS = 256
DRAWN = 4000
"""Records that are drawn from released tables for their Gram matrix."""


@dataclass(frozen=True)
class LinearModel:
    """A head on local encoders: what attackers that know the model compute with. lam: None if it has no consistency.

    ready: data, split, roles and released tables that it was made from. mu: accounted for all tables together, of one
    record. consistency: whether its penalty is built from "records" or from released "tables". sigma: deviation of
    the head's noise. gram_noise: of the noise on the sum over records of the squares of edits, if it is released.
    """

    ready: Prepared
    encoders: Mapping[int, Encoder]
    weight: np.ndarray
    bias: np.ndarray
    lam: float | None = None
    consistency: str = "records"
    sigma: float = 0.0
    gram_noise: float = 0.0
    tables: Mapping[str, np.ndarray] | None = None
    mu: float | None = None

    @property
    def released(self) -> Mapping[str, np.ndarray]:
        """The tables of the model, or those of the default run."""
        return self.tables or self.ready.model.noisy_tables[0].tables

    def encode(self, rows: np.ndarray) -> np.ndarray:
        return np.hstack([self.encoders[p.rank](p.inputs[rows]) for p in self.ready.parties])

    def answers(self, rows: np.ndarray) -> np.ndarray:
        return np.asarray(self.encode(rows) @ self.weight + self.bias)

    def columns(self, rank: int) -> slice:
        """Columns of a party's encodings among those of all."""
        before = sum(self.encoders[p.rank].columns for p in self.ready.parties if p.rank < rank)
        return slice(before, before + self.encoders[rank].columns)


def fitted_linear(ready: Prepared, model: Model) -> LinearModel:
    """A model of the plaintext engine with a linear head."""
    if isinstance(model.head, ModuleHead):
        raise ConfigError(f"attacks are on linear heads, and this model has head {model.head.spec.kind}")
    noisy_tables = model.noisy_tables[0]
    return LinearModel(
        ready,
        model.encoders,
        *linear_head(model, ready.parties),
        model.lam,
        ready.config.consistency_from,
        gram_noise=gram_noise(ready, ready.config, ready.budget.multiplier),
        tables=noisy_tables.tables,
        mu=float(np.sqrt(noisy_tables.releases) / ready.budget.multiplier),
    )


def gram_noise(ready: Prepared, config: TrainConfig, multiplier: float) -> float:
    """Of one edit for each record; 0 if no Gram matrix of records' edits is released."""
    radii = [SHORTENED * edit_radius(p.layout, ready.roles.edited) for p in ready.parties]
    return multiplier * gram_sensitivity(radii, 0, 1, 1).replaced if config.releases_gram else 0.0


def model_views(model: LinearModel) -> dict[str, dict[str, Any]]:
    """What attacks on a linear model take, by name of the view; without those that do not apply to it."""
    ready = model.ready
    kinds = ("tables", "retrained heads", "answers", "candidates", "part of a model")
    views: dict[str, dict[str, Any]] = {kind: {} for kind in kinds}
    if model.tables is not None and model.mu is not None:
        views["tables"]["released tables"] = tables_view(model)
    if ready.data.task == "binary" and model.lam and ready.roles.edited:
        views["retrained heads"]["many trainings"] = retraining_view(model)
    if ready.data.task != "regression":
        train, test = ready.split.train, ready.split.test
        label = ready.data.label.values
        views["candidates"]["answers"] = Membership.of(
            "receiver",
            (model.encode(train), model.encode(test)),
            (label[train], label[test]),
            (model.answers(train), model.answers(test)),
            ready.config.ridge,
        )
        for party in ready.parties:
            if party.name != ready.data.label.holder:
                encodings = model.encode(train)[:, model.columns(party.rank)]
                view = Completion(party.name, party.inputs[train], encodings, label[train].astype(int))
                views["part of a model"][f"party {party.name}"] = view
    if all(isinstance(encoder, PlainEncoder) for encoder in model.encoders.values()):
        views["answers"]["scores"] = answers_view(model)
    return views


def feature_blocks(parties: tuple[Party, ...]) -> list[tuple[Party, Block, Block]]:
    """Every feature: its party, its columns at the party, and its columns in the input space of all parties."""
    blocks, at = [], 0
    for party in parties:
        for block in party.layout.blocks:
            blocks.append((party, block, replace(block, start=block.start + at, stop=block.stop + at)))
        at += party.layout.width
    return blocks


def moved_features(ready: Prepared) -> tuple[Block, ...]:
    """The mediators, by their columns in the input space of all parties."""
    names = set(ready.roles.named("M"))
    return tuple(whole for _, block, whole in feature_blocks(ready.parties) if block.feature.name in names)


def codes_of(block: Block, inputs: np.ndarray) -> np.ndarray:
    """The category or bin of each record; a gap of a number is in the bin of its lowest value."""
    values = inputs[:, block.columns]
    return np.asarray(
        values.argmax(axis=1) if block.one_hot else np.digitize(values[:, 0], unit_cuts(block.feature)[1:-1])
    )


def tables_view(model: LinearModel) -> Tables:
    """The released tables, and the exact ones of the training records."""
    ready, attribute = model.ready, model.ready.data.protected[0]
    rows = ready.config.training_rows(ready.split)
    groups = np.eye(len(attribute.groups))[attribute.codes[rows]]
    released = model.tables or {}
    exact: dict[str, np.ndarray] = {}
    for party in ready.parties:
        bins = party.take(rows).bins()
        exact |= {name: bins[name].T @ groups for name in bins if name in released}
    return Tables("all tables", exact, {name: released[name] for name in exact}, model.mu or 0.0)


def answers_view(model: LinearModel) -> Answers:
    """The label holder with the scores of test records, before the columns of all others."""
    ready, rows = model.ready, model.ready.split.test
    receiver = next(p for p in ready.parties if p.name == ready.data.label.holder)
    weights, codes, bins = [], [], []
    for party, block, _ in feature_blocks(ready.parties):
        if party is receiver:
            continue
        values = codes_of(block, party.inputs[rows])
        encodings = model.encoders[party.rank](party.inputs[rows])
        only = np.flatnonzero(_columns_of(party, block))
        added = encodings[:, only] @ model.weight[model.columns(party.rank)][only]
        kinds = np.unique(values)
        if len(kinds) < 2:
            continue
        codes.append(np.searchsorted(kinds, values))
        bins.append(len(kinds))
        weights += [added[values == k].mean(axis=0) for k in kinds]
    at = model.columns(receiver.rank)
    left = model.answers(rows) - model.encode(rows)[:, at] @ model.weight[at] - model.bias
    return Answers("receiver", receiver.inputs[rows], np.column_stack(codes), tuple(bins), np.array(weights), left)


def _columns_of(party: Party, block: Block) -> np.ndarray:
    """Which plain columns belong to a feature."""
    trial = np.zeros((1, party.layout.width))
    widths = [plain_encoding(replace(party.layout, blocks=(b,)), trial).shape[1] for b in party.layout.blocks]
    owner = np.repeat(np.arange(len(widths)), widths)
    return np.asarray(owner == party.layout.blocks.index(block))


def _edits_of(model: LinearModel, parties: tuple[Party, ...], seed: int) -> Edits:
    ready = model.ready
    config, groups = ready.config.generator, len(ready.data.protected[0].groups)
    generators = ready.generators(ready.roles, config, seed, model.released)
    encodings = {p.rank: model.encoders[p.rank](p.inputs) for p in parties}
    counterfactuals = EncodedCounterfactuals(
        parties, groups, generators, model.encoders, encodings, config.draws, seed
    )
    return [[np.hstack([blocks[p.rank] for p in parties]) for blocks in by_group] for by_group in counterfactuals]


def retraining_view(model: LinearModel, records: int = MOST_RECORDS) -> Retraining:
    """Some of the training records, whose s an adversary wants that may have the model trained again and again."""
    ready = model.ready
    rows = ready.config.training_rows(ready.split)[:records]
    parties = tuple(replace(p, inputs=p.inputs[rows]) for p in ready.parties)

    tables = drawn_gram(model) if model.consistency == "tables" else None
    guarded = ready.roles.penalized
    direction = np.concatenate([shift_direction(p.layout, model.released, guarded) for p in ready.parties])
    return Retraining(
        "trains again",
        model.encode(rows),
        ready.data.label.values[rows].astype(float),
        ready.data.protected[0].codes[rows],
        evidence(model, rows).argmax(axis=1),
        lambda seed: _edits_of(model, parties, 1000 + seed),
        model.lam or 0.0,
        ready.config.ridge,
        ready.config.guard * np.outer(direction, direction) + _ranges(model),
        tables,
        model.sigma,
        trainings=1 if model.gram_noise else TRAININGS,  # each of them is charged, and a budget is for one
        gram_noise=model.gram_noise / len(rows),
    )


def _ranges(model: LinearModel) -> np.ndarray | float:
    """The range penalty of the model, which is public."""
    ready, kappa = model.ready, model.ready.config.kappa
    grams = [range_gram(model.encoders[p.rank], ready.roles.edited) for p in ready.parties] if kappa else []
    return kappa * np.asarray(block_diag(*grams)) if grams else 0.0


def evidence(model: LinearModel, rows: np.ndarray) -> np.ndarray:
    """Log likelihood of each group (rows x groups) by the released tables, features taken as independent."""
    tables, terms = model.released, []
    for party in model.ready.parties:
        for name, bins in party.take(rows).bins().items():
            if name not in tables:
                continue
            counts = np.maximum(tables[name], 0.5)
            terms.append(bins @ np.log(counts / counts.sum(axis=0)))
    return np.asarray(np.sum(terms, axis=0))


def drawn_gram(model: LinearModel, count: int = DRAWN) -> np.ndarray:
    """The Gram matrix of counterfactuals of records that are drawn from released tables: s of no record is in it.

    Given its group, every feature of a drawn record is independent of the others.
    """
    ready, rng = model.ready, stream(model.ready.seed, "drawn gram")
    tables = model.released
    by_party = [[tables[n] for n in p.layout.names if n in tables] for p in ready.parties]
    sizes = np.mean([group_sizes(held) for held in by_party if held], axis=0)
    shares = np.clip(sizes, 1.0, None) / np.clip(sizes, 1.0, None).sum()
    groups = rng.choice(len(shares), size=count, p=shares)
    parties = []
    for party in ready.parties:
        inputs = np.zeros((count, party.layout.width))
        for block in party.layout.blocks:
            if block.feature.name not in tables:  # held fixed, so no edit reads it
                continue
            table = np.clip(tables[block.feature.name], 0.5, None)
            for g in range(len(shares)):
                here = np.flatnonzero(groups == g)
                bins = rng.choice(len(table), size=len(here), p=table[:, g] / table[:, g].sum())
                inputs[np.ix_(here, np.arange(block.start, block.stop))] = _values(block, bins, rng)
        parties.append(replace(party, inputs=inputs))
    counterfactuals = _edits_of(model, tuple(parties), ready.seed)
    changes = [np.array(by_group)[groups, np.arange(count)] for by_group in counterfactuals]
    return np.asarray(sum(d.T @ d for d in changes) / (len(changes) * count))


def _values(block: Block, bins: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Columns of a feature in these bins; a number is anywhere in its bin."""
    if block.one_hot:
        return np.asarray(np.eye(block.width)[bins])
    cuts = unit_cuts(block.feature)
    gap = bins >= len(cuts) - 1
    inner = np.where(gap, 0, bins)
    value = cuts[inner] + rng.random(len(bins)) * (cuts[inner + 1] - cuts[inner])
    columns = np.zeros((len(bins), block.width))
    columns[:, 0] = np.where(gap, 0.0, value)
    if block.width > 1:
        columns[:, 1] = gap
    return columns


def views_of(ready: Prepared, fitted: Fitted, brief: bool) -> dict[str, dict[str, Any]]:
    """What adversaries may hold of a method: by what attacks take, then by name. `brief`: logits and one radius."""
    split, codes, inputs = ready.split, ready.data.protected[0].codes, ready.inputs
    shown: dict[str, Predictor] = {"logits": fitted.predict}
    if not brief and fitted.fused is not None:
        shown["z"] = fitted.fused
    views: dict[str, dict[str, Any]] = {"view": {}}
    for name, show in shown.items():
        parts = [(logits_of(show, inputs[rows], codes[rows]), codes[rows]) for rows in (split.train, split.test)]
        views["view"][name] = View(name, parts[0], parts[1])
    if not brief:
        views["columns"] = _columns_views(ready, views["view"])
        if fitted.model is not None and fitted.model.aware is None:
            views |= model_views(fitted_linear(ready, fitted.model))
    if ready.data.task != "regression":
        views["white box"] = {"model": white_box_view("white box", fitted.white_box, ready, brief)}
    if not brief and ready.data.task == "binary" and fitted.network is not None:
        rows, largest = split.train[:LABEL_ROWS], int(np.argmax(ready.widths))
        label = ready.data.label.values[rows]
        gradients = fitted.network.returned_gradients(inputs[rows], label, largest, noise=1.0, seed=ready.seed)
        views["gradients"] = {"largest party": gradients}
    return views


def white_box_view(holder: str, logits: TorchLogits, ready: Prepared, brief: bool = False) -> WhiteBox:
    """Test records whose mediators may move. `brief`: by the largest radius only."""
    inputs, columns = ready.inputs[ready.split.test], ready.columns(ready.roles.named("M"))
    return WhiteBox(holder, logits, inputs, columns, RADII[-1:] if brief else RADII, moved_features(ready))


def _columns_views(ready: Prepared, views: Mapping[str, View]) -> dict[str, Columns]:
    """The first party with its own columns and what it is shown, before the columns of the others."""
    train, test = ready.split.train, ready.split.test
    targets = {}
    for party in ready.parties[1:]:
        for block in party.layout.blocks:
            codes = codes_of(block, party.inputs)
            if min(len(np.unique(codes[rows])) for rows in (train, test)) > 1:
                targets[block.feature.name] = (codes[train], codes[test])
    if not targets:
        return {}
    own_columns = (ready.parties[0].inputs[train], ready.parties[0].inputs[test])
    return {name: Columns(name, own_columns, (v.known[0], v.unknown[0]), targets) for name, v in views.items()}
