"""Methods of the tables: one seed of one data set prepared for any method, the baselines, and their registry.

A method is a function from a prepared seed to a fitted predictor. The sealed method, mode `aware` and the simple
baselines run on the plaintext engine. Networks of the paper are research code, imported on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from secure_sccvfl.audit.attacks.view import Gradients, TorchLogits
from secure_sccvfl.data.dataset import Dataset
from secure_sccvfl.data.layout import Layout, unit_cuts
from secure_sccvfl.data.party import Party, make_parties
from secure_sccvfl.data.registry import Registry
from secure_sccvfl.data.splits import Split, expected_training_records
from secure_sccvfl.discovery.statistics import PlainStatistics
from secure_sccvfl.evaluation.counterfactual_models import OWN, Counterfactuals
from secure_sccvfl.evaluation.scoring import AwarePredictor, Predictor
from secure_sccvfl.models.counterfactuals import public_targets
from secure_sccvfl.models.encoders import Encoder, FeatureEncoder, NetworkEncoder, PlainEncoder
from secure_sccvfl.models.generators import Generator, GeneratorConfig, make_generator
from secure_sccvfl.policy.card import PolicyCard
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.releases.default_budget import default_epsilon
from secure_sccvfl.releases.noise import GaussianNoise, SimulatedCharge, SpendingPlan
from secure_sccvfl.training.config import Net, TrainConfig, head_plan
from secure_sccvfl.training.model import Model
from secure_sccvfl.training.modes import MODES
from secure_sccvfl.training.modes.options import RunOptions
from secure_sccvfl.training.plain import Head, ModuleHead, PlainEngine
from secure_sccvfl.training.trainer import AwareTrainer, Trainer, train


@dataclass(frozen=True)
class Prepared:
    """One seed of one data set, ready for any method: split, parties, the default model and its roles.

    tabled: roles of the card that decides which columns have tables (`TrainConfig.tabled`).
    """

    data: Dataset
    split: Split
    parties: tuple[Party, ...]
    seed: int
    budget: SpendingPlan
    config: TrainConfig
    model: Model
    charges: tuple[SimulatedCharge, ...]
    tabled: Roles | None = None

    @property
    def roles(self) -> Roles:
        return self.model.roles

    @property
    def inputs(self) -> np.ndarray:
        return np.hstack([p.inputs for p in self.parties])

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(p.layout.width for p in self.parties)

    def columns(self, names: tuple[str, ...]) -> np.ndarray:
        """Columns of these features in the input space of all parties."""
        offsets = np.cumsum([0, *self.widths[:-1]])
        picked = [p.layout.columns(names) + o for p, o in zip(self.parties, offsets, strict=True)]
        return np.concatenate(picked).astype(int)

    def generators(
        self,
        roles: Roles,
        config: GeneratorConfig,
        seed: int | None = None,
        tables: Mapping[str, np.ndarray] | None = None,
    ) -> dict[int, Generator]:
        """The generator of each party from the noisy tables of the default model, or from these."""
        noisy_tables, seed = self.model.noisy_tables[0], self.seed if seed is None else seed
        given = (tables or noisy_tables.tables, noisy_tables.deviation, roles, config, seed)
        rows, structure = self.split.train, noisy_tables.structure
        return {p.rank: make_generator(p.layout, *given, p.inputs[rows], structure) for p in self.parties}


class ReturnsGradients(Protocol):
    """A model trained by split learning: what one party receives back for these records and labels."""

    def example_gradients(self, inputs: np.ndarray, label: np.ndarray, party: int) -> np.ndarray: ...

    def returned_gradients(
        self, inputs: np.ndarray, label: np.ndarray, party: int, noise: float, seed: int
    ) -> Gradients: ...


@dataclass(frozen=True)
class Fitted:
    """A fitted method: its predictor, the same in torch, and notes for the tables.

    fused: the inner representation. counterfactuals: by the method's own generator. model: the model of the
    plaintext engine. network: a network trained by split learning. Each is None if the method has none. additive: the
    logit is a sum of functions of single features, each linear between public cuts (`evaluation.certified`).
    """

    predict: Predictor
    white_box: TorchLogits
    fused: Callable[[np.ndarray], np.ndarray] | None = None
    notes: Mapping[str, float] | None = None
    counterfactuals: Callable[[np.ndarray], np.ndarray] | None = None
    model: Model | None = None
    network: ReturnsGradients | None = None
    additive: bool = False


def default_run(data: Dataset) -> tuple[TrainConfig, SpendingPlan]:
    """Settings and budget of a run on these public data for which no option is given."""
    options = RunOptions.of({"epsilon": default_epsilon(expected_training_records(data.n)), "pooled": True})
    return RunOptions.of({"pooled": True}).train_config(), options.simulated_budget(len(data.parties))


def prepare(
    data: Dataset,
    split: Split,
    seed: int,
    config: TrainConfig | None = None,
    budget: SpendingPlan | None = None,
    card: PolicyCard | None = None,
    driver: type[Trainer] = Trainer,
) -> Prepared:
    """Run the default method; its discovery gives the roles that all methods share."""
    config = (TrainConfig() if config is None else config).with_ridge(len(split.train))
    budget = SpendingPlan(releases=config.charged) if budget is None else budget
    parties = make_parties(data)
    model, noise = train_plainly(data, split, parties, config, budget, seed, card=card, driver=driver)
    tabled = None if card is None else card.roles
    return Prepared(data, split, parties, seed, noise.plan, config, model, tuple(noise.charges), tabled)


def without_noise(ready: Prepared) -> Prepared:
    """The same seed and roles with a model that has no noise: the difference is what the noise costs.

    The model is trained without the validation records, which a private model uses too. Tables are of all columns,
    where a private model has those that it reads, and they get the whole budget.
    """
    config = replace(ready.config, private=False, alternatives=False)
    budget = replace(ready.budget, head=None)
    given = (ready.data, ready.split, ready.parties, config, budget, ready.seed)
    model, noise = train_plainly(*given, roles=ready.roles)
    return replace(ready, config=config, model=model, budget=noise.plan, charges=tuple(noise.charges), tabled=None)


def train_plainly(
    data: Dataset,
    split: Split,
    parties: tuple[Party, ...],
    config: TrainConfig,
    budget: SpendingPlan,
    seed: int,
    *,
    card: PolicyCard | None = None,
    roles: Roles | None = None,
    driver: type[Trainer] = Trainer,
    tabled: Roles | None = None,
) -> tuple[Model, GaussianNoise]:
    """The method on the plaintext engine, with the noise that a secure run of this budget would carry.

    `tabled`: roles of which tables are released as for those of a card, where `roles` stand for one.
    """
    decided = card.roles if roles is None and card is not None else roles
    aware = (decided, len(data.protected[0].groups)) if driver is AwareTrainer and decided is not None else None
    layouts = [party.layout for party in parties]
    by_card = card.roles if tabled is None and card is not None else tabled
    names = config.tabled(by_card, data.owners) if driver.by_card else ()
    head = head_plan(config, layouts, data.task, data.outputs, aware=aware, tabled=names)
    budget = replace(budget, head=head)
    noise = GaussianNoise(budget, seed)
    given = (PlainEngine(), PlainStatistics(noise), data, split, config, seed)
    model = train(*given, card=card, roles=roles, parties=parties, driver=driver, privacy=noise, tabled=tabled)
    return model, noise


def edited_rows(
    ready: Prepared, roles: Roles, config: GeneratorConfig, rows: np.ndarray, draw: int
) -> tuple[np.ndarray, np.ndarray]:
    """Counterfactuals of these rows by table generators in the direction of the true s, and their target groups.

    For the pooled evaluation only: baselines that the paper gives s to, and diagnostics of the default run.
    """
    attribute = ready.data.protected[0]
    codes = attribute.codes[rows]
    targets = public_targets(len(rows), len(attribute.groups), ready.seed, draw)
    make = ready.generators(roles, config)
    pieces = [_by_true_group(make[p.rank], p.inputs[rows], codes, targets, draw) for p in ready.parties]
    return np.hstack(pieces), targets[np.arange(len(rows)), codes]


def _by_true_group(
    make: Generator, inputs: np.ndarray, codes: np.ndarray, targets: np.ndarray, draw: int
) -> np.ndarray:
    out = inputs.copy()
    for source in np.unique(codes):
        chosen = np.flatnonzero(codes == source)
        out[chosen] = make(inputs, int(source), targets[:, source], draw)[chosen]
    return out


def cycle_error(ready: Prepared) -> float:
    """Change of the test rows after moving to another group and back, as a share of the change to the other group."""
    attribute, rows = ready.data.protected[0], ready.split.test
    codes = attribute.codes[rows]
    targets = public_targets(len(rows), len(attribute.groups), ready.seed, 0)
    there = targets[np.arange(len(rows)), codes]
    back = np.tile(codes[:, None], (1, len(attribute.groups)))
    make = ready.generators(ready.roles, ready.config.generator)
    moved = left = 0.0
    for party in ready.parties:
        inputs = party.inputs[rows]
        edited = _by_true_group(make[party.rank], inputs, codes, targets, 0)
        returned = _by_true_group(make[party.rank], edited, there, back, 1)
        moved += float(np.abs(edited - inputs).sum())
        left += float(np.abs(returned - inputs).sum())
    return left / moved if moved > 0 else 0.0


def own_rows(ready: Prepared) -> tuple[np.ndarray, np.ndarray]:
    """Counterfactuals of the test rows by the run's own generator, and their target groups: a diagnostic."""
    return edited_rows(ready, ready.roles, ready.config.generator, ready.split.test, 0)


def own_counterfactuals(ready: Prepared) -> dict[str, Counterfactuals]:
    """The same by name, as extra counterfactuals for a `ScoringSet`; empty without mediators."""
    if not ready.roles.named("M"):
        return {}
    inputs, target = own_rows(ready)
    return {OWN: Counterfactuals(OWN, np.arange(len(inputs)), inputs, np.ones(len(inputs)), target)}


def with_inputs(parties: tuple[Party, ...], inputs: np.ndarray) -> list[Party]:
    """The parties with their columns of these records, which are in the joint input space of all parties."""
    pieces = np.split(inputs, np.cumsum([p.layout.width for p in parties])[:-1], axis=1)
    return [replace(p, inputs=columns) for p, columns in zip(parties, pieces, strict=True)]


def model_predictor(model: Model, parties: tuple[Party, ...]) -> Predictor:
    """The sealed model as a function of the joint input space of all parties."""
    return lambda inputs: model.logits(with_inputs(parties, inputs))


def sealed(ready: Prepared, config: TrainConfig, roles: Roles | None = None) -> Fitted:
    """The sealed method with other settings, and the roles of the prepared seed or these."""
    return trained(ready, config, roles=roles or ready.roles)


def trained(
    ready: Prepared,
    config: TrainConfig,
    budget: SpendingPlan | None = None,
    roles: Roles | None = None,
    tabled: Roles | None = None,
) -> Fitted:
    """The sealed method with other settings and budget; without roles it has its own discovery."""
    given = (ready.data, ready.split, ready.parties, config, budget or ready.budget, ready.seed)
    return fitted_model(train_plainly(*given, roles=roles, tabled=tabled)[0], ready)


def with_kappa(ready: Prepared, kappa: float) -> Fitted:
    """The prepared run with this range penalty: the same roles, tables and noise."""
    return _again(ready, replace(ready.config, kappa=kappa), ready.budget)


def with_net_penalty(ready: Prepared, lam: float, net: Net) -> Fitted:
    """The prepared run at this lambda, with or without the penalty on net flips: the same roles, tables and noise."""
    return _again(ready, replace(ready.config, net=net), ready.budget, lam)


def with_epsilon(ready: Prepared, epsilon: float) -> Fitted:
    """The prepared run with this total budget: the same roles, with other noise in tables and head."""
    return _again(ready, ready.config, replace(ready.budget, epsilon=epsilon))


def _again(ready: Prepared, config: TrainConfig, budget: SpendingPlan, lam: float | None = None) -> Fitted:
    lam = _known_lambda(ready.model) if lam is None else lam
    config = replace(config.only(lam), take_lambda=lam, alternatives=False)
    return trained(ready, config, budget, ready.roles, ready.tabled)


def fitted_model(model: Model, ready: Prepared) -> Fitted:
    notes = {"lambda": _known_lambda(model), "temperature": model.temperature}
    predict, additive = model_predictor(model, ready.parties), not why_not_additive(model)

    def fused(inputs: np.ndarray) -> np.ndarray:
        return np.hstack([model.encoders[p.rank](p.inputs) for p in with_inputs(ready.parties, inputs)])

    return Fitted(predict, sealed_white_box(model, ready.parties), fused, notes, model=model, additive=additive)


def why_not_additive(model: Model) -> str:
    """Why the logit is not a sum of functions of single features, for a message; "" if it is one."""
    if model.aware is not None:
        return "mode aware uses s for every decision, so a change of s changes more than the mediators"
    if isinstance(model.head, ModuleHead):
        return f"a head of kind {model.head.spec.kind} is not additive in the columns; use the linear head"
    mixing = [type(e).__name__ for e in model.encoders.values() if not isinstance(e, PlainEncoder)]
    return f"an encoder of kind {mixing[0]} mixes columns; use the plain encoder" if mixing else ""


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
    """The sealed model in torch, for an attacker who knows everything."""
    if isinstance(model.head, ModuleHead):
        head, width = model.head, sum(model.encoders[p.rank].columns for p in parties)
        encode = white_box_of(np.eye(width), np.zeros(width), model.encoders, parties)
        return lambda x: head.in_torch(encode(x)) / model.temperature
    weight, bias = linear_head(model, parties)
    return white_box_of(weight / model.temperature, bias / model.temperature, model.encoders, parties)


def white_box_of(
    weight: np.ndarray, bias: np.ndarray, encoders: Mapping[int, Encoder], parties: Sequence[Party]
) -> TorchLogits:
    """A head on local encoders in torch, as a function of all parties' input space."""
    widths, head, offset = [p.layout.width for p in parties], torch.tensor(weight), torch.tensor(bias)
    encode = [in_torch(encoders[p.rank], p.layout) for p in parties]

    def logits(x: torch.Tensor) -> torch.Tensor:
        pieces = zip(encode, x.split(widths, dim=1), strict=True)
        return torch.cat([one(piece) for one, piece in pieces], dim=1) @ head + offset

    return logits


def in_torch(encoder: Encoder, layout: Layout) -> TorchLogits:
    """The encodings of one party in torch, differentiable in its columns."""
    if isinstance(encoder, NetworkEncoder):
        network = encoder
        return lambda x: network.activations(x.float()).double()
    if isinstance(encoder, FeatureEncoder):
        plain = in_torch(encoder.plain, layout)
        layer, shift, centre = (torch.tensor(v) for v in (encoder.weight, encoder.bias, encoder.mean))

        def features(x: torch.Tensor) -> torch.Tensor:
            base = plain(x)
            return torch.cat([base, torch.relu(base @ layer + shift) - centre], dim=1)

        return features
    if not isinstance(encoder, PlainEncoder):
        raise TypeError(f"no white box for encoder {type(encoder).__name__}")
    mean, shown = torch.tensor(encoder.mean), torch.tensor(encoder.shown)

    def columns(x: torch.Tensor) -> torch.Tensor:
        blocks = []
        for block in layout.blocks:
            part = x[:, block.columns]
            if not block.one_hot:
                edges, missing = torch.tensor(unit_cuts(block.feature)), part[:, 1:]
                steps = ((part[:, :1] - edges[:-1]) / edges.diff()).clamp(0.0, 1.0)
                steps = torch.where(missing > 0.5, 0.5, steps) if missing.shape[1] else steps
                part = torch.cat([steps, missing], dim=1)
            blocks.append(part)
        return (torch.cat(blocks, dim=1) - mean) * shown

    return columns


def scc(ready: Prepared) -> Fitted:
    """SCC-VFL with the defaults."""
    return fitted_model(ready.model, ready)


def erm(ready: Prepared) -> Fitted:
    """Plain training: the same encoders and head, lambda = 0, no proxy penalty and no noise."""
    return sealed(ready, _plain(ready))


def _plain(ready: Prepared) -> TrainConfig:
    return replace(ready.config.only(0.0), guard=0.0, kappa=0.0, private=False)


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
    return Fitted(
        lambda inputs: fitted.predict(inputs * keep),
        lambda x: fitted.white_box(x * mask),
        additive=fitted.additive,
    )


def drop_m(ready: Prepared) -> Fitted:
    """ERM without the mediators and without noise: the trivial way to a flip rate of 0."""
    return _without_m(ready, _plain(ready), ready.roles)


def drop_m_guard(ready: Prepared) -> Fitted:
    """ERM without the mediators, with the proxy penalty and the noise of the default run.

    Without proxies it is `drop_m` with the noise of a private model.
    """
    roles = ready.roles.with_role("N", ready.roles.named("M"))
    return _without_m(ready, ready.config.only(_known_lambda(ready.model)), roles)


def _linear(weight: np.ndarray, bias: np.ndarray) -> Fitted:
    w, b = torch.tensor(weight), torch.tensor(bias)
    return Fitted(lambda inputs: inputs @ weight + bias, lambda x: x @ w + b, additive=True)


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
    encoders, at = {p.rank: model.aware[p.rank] for p in parties}, 0
    weights, bias = [], np.tile(head.bias, (encoders[parties[0].rank].groups, 1))
    for party in parties:
        encoder = encoders[party.rank]
        party_weight, plain = head.weight[at : at + encoder.columns], encoder.plain.columns
        extra = party_weight[plain:].reshape(encoder.groups - 1, len(encoder.mediators), party_weight.shape[1])
        member = (np.eye(encoder.groups) - encoder.shares)[:, 1:]
        weight = np.tile(party_weight[:plain], (encoder.groups, 1, 1))
        weight[:, encoder.mediators] += np.einsum("gk,kmo->gmo", member, extra)
        bias = bias - np.einsum("gc,gco->go", encoder.offsets, weight)
        weights.append(weight)
        at += encoder.columns
    whole = np.concatenate(weights, axis=1) / model.temperature
    boxes = [
        white_box_of(w, b / model.temperature, model.encoders, parties) for w, b in zip(whole, bias, strict=True)
    ]
    member = torch.tensor(np.eye(len(boxes))[codes])[:, :, None]
    return lambda x: (torch.stack([box(x) for box in boxes], dim=1) * member).sum(dim=1)


Method = Callable[[Prepared], Fitted]
NETWORKS = (
    *("erm_network", "adv_nomask", "uniform_cf", "policy_blind", "server_consistency", "server_consistency_flipped"),
    *("uniform_cf_repaired", "policy_blind_repaired", "server_consistency_repaired", "paper", "scc_split"),
)
"""The paper-faithful method and its baselines. They are research code, so they are imported on first use."""
METHODS: Registry[Method] = Registry(
    "method",
    {
        "majority": majority,
        "logreg": logistic,
        "drop_m": drop_m,
        "drop_m_guard": drop_m_guard,
        "erm": erm,
        "parity": "secure_sccvfl.research.experiments:parity",
        "pcf": "secure_sccvfl.research.experiments:pcf",
        "aware": aware,
        **{name: f"secure_sccvfl.research.paper.methods:{name}" for name in NETWORKS},
        "scc": scc,
    },
)
