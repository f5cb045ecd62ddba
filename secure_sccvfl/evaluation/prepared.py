"""One seed of one data set, ready for any method; and the form of a fitted method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from secure_sccvfl.audit.attacks.view import Gradients, TorchLogits
from secure_sccvfl.data.dataset import Dataset
from secure_sccvfl.data.party import Party, make_parties
from secure_sccvfl.data.splits import Split, joined_rows
from secure_sccvfl.discovery.statistics import PlainStatistics
from secure_sccvfl.evaluation.metrics import Predictor
from secure_sccvfl.models.counterfactuals import public_targets
from secure_sccvfl.models.generators import Generator, GeneratorConfig, make_generator
from secure_sccvfl.policy.card import PolicyCard
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.releases.mechanisms import default_epsilon
from secure_sccvfl.releases.noise import GaussianNoise, SimulatedCharge, SpendingPlan
from secure_sccvfl.training.config import TrainConfig, head_plan
from secure_sccvfl.training.modes.options import RunOptions
from secure_sccvfl.training.plain import PlainEngine
from secure_sccvfl.training.trainer import AwareTrainer, Model, Trainer, train


@dataclass(frozen=True)
class Prepared:
    """One seed of one data set, ready for any method: split, parties, the default model and its roles."""

    data: Dataset
    split: Split
    parties: tuple[Party, ...]
    seed: int
    budget: SpendingPlan
    config: TrainConfig
    model: Model
    charges: tuple[SimulatedCharge, ...]

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
        sketch, seed = self.model.sketches[0], self.seed if seed is None else seed
        given = (tables or sketch.tables, sketch.deviation, roles, config, seed)
        return {p.rank: make_generator(p.layout, *given, p.inputs[self.split.train]) for p in self.parties}


class ReturnsGradients(Protocol):
    """A model trained by split learning: what one party receives back for these records and labels."""

    def example_gradients(self, inputs: np.ndarray, label: np.ndarray, party: int) -> np.ndarray: ...

    def returned_gradients(
        self, inputs: np.ndarray, label: np.ndarray, party: int, noise: float, seed: int
    ) -> Gradients: ...


@dataclass(frozen=True)
class Fitted:
    """A fitted method: its predictor, the same in torch, and notes for the tables.

    fused: the inner representation. own: counterfactuals by the method's own generator. model: the model of the
    plaintext engine. network: a network trained by split learning. Each is None if the method has none.
    """

    predict: Predictor
    white_box: TorchLogits
    fused: Callable[[np.ndarray], np.ndarray] | None = None
    notes: Mapping[str, float] | None = None
    own: Callable[[np.ndarray], np.ndarray] | None = None
    model: Model | None = None
    network: ReturnsGradients | None = None


def default_config() -> TrainConfig:
    """Settings of a run on public data for which no option is given."""
    return RunOptions.of({"pooled": True}).train_config()


def default_run(data: Dataset) -> tuple[TrainConfig, SpendingPlan]:
    """The same with the budget of a run on these data, whose number of records is public."""
    options = RunOptions.of({"epsilon": default_epsilon(joined_rows(data.n)), "pooled": True})
    return default_config(), options.simulated_budget(len(data.parties))


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
    config = TrainConfig() if config is None else config
    budget = SpendingPlan(releases=config.charged) if budget is None else budget
    parties = make_parties(data)
    model, noise = train_plainly(data, split, parties, config, budget, seed, card=card, driver=driver)
    return Prepared(data, split, parties, seed, noise.plan, config, model, tuple(noise.charges))


def without_noise(ready: Prepared) -> Prepared:
    """The same seed and roles with a model that has no noise: the difference is what the noise costs.

    The model is trained without the validation records, which a private model uses too. Tables are of all columns,
    where a private model has those that it reads, and they get the whole budget.
    """
    config = replace(ready.config, private=False, alternatives=False)
    budget = replace(ready.budget, head=None)
    given = (ready.data, ready.split, ready.parties, config, budget, ready.seed)
    model, noise = train_plainly(*given, roles=ready.roles)
    return replace(ready, config=config, model=model, budget=noise.plan, charges=tuple(noise.charges))


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
    known = card.roles if roles is None and card is not None else roles
    aware = (known, len(data.protected[0].groups)) if driver is AwareTrainer and known is not None else None
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
