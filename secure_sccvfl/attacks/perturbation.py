"""Subspace-PGD: perturb only some columns of input space inside an l-infinity ball to flip the decision."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from secure_sccvfl.attacks.view import Rate, WhiteBox

STEPS = 20


def two_class(logits: torch.Tensor) -> torch.Tensor:
    """One logit as two, so that every model ends in a softmax."""
    return torch.cat([torch.zeros_like(logits), logits], dim=1) if logits.shape[1] == 1 else logits


def perturb(target: WhiteBox, radius: float, steps: int = STEPS) -> torch.Tensor:
    """Perturbed records after signed-gradient steps of radius / 5, starting from the records themselves."""
    x = torch.tensor(target.inputs, dtype=torch.float64)
    mask = torch.zeros(x.shape[1], dtype=torch.float64)
    mask[torch.as_tensor(target.columns, dtype=torch.long)] = 1.0
    with torch.no_grad():
        label = two_class(target.logits(x)).argmax(dim=1)
    delta = torch.zeros_like(x)
    for _ in range(steps):
        delta.requires_grad_(True)
        loss = F.cross_entropy(two_class(target.logits(x + delta)), label, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, delta)
        with torch.no_grad():
            delta = (delta + radius / 5 * gradient.sign() * mask).clamp(-radius, radius)
    return (x + delta).detach()


def subspace_pgd(target: WhiteBox, radius: float, steps: int = STEPS) -> Rate:
    """Share of records whose decision changes; no perturbation changes none, so chance is 0."""
    moved = perturb(target, radius, steps)
    with torch.no_grad():
        before = two_class(target.logits(torch.tensor(target.inputs, dtype=torch.float64))).argmax(dim=1)
        after = two_class(target.logits(moved)).argmax(dim=1)
    hits = int((before != after).sum())
    return Rate.of_counts(f"{radius:.2f}", target.holder, hits, len(target.inputs), 0.0)


def subspace_pgd_curve(target: WhiteBox, seed: int) -> list[Rate]:
    """One rate for each radius. It starts from the records themselves, so the seed has no effect."""
    return [subspace_pgd(target, radius) for radius in target.radii]
