"""The `masked` generator: the paper's conditional VAE at one party, trained without anybody's s (Eq. lgen).

z_s of a record is the posterior of s from the party's own columns under its own noisy tables. It is post-processing
of a charged release: it costs no budget and tells the party nothing new. The true s is never used, not even by its
holder: a network that was fitted to it would carry it to whoever sees that network's effect. Of s, one party's
columns tell little, so edits are softer than with the true s.

The context c is the same for all records: the noisy shares of the groups. One per record from the server, as the
paper has it, would hand a party what others know of the record.

A party trains its generator alone (phase 2 of the paper). In mode `split` it then goes on with every step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn import functional as F

from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.randomness import torch_seed
from secure_sccvfl.models.counterfactuals import public_targets
from secure_sccvfl.models.generators import GeneratorConfig, Material
from secure_sccvfl.research.paper.masked_cvae import GeneratorTerms, MaskedCvae
from secure_sccvfl.research.paper.posteriors import group_posterior, group_shares

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
        return self.net.edited_copy(inputs, z_s, z_target, self.context(len(inputs)), self.scale, draws)

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
    made = fresh(layout, edited, material.guarded, group_shares(layout, tables), config, seed)
    if made.net is None:
        return made
    x = torch.tensor(inputs, dtype=torch.float32)
    z_s = torch.tensor(group_posterior(layout, inputs, tables), dtype=torch.float32)
    optimiser = torch.optim.Adam(made.net.parameters(), lr=RATE)
    draws = torch.Generator().manual_seed(torch_seed(seed, "masked draws", *layout.names))
    c = made.context(len(x))
    for epoch in range(EPOCHS):
        optimiser.zero_grad()
        GeneratorTerms().total(made.net.terms(x, z_s, soft_targets(z_s, seed, epoch), draws, c)).backward()
        optimiser.step()
    return made
