"""Joint training of encoders, head, generators and adversaries (Eq. full_obj), full batch, with early stopping.

Every epoch is one step of all parts, each with its own learning rate. Consistency is off in the warm-up. Its
gradient goes to the generators as well: Eq. server_obj is minimised over their parameters too. Early stopping uses
log loss, SCG and flip rate of the validation part under the generators of that epoch. The parts of the last epoch are
kept, or with `kept = "best"` those of the best one. Masks may be refreshed between epochs: then generators start
again, and everything else continues.

Context: the paper has a "server-provided context vector c summarizing cross-party information" and says no more.
Here c of a party is a small fixed random projection of the other parties' activations, squashed to -1..1. It is
detached: no gradient goes to other parties through it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from secure_sccvfl.data.dataset import Task
from secure_sccvfl.data.randomness import stream, torch_seed
from secure_sccvfl.evaluation.methods import Prepared
from secure_sccvfl.models.counterfactuals import public_targets
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.research.paper.generators import MaskedCvae, Turn, pseudo_groups
from secure_sccvfl.research.paper.networks import (
    Adversary,
    Epoch,
    SplitNetwork,
    TrainedNetwork,
    code_columns,
    decided,
    reverse,
    task_loss,
)
from secure_sccvfl.research.paper.roles import edited_names
from secure_sccvfl.research.paper.settings import DECAY, FLIP_WEIGHT, SCG_WEIGHT, PaperSettings
from secure_sccvfl.training.config import TEMPERATURES

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
        tables = ready.model.noisy_tables[0].tables
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
        for key, model in self._local_models():
            turn = Turn(records.z_s[key], target[key], self._context(activations, key))
            pieces[key] = model.edit(pieces[key], turn, self.settings.edit_scale, draws)
        return torch.cat(pieces, dim=1)

    def loss(
        self, records: Records, activations: Sequence[torch.Tensor], draw: int, draws: torch.Generator
    ) -> torch.Tensor:
        """Sum over parties of L_gen^(p)."""
        total, weights = records.x.new_zeros(()), self.settings.terms
        picked = torch.randperm(len(records.x), generator=draws)[:TERM_ROWS]
        pieces, target = records.x[picked].split(self.widths, dim=1), records.targets(draw)
        seen = [h[picked] for h in activations]
        for key, model in self._local_models():
            turn = Turn(records.z_s[key][picked], target[key][picked], self._context(seen, key))
            terms = model.terms(pieces[key], turn, draws, self._guard(key), cycle=weights.cycle > 0)
            total = total + weights.total(terms)
        return total

    def guard_loss(self, records: Records, draws: torch.Generator) -> torch.Tensor:
        """What the adversaries of Eq. lgen learn by: recovery of z_s from (x_P, x_N), which are data."""
        total = records.x.new_zeros(())
        if not len(self.guards):
            return total
        picked = torch.randperm(len(records.x), generator=draws)[:TERM_ROWS]
        pieces = records.x[picked].split(self.widths, dim=1)
        for key, model in self._local_models():
            guard = self._guard(key)
            if guard is not None:
                total = total + guard.loss(pieces[key][:, model.guarded], records.z_s[key][picked])
        return total

    def _guard(self, key: int) -> Adversary | None:
        guards: dict[str, Adversary] = dict(self.guards.items())  # type: ignore[arg-type]
        return guards.get(str(key))

    def _local_models(self) -> list[tuple[int, MaskedCvae]]:
        return [(int(key), model) for key, model in self.models.items()]  # type: ignore[misc]


EditRows = Callable[[np.ndarray, int], np.ndarray]
"""From rows of the data set and the epoch to counterfactuals."""
Editors = tuple[Generators | None, EditRows | None]
"""What makes counterfactuals: generators that train, or a fixed rule."""
FLOAT_BYTES = 4


@dataclass
class Traffic:
    """Bytes that would cross in the paper's split learning, which gives totals and no definition.

    feature: activations of original and edited records to the server, their gradients back, and context vectors;
    training rows alone. model: encoders, generators and adversaries, which parties receive at the start and return at
    the end. The head stays at the server. So model bytes do not grow with the epochs, as in the paper.
    """

    feature: int = 0
    model: int = 0

    def notes(self) -> dict[str, float]:
        return {"feature_mb": self.feature / 1e6, "model_mb": self.model / 1e6}


@dataclass
class _Best:
    """The best epoch so far: its objective, its parts, and how long ago it was."""

    objective: float = float("inf")
    epoch: int = 0
    waited: int = 0
    generators: Generators | None = None
    parts: list[dict[str, torch.Tensor]] = field(default_factory=list)


class JointTraining:
    """One training run. made: counterfactuals without a trained generator, from tables or from other records."""

    def __init__(
        self,
        net: SplitNetwork,
        task: Task,
        settings: PaperSettings,
        editors: Editors,
        adversaries: Sequence[Adversary],
        read: torch.Tensor,
        seed: int,
        refresh: Callable[[], Editors | None] = lambda: None,
    ) -> None:
        """read: from input space to the columns that encoders see. refresh: new masks, or None if they stay."""
        self.net, self.task, self.settings, self.read, self.refresh = net, task, settings, read, refresh
        self._take_up(editors)
        self.adversaries = nn.ModuleList(adversaries)
        # Apart, so that the adversaries of Eq. lgen change nothing else by being there.
        self.draws, self.guard_draws = (torch.Generator().manual_seed(seed + k) for k in range(2))
        self.traffic = Traffic()
        self.refreshed = 0

    def _take_up(self, editors: Editors) -> None:
        generators, self.made = editors
        self.generators = generators if generators is not None and len(generators.models) else None
        self._kept: dict[tuple[int, int], torch.Tensor] = {}

    def fit(self, train: Records, check: Records) -> TrainedNetwork:
        """Train, and return the network of the kept epoch. `generators` are then those of that epoch."""
        columns = train.x @ self.read
        scale = columns.std(dim=0, correction=0).clamp_min(0.05)
        result = TrainedNetwork(self.net, columns.mean(dim=0), scale, self.task, self.read)
        optimiser, best, history = self._optimiser(), _Best(), []
        for epoch in range(self.settings.epochs):
            if epoch in self.settings.refreshed_at:
                optimiser = self._refreshed(optimiser)
            loss = self._step(result, train, optimiser, epoch)
            seen, objective = self._look(result, check, epoch, loss)
            history.append(seen)
            if self._stops(best, objective, epoch):
                break
        result.kept_epoch, result.history = len(history) - 1, tuple(history)
        if self.settings.kept == "best":
            result.kept_epoch, self.generators = best.epoch, best.generators
            for part, kept in zip(self._parts(), best.parts, strict=True):
                part.load_state_dict(kept)
        self.net.eval()
        if self.settings.temperature and self.task != "regression":
            with torch.no_grad():
                result.temperature = _temperature(self.net(result.scaled(check.x)), check.y, self.task)
        at_parties = [self.net.encoders, *self._parts()[1:]]
        self.traffic.model = 2 * FLOAT_BYTES * sum(v.numel() for part in at_parties for v in part.parameters())
        return result

    def _refreshed(self, optimiser: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Use new masks, if they changed. Parts that stay keep the state of their optimiser."""
        editors = self.refresh()
        if editors is None:
            return optimiser
        self.refreshed += 1
        self._take_up(editors)
        renewed = self._optimiser()
        stay = {p for group in renewed.param_groups for p in group["params"]}
        renewed.state.update({p: state for p, state in optimiser.state.items() if p in stay})
        return renewed

    def _parts(self) -> list[nn.Module]:
        return [self.net, self.adversaries, *([] if self.generators is None else [self.generators])]

    def _optimiser(self) -> torch.optim.Optimizer:
        """AdamW or Adam on the backbone, Adam on the rest: AdamW without decay is Adam."""
        settings = self.settings
        decay = DECAY if settings.optimiser == "adamw" else 0.0
        groups = [{"params": list(self.net.parameters()), "lr": settings.rate, "weight_decay": decay}]
        watching = list(self.adversaries.parameters())
        if self.generators is not None:
            watching += list(self.generators.guards.parameters())
            own = list(self.generators.models.parameters())
            groups.append({"params": own, "lr": settings.generator_rate, "weight_decay": 0.0})
        if watching:
            groups.append({"params": watching, "lr": settings.adversary_rate, "weight_decay": 0.0})
        return torch.optim.AdamW(groups, fused=True)

    def _edited(
        self, records: Records, activations: Sequence[torch.Tensor], epoch: int, draws: torch.Generator | None
    ) -> torch.Tensor | None:
        """Edited copies in input space, or none."""
        if self.generators is not None:
            return self.generators.edit(records, activations, epoch, draws)
        if self.made is None:
            return None
        key = (id(records), epoch)
        if key not in self._kept:
            self._kept = {k: v for k, v in self._kept.items() if k[1] == epoch}
            self._kept[key] = torch.tensor(self.made(records.rows, epoch), dtype=torch.float32)
        return self._kept[key]

    def _step(self, result: TrainedNetwork, train: Records, optimiser: torch.optim.Optimizer, epoch: int) -> float:
        """One epoch of Eq. full_obj."""
        settings = self.settings
        self.net.train()
        optimiser.zero_grad()
        activations = self.net.parts(result.scaled(train.x))
        logits = self.net.head(torch.cat(activations, dim=1))
        loss = task_loss(logits, train.y, self.task)
        passes = 1
        if settings.lambda_cons > 0 and epoch >= settings.warmup:
            edited = self._edited(train, activations, epoch, self.draws if settings.draw_code else None)
            if edited is not None:
                passes = 2
                loss = loss + settings.lambda_cons * self._gap(logits, self.net(result.scaled(edited)))
        if self.generators is not None and settings.generating:
            loss = loss + settings.lambda_gen * self.generators.loss(train, activations, epoch, self.draws)
        if len(self.adversaries):
            loss = loss + settings.lambda_adv * self._adversarial(activations, train)
        whole = loss if self.generators is None else loss + self.generators.guard_loss(train, self.guard_draws)
        whole.backward()
        optimiser.step()
        self._count(train, passes)
        return loss.item()

    def _adversarial(self, activations: Sequence[torch.Tensor], train: Records) -> torch.Tensor:
        """Eq. adv_sum: one adversary for each party behind a gradient reversal, or one on the fused activations."""
        seen = activations if self.settings.adversary == "parties" else [torch.cat(list(activations), dim=1)]
        losses = [
            adversary.loss(reverse(u), z_s)  # type: ignore[operator]
            for adversary, u, z_s in zip(self.adversaries, seen, train.z_s, strict=False)
        ]
        return torch.stack(losses).sum()

    def _gap(self, logits: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """L_cons: by default l1 on logits for classes, squared for numbers."""
        norm = self.settings.norm
        if norm == "squared" or (norm == "paper" and self.task == "regression"):
            return ((logits - other) ** 2).sum(dim=1).mean()
        return (logits - other).abs().sum(dim=1).mean()

    def _count(self, train: Records, passes: int) -> None:
        one = len(train.rows) * len(self.net.widths) * FLOAT_BYTES
        self.traffic.feature += 2 * passes * one * self.net.hidden
        if self.generators is not None:
            self.traffic.feature += one * self.generators.context

    @torch.no_grad()
    def _look(self, result: TrainedNetwork, check: Records, epoch: int, loss: float) -> tuple[Epoch, float]:
        """The validation part after an epoch, and the objective of early stopping on it."""
        self.net.eval()
        activations = self.net.parts(result.scaled(check.x))
        logits = self.net.head(torch.cat(activations, dim=1))
        value = task_loss(logits, check.y, self.task).item()
        right = float("nan")
        if self.task != "regression":
            right = (decided(logits) == check.y).float().mean().item()
        gap = flips = float("nan")
        objective = value
        edited = self._edited(check, activations, 0 if self.generators is not None else epoch, None)
        if edited is not None:
            other = self.net(result.scaled(edited))
            gap = (logits - other).abs().sum(dim=1).mean().item()
            objective += SCG_WEIGHT * gap
            if self.task != "regression":
                flips = (decided(logits) != decided(other)).float().mean().item()
                objective += FLIP_WEIGHT * flips
        return Epoch(epoch, loss, value, right, gap, flips), objective

    def _stops(self, best: _Best, objective: float, epoch: int) -> bool:
        settings = self.settings
        after = settings.patience_from == "warmup"
        if after and epoch == settings.warmup:
            best.objective = float("inf")
        if objective < best.objective:
            best.objective, best.epoch, best.waited, best.generators = objective, epoch, 0, self.generators
            best.parts = [{k: v.clone() for k, v in part.state_dict().items()} for part in self._parts()]
        elif not after or epoch >= settings.warmup:
            best.waited += 1
        return best.waited >= settings.patience


def _temperature(logits: torch.Tensor, label: torch.Tensor, task: Task) -> float:
    return min(TEMPERATURES, key=lambda t: task_loss(logits / t, label, task).item())
