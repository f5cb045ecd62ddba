"""The paper's networks: MLP encoders at the parties, adversaries, and a linear head at a server.

A party trains its encoder and its adversary alone. Each party has its own encoder (Eq. client_fuse). Eq. mlp_backbone
is one MLP over all columns "with fixed index ranges"; one encoder per party is its form with block-diagonal weights,
and the only one that split learning can train. An adversary needs a group for each of its records: the true one in
plaintext, a soft one (rows x groups) where a party has only the posterior of its noisy tables.

`SplitNetwork` is plaintext only, for comparison: the server sees h, and every gradient that a party gets back reveals
labels (see `audit.attacks.labels`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from secure_sccvfl.audit.attacks.view import Gradients
from secure_sccvfl.data.dataset import Task
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.protocols.steps.split import ACTIVATION_LIMIT

_STANDARD = ("mean", "scale", "shown", "read")


@dataclass(frozen=True)
class MlpEncoder:
    """An `Encoder`: standardised inputs, two layers, activations in [0, ACTIVATION_LIMIT].

    `shown`: 1 for each input column, 0 for those of features that the model must not see. `read`: from input columns
    to those that the layers see; None: all as they are.
    """

    net: nn.Sequential = field(repr=False)
    mean: torch.Tensor = field(repr=False)
    scale: torch.Tensor = field(repr=False)
    shown: torch.Tensor = field(repr=False)
    columns: int
    read: torch.Tensor | None = field(default=None, repr=False)

    def scaled(self, inputs: np.ndarray) -> torch.Tensor:
        return self._standard(torch.tensor(inputs, dtype=torch.float32))

    def activations(self, x: torch.Tensor) -> torch.Tensor:
        """Activations of a tensor of inputs, differentiable in it."""
        made: torch.Tensor = self.net(self._standard(x))
        return made

    def _standard(self, x: torch.Tensor) -> torch.Tensor:
        shown = self.shown
        if self.read is not None:
            x, shown = x @ self.read, (self.shown @ self.read > 0).float()
        return (x - self.mean) / self.scale * shown

    def forward(self, inputs: np.ndarray, dropout: torch.Tensor | None = None) -> torch.Tensor:
        """Activations with a gradient. `dropout`: a factor for each hidden unit of each row (`dropout_factors`)."""
        hidden = self.net[:2](self.scaled(inputs))
        made: torch.Tensor = self.net[2:](hidden if dropout is None else hidden * dropout)
        return made

    def without(self, dropped: Sequence[int] | np.ndarray) -> MlpEncoder:
        """The same layers, which see every input column but these."""
        shown = torch.ones_like(self.shown)
        shown[np.asarray(dropped, int)] = 0.0
        return replace(self, shown=shown)

    @torch.no_grad()
    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """Without dropout."""
        return self.forward(inputs).double().numpy()

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything as arrays, to be kept on disk."""
        layers = {name: value.numpy() for name, value in self.net.state_dict().items()}
        standard = {name: getattr(self, name) for name in _STANDARD}
        return {**{name: value.numpy() for name, value in standard.items() if value is not None}, **layers}

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> MlpEncoder:
        """The encoder from what `arrays` returned."""
        layers = {name: torch.tensor(value) for name, value in arrays.items() if name not in _STANDARD}
        hidden, inputs = layers["0.weight"].shape
        net = _network(inputs, hidden)
        net.load_state_dict(layers)
        shown = torch.tensor(arrays["shown"]) if "shown" in arrays else torch.ones(inputs)
        read = torch.tensor(arrays["read"]) if "read" in arrays else None
        return cls(net, torch.tensor(arrays["mean"]), torch.tensor(arrays["scale"]), shown, hidden, read)


def _network(inputs: int, hidden: int) -> nn.Sequential:
    """The paper's ReLU with an upper end, which keeps every activation inside the ring's bound."""
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.Hardtanh(0.0, ACTIVATION_LIMIT),
    )


def code_columns(layout: Layout) -> torch.Tensor:
    """From a party's input columns to one number for each feature; a category has its place among the others."""
    codes = [
        torch.linspace(0, 1, block.width) if block.one_hot else torch.tensor([1.0, 0.5])[: block.width]
        for block in layout.blocks
    ]
    return torch.block_diag(*(c[:, None] for c in codes))


def dropout_factors(rows: int, columns: int, rate: float, draws: torch.Generator) -> torch.Tensor:
    """0 with chance `rate`, else what keeps the mean."""
    kept: torch.Tensor = torch.rand(rows, columns, generator=draws) >= rate
    return kept.float() / (1 - rate)


def start_layers(net: nn.Module, seed: int) -> None:
    """Linear layers as torch starts them, but from an own seed and not from the generator that threads share."""
    generator = torch.Generator().manual_seed(seed)
    for layer in net.modules():
        if isinstance(layer, nn.Linear):
            bound = layer.in_features**-0.5
            nn.init.uniform_(layer.weight, -bound, bound, generator)
            nn.init.uniform_(layer.bias, -bound, bound, generator)


def training_state(net: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, np.ndarray]:
    """A network and its optimiser as arrays, to be kept on disk."""
    moments = optimiser.state_dict()["state"]
    made = {f"adam/{n}/{key}": value.numpy().copy() for n, own in moments.items() for key, value in own.items()}
    return {f"net/{name}": value.numpy().copy() for name, value in net.state_dict().items()} | made


def part_of(arrays: Mapping[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """The arrays that were kept as NAME/..., without that prefix."""
    return {k.removeprefix(f"{name}/"): v for k, v in arrays.items() if k.startswith(f"{name}/")}


def restore_training(net: nn.Module, optimiser: torch.optim.Optimizer, kept: Mapping[str, np.ndarray]) -> None:
    """Continue from what `training_state` returned."""
    net.load_state_dict({name: torch.tensor(value) for name, value in part_of(kept, "net").items()})
    moments: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in part_of(kept, "adam").items():
        number, key = name.split("/")
        moments.setdefault(int(number), {})[key] = torch.tensor(value)
    optimiser.load_state_dict({**optimiser.state_dict(), "state": moments})


def make_mlp(inputs: np.ndarray, hidden: int, seed: int, read: torch.Tensor | None = None) -> MlpEncoder:
    """Party step, local: a fresh encoder, standardised on its own training rows."""
    columns = inputs if read is None else inputs @ read.double().numpy()
    net = _network(columns.shape[1], hidden)
    start_layers(net, seed)
    mean = torch.tensor(columns.mean(axis=0), dtype=torch.float32)
    scale = torch.tensor(np.maximum(columns.std(axis=0), 0.05), dtype=torch.float32)
    return MlpEncoder(net, mean, scale, torch.ones(inputs.shape[1]), hidden, read)


class LocalTraining:
    """One party's encoder and optimiser: activations out, gradients in."""

    def __init__(self, encoder: MlpEncoder, rate: float, decay: float) -> None:
        self.encoder = encoder
        self._optimiser = torch.optim.AdamW(encoder.net.parameters(), lr=rate, weight_decay=decay)
        self._made: torch.Tensor | None = None

    def activations(self, inputs: np.ndarray, dropout: torch.Tensor | None = None) -> np.ndarray:
        """Activations of the rows of a step; `learn` continues from them."""
        self._made = self.encoder.forward(inputs, dropout)
        return self._made.detach().double().numpy()

    def learn(self, gradient: np.ndarray, extra: torch.Tensor | None = None) -> None:
        """Backpropagate the gradient in these activations and take a step. `extra`: a loss of the party's own."""
        if self._made is None:
            raise RuntimeError("no activations to learn from")
        self._optimiser.zero_grad()
        loss = (self._made * torch.tensor(gradient, dtype=torch.float32)).sum()
        (loss if extra is None else loss + extra).backward()
        self._optimiser.step()
        self._made = None

    def state(self) -> dict[str, np.ndarray]:
        """Encoder and optimiser, to be kept on disk."""
        return training_state(self.encoder.net, self._optimiser)

    def go_on(self, kept: Mapping[str, np.ndarray]) -> None:
        """Continue from what `state` returned."""
        restore_training(self.encoder.net, self._optimiser, kept)


HIDDEN = 32


class _Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: float) -> torch.Tensor:
        ctx.weight = weight
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return -ctx.weight * grads[0], None


def reverse(x: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
    """GRL: identity forward, gradient times -weight backward."""
    reversed_x: torch.Tensor = _Reverse.apply(x, weight)
    return reversed_x


class Adversary(nn.Module):
    """Guesses the group of each record; two layers. The paper gives its learning rate, not its size."""

    def __init__(self, inputs: int, groups: int, seed: int, hidden: int = HIDDEN) -> None:
        super().__init__()
        if inputs < 1 or groups < 2:
            raise ValueError(f"an adversary needs inputs and at least two groups, got {inputs} and {groups}")
        self.net = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, groups))
        start_layers(self.net, seed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of the groups."""
        guess: torch.Tensor = self.net(x)
        return guess

    def loss(self, x: torch.Tensor, z_s: torch.Tensor) -> torch.Tensor:
        """Cross entropy against z_s, one-hot or soft. Pass `reverse(x)` to make x tell less of s."""
        return F.cross_entropy(self(x), z_s)

    def recovery(self, x: torch.Tensor, z_s: torch.Tensor) -> torch.Tensor:
        """-log(1 - a): large where the adversary recovers z_s, the last term of Eq. lgen before its weight.

        It has a gradient in x alone: the adversary itself must not learn to fail.
        """
        held = {name: value.detach() for name, value in self.net.named_parameters()}
        guess = torch.func.functional_call(self.net, held, (x,))
        recovered = (torch.softmax(guess, dim=1) * z_s).sum(dim=1)
        return -torch.log((1 - recovered).clamp_min(1e-6)).mean()


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
