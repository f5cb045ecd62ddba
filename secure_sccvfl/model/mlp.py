"""What a party trains alone in `split` mode: the paper's two-layer encoder, from the gradients it receives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import nn

from protocols.steps.split import ACTIVATION_LIMIT

_STANDARD = ("mean", "scale", "shown")


@dataclass(frozen=True)
class MlpEncoder:
    """An `Encoder`: standardised inputs, two layers, activations in [0, ACTIVATION_LIMIT].

    `shown`: 1 for each input column, 0 for those of features that the model must not see.
    """

    net: nn.Sequential = field(repr=False)
    mean: torch.Tensor = field(repr=False)
    scale: torch.Tensor = field(repr=False)
    shown: torch.Tensor = field(repr=False)
    columns: int

    def scaled(self, inputs: np.ndarray) -> torch.Tensor:
        return (torch.tensor(inputs, dtype=torch.float32) - self.mean) / self.scale * self.shown

    def without(self, dropped: Sequence[int] | np.ndarray) -> MlpEncoder:
        """The same layers, which see every input column but these."""
        shown = torch.ones_like(self.shown)
        shown[np.asarray(dropped, int)] = 0.0
        return replace(self, shown=shown)

    @torch.no_grad()
    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        return self.net(self.scaled(inputs)).double().numpy()

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything as arrays, to be kept on disk."""
        layers = {name: value.numpy() for name, value in self.net.state_dict().items()}
        return {**{name: getattr(self, name).numpy() for name in _STANDARD}, **layers}

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> MlpEncoder:
        """The encoder from what `arrays` returned."""
        layers = {name: torch.tensor(value) for name, value in arrays.items() if name not in _STANDARD}
        hidden, inputs = layers["0.weight"].shape
        net = _network(inputs, hidden)
        net.load_state_dict(layers)
        shown = torch.tensor(arrays["shown"]) if "shown" in arrays else torch.ones(inputs)
        return cls(net, torch.tensor(arrays["mean"]), torch.tensor(arrays["scale"]), shown, hidden)


def _network(inputs: int, hidden: int) -> nn.Sequential:
    """The paper's ReLU with an upper end, which keeps every activation inside the ring's bound."""
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.Hardtanh(0.0, ACTIVATION_LIMIT),
    )


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


def make_mlp(inputs: np.ndarray, hidden: int, seed: int) -> MlpEncoder:
    """Party step, local: a fresh encoder, standardised on its own training rows."""
    net = _network(inputs.shape[1], hidden)
    start_layers(net, seed)
    mean = torch.tensor(inputs.mean(axis=0), dtype=torch.float32)
    scale = torch.tensor(np.maximum(inputs.std(axis=0), 0.05), dtype=torch.float32)
    return MlpEncoder(net, mean, scale, torch.ones(inputs.shape[1]), hidden)


class LocalTraining:
    """One party's encoder and optimiser: activations out, gradients in."""

    def __init__(self, encoder: MlpEncoder, rate: float, decay: float) -> None:
        self.encoder = encoder
        self._optimiser = torch.optim.AdamW(encoder.net.parameters(), lr=rate, weight_decay=decay)
        self._made: torch.Tensor | None = None

    def activations(self, inputs: np.ndarray) -> np.ndarray:
        """Activations of the rows of a step; `learn` continues from them."""
        self._made = self.encoder.net(self.encoder.scaled(inputs))
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

    def copy(self) -> dict[str, np.ndarray]:
        """The layers of the encoder as they are now."""
        return {name: value.numpy().copy() for name, value in self.encoder.net.state_dict().items()}

    def restore(self, kept: Mapping[str, np.ndarray]) -> None:
        self.encoder.net.load_state_dict({name: torch.tensor(value) for name, value in kept.items()})

    def state(self) -> dict[str, np.ndarray]:
        """Encoder and optimiser, to be kept on disk."""
        return training_state(self.encoder.net, self._optimiser)

    def go_on(self, kept: Mapping[str, np.ndarray]) -> None:
        """Continue from what `state` returned."""
        restore_training(self.encoder.net, self._optimiser, kept)
