"""The generators of all parties, the context that the server provides, and counterfactuals of records.

Context: the paper has a "server-provided context vector c summarizing cross-party information" and says no more.
Here c of a party is a small fixed random projection of the other parties' activations, squashed to -1..1. It is
detached: no gradient goes to other parties through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from secure_sccvfl.data.randomness import stream, torch_seed
from secure_sccvfl.evaluation.prepared import Prepared
from secure_sccvfl.models.counterfactuals import public_targets
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.research.paper.adversary import Adversary
from secure_sccvfl.research.paper.encoder import code_columns
from secure_sccvfl.research.paper.masked_cvae import MaskedCvae
from secure_sccvfl.research.paper.posteriors import pseudo_groups
from secure_sccvfl.research.paper.roles import edited_names
from secure_sccvfl.research.paper.settings import PaperSettings

TARGET_DRAWS = 8
"""With more than two groups, targets are drawn again for each epoch, from this many draws."""
TERM_ROWS = 2000
"""Records on which the terms of Eq. lgen are computed in an epoch, drawn again where there are more."""


@dataclass(frozen=True)
class Records:
    """Rows of the data set as training holds them.

    groups: by party, the group that it takes each record for: the true one, or its own guess.
    """

    rows: np.ndarray
    x: torch.Tensor
    y: torch.Tensor
    groups: tuple[np.ndarray, ...]
    count: int
    seed: int

    @cached_property
    def z_s(self) -> tuple[torch.Tensor, ...]:
        """By party, the embedding of s: one-hot."""
        return tuple(self._one_hot(codes) for codes in self.groups)

    @cached_property
    def _targets(self) -> dict[int, tuple[torch.Tensor, ...]]:
        return {}

    def targets(self, draw: int) -> tuple[torch.Tensor, ...]:
        """By party, the embedding of the group s' that each record is moved to."""
        draw = draw % TARGET_DRAWS if self.count > 2 else 0
        if draw not in self._targets:
            table, at = public_targets(len(self.rows), self.count, self.seed, draw), np.arange(len(self.rows))
            self._targets[draw] = tuple(self._one_hot(table[at, codes]) for codes in self.groups)
        return self._targets[draw]

    def _one_hot(self, codes: np.ndarray) -> torch.Tensor:
        return F.one_hot(torch.as_tensor(codes, dtype=torch.long), self.count).float()


def read_columns(ready: Prepared, settings: PaperSettings) -> tuple[tuple[int, ...], torch.Tensor]:
    """How many columns each party's encoder reads, and the matrix from input space to them."""
    if settings.columns == "one_hot":
        return ready.widths, torch.eye(sum(ready.widths))
    read = [code_columns(party.layout) for party in ready.parties]
    return tuple(own.shape[1] for own in read), torch.block_diag(*read)


def records_of(ready: Prepared, rows: np.ndarray, settings: PaperSettings) -> Records:
    """These rows, with the groups that parties take their records for."""
    attribute, label = ready.data.protected[0], ready.data.label.values[rows]
    if settings.embedding == "true":
        groups = (attribute.codes[rows],) * len(ready.parties)
    else:
        tables = ready.model.sketches[0].tables
        groups = tuple(
            pseudo_groups(p.layout, p.inputs[rows], tables, stream(ready.seed, "letter", "pseudo", p.name, len(rows)))
            for p in ready.parties
        )
    x = torch.tensor(ready.inputs[rows], dtype=torch.float32)
    return Records(rows, x, torch.as_tensor(label), groups, len(attribute.groups), ready.seed)


class Generators(nn.Module):
    """One masked generator for each party that has something to edit, with its adversary of Eq. lgen."""

    def __init__(self, ready: Prepared, roles: Roles, settings: PaperSettings) -> None:
        super().__init__()
        self.widths, self.settings, self.roles = list(ready.widths), settings, roles
        groups, parties = len(ready.data.protected[0].groups), len(ready.parties)
        names, everything = edited_names(roles, settings), settings.mask == "all"
        proxies = () if everything else roles.named("P")
        self.context = settings.context if parties > 1 else 0
        self.models, self.guards = nn.ModuleDict(), nn.ModuleDict()
        for at, party in enumerate(ready.parties):
            edited = [n for n in party.layout.names if n in names]
            if not edited:
                continue
            model = MaskedCvae(
                party.layout,
                edited,
                proxies,
                groups,
                torch_seed(ready.seed, "letter", "generator", party.name),
                context=self.context,
                latent=settings.latent,
                reading=settings.reading,
            )
            self.models[str(at)] = model
            if settings.leak_adversary and len(model.guarded):
                seed = torch_seed(ready.seed, "letter", "guard", party.name)
                self.guards[str(at)] = Adversary(len(model.guarded), groups, seed)
        width, seed = (parties - 1) * settings.hidden, torch_seed(ready.seed, "letter", "context")
        drawn = torch.randn(width, self.context, generator=torch.Generator().manual_seed(seed))
        self.projection = drawn / max(width, 1) ** 0.5

    def _context(self, activations: Sequence[torch.Tensor], at: int) -> torch.Tensor | None:
        if not self.context:
            return None
        others = torch.cat([h.detach() for k, h in enumerate(activations) if k != at], dim=1)
        return torch.tanh(others @ self.projection)

    def edit(
        self,
        records: Records,
        activations: Sequence[torch.Tensor],
        draw: int,
        draws: torch.Generator | None = None,
    ) -> torch.Tensor:
        """Edited copies of records, in the input space of all parties. draws: for latent codes; else their means."""
        pieces = list(records.x.split(self.widths, dim=1))
        target = records.targets(draw)
        for key, model in self._own():
            z_s, c = records.z_s[key], self._context(activations, key)
            pieces[key] = model.edit(pieces[key], z_s, target[key], c, self.settings.edit_scale, draws)
        return torch.cat(pieces, dim=1)

    def loss(
        self, records: Records, activations: Sequence[torch.Tensor], draw: int, draws: torch.Generator
    ) -> torch.Tensor:
        """Sum over parties of L_gen^(p)."""
        total, weights = records.x.new_zeros(()), self.settings.terms
        picked = torch.randperm(len(records.x), generator=draws)[:TERM_ROWS]
        pieces, target = records.x[picked].split(self.widths, dim=1), records.targets(draw)
        seen = [h[picked] for h in activations]
        for key, model in self._own():
            terms = model.terms(
                pieces[key],
                records.z_s[key][picked],
                target[key][picked],
                draws,
                self._context(seen, key),
                self._guard(key),
                cycle=weights.cycle > 0,
            )
            total = total + weights.total(terms)
        return total

    def guard_loss(self, records: Records, draws: torch.Generator) -> torch.Tensor:
        """What the adversaries of Eq. lgen learn by: recovery of z_s from (x_P, x_N), which are data."""
        total = records.x.new_zeros(())
        if not len(self.guards):
            return total
        picked = torch.randperm(len(records.x), generator=draws)[:TERM_ROWS]
        pieces = records.x[picked].split(self.widths, dim=1)
        for key, model in self._own():
            guard = self._guard(key)
            if guard is not None:
                total = total + guard.loss(pieces[key][:, model.guarded], records.z_s[key][picked])
        return total

    def _guard(self, key: int) -> Adversary | None:
        guards: dict[str, Adversary] = dict(self.guards.items())  # type: ignore[arg-type]
        return guards.get(str(key))

    def _own(self) -> list[tuple[int, MaskedCvae]]:
        return [(int(key), model) for key, model in self.models.items()]  # type: ignore[misc]
