"""Module heads in plaintext: the steps of `descents.modules` with torch's autograd, in double precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from protocols.ring import FRACTION_BITS
from secure_sccvfl.data.dataset import Task
from secure_sccvfl.training.engine import Step
from secure_sccvfl.training.modules import Arrays, HeadSpec, decays, with_weights


@dataclass(frozen=True)
class ModuleHead:
    """Weights of a module and their velocities, by name."""

    spec: HeadSpec
    weights: Arrays
    velocity: Arrays
    task: Task
    outputs: int
    left: None = None

    def in_torch(self, rows: torch.Tensor, weights: dict[str, torch.Tensor] | None = None) -> torch.Tensor:
        """Logits, differentiable in the rows and in the weights; those of this head if none are given."""
        used = self.tensors() if weights is None else weights
        logits: torch.Tensor = with_weights(self.spec.build(rows.shape[1], self.outputs), used, encrypted=False)(rows)
        return logits

    def tensors(self, gradients: bool = False) -> dict[str, torch.Tensor]:
        return {name: torch.tensor(value).requires_grad_(gradients) for name, value in self.weights.items()}

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return self.in_torch(torch.tensor(rows, dtype=torch.float64)).numpy()


def first_head(spec: HeadSpec, columns: int, outputs: int, task: Task, seed: int) -> ModuleHead:
    weights = spec.first_weights(columns, outputs, seed)
    return ModuleHead(spec, weights, {name: np.zeros_like(value) for name, value in weights.items()}, task, outputs)


@dataclass(frozen=True)
class ModuleDescent:
    """Records, and below them their counterfactuals and shifted copies, each of these with its weight.

    number: as of `plain.Descent`. residual: the slope of the loss in the logits of the records.
    """

    number: int
    rows: np.ndarray
    count: int
    residual: Callable[[np.ndarray, Task], np.ndarray]
    step: Step
    ridge: float
    weights: tuple[float, ...]


def shifted(rows: np.ndarray, draws: Sequence[np.ndarray]) -> np.ndarray:
    """The records, and below them a moved copy of all for each displacement, rounded as they are under MPC.

    A unit that rounding switches at one record moves the next step, and the engines would part there.
    """
    first, *moved = (np.rint(one * 2.0**FRACTION_BITS) / 2.0**FRACTION_BITS for one in (rows, *draws))
    return np.concatenate([first, *(first + one for one in moved)])


def slopes(logits: np.ndarray, residual: np.ndarray, weights: Sequence[float]) -> np.ndarray:
    """The derivative of the summed objective in every logit: of the loss, and of w / 2 (z(x') - z(x))^2 per copy."""
    first, *moved = np.split(logits, len(weights) + 1)
    pulls = [weight * (one - first) for weight, one in zip(weights, moved, strict=True)]
    return np.concatenate([residual - sum(pulls, np.zeros_like(first)), *pulls])


def stepped(head: ModuleHead, descent: ModuleDescent) -> ModuleHead:
    """One full-batch step with momentum."""
    step, count = descent.step, descent.count
    tensors = head.tensors(gradients=True)
    logits = head.in_torch(torch.from_numpy(descent.rows), tensors)
    known = logits.detach().numpy()
    slope = torch.from_numpy(slopes(known, descent.residual(known[:count], head.task), descent.weights))
    summed = torch.autograd.grad(logits, list(tensors.values()), slope)
    gradients = {name: found.numpy() / count for name, found in zip(tensors, summed, strict=True)}
    velocity = {
        name: step.momentum * head.velocity[name]
        - step.rate * (gradients[name] + (descent.ridge * value if decays(value) else 0.0))
        for name, value in head.weights.items()
    }
    weights = {name: value + velocity[name] for name, value in head.weights.items()}
    return replace(head, weights=weights, velocity=velocity)
