"""A small conditional VAE over mediators, with an MMD term.

It needs s per record, so no party of a sealed run can train one. It is the second counterfactual model of
the pooled evaluation (fitted on held-out records) and the generator of the paper's method.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from secure_sccvfl.data.layout import Layout

# The cost of the MMD term grows with the square of its rows: larger groups are subsampled again at every epoch.
MMD_ROWS = 256


@dataclass(frozen=True)
class CvaeConfig:
    """Sizes and weights; `mmd` pulls edited mediators of each group to the other group's."""

    latent: int = 8
    hidden: int = 32
    epochs: int = 200
    rate: float = 0.01
    kl: float = 0.05
    mmd: float = 10.0

    def __post_init__(self) -> None:
        if min(self.latent, self.hidden, self.epochs) < 1 or self.rate <= 0:
            raise ValueError(f"bad cvae sizes {self}")


class CvaeNet(nn.Module):
    """Encoder to the moments of a latent code, and decoder to raw mediators.

    encoded, decoded: columns next to the mediators, and next to the latent code.
    """

    def __init__(self, edited: int, encoded: int, decoded: int, latent: int, hidden: int) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(edited + encoded, hidden), nn.ReLU())
        self.moments = nn.Linear(hidden, 2 * latent)
        self.decode = nn.Sequential(nn.Linear(latent + decoded, hidden), nn.ReLU(), nn.Linear(hidden, edited))

    def code(self, *columns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and log variance of the latent code."""
        mean, log_var = self.moments(self.encode(torch.cat(columns, dim=1))).chunk(2, dim=1)
        return mean, log_var


@dataclass(frozen=True)
class Mediators:
    """Where the mediators are in a party's input space, and how raw outputs of a decoder become them."""

    columns: np.ndarray
    slices: tuple[tuple[int, int, bool], ...]

    @classmethod
    def of(cls, layout: Layout, edited: Collection[str]) -> Mediators:
        slices, at = [], 0
        for block in layout.blocks:
            if block.feature.name in edited:
                slices.append((at, at + block.width, block.one_hot))
                at += block.width
        return cls(layout.columns(edited), tuple(slices))

    def squash(self, raw: torch.Tensor) -> torch.Tensor:
        """Raw outputs to input space: shares of a category, numbers in 0..1."""
        parts = [
            torch.softmax(raw[:, a:b], dim=1) if one_hot else torch.sigmoid(raw[:, a:b])
            for a, b, one_hot in self.slices
        ]
        return torch.cat(parts, dim=1)

    def reconstruction(self, raw: torch.Tensor, true: torch.Tensor) -> torch.Tensor:
        """Minus the log likelihood: cross entropy of categories, squared error of numbers (variance 1/20)."""
        loss = raw.new_zeros(())
        for a, b, one_hot in self.slices:
            if one_hot:
                loss = loss - (true[:, a:b] * F.log_softmax(raw[:, a:b], dim=1)).sum(dim=1).mean()
            else:
                loss = loss + 10 * ((torch.sigmoid(raw[:, a:b]) - true[:, a:b]) ** 2).sum(dim=1).mean()
        return loss


def divergence(mean: torch.Tensor, log_var: torch.Tensor) -> torch.Tensor:
    """KL of the latent code to a standard normal, averaged over records."""
    return -0.5 * (1 + log_var - mean**2 - log_var.exp()).sum(dim=1).mean()


def _kernel(squared: torch.Tensor) -> torch.Tensor:
    """Gaussian, of the width of the pooled data, from squared distances."""
    return torch.exp(-squared / squared.detach().mean().clamp_min(1e-6))


def mmd(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Squared maximum mean discrepancy, Gaussian kernel of the width of the pooled data."""
    both, n = torch.cat([a, b]), len(a)
    kernel = _kernel(torch.cdist(both, both) ** 2)
    return kernel[:n, :n].mean() + kernel[n:, n:].mean() - 2 * kernel[:n, n:].mean()


def group_mmd(a: torch.Tensor, b: torch.Tensor, of_a: torch.Tensor, of_b: torch.Tensor) -> torch.Tensor:
    """`mmd` for several groups at once, with one kernel. of_a, of_b: rows x groups, how far a row is of a group.

    Squared distances come from one product, since the gradient of roots is slow.
    """
    both = torch.cat([a, b])
    norms = (both**2).sum(dim=1)
    squared = (norms[:, None] + norms[None, :] - 2 * both @ both.T).clamp_min(0.0)
    shares = [of / of.sum(dim=0).clamp_min(1e-6) for of in (of_a, of_b)]
    signed = torch.cat([shares[0], -shares[1]])
    return (signed * (_kernel(squared) @ signed)).sum(dim=0)


class Cvae:
    """Fitted on (mediators, everything else, s); edits mediators by dec(z, s') - dec(z, s)."""

    def __init__(self, layout: Layout, edited: tuple[str, ...], groups: int, config: CvaeConfig) -> None:
        self.layout, self.groups, self.config = layout, groups, config
        self.mediators = Mediators.of(layout, edited)
        self.context = np.setdiff1d(np.arange(layout.width), self.mediators.columns)

    def _one_hot(self, codes: np.ndarray) -> torch.Tensor:
        return F.one_hot(torch.as_tensor(codes, dtype=torch.long), self.groups).float()

    def fit(self, inputs: np.ndarray, codes: np.ndarray, seed: int, rows: int = 2000) -> Cvae:
        """Full-batch training on at most `rows` records, from one seed."""
        generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            condition_width = len(self.context) + self.groups
            edited = len(self.mediators.columns)
            self.net = CvaeNet(edited, condition_width, condition_width, self.config.latent, self.config.hidden)
        if len(inputs) > rows:
            picked = torch.randperm(len(inputs), generator=generator)[:rows].numpy()
            inputs, codes = inputs[picked], codes[picked]
        x = torch.tensor(inputs[:, self.mediators.columns], dtype=torch.float32)
        c = torch.tensor(inputs[:, self.context], dtype=torch.float32)
        s = self._one_hot(codes)
        optimiser = torch.optim.Adam(self.net.parameters(), lr=self.config.rate)
        present = [g for g in range(self.groups) if 2 <= (codes == g).sum() < len(codes)]
        for _ in range(self.config.epochs):
            optimiser.zero_grad()
            mean, log_var = self.net.code(x, c, s)
            z = mean + torch.randn(mean.shape, generator=generator) * torch.exp(log_var / 2)
            raw = self.net.decode(torch.cat([z, c, s], dim=1))
            loss = self.mediators.reconstruction(raw, x) + self.config.kl * divergence(mean, log_var)
            if self.config.mmd > 0:
                loss = loss + self.config.mmd * self._match(x, c, mean, raw, codes, present, generator)
            loss.backward()
            optimiser.step()
        return self

    def _match(
        self,
        x: torch.Tensor,
        c: torch.Tensor,
        z: torch.Tensor,
        raw: torch.Tensor,
        codes: np.ndarray,
        present: list[int],
        generator: torch.Generator,
    ) -> torch.Tensor:
        def few(rows: np.ndarray) -> np.ndarray:
            if len(rows) <= MMD_ROWS:
                return rows
            return rows[torch.randperm(len(rows), generator=generator)[:MMD_ROWS].numpy()]

        total = x.new_zeros(())
        reconstructed = self.mediators.squash(raw)
        for target in present:
            others, members = few(np.flatnonzero(codes != target)), few(np.flatnonzero(codes == target))
            s = self._one_hot(np.full(len(others), target))
            moved = self.mediators.squash(self.net.decode(torch.cat([z[others], c[others], s], dim=1)))
            total = total + mmd(x[others] + moved - reconstructed[others], x[members])
        return total / max(len(present), 1)

    @torch.no_grad()
    def edit(self, inputs: np.ndarray, codes: np.ndarray, target: np.ndarray, scale: float = 1.0) -> np.ndarray:
        """Edited copy: x + scale * (dec(z, s') - dec(z, s)), kept inside the public range."""
        x = torch.tensor(inputs[:, self.mediators.columns], dtype=torch.float32)
        c = torch.tensor(inputs[:, self.context], dtype=torch.float32)
        s, other = self._one_hot(codes), self._one_hot(target)
        z = self.net.code(x, c, s)[0]
        moved = self.mediators.squash(self.net.decode(torch.cat([z, c, other], dim=1)))
        stayed = self.mediators.squash(self.net.decode(torch.cat([z, c, s], dim=1)))
        out = inputs.copy()
        change = scale * (moved - stayed).double().numpy()
        out[:, self.mediators.columns] = np.clip(inputs[:, self.mediators.columns] + change, 0.0, 1.0)
        return out
