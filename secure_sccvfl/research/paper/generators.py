"""Generators of one party: the paper's masked conditional VAE, and `moments`. Posteriors of s that a party infers.

The masked generator g_phi^(p) (Eqs. gen_edit, cvae and lgen) has an encoder q(z | x_N, x_M, z_s) and a decoder
d(z, x_N, c, z_s'). A party runs it alone, on its own columns. z_s and z_s' are rows x groups: one-hot of s in
plaintext, soft where a party has only the posterior of its noisy tables. c is the context, rows x k; k may be 0.

Under MPC (`masked`) the true s is never used, not even by its holder: a network that was fitted to it would carry it
to whoever sees that network's effect. z_s of a record is the posterior of s from the party's own columns under its
own noisy tables. It is post-processing of a charged release: it costs no budget and tells the party nothing new. One
party's columns tell little of s, so counterfactuals are softer than with the true s. The context is the same for all
records, the noisy shares of the groups: one per record from the server would hand a party what others know of the
record. A party trains its generator alone (phase 2 of the paper). In mode `split` it then goes on with every step.

What the paper leaves open, and how it is read here:
- Delta(x) of the edit scale: the decoded mediators minus the present ones. Then scale 1 is Eq. cvae itself. The other
  reading, `contrast`, is d(z, z_s') - d(z, z_s): it moves nothing where z_s' = z_s.
- x_M is what is edited: mediators that are no proxies. Proxies pass through and the generator does not see them.
- The likelihood term is that of a conditional VAE, reconstruction plus KL, on the party's records under their own
  z_s. On edited copies alone, as Eq. lgen has it, every constant output would be perfectly likely.
- The latent code is drawn in training, and is its mean in edits that are scored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from secure_sccvfl.data.layout import Block, Layout, unit_cuts
from secure_sccvfl.data.randomness import torch_seed
from secure_sccvfl.discovery.scores import probabilities
from secure_sccvfl.models.counterfactuals import public_targets
from secure_sccvfl.models.cvae import CvaeNet, Mediators, divergence, group_mmd
from secure_sccvfl.models.generators import GeneratorConfig, Material
from secure_sccvfl.models.missing import gaps, moved_missing, with_missing
from secure_sccvfl.models.table_generator import TableGenerator
from secure_sccvfl.research.paper.networks import Adversary, start_layers


def group_shares(layout: Layout, tables: Mapping[str, np.ndarray]) -> np.ndarray:
    """Party step, local: the share of each group, by the noisy table of the party's first feature."""
    first = np.clip(tables[layout.names[0]], 0.5, None)
    return np.asarray(first.sum(axis=0) / first.sum())


def group_posterior(layout: Layout, inputs: np.ndarray, tables: Mapping[str, np.ndarray]) -> np.ndarray:
    """Party step, local: p(s | own columns) of every record under the noisy tables, rows x groups."""
    score = np.tile(np.log(group_shares(layout, tables)), (len(inputs), 1))
    for block in layout.blocks:
        table = probabilities(tables[block.feature.name], 0.5)
        score += layout.bin_one_hot(block, inputs) @ np.log(table)
    share = np.exp(score - score.max(axis=1, keepdims=True))
    return np.asarray(share / share.sum(axis=1, keepdims=True))


def pseudo_groups(
    layout: Layout, inputs: np.ndarray, tables: Mapping[str, np.ndarray], rng: np.random.Generator
) -> np.ndarray:
    """Party step, local: a group for every record, drawn from `group_posterior`."""
    share = group_posterior(layout, inputs, tables)
    return (rng.random((len(inputs), 1)) > share.cumsum(axis=1)).sum(axis=1).clip(0, share.shape[1] - 1)


Reading = Literal["decoded", "contrast"]
MATCH_ROWS = 128
"""Records of each side of the MMD in a step, drawn again: its cost grows with their square."""


class LossTerms(NamedTuple):
    """The terms of Eq. lgen before their weights, and the optional cycle term."""

    identity: torch.Tensor
    likelihood: torch.Tensor
    mmd: torch.Tensor
    leak: torch.Tensor
    cycle: torch.Tensor


class Turn(NamedTuple):
    """The groups that records are taken for, those they are moved to (rows x groups each), and their context c."""

    z_s: torch.Tensor
    z_target: torch.Tensor
    c: torch.Tensor | None = None


@dataclass(frozen=True)
class GeneratorTerms:
    """alpha, beta, gamma, eta of Eq. lgen, and the weight of the cycle term. The paper gives no values: 1 is ours."""

    alpha: float = 1.0
    beta: float = 1.0
    gamma: float = 1.0
    eta: float = 1.0
    cycle: float = 0.0

    def __post_init__(self) -> None:
        bad = {f.name: getattr(self, f.name) for f in fields(self) if not 0 <= getattr(self, f.name) < float("inf")}
        if bad:
            raise ValueError(f"weights of the generator's loss must not be negative, got {bad}")

    def total(self, terms: LossTerms) -> torch.Tensor:
        """L_gen^(p): the terms under their weights."""
        weights = (self.alpha, self.beta, self.gamma, self.eta, self.cycle)
        return torch.stack([w * term for w, term in zip(weights, terms, strict=True)]).sum()


class MaskedCvae(CvaeNet):
    """The generator of a party that has mediators.

    edited: names of what it edits. proxies: names of its proxies, which pass through unless they are among `edited`.
    All other features are N. Names of other parties' features are ignored.
    """

    def __init__(
        self,
        layout: Layout,
        edited: Collection[str],
        proxies: Collection[str],
        groups: int,
        seed: int,
        *,
        context: int = 0,
        latent: int = 8,
        hidden: int = 32,
        reading: Reading = "decoded",
    ) -> None:
        mediators = Mediators.of(layout, edited)
        if not len(mediators.columns):
            raise ValueError("a party without mediators has no generator")
        if groups < 2 or min(context, latent - 1, hidden - 1) < 0 or reading not in ("decoded", "contrast"):
            raise ValueError(f"bad sizes or reading: {groups}, {context}, {latent}, {hidden}, {reading!r}")
        fixed = layout.columns(n for n in layout.names if n not in edited and n not in proxies)
        super().__init__(len(mediators.columns), len(fixed) + groups, len(fixed) + context + groups, latent, hidden)
        self.mediators, self.reading, self.groups = mediators, reading, groups
        self.fixed, self.mediator_columns = torch.as_tensor(fixed), torch.as_tensor(mediators.columns)
        self.guarded = torch.as_tensor(np.concatenate([layout.columns(proxies), fixed]))
        start_layers(self, seed)

    def _decoded(self, z: torch.Tensor, x_n: torch.Tensor, c: torch.Tensor | None, z_s: torch.Tensor) -> torch.Tensor:
        columns = [z, x_n, z_s] if c is None else [z, x_n, c, z_s]
        raw: torch.Tensor = self.decode(torch.cat(columns, dim=1))
        return raw

    def edit(
        self, x: torch.Tensor, turn: Turn, scale: float = 1.0, draws: torch.Generator | None = None
    ) -> torch.Tensor:
        """x + scale * Pi_M(Delta(x)), differentiable; every other column is copied bit by bit.

        draws: for the latent code; without it the code is its mean.
        """
        x_n, x_m, (z_s, z_target, c) = x[:, self.fixed], x[:, self.mediator_columns], turn
        mean, log_var = self.code(x_m, x_n, z_s)
        z = mean if draws is None else mean + torch.randn(mean.shape, generator=draws) * torch.exp(log_var / 2)
        moved = self.mediators.squash(self._decoded(z, x_n, c, z_target))
        stayed = x_m if self.reading == "decoded" else self.mediators.squash(self._decoded(z, x_n, c, z_s))
        changed = (x_m + scale * (moved - stayed)).clamp(0.0, 1.0)
        return x.index_copy(1, self.mediator_columns, changed)

    @torch.no_grad()
    def edited_copy(
        self, inputs: np.ndarray, turn: Turn, scale: float, draws: torch.Generator | None = None
    ) -> np.ndarray:
        """`edit` on arrays of any precision."""
        edited = self.edit(torch.tensor(inputs, dtype=torch.float32), turn, scale, draws)
        out = inputs.copy()
        out[:, self.mediators.columns] = edited[:, self.mediator_columns].numpy()
        return out

    def terms(
        self,
        x: torch.Tensor,
        turn: Turn,
        draws: torch.Generator,
        adversary: Adversary | None = None,
        cycle: bool = False,
    ) -> LossTerms:
        """The terms of Eq. lgen on these records, for the edit of scale 1.

        The MMD is averaged over target groups, on at most MATCH_ROWS records of each side, drawn again. adversary:
        a_omega on the columns `guarded`, (x_P, x_N), which learns by its own loss. Without it the leak is 0. Where
        proxies pass through, nothing that it reads depends on the generator: the term has a value and no gradient.
        """
        x_n, x_m, none = x[:, self.fixed], x[:, self.mediator_columns], x.new_zeros(())
        z_s, z_target, c = turn
        mean, log_var = self.code(x_m, x_n, z_s)
        z = mean + torch.randn(mean.shape, generator=draws) * torch.exp(log_var / 2)
        likelihood = self.mediators.reconstruction(self._decoded(z, x_n, c, z_s), x_m) + divergence(mean, log_var)
        edited = self.edit(x, turn, draws=draws)
        identity = ((edited[:, self.fixed] - x_n) ** 2).sum(dim=1).mean()
        leak = none if adversary is None else adversary.recovery(edited[:, self.guarded], z_s)
        back = none
        if cycle:
            returned = self.edit(edited, Turn(z_target, z_s, c), draws=draws)
            back = ((returned[:, self.mediator_columns] - x_m) ** 2).sum(dim=1).mean()
        match = self._match(edited[:, self.mediator_columns], x_m, turn, draws)
        return LossTerms(identity, likelihood, match, leak, back)

    def _match(self, moved: torch.Tensor, real: torch.Tensor, turn: Turn, draws: torch.Generator) -> torch.Tensor:
        a, b = (torch.randperm(len(real), generator=draws)[:MATCH_ROWS] for _ in range(2))
        of_a, of_b = turn.z_target[a], turn.z_s[b]
        present = (of_a.sum(dim=0) >= 1) & (of_b.sum(dim=0) >= 2)
        if not present.any():
            return real.new_zeros(())
        return group_mmd(moved[a], real[b], of_a[:, present], of_b[:, present]).mean()


EPOCHS, RATE = 60, 0.01
"""Of a party's training alone. The rate is the paper's for generators; the number of epochs is ours."""


@dataclass(frozen=True)
class MaskedGenerator:
    """A `Generator` around one network; without mediators it copies. `shares`: the context c, one for each group."""

    net: MaskedCvae | None = field(repr=False)
    scale: float
    shares: np.ndarray

    def __call__(self, inputs: np.ndarray, source: int, target: np.ndarray, draw: int) -> np.ndarray:
        return self.edited(inputs, source, target)

    def edited(
        self, inputs: np.ndarray, source: int, target: np.ndarray, draws: torch.Generator | None = None
    ) -> np.ndarray:
        """Edited copies. draws: for latent codes, as training has them; without it codes are their means."""
        if self.net is None:
            return inputs.copy()
        groups = len(self.shares)
        z_s = F.one_hot(torch.full((len(inputs),), source), groups).float()
        z_target = F.one_hot(torch.as_tensor(target, dtype=torch.long), groups).float()
        return self.net.edited_copy(inputs, Turn(z_s, z_target, self.context(len(inputs))), self.scale, draws)

    def context(self, rows: int) -> torch.Tensor:
        """c for so many records."""
        return torch.tensor(self.shares, dtype=torch.float32).expand(rows, -1)

    def arrays(self) -> dict[str, np.ndarray]:
        """Network and context, to be kept on disk."""
        layers = {} if self.net is None else self.net.state_dict()
        return {"shares": self.shares, **{name: value.numpy().copy() for name, value in layers.items()}}


def fresh(
    layout: Layout,
    edited: Collection[str],
    guarded: Collection[str],
    shares: np.ndarray,
    config: GeneratorConfig,
    seed: int,
) -> MaskedGenerator:
    """An untrained generator of a party. `guarded`: its proxies, which pass through."""
    if not edited:
        return MaskedGenerator(None, config.scale, shares)
    groups = len(shares)
    own = torch_seed(seed, "masked", *layout.names)
    net = MaskedCvae(layout, edited, guarded, groups, own, context=groups, latent=config.latent)
    return MaskedGenerator(net, config.scale, shares)


def restored(
    layout: Layout,
    edited: Collection[str],
    guarded: Collection[str],
    config: GeneratorConfig,
    arrays: Mapping[str, np.ndarray],
) -> MaskedGenerator:
    """The generator from what `arrays` returned."""
    made = fresh(layout, edited, guarded, arrays["shares"], config, 0)
    if made.net is not None:
        made.net.load_state_dict({k: torch.tensor(v) for k, v in arrays.items() if k != "shares"})
    return made


def soft_targets(z_s: torch.Tensor, seed: int, draw: int) -> torch.Tensor:
    """z_s' of records whose z_s is soft: the public target of every group they may be in, by its posterior."""
    rows, groups = z_s.shape
    targets = torch.as_tensor(public_targets(rows, groups, seed, draw), dtype=torch.long)
    return (F.one_hot(targets, groups) * z_s[:, :, None]).sum(dim=1)


def fit_masked_generator(material: Material, config: GeneratorConfig, seed: int) -> MaskedGenerator:
    """Party step, local: train on the party's own rows and their posteriors."""
    layout, inputs, tables = material.layout, material.inputs, material.tables
    edited = [name for name in layout.names if name in material.edited]
    made = fresh(layout, edited, material.penalized, group_shares(layout, tables), config, seed)
    if made.net is None:
        return made
    x = torch.tensor(inputs, dtype=torch.float32)
    z_s = torch.tensor(group_posterior(layout, inputs, tables), dtype=torch.float32)
    optimiser = torch.optim.Adam(made.net.parameters(), lr=RATE)
    draws = torch.Generator().manual_seed(torch_seed(seed, "masked draws", *layout.names))
    c = made.context(len(x))
    for epoch in range(EPOCHS):
        optimiser.zero_grad()
        turn = Turn(z_s, soft_targets(z_s, seed, epoch), c)
        GeneratorTerms().total(made.net.terms(x, turn, draws)).backward()
        optimiser.step()
    return made


@dataclass(frozen=True)
class MomentsGenerator(TableGenerator):
    """A number moves from one mean and deviation to another, a category by the difference of shares.

    A number that may be missing first moves between missing and present, as with `minimal`.
    """

    def edit(
        self, block: Block, columns: np.ndarray, old: np.ndarray, new: np.ndarray, uniform: np.ndarray
    ) -> np.ndarray:
        return np.clip(columns + new - old, 0.0, 1.0) if block.one_hot else _shifted(columns, old, new, uniform)

    def summary(self, block: Block) -> np.ndarray:
        """Shares of the categories, or mean and deviation of a number, and its share of missing values."""
        if block.one_hot:
            return self.shares(block)
        return np.stack([_of_table(block, v) for v in self.shares(block).T], axis=1)


def _of_table(block: Block, shares: np.ndarray) -> np.ndarray:
    """Mean and deviation of a number, and its share of missing values, from the shares of its bins in one group."""
    cuts = unit_cuts(block.feature)
    middle = (cuts[:-1] + cuts[1:]) / 2
    inner = shares[: len(middle)] / max(shares[: len(middle)].sum(), 1e-12)
    mean = inner @ middle
    return np.array([mean, np.sqrt(inner @ (middle - mean) ** 2), *shares[len(middle) :]])


def _shifted(columns: np.ndarray, old: np.ndarray, new: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """A number moved from one mean and deviation to another.

    Who becomes present draws from the uniform distribution with the new mean and deviation.
    """
    missing, after, left = gaps(columns), gaps(columns), uniform
    if columns.shape[1] > 1:
        after, left = moved_missing(missing, old[2], new[2], uniform)
    out = columns.copy()
    known = ~missing & ~after
    ratio = new[1] / max(old[1], 1e-3)
    out[known, 0] = np.clip(new[0] + (columns[known, 0] - old[0]) * ratio, 0.0, 1.0)
    drawn = np.clip(new[0] + new[1] * np.sqrt(12) * (left[missing & ~after] - 0.5), 0.0, 1.0)
    return with_missing(out, missing, after, drawn)
