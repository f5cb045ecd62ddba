"""`dp` mode: local encoders that learn from noisy batch gradients, then a sealed head on top of them.

Each party trains a small score network s_p(x; theta_p) on its own columns. The logit of a record is the sum of the
scores. A step has these parts. Residuals sigma(sum of s_p) - y are computed under MPC. Every party takes per-record
gradients of its own score from Opacus (`GradSampleModule`) and clips them locally. They are weighted by the secret
residuals and summed under MPC. Discrete Gaussian noise is added to the sum under MPC. The noisy sum is opened to its
owner only (four rounds, protocols/steps/weighted_sums.py). With `sampling` below 1 each record takes part with that
chance, which no party sees (one more round, protocols/steps/weighted_sums.py).

Opacus' clipping and noise are not used: they would need the residuals in the clear. Its accountant is the second one
of every charge (accounting/accountant.py).

The guarantee. A residual and a gradient depend on their own record and on parameters that were released with noise,
on nothing else. So columns are not centred on means of records, and no secret head takes part. A head trained
without noise would carry every record into every residual, and the sensitivity would not hold. Each step is then
one Gaussian release, charged before it is made. Its joint sensitivity is clip * (1 + 2^-10) * sqrt(parties) under
adding or removing a record, and twice that under replacing one (residuals have either sign). A sample of records
that no party knows makes a step cheaper: it is charged as a Poisson-sampled Gaussian release. The dealer knows the
sample and its own noise. Against a dealer who reads what was opened, the price without either holds. A public
choice of rows would gain nothing. The default is full batch.

The weights alpha', beta' and eta' of the paper's validity terms are refused in this mode. Generators of `dp` have no
parameters. A term against leakage would be a local gradient over the party's records, without noise: it would carry
each of them into the residual of every other one, and the sensitivity above would not hold.

Afterwards the hidden units are further columns of the party's encoder. The secret head is trained as in `sealed`,
which opens no gradient.

Utility: on German (n = 560, epsilon 8 over five releases and ten steps) no accuracy beyond `sealed` was
seen over five seeds, while tables pay for the steps with more noise, less of it with sampling
(docs/privacy-accounting.md has figures). Other data were not tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, skip_init, vector_to_parameters

from secure_sccvfl.accounting.budget import BudgetError
from secure_sccvfl.accounting.events import Event, Sensitivity
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.party import Part, Party
from secure_sccvfl.data.party_data import Schema
from secure_sccvfl.data.randomness import torch_seed
from secure_sccvfl.models.encoders import (
    FeatureEncoder,
    PlainEncoder,
    plain_encoding,
    public_encoder,
    public_radius,
)
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.protocols.operations.noise import NoiseKind
from secure_sccvfl.protocols.records.releases import Release
from secure_sccvfl.protocols.session.runtime import Session, crypten
from secure_sccvfl.protocols.steps.head import LOGIT_BOUND
from secure_sccvfl.protocols.steps.weighted_sums import (
    FINEST_NOISE,
    SUM_BITS,
    WEIGHT_BITS,
    clipped,
    nearest_sampling,
    secret_batch,
    sensitivity,
    threshold,
    weighted_sums,
)
from secure_sccvfl.releases.catalogue import NOISY_GRADIENT, PlanFacts
from secure_sccvfl.releases.charging import Charger, Paid
from secure_sccvfl.releases.mechanisms import HeadPlan
from secure_sccvfl.training.config import head_plan
from secure_sccvfl.training.modes.base import PartyContext, Trained, check_budget
from secure_sccvfl.training.modes.options import RunOptions
from secure_sccvfl.training.modes.sealed import sealed_releases
from secure_sccvfl.training.shared import share_label, side_by_side
from secure_sccvfl.training.trainer import Hooks, State


@dataclass(frozen=True)
class DpConfig:
    """Settings of `dp`: few units, few steps, since every parameter and every step adds noise.

    sampling: a record's chance to take part in a step, a multiple of 2^-16.
    """

    units: int = 4
    clip: float = 1.0
    steps: int = 10
    rate: float = 1.0
    momentum: float = 0.5
    sampling: float = 1.0

    def __post_init__(self) -> None:
        threshold(self.sampling)
        if self.units < 1 or self.steps < 1 or not (self.clip > 0 and self.rate > 0 and 0 <= self.momentum < 1):
            raise ValueError(f"bad settings of dp mode: {self}")
        if self.clip > 1:
            raise ValueError(f"clip must be at most 1, the bound of sums in the ring, got {self.clip}")


@dataclass(frozen=True)
class DpSeen:
    """The view of a party of a step: its own gradients (rows x parameters) and the noisy sum that was opened."""

    gradients: np.ndarray = field(repr=False)
    total: np.ndarray = field(repr=False)


@dataclass(frozen=True)
class DpModel:
    """Own encoder (plain columns and learned units), what was charged in this session, and what this party saw.

    mode_arrays: for checkpoints. It holds only the opened sums; this party computes the rest from them.
    """

    encoders: dict[int, FeatureEncoder]
    events: tuple[Event, ...]
    seen: tuple[DpSeen, ...] = field(repr=False)
    mode_arrays: dict[str, np.ndarray] = field(repr=False)


def parameters_of(columns: int, config: DpConfig) -> int:
    """Number of parameters of a party's score: weights, biases and output weights of its units."""
    return (columns + 2) * config.units


def step_sensitivity(config: DpConfig, parties: int) -> Sensitivity:
    """The joint sensitivity of the sums of all parties in a step."""
    return Sensitivity.of_any(sensitivity(config.clip, parties), 2.0**-SUM_BITS)


def dp_releases(columns: Sequence[int], config: DpConfig) -> list[Release]:
    """What `dp` opens besides a sealed run, known before the session. `columns`: plain columns of each party."""
    sizes = {f"parameters {rank}": parameters_of(width, config) for rank, width in enumerate(columns)}
    facts = PlanFacts({rank: {"encoder": width} for rank, width in enumerate(columns)}, sizes=sizes)
    return NOISY_GRADIENT.releases(facts, times=config.steps)


class _Network(nn.Module):
    """The score of rows of plain columns: (out^T relu(W x + b)) / units."""

    def __init__(self, columns: int, units: int, generator: torch.Generator) -> None:
        super().__init__()
        self.hidden = skip_init(nn.Linear, columns, units, dtype=torch.float64)
        self.out = skip_init(nn.Linear, units, 1, bias=False, dtype=torch.float64)
        with torch.no_grad():
            self.hidden.weight.copy_(torch.randn(columns, units, generator=generator, dtype=torch.float64).T / 2)
            self.hidden.bias.zero_()
            # Output weights have both signs and size 1: with a small start no unit would move.
            self.out.weight.fill_(1.0)
            self.out.weight[:, units // 2 :] = -1

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.out(torch.relu(self.hidden(rows)))[:, 0] / self.out.in_features
        return scores


class Score:
    """One party's score network and its per-record gradients. Party-local."""

    def __init__(self, party: Party, units: int, seed: int) -> None:
        from opacus.grad_sample import GradSampleModule  # takes a second to import

        self.layout = party.layout
        # The columns are not centred: a mean over records would carry each of them into every other one's gradient.
        self.rows = torch.tensor(plain_encoding(party.layout, party.inputs))
        self.columns = self.rows.shape[1]
        generator = torch.Generator().manual_seed(torch_seed(seed, "dp", *party.layout.names))
        self.network = _Network(self.columns, units, generator)
        self._sampled = GradSampleModule(self.network, loss_reduction="sum")
        self.velocity = torch.zeros_like(parameters_to_vector(self.network.parameters()))

    @torch.no_grad()
    def scores(self, bound: float) -> np.ndarray:
        """The score of every record, clamped so that the sum over all parties stays in the range of the sigmoid."""
        scores: np.ndarray = self.network(self.rows).clamp(-bound, bound).numpy()
        return scores

    def gradients(self) -> np.ndarray:
        """Gradients of every record's score in the parameters (rows x parameters), for a unit upstream signal."""
        self._sampled.zero_grad()
        # Rows with a gradient of their own, since hooks of a first layer warn without.
        self._sampled(self.rows.clone().requires_grad_()).sum().backward()
        each: list[torch.Tensor] = [p.grad_sample.flatten(1) for p in self.network.parameters()]  # type: ignore[attr-defined]
        return torch.cat(each, dim=1).numpy()

    @torch.no_grad()
    def learn(self, mean: np.ndarray, rate: float, momentum: float) -> None:
        self.velocity = momentum * self.velocity - rate * torch.tensor(mean)
        moved = parameters_to_vector(self.network.parameters()) + self.velocity
        vector_to_parameters(moved, self.network.parameters())

    def _hidden(self) -> tuple[np.ndarray, np.ndarray]:
        """Weights (columns x units) and biases of the units."""
        layer = self.network.hidden
        return layer.weight.detach().numpy().T.copy(), layer.bias.detach().numpy().copy()

    def public_encoder(self) -> FeatureEncoder:
        """For a private head: plain columns around public centres, and the units, in rows of a public length.

        The units follow from noisy sums that were released, so a row depends on its own record and on these only.
        """
        wide, bias = self._hidden()
        plain = public_encoder(self.layout)
        shifted = bias + plain.mean @ wide
        radius = float(np.hypot(public_radius(self.layout), 1.0))
        return FeatureEncoder(plain, wide, shifted, np.zeros(len(shifted)), radius)

    @torch.no_grad()  # a pass with gradients would count as one of `gradients`
    def encoder(self) -> FeatureEncoder:
        """Plain columns, and the units scaled to deviation 1 on the own training rows."""
        wide, bias = self._hidden()
        units = torch.relu(self.network.hidden(self.rows)).numpy()
        scale, mean = np.maximum(units.std(axis=0), 1e-3), self.rows.numpy().mean(axis=0)
        shifted = bias + mean @ wide  # the encoder centres its columns; the units were not
        return FeatureEncoder(
            PlainEncoder(self.layout, mean), wide / scale, shifted / scale, units.mean(axis=0) / scale
        )


def train_dp(
    session: Session,
    train: Part,
    label_holder: int,
    columns: Sequence[int],
    config: DpConfig,
    charger: Charger,
    seed: int,
    *,
    hooks: Hooks | None = None,
    state: State | None = None,
    private: bool = False,
) -> DpModel:
    """Train the encoders of a binary task; the budget may end it early.

    Every process calls this with its own data. A saved state continues after its last step. Its sums are reused,
    never charged or opened again. private: the encoders are for a private head.
    """
    hooks = Hooks() if hooks is None else hooks
    (party,) = train.parties
    score, rank = Score(party, config.units, seed), session.rank
    if score.columns != columns[rank]:
        raise ValueError(f"{columns[rank]} columns were declared, there are {score.columns}")
    widths = [parameters_of(width, config) for width in columns]
    label = share_label(session, train.label, label_holder, (train.rows, 1), WEIGHT_BITS)
    events: list[Event] = []
    seen: list[DpSeen] = []

    def learn(gradients: np.ndarray, total: np.ndarray) -> None:
        seen.append(DpSeen(gradients, total))
        score.learn(total / (config.sampling * train.rows), config.rate, config.momentum)

    def kept(ended: bool) -> dict[str, np.ndarray]:
        totals = np.array([step.total for step in seen]).reshape(len(seen), widths[rank])
        return {"dp totals": totals, "dp ended": np.array(ended)}

    saved = {} if state is None else state.mode_arrays
    for total in saved.get("dp totals", ()):
        learn(clipped(score.gradients(), config.clip), total)
    while len(seen) < config.steps and not saved.get("dp ended", False):
        number = len(seen)
        hooks.progress("dp encoders", number, config.steps)
        try:
            moved = step_sensitivity(config, session.parties)
            paid = charger.charge(NOISY_GRADIENT.charged_as(number), moved, config.sampling, NOISY_GRADIENT.pays)
        except BudgetError as error:
            hooks.audit("dp step refused", {"step": number, "reason": str(error)})
            break
        events.append(paid.event)
        gradients = clipped(score.gradients(), config.clip)
        scores = score.scores(LOGIT_BOUND / session.parties)
        learn(gradients, noisy_sum(session, scores, gradients, widths, label, paid, label_holder, charger.noise))
        hooks.keep(State(None, mode_arrays=kept(ended=False)))
    hooks.audit("dp encoders", {"steps": len(seen), "sampling": config.sampling})
    encoder = score.public_encoder() if private else score.encoder()
    return DpModel({rank: encoder}, tuple(events), tuple(seen), kept(ended=True))


def noisy_sum(
    session: Session,
    scores: np.ndarray,
    gradients: np.ndarray,
    widths: Sequence[int],
    label: Any,
    paid: Paid,
    holder: int,
    kind: NoiseKind,
) -> np.ndarray:
    """One step under MPC: the noisy sum of this party. Sample and noise are drawn as the paid event says.

    scores, gradients: of this party, in the clear. label: a tensor (rows x 1), WEIGHT_BITS.
    """
    event, ends = paid.event, np.cumsum(widths).tolist()
    if event.sampling < 1 and event.sigma < FINEST_NOISE:
        raise ValueError(f"noise of {event.sigma} is too small for the price of a sampled step to hold")
    with session.measure("dp step"):
        shape = (len(scores), 1)
        each = [session.owned(scores[:, None], owner=rank, shape=shape) for rank in range(session.parties)]
        logits = crypten.stack(each).sum(0) + session.zeros(shape)
        weight = logits.sigmoid(bound=LOGIT_BOUND, bits=WEIGHT_BITS) - label
        sums = weighted_sums(side_by_side(session, widths, gradients), secret_batch(weight, event.sampling))
        noisy = sums + session.noise(kind, event.sigma, ends[-1], (holder,), SUM_BITS)
        opened = session.open_each(
            [
                (noisy[end - width : end], session.declared(NOISY_GRADIENT.titled(rank)))
                for rank, (width, end) in enumerate(zip(widths, ends, strict=True))
            ],
            paid.receipt,
        )[session.rank]
    if opened is None:
        raise RuntimeError("the noisy sum did not reach its owner")
    return opened.numpy()


def plain_columns(schema: Schema) -> list[int]:
    """Columns of each party's plain encoder, by the public dictionary."""
    layouts = [Layout.of(party_features) for party_features in schema.features]
    return [plain_encoding(layout, np.zeros((1, layout.width))).shape[1] for layout in layouts]


def dp_config(options: RunOptions) -> DpConfig:
    return DpConfig(steps=options.training.dp_steps, sampling=nearest_sampling(options.training.dp_sampling))


class Dp:
    """The `dp` gradient mode: encoders from noisy, charged batch gradients, then a sealed head on top of them."""

    def check(self, options: RunOptions, schema: Schema) -> None:
        if schema.task != "binary":
            raise ConfigError("mode dp trains encoders for two classes only; use sealed")
        check_budget(options, schema)

    def releases(self, options: RunOptions, schema: Schema) -> list[Release]:
        return [*sealed_releases(schema, options), *dp_releases(plain_columns(schema), dp_config(options))]

    def charged_steps(self, options: RunOptions) -> tuple[tuple[float, int], ...]:
        config = dp_config(options)
        return ((config.sampling, config.steps),)

    def heads(self, options: RunOptions, schema: Schema) -> HeadPlan | None:
        layouts, units = schema.layouts.values(), dp_config(options).units
        given = options.train_config(), layouts, schema.task, schema.outputs
        return head_plan(*given, units=units, tabled=options.tabled(schema))

    def train(self, context: PartyContext) -> Trained:
        options, schema, config = context.options, context.schema, context.options.train_config()
        with context.phase("dp encoders"):
            learned = train_dp(
                context.engine.session,
                context.problem.train,
                schema.label_holder,
                plain_columns(schema),
                dp_config(options),
                context.charger,
                options.drawn_seed,
                hooks=context.hooks,
                state=context.state,
                private=options.privacy.private_model,
            )
        state = replace(State(None) if context.state is None else context.state, mode_arrays=learned.mode_arrays)
        trainer = context.trainer(config, learned.encoders)
        model = trainer.run(state=state, phase=context.phase)
        return Trained(model, context.engine, trainer.total_steps, learned.seen)
