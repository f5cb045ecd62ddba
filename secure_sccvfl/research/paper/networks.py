"""The paper's network: two-layer MLP encoders at the parties, a linear head at a server, and what parties get back.

Plaintext only, for comparison: the server sees h, and every gradient that a party gets back reveals labels (see
`audit.attacks.gradients`). Each party has its own encoder (Eq. client_fuse). Eq. mlp_backbone is one MLP
over all columns "with fixed index ranges"; one encoder per party is its form with block-diagonal weights, and the
only one that split learning can train.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from secure_sccvfl.audit.attacks.view import Gradients
from secure_sccvfl.data.dataset import Task


@dataclass(frozen=True)
class Epoch:
    """One point of the training curves. The last three are of the validation part, SCG and FR under own edits.

    SCG is the mean l1 gap over all output units. NaN: not defined for this task, or no edits.
    """

    epoch: int
    train_loss: float
    validation_loss: float
    validation_accuracy: float
    scg: float
    fr: float


class SplitNetwork(nn.Module):
    """One encoder per party and a linear head over their concatenated outputs: two units for two classes."""

    def __init__(self, widths: tuple[int, ...], units: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.widths, self.hidden = widths, hidden
        self.encoders = nn.ModuleList(
            nn.Sequential(nn.Linear(w, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, hidden), nn.ReLU())
            for w in widths
        )
        self.head = nn.Linear(len(widths) * hidden, units)

    def parts(self, x: torch.Tensor) -> list[torch.Tensor]:
        """h^(p) of every party."""
        pieces = x.split(list(self.widths), dim=1)
        return [e(p) for e, p in zip(self.encoders, pieces, strict=True)]

    def fuse(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat(self.parts(x), dim=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.fuse(x))
        return logits


def units_of(task: Task, outputs: int) -> int:
    """Output units of the head: one for each class, one for a number."""
    return 2 if task == "binary" else outputs


def task_loss(logits: torch.Tensor, label: torch.Tensor, task: Task) -> torch.Tensor:
    """Cross entropy, or squared error of a number."""
    if task == "regression":
        return F.mse_loss(logits[:, 0], label.float())
    return F.cross_entropy(logits, label.long())


def decided(logits: torch.Tensor) -> torch.Tensor:
    """The class of each record."""
    return logits.argmax(dim=1)


def against_rest(units: torch.Tensor) -> torch.Tensor:
    """From the units of a softmax to the logit of each class against the rest, with the same probabilities."""
    own = torch.eye(units.shape[1], dtype=torch.bool)
    others = units[:, None, :].masked_fill(own, -torch.inf)
    return units - torch.logsumexp(others, dim=2)


@dataclass
class TrainedNetwork:
    """A trained network as a predictor on input space, with the epoch it kept and its training curves.

    Inside, units are those of a softmax. Outside, the logit of two classes is their difference, and those of several
    are of each class against the rest, as everywhere in the evaluation. read: from input space to the columns that
    encoders see.
    """

    net: SplitNetwork
    mean: torch.Tensor
    scale: torch.Tensor
    task: Task
    read: torch.Tensor
    temperature: float = 1.0
    kept_epoch: int = 0
    history: tuple[Epoch, ...] = ()

    @property
    def epochs_run(self) -> int:
        return len(self.history)

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        """Input space as encoders see it: standardised on the training part."""
        return (x.float() @ self.read - self.mean) / self.scale

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Calibrated logits, differentiable in x."""
        found = self.net(self.scaled(x)) / self.temperature
        if self.task == "binary":
            return found[:, 1:] - found[:, :1]
        return found if self.task == "regression" else against_rest(found)

    @torch.no_grad()
    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        return self.logits(torch.tensor(inputs)).double().numpy()

    @torch.no_grad()
    def fused(self, inputs: np.ndarray) -> np.ndarray:
        """The representation z that the paper's server holds in the clear."""
        return self.net.fuse(self.scaled(torch.tensor(inputs))).double().numpy()

    def _block(self, party: int) -> torch.Tensor:
        """The head's weights of one party's activations for the logit of two classes."""
        weight, hidden = self.net.head.weight.detach(), self.net.hidden
        return (weight[1] - weight[0])[party * hidden : (party + 1) * hidden]

    def _residual(self, inputs: np.ndarray, label: np.ndarray) -> np.ndarray:
        logits = self(inputs) * self.temperature
        return np.asarray(1 / (1 + np.exp(-logits[:, 0])) - label)

    def example_gradients(self, inputs: np.ndarray, label: np.ndarray, party: int) -> np.ndarray:
        """What a party receives for each record: d loss / d h of its own block."""
        return self._residual(inputs, label)[:, None] * self._block(party).double().numpy()[None, :]

    def batch_gradient(self, inputs: np.ndarray, label: np.ndarray, party: int) -> tuple[np.ndarray, np.ndarray]:
        """The party's Jacobian, and the gradient of its encoder's parameters summed over these records.

        The worst case is assumed: the party knows the head's weights of its own block.
        """
        at = sum(self.net.widths[:party])
        x = self.scaled(torch.tensor(inputs))[:, at : at + self.net.widths[party]]
        encoder, block = self.net.encoders[party], self._block(party)
        parameters: dict[str, torch.Tensor] = dict(encoder.named_parameters())

        def value(weights: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(encoder, weights, (row[None],))[0] @ block

        grads = torch.func.vmap(torch.func.grad(value), in_dims=(None, 0), randomness="error")(parameters, x)
        jacobian = torch.cat([g.flatten(1) for g in grads.values()], dim=1).detach().double().numpy()
        return jacobian, jacobian.T @ self._residual(inputs, label)

    def returned_gradients(
        self, inputs: np.ndarray, label: np.ndarray, party: int, noise: float, seed: int
    ) -> Gradients:
        """What a party receives for each way of returning gradients: by record, summed, and summed with noise."""
        jacobian, total = self.batch_gradient(inputs, label, party)
        noisy = total + np.random.default_rng(seed).normal(0, noise, total.shape)
        sums = {"batch": total, f"batch-noise{noise:g}": noisy}
        return Gradients("feature party", self.example_gradients(inputs, label, party), jacobian, sums, label)
