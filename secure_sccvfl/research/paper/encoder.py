"""What a party trains alone in `split` mode: the paper's two-layer encoder, from the gradients it receives.

An encoder reads the one-hot columns of its party, or one number for each feature (`code_columns`), as the paper's
Table data-summary counts them. Standardised one-hot columns of rare categories reach 20; codes stay near 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import nn

from protocols.steps.split import ACTIVATION_LIMIT
from secure_sccvfl.data.layout import Layout

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


def restore_training(net: nn.Module, optimiser: torch.optim.Optimizer, kept: Mapping[str, np.ndarray]) -> None:
    """Continue from what `training_state` returned."""
    layers = {name.removeprefix("net/"): v for name, v in kept.items() if name.startswith("net/")}
    net.load_state_dict({name: torch.tensor(value) for name, value in layers.items()})
    moments: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in kept.items():
        if name.startswith("adam/"):
            _, number, key = name.split("/")
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
