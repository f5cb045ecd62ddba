"""The paper's network in `split` mode: two-layer MLP encoders at the parties, a linear head at a server.

Plaintext only, for comparison: the server sees h, and every gradient that a party gets back reveals labels (see
secure_sccvfl/attacks/labels.py). All of the paper's baselines are settings of this one trainer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from secure_sccvfl.attacks.view import Gradients
from secure_sccvfl.data.dataset import Task

# Edited copies of these rows of the data set, for one epoch.
EditRows = Callable[[np.ndarray, int], np.ndarray]


@dataclass(frozen=True)
class NetworkConfig:
    """The paper's settings for German; `patience_from` says where early stopping starts to count."""

    hidden: int = 64
    dropout: float = 0.05
    rate: float = 0.015
    decay: float = 5e-4
    epochs: int = 300
    warmup: int = 40
    patience: int = 35
    patience_from: Literal["start", "warmup"] = "warmup"
    lam: float = 0.0
    adversary: float = 0.0

    def __post_init__(self) -> None:
        if min(self.hidden, self.epochs, self.patience) < 1 or self.warmup < 0 or self.rate <= 0:
            raise ValueError(f"bad network settings {self}")
        if self.patience_from not in ("start", "warmup"):
            raise ValueError(f"patience_from must be start or warmup, got {self.patience_from!r}")


class _Reverse(torch.autograd.Function):
    """Identity forward, negated gradient backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: float) -> torch.Tensor:
        ctx.weight = weight
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return -ctx.weight * grads[0], None


class SplitNetwork(nn.Module):
    """One encoder per party and a linear head over their concatenated outputs."""

    def __init__(self, widths: tuple[int, ...], outputs: int, config: NetworkConfig) -> None:
        super().__init__()
        self.widths = widths
        self.encoders = nn.ModuleList(
            nn.Sequential(
                nn.Linear(w, config.hidden),
                nn.ReLU(),
                nn.Dropout(config.dropout),
                nn.Linear(config.hidden, config.hidden),
                nn.ReLU(),
            )
            for w in widths
        )
        self.head = nn.Linear(len(widths) * config.hidden, outputs)

    def fuse(self, x: torch.Tensor) -> torch.Tensor:
        parts = x.split(list(self.widths), dim=1)
        return torch.cat([e(p) for e, p in zip(self.encoders, parts, strict=True)], dim=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.fuse(x))


@dataclass
class TrainedNetwork:
    """A trained network as a predictor on input space, with the epochs it ran and the one it kept."""

    net: SplitNetwork
    mean: torch.Tensor
    scale: torch.Tensor
    temperature: float
    epochs_run: int
    best_epoch: int

    def _scaled(self, inputs: np.ndarray) -> torch.Tensor:
        return (torch.tensor(inputs, dtype=torch.float32) - self.mean) / self.scale

    @torch.no_grad()
    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        return (self.net(self._scaled(inputs)) / self.temperature).double().numpy()

    @torch.no_grad()
    def fused(self, inputs: np.ndarray) -> np.ndarray:
        """The representation z that the paper's server holds in the clear."""
        return self.net.fuse(self._scaled(inputs)).double().numpy()


def _task_loss(logits: torch.Tensor, label: torch.Tensor, task: Task) -> torch.Tensor:
    if task == "binary":
        return F.binary_cross_entropy_with_logits(logits[:, 0], label.float())
    if task == "multiclass":
        return F.cross_entropy(logits, label.long())
    return F.mse_loss(logits[:, 0], label.float())


def _decide(logits: torch.Tensor, task: Task) -> torch.Tensor:
    return logits[:, 0] > 0 if task == "binary" else logits.argmax(dim=1)


def train_network(
    widths: tuple[int, ...],
    train: tuple[np.ndarray, np.ndarray, np.ndarray],
    validation: tuple[np.ndarray, np.ndarray],
    task: Task,
    outputs: int,
    config: NetworkConfig,
    seed: int,
    edits: Callable[[int], tuple[np.ndarray, np.ndarray]] | None = None,
) -> TrainedNetwork:
    """Full-batch AdamW on (inputs, label, s); keeps the best epoch by a composite validation objective."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = SplitNetwork(widths, outputs, config)
        adversary = nn.Sequential(
            nn.Linear(len(widths) * config.hidden, 32), nn.ReLU(), nn.Linear(32, int(train[2].max()) + 1)
        )
        mean = torch.tensor(train[0].mean(axis=0), dtype=torch.float32)
        scale = torch.tensor(np.maximum(train[0].std(axis=0), 0.05), dtype=torch.float32)
        result = TrainedNetwork(net, mean, scale, 1.0, 0, 0)
        x, y = result._scaled(train[0]), torch.as_tensor(train[1])
        s = torch.as_tensor(train[2], dtype=torch.long)
        xv, yv = result._scaled(validation[0]), torch.as_tensor(validation[1])
        parameters = [*net.parameters(), *adversary.parameters()]
        optimiser = torch.optim.AdamW(parameters, lr=config.rate, weight_decay=config.decay)
        best, kept, waited = float("inf"), {k: v.clone() for k, v in net.state_dict().items()}, 0
        for epoch in range(config.epochs):
            net.train()
            optimiser.zero_grad()
            z = net.fuse(x)
            logits = net.head(z)
            loss = _task_loss(logits, y, task)
            edited = edits(epoch) if edits is not None else None
            if edited is not None and config.lam > 0 and epoch >= config.warmup:
                other = net(result._scaled(edited[0]))
                gap = (logits - other).abs() if task != "regression" else (logits - other) ** 2
                loss = loss + config.lam * gap.sum(dim=1).mean()
            if config.adversary > 0:
                loss = loss + F.cross_entropy(adversary(_Reverse.apply(z, config.adversary)), s)
            loss.backward()
            optimiser.step()
            result.epochs_run = epoch + 1
            objective = _objective(net, result, xv, yv, edited, task)
            counted = config.patience_from == "start" or epoch >= config.warmup
            if config.patience_from == "warmup" and epoch == config.warmup:
                best = float("inf")
            if objective < best:
                best, waited = objective, 0
                kept = {k: v.clone() for k, v in net.state_dict().items()}
                result.best_epoch = epoch
            elif counted:
                waited += 1
                if waited >= config.patience:
                    break
        net.load_state_dict(kept)
        net.eval()
        result.temperature = _temperature(net(xv).detach(), yv, task)
    return result


@torch.no_grad()
def _objective(
    net: SplitNetwork,
    result: TrainedNetwork,
    x: torch.Tensor,
    y: torch.Tensor,
    edited: tuple[np.ndarray, np.ndarray] | None,
    task: Task,
) -> float:
    """Log loss plus a tenth of SCG and flip rate on validation; the paper gives no weights."""
    net.eval()
    logits = net(x)
    value = float(_task_loss(logits, y, task))
    if edited is not None:
        other = net(result._scaled(edited[1]))
        value += 0.1 * float((logits - other).abs().sum(dim=1).mean())
        if task != "regression":
            value += 0.1 * float((_decide(logits, task) != _decide(other, task)).float().mean())
    return value


def _temperature(logits: torch.Tensor, label: torch.Tensor, task: Task) -> float:
    if task == "regression":
        return 1.0
    grid = np.geomspace(0.5, 3.0, 25)
    return float(min(grid, key=lambda t: float(_task_loss(logits / t, label, task))))


def _block(net: SplitNetwork, party: int) -> torch.Tensor:
    """The head's weights of one party's activations."""
    width = net.head.in_features // len(net.widths)
    return net.head.weight.detach()[0, party * width : (party + 1) * width]


def _residual(net: TrainedNetwork, inputs: np.ndarray, label: np.ndarray) -> np.ndarray:
    logits = net(inputs) * net.temperature
    return np.asarray(1 / (1 + np.exp(-logits[:, 0])) - label)


def example_gradients(net: TrainedNetwork, inputs: np.ndarray, label: np.ndarray, party: int) -> np.ndarray:
    """What a party receives for each record: d loss / d h of its own block."""
    return _residual(net, inputs, label)[:, None] * _block(net.net, party).double().numpy()[None, :]


def batch_gradient(
    net: TrainedNetwork, inputs: np.ndarray, label: np.ndarray, party: int
) -> tuple[np.ndarray, np.ndarray]:
    """The party's Jacobian, and the gradient of its encoder's parameters summed over these records.

    In the worst case, assumed here, the party knows the head's weights of its own block.
    """
    at = sum(net.net.widths[:party])
    x = net._scaled(inputs)[:, at : at + net.net.widths[party]]
    encoder, block = net.net.encoders[party], _block(net.net, party)
    parameters: dict[str, torch.Tensor] = dict(encoder.named_parameters())

    def value(weights: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(encoder, weights, (row[None],))[0] @ block

    grads = torch.func.vmap(torch.func.grad(value), in_dims=(None, 0), randomness="error")(parameters, x)
    jacobian = torch.cat([g.flatten(1) for g in grads.values()], dim=1).detach().double().numpy()
    return jacobian, jacobian.T @ _residual(net, inputs, label)


def returned_gradients(
    net: TrainedNetwork, inputs: np.ndarray, label: np.ndarray, party: int, noise: float, seed: int
) -> Gradients:
    """What a party gets back for each way of returning gradients: by record, summed, and summed with noise."""
    jacobian, total = batch_gradient(net, inputs, label, party)
    noisy = total + np.random.default_rng(seed).normal(0, noise, total.shape)
    sums = {"batch": total, f"batch-noise{noise:g}": noisy}
    return Gradients("feature party", example_gradients(net, inputs, label, party), jacobian, sums, label)
