"""One party's masked generator g_phi^(p), as a network that trains with the rest (Eqs. gen_edit, cvae and lgen).

Encoder q(z | x_N, x_M, z_s), decoder d(z, x_N, c, z_s'). A party runs it alone, on its own columns. z_s and z_s' are
rows x groups: one-hot of s in plaintext, soft where a party has only the posterior of its noisy tables.
c is the context that the server provides, rows x k; k may be 0.

What the paper leaves open, and how it is read here:
- Delta(x) of the edit scale: the decoded mediators minus the present ones. Then scale 1 is Eq. cvae itself. The other
  reading, `contrast`, is d(z, z_s') - d(z, z_s): it moves nothing where z_s' = z_s.
- x_M is what is edited: mediators that are no proxies. Proxies pass through and the generator does not see them.
- The likelihood term is that of a conditional VAE, reconstruction plus KL, on the party's records under their own
  z_s. On edited copies alone, as Eq. lgen has it, every constant output would be perfectly likely.
- The latent code is drawn in training, and is its mean in edits that are scored.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

import numpy as np
import torch

from secure_sccvfl.data.layout import Layout
from secure_sccvfl.models.cvae import CvaeNet, Mediators, divergence, group_mmd
from secure_sccvfl.research.paper.adversary import Adversary
from secure_sccvfl.research.paper.encoder import start_layers

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
        self.fixed, self.places = torch.as_tensor(fixed), torch.as_tensor(mediators.columns)
        self.guarded = torch.as_tensor(np.concatenate([layout.columns(proxies), fixed]))
        start_layers(self, seed)

    def _decoded(self, z: torch.Tensor, x_n: torch.Tensor, c: torch.Tensor | None, z_s: torch.Tensor) -> torch.Tensor:
        columns = [z, x_n, z_s] if c is None else [z, x_n, c, z_s]
        raw: torch.Tensor = self.decode(torch.cat(columns, dim=1))
        return raw

    def edit(
        self,
        x: torch.Tensor,
        z_s: torch.Tensor,
        z_target: torch.Tensor,
        c: torch.Tensor | None = None,
        scale: float = 1.0,
        draws: torch.Generator | None = None,
    ) -> torch.Tensor:
        """x + scale * Pi_M(Delta(x)), differentiable; every other column is copied bit by bit.

        draws: for the latent code; without it the code is its mean.
        """
        x_n, x_m = x[:, self.fixed], x[:, self.places]
        mean, log_var = self.code(x_m, x_n, z_s)
        z = mean if draws is None else mean + torch.randn(mean.shape, generator=draws) * torch.exp(log_var / 2)
        moved = self.mediators.squash(self._decoded(z, x_n, c, z_target))
        stayed = x_m if self.reading == "decoded" else self.mediators.squash(self._decoded(z, x_n, c, z_s))
        changed = (x_m + scale * (moved - stayed)).clamp(0.0, 1.0)
        return x.index_copy(1, self.places, changed)

    @torch.no_grad()
    def edited_copy(
        self,
        inputs: np.ndarray,
        z_s: torch.Tensor,
        z_target: torch.Tensor,
        c: torch.Tensor | None,
        scale: float,
        draws: torch.Generator | None = None,
    ) -> np.ndarray:
        """`edit` on arrays of any precision."""
        edited = self.edit(torch.tensor(inputs, dtype=torch.float32), z_s, z_target, c, scale, draws)
        out = inputs.copy()
        out[:, self.mediators.columns] = edited[:, self.places].numpy()
        return out

    def terms(
        self,
        x: torch.Tensor,
        z_s: torch.Tensor,
        z_target: torch.Tensor,
        draws: torch.Generator,
        c: torch.Tensor | None = None,
        adversary: Adversary | None = None,
        cycle: bool = False,
    ) -> LossTerms:
        """The terms of Eq. lgen on these records, for the edit of scale 1.

        The MMD is averaged over target groups, on at most MATCH_ROWS records of each side, drawn again. adversary:
        a_omega on the columns `guarded`, (x_P, x_N), which learns by its own loss. Without it the leak is 0. Where
        proxies pass through, nothing that it reads depends on the generator: the term has a value and no gradient.
        """
        x_n, x_m, none = x[:, self.fixed], x[:, self.places], x.new_zeros(())
        mean, log_var = self.code(x_m, x_n, z_s)
        z = mean + torch.randn(mean.shape, generator=draws) * torch.exp(log_var / 2)
        likelihood = self.mediators.reconstruction(self._decoded(z, x_n, c, z_s), x_m) + divergence(mean, log_var)
        edited = self.edit(x, z_s, z_target, c, draws=draws)
        identity = ((edited[:, self.fixed] - x_n) ** 2).sum(dim=1).mean()
        leak = none if adversary is None else adversary.recovery(edited[:, self.guarded], z_s)
        back = none
        if cycle:
            returned = self.edit(edited, z_target, z_s, c, draws=draws)
            back = ((returned[:, self.places] - x_m) ** 2).sum(dim=1).mean()
        match = self._match(edited[:, self.places], x_m, z_s, z_target, draws)
        return LossTerms(identity, likelihood, match, leak, back)

    def _match(
        self,
        moved: torch.Tensor,
        real: torch.Tensor,
        z_s: torch.Tensor,
        z_target: torch.Tensor,
        draws: torch.Generator,
    ) -> torch.Tensor:
        a, b = (torch.randperm(len(real), generator=draws)[:MATCH_ROWS] for _ in range(2))
        of_a, of_b = z_target[a], z_s[b]
        present = (of_a.sum(dim=0) >= 1) & (of_b.sum(dim=0) >= 2)
        if not present.any():
            return real.new_zeros(())
        return group_mmd(moved[a], real[b], of_a[:, present], of_b[:, present]).mean()
