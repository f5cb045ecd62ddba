"""Everything that one party trains in mode `split`: its encoder, its generators and its adversaries, in each step.

Of the objective L_cls + lambda L_cons + sum_p (alpha' V_id + beta' V_supp - eta' V_leak) a party's part is this:

- The gradient of L_cls + lambda L_cons in its own activations is opened to it (protocols/steps/split.py).
- eta' V_leak: its adversary guesses z_s from its activations behind a gradient reversal (Eq. grl_adv).
- alpha' V_id and beta' V_supp: the terms of its generator (Eq. lgen), identity, likelihood and MMD. Identity is 0 by
  construction, since fixed columns are copied, so alpha' weighs a term without a gradient.

Why targets are posteriors and never s. z_s of a record is p(s | own columns) under the party's own noisy tables, so
all that is computed here follows from the party's columns, from a charged release, and from the gradients it is
shown. A gradient of the true s of each record, or a target made from it, would hand s to the party. The holder of s
uses its posterior too: what it trains has an effect on others' gradients.

What is not the letter, since somebody would see another's data:

- The consistency gradient goes to original activations alone. In edited ones it is zero in all directions but the
  record's own, which reveals s. Given in all directions, weighted by posteriors, it would reveal both hypothesised
  shifts; with the opened gradient, which holds one of them, that is s again. So generators learn from their own terms
  only.
- Consistency is squared, not l1: with l1 every record's gradient would move by lambda times a sign, which reveals s.
- The context c is the same for all records (secure_sccvfl/research/paper/generators.py).
- Early stopping opens a bit of validation records (secure_sccvfl/research/split/stopping.py), so there is
none where
  evaluation has noise.

What the paper does not say: a record and its edited copies have the same dropout, so that an edit that moves nothing
shifts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import nn

from secure_sccvfl.data.party import Party
from secure_sccvfl.data.randomness import torch_seed
from secure_sccvfl.discovery.noisy_tables import NoisyTables
from secure_sccvfl.models.generators import Generator
from secure_sccvfl.research.paper.generators import MaskedGenerator, Turn, group_posterior, soft_targets
from secure_sccvfl.research.paper.networks import (
    Adversary,
    LocalTraining,
    MlpEncoder,
    dropout_factors,
    part_of,
    restore_training,
    reverse,
    training_state,
)

LASTING = ("encoder", "adversary")
"""Networks that go on when other generators are taken up: names in `OwnTraining.state` begin so."""


@dataclass(frozen=True)
class ValidityWeights:
    """alpha', beta' and eta' of the objective, and the rates of what they train. Without a weight a part is off."""

    identity: float = 0.0
    support: float = 0.0
    leak: float = 0.0
    generator_rate: float = 0.01
    adversary_rate: float = 0.005

    def __post_init__(self) -> None:
        bad = {f.name: getattr(self, f.name) for f in fields(self) if not 0 <= getattr(self, f.name) < float("inf")}
        if bad or min(self.generator_rate, self.adversary_rate) <= 0:
            raise ValueError(f"weights must not be negative and rates must be above 0, got {self}")


class OwnTraining(LocalTraining):
    """One party's networks and optimisers: activations out, gradients in. Begin with `take_up`."""

    def __init__(
        self,
        encoder: MlpEncoder,
        pace: tuple[float, float],
        party: Party,
        weights: ValidityWeights,
        seed: int,
        dropout: float = 0.0,
    ) -> None:
        """`pace`: rate and decay of the encoder."""
        super().__init__(encoder, *pace)
        self.party, self.weights, self.seed, self.dropout = party, weights, seed, dropout
        self._factors: torch.Tensor | None = None
        self.inputs = torch.tensor(party.inputs, dtype=torch.float32)
        self.z_s: list[torch.Tensor] = []
        self.adversaries: list[Adversary] = []
        self.generators: list[MaskedGenerator | None] = []
        self._nets: dict[str, tuple[nn.Module, torch.optim.Optimizer]] = {}
        self._learning: list[tuple[int, MaskedGenerator, Adversary | None]] = []

    def take_up(
        self,
        sketches: Sequence[NoisyTables],
        generators: Mapping[str, Generator],
        dropped: Sequence[int] | np.ndarray = (),
    ) -> None:
        """Train with these from now on. A further release changes both; encoder and adversaries go on.

        sketches: what was released to this party, one for each protected attribute; its posteriors come from them.
        dropped: input columns that the encoder must not see from now on.
        """
        party = self.party
        self.encoder = self.encoder.without(dropped)
        self.z_s = [
            torch.tensor(group_posterior(party.layout, party.inputs, sketch.tables), dtype=torch.float32)
            for sketch in sketches
        ]
        self.generators = [made if isinstance(made, MaskedGenerator) else None for made in generators.values()]
        if self.weights.leak > 0 and not self.adversaries:
            self._add_adversaries(self.encoder.columns)
        self._nets = {name: own for name, own in self._nets.items() if name.startswith(LASTING)}
        self._learning = []
        if max(self.weights.identity, self.weights.support) > 0:
            self._add_generators()

    @property
    def generates(self) -> bool:
        """Whether a generator of this party trains, so that its edits change from step to step."""
        return bool(self._learning)

    def _add_adversaries(self, columns: int) -> None:
        for place, z_s in enumerate(self.z_s):
            net = Adversary(columns, z_s.shape[1], torch_seed(self.seed, "adversary", self.party.rank, place))
            self.adversaries.append(net)
            self._nets[f"adversary {place}"] = net, torch.optim.Adam(net.parameters(), self.weights.adversary_rate)

    def _add_generators(self) -> None:
        for place, made in enumerate(self.generators):
            if made is None or made.net is None:
                continue
            own = torch.optim.Adam(made.net.parameters(), self.weights.generator_rate)
            self._nets[f"generator {place}"] = made.net, own
            guard = None
            if self.weights.leak > 0 and len(made.net.guarded):
                seed = torch_seed(self.seed, "guard", self.party.rank, place)
                guard = Adversary(len(made.net.guarded), self.z_s[place].shape[1], seed)
                watching = torch.optim.Adam(guard.parameters(), self.weights.adversary_rate)
                self._nets[f"guard {place}"] = guard, watching
            self._learning.append((place, made, guard))

    def begin(self, inputs: np.ndarray, number: int) -> np.ndarray:
        """Activations of the rows of a step, with its dropout; `step` continues from them."""
        self._factors = None
        if self.dropout > 0:
            draws = torch.Generator().manual_seed(torch_seed(self.seed, "dropout", self.party.rank, number))
            self._factors = dropout_factors(len(inputs), self.encoder.columns, self.dropout, draws)
        return self.activations(inputs, self._factors)

    @torch.no_grad()
    def edited(self, inputs: np.ndarray) -> np.ndarray:
        """Activations of edited copies of these rows, with the dropout of the step."""
        return self.encoder.forward(inputs, self._factors).double().numpy()

    def step(self, gradient: np.ndarray, rows: np.ndarray, number: int) -> None:
        """One step of all networks, from the opened gradient and from what the party knows. `number`: of the step."""
        made = self._made
        if made is None:
            raise RuntimeError("no activations to learn from")
        picked = torch.as_tensor(rows)
        for _, optimiser in self._nets.values():
            optimiser.zero_grad()
        extra = self._generator_loss(picked, number)
        for adversary, z_s in zip(self.adversaries, self.z_s, strict=False):
            extra = extra + self.weights.leak * adversary.loss(reverse(made), z_s[picked])
        self.learn(gradient, extra)
        for _, optimiser in self._nets.values():
            optimiser.step()

    def _generator_loss(self, picked: torch.Tensor, number: int) -> torch.Tensor:
        """alpha' V_id + beta' V_supp + eta' recovery from (x_P, x_N), and what that adversary learns by."""
        loss, weights = torch.zeros(()), self.weights
        draws = torch.Generator().manual_seed(torch_seed(self.seed, "steps", self.party.rank, number))
        x = self.inputs[picked]
        for place, made, guard in self._learning:
            if made.net is None:
                continue
            z_s = self.z_s[place][picked]
            target = soft_targets(self.z_s[place], self.seed, number)[picked]
            terms = made.net.terms(x, Turn(z_s, target, made.context(len(x))), draws, guard)
            loss = loss + weights.identity * terms.identity + weights.support * (terms.likelihood + terms.mmd)
            if guard is not None:
                loss = loss + weights.leak * terms.leak + guard.loss(x[:, made.net.guarded], z_s)
        return loss

    def state(self) -> dict[str, np.ndarray]:
        """All networks and optimisers, to be kept on disk."""
        kept = {f"encoder/{name}": value for name, value in super().state().items()}
        for name, (net, optimiser) in self._nets.items():
            kept |= {f"{name}/{key}": value for key, value in training_state(net, optimiser).items()}
        return kept

    def lasting(self) -> dict[str, np.ndarray]:
        """The part of `state` that goes on when other generators are taken up."""
        return {name: value for name, value in self.state().items() if name.startswith(LASTING)}

    def go_on(self, kept: Mapping[str, np.ndarray]) -> None:
        """Continue from what `state` returned, or from `lasting`: then generators begin as they were taken up."""
        super().go_on(part_of(kept, "encoder"))
        for name, (net, optimiser) in self._nets.items():
            if own := part_of(kept, name):
                restore_training(net, optimiser, own)
