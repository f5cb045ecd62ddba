"""Joint training of encoders, head, generators and adversaries (Eq. full_obj), full batch, with early stopping.

Every epoch is one step of all parts, each with its own learning rate. Consistency is off in the warm-up. Its
gradient goes to the generators as well: Eq. server_obj is minimised over their parameters too. Early stopping uses
log loss, SCG and flip rate of the validation part under the generators of that epoch. The parts of the last epoch are
kept, or with `kept = "best"` those of the best one. Masks may be refreshed between epochs: then generators start
again, and everything else continues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from secure_sccvfl.data.dataset import Task
from secure_sccvfl.research.paper.adversary import Adversary, reverse
from secure_sccvfl.research.paper.generators import Generators, Records
from secure_sccvfl.research.paper.networks import Epoch, SplitNetwork, TrainedNetwork, decided, task_loss
from secure_sccvfl.research.paper.settings import DECAY, FLIP_WEIGHT, SCG_WEIGHT, PaperSettings
from secure_sccvfl.training.config import TEMPERATURES

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
        self.traffic.model = (
            2 * FLOAT_BYTES * sum(v.numel() for part in self._at_parties() for v in part.parameters())
        )
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

    def _at_parties(self) -> list[nn.Module]:
        return [self.net.encoders, *self._parts()[1:]]

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
