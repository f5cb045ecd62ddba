"""Label inference from gradients that a feature party gets back in `split` mode.

A residual is negative exactly where the label is 1, and every gradient is a residual times something the
party knows or can find. Sealed runs return no gradient, so there is nothing to attack.
"""

from __future__ import annotations

import numpy as np
import torch

from secure_sccvfl.attacks.view import Rate
from secure_sccvfl.evaluation.networks import TrainedNetwork


def rate_of_residuals(name: str, residual: np.ndarray, label: np.ndarray) -> Rate:
    """Success of the better sign convention, beside the majority rate; the party can tell which is which."""
    guess = residual < 0
    hits = int(max((guess == label).sum(), (guess != label).sum()))
    chance = float(max(label.mean(), 1 - label.mean()))
    return Rate.of_counts(name, "feature party", hits, len(label), chance)


def from_example_gradients(gradients: np.ndarray, label: np.ndarray) -> Rate:
    """Per-record activation gradients (n x d): multiples of one direction whose sign is the label."""
    _, _, directions = np.linalg.svd(gradients, full_matrices=False)
    return rate_of_residuals("labels-example", gradients @ directions[0], label)


def example_gradients(net: TrainedNetwork, units: np.ndarray, label: np.ndarray, party: int) -> np.ndarray:
    """What a party receives for each record: d loss / d h of its own block."""
    logits = net(units) * net.temperature
    width = net.net.head.in_features // len(net.net.widths)
    block = net.net.head.weight.detach().double().numpy()[0, party * width : (party + 1) * width]
    residual = 1 / (1 + np.exp(-logits[:, 0])) - label
    return residual[:, None] * block[None, :]


def from_batch_gradient(
    net: TrainedNetwork, units: np.ndarray, label: np.ndarray, party: int, noise: float = 0.0, seed: int = 0
) -> Rate:
    """One batch-summed gradient of the party's encoder parameters, optionally noised.

    The party knows its Jacobians; it is given the head's weights of its own block (worst case). Then the
    sum is linear in the residuals, and with at least as many parameters as records it can be solved.
    """
    at = sum(net.net.widths[:party])
    x = net._scaled(units)[:, at : at + net.net.widths[party]]
    encoder = net.net.encoders[party]
    width = net.net.head.in_features // len(net.net.widths)
    block = net.net.head.weight.detach()[0, party * width : (party + 1) * width]
    parameters: dict[str, torch.Tensor] = dict(encoder.named_parameters())

    def value(weights: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(encoder, weights, (row[None],))[0] @ block

    grads = torch.func.vmap(torch.func.grad(value), in_dims=(None, 0), randomness="error")(parameters, x)
    jacobian = torch.cat([g.flatten(1) for g in grads.values()], dim=1).detach().double().numpy()
    logits = net(units) * net.temperature
    residual = 1 / (1 + np.exp(-logits[:, 0])) - label
    total = jacobian.T @ residual
    if noise > 0:
        total = total + np.random.default_rng(seed).normal(0, noise, total.shape)
    solved = np.linalg.lstsq(jacobian.T, total, rcond=1e-6)[0]
    return rate_of_residuals("labels-batch" if noise == 0 else f"labels-batch-noise{noise:g}", solved, label)
