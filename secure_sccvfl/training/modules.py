"""Heads that are CrypTen modules: their registry, supported layers and initial weights.

A head maps the fused encodings of all parties (inputs) to logits (outputs). `linear` is the default: it has steps of
second order, a private form and a penalty from released tables. Every other head is a `crypten.nn.Module` that a
function of `HEADS` builds. It takes first-order steps: CrypTen's autograd under MPC (`secure_steps`), torch's in
plaintext (`plain`), on one and the same module.

The module may have the layers of `LAYERS`, in `Sequential` or `Graph` containers. Objective perturbation covers a
linear head only, so such a model is never private: it is for public data (`training.modes.options`).

First weights follow from the seed and are public, and equal on both engines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from secure_sccvfl.data.randomness import stream
from secure_sccvfl.protocols.errors import InputError
from secure_sccvfl.protocols.session.runtime import crypten

LINEAR = "linear"
LAYERS = ("Linear", "ReLU", "Sigmoid")
"""Layers that a head may have, by their names in `crypten.nn`."""
CONTAINERS = ("Sequential", "Graph")
MODULE_RATE, MODULE_MOMENTUM = 0.2, 0.90625
"""Size of the steps of a module, for the mean loss over the records. Both are exact under MPC: 1 / .2 and 29 / 32."""
MODULE_STEPS, MODULE_RIDGE = 60, 0.02
"""Steps of a module at one lambda, and the ridge, unless the options say otherwise.

Chosen by loss, accuracy and gap on validation records of German: steps, rate and units on seeds 300 to 305, the ridge
on 300 to 303, the momentum on 300 to 307. The ridge and the momentum also had to keep both engines together: with a
ridge of .005 rounding moves the logits by more than .02.
"""
MODULE_DRAWS = 2
"""Most counterfactuals of a record and attribute in the penalty of a module: each is one more row of every step."""
HIDDEN = 16
"""Hidden units of head `mlp`."""
LARGEST_HIDDEN = 1024

Builder = Callable[[int, int, int], Any]
"""From inputs, outputs and hidden units to a `crypten.nn.Module` that is not encrypted."""
Arrays = Mapping[str, np.ndarray]


class HeadError(InputError):
    """A head that cannot be trained; the message names the layer."""


def mlp(inputs: int, outputs: int, hidden: int) -> Any:
    """One hidden layer with ReLU."""
    nn = crypten.nn
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


HEADS: dict[str, Builder] = {"mlp": mlp}
"""Heads other than `linear`, by name."""


def register_head(name: str, builder: Builder) -> None:
    """Add a head of your own, which the option `head` then names; in every process that trains or uses it.

    builder: a function of this process; it must build the same layers at every party.
    """
    if name == LINEAR or not name.isidentifier():
        raise HeadError(f"a head cannot be named {name!r}: use a new name of letters, digits and _")
    HEADS[name] = builder


@dataclass(frozen=True)
class HeadSpec:
    """The public specification of a module: name and width, which with inputs and outputs determine its layers."""

    kind: str = "mlp"
    hidden: int = HIDDEN

    def __post_init__(self) -> None:
        if self.kind not in HEADS:
            raise HeadError(f"no head {self.kind!r}; available: {', '.join((LINEAR, *HEADS))}")
        if not 1 <= self.hidden <= LARGEST_HIDDEN:
            raise HeadError(f"hidden must be from 1 to {LARGEST_HIDDEN} units, not {self.hidden}")

    def build(self, inputs: int, outputs: int) -> Any:
        """The module, checked; its weights are arbitrary."""
        with torch.random.fork_rng(devices=[]):  # layers draw weights, which are replaced
            module = HEADS[self.kind](inputs, outputs, self.hidden)
        check_module(module, self.kind, inputs, outputs)
        return module

    def first_weights(self, inputs: int, outputs: int, seed: int) -> dict[str, np.ndarray]:
        """Where training starts: normal weights of variance 1 / (inputs of the layer), and biases of 0."""
        module = self.build(inputs, outputs)
        return {name: _drawn(seed, name, tuple(one.size())) for name, one in module.named_parameters()}


def _drawn(seed: int, name: str, shape: tuple[int, ...]) -> np.ndarray:
    if len(shape) < 2:
        return np.zeros(shape)
    return stream(seed, "head", name).normal(0, shape[1] ** -0.5, shape)


def check_module(module: Any, kind: str, inputs: int, outputs: int) -> None:
    """Raise HeadError unless all layers are supported and logits have the right shape. No data are used."""
    if not isinstance(module, crypten.nn.Module):
        raise HeadError(f"head {kind} is a {type(module).__name__}: build a crypten.nn.Module")
    allowed = {getattr(crypten.nn, name) for name in LAYERS}
    containers = {getattr(crypten.nn, name) for name in CONTAINERS}
    for name, layer in module.named_modules():
        if type(layer) not in allowed | containers:
            at = f"layer {name}" if name else "its only layer"
            raise HeadError(
                f"head {kind}: {at} is a {type(layer).__name__}, which cannot be trained under MPC here; available: "
                f"{', '.join(LAYERS)}"
            )
    if not list(module.parameters()):
        raise HeadError(f"head {kind} has no weights")
    try:
        shape = tuple(module(torch.zeros(2, inputs)).shape)
    except (RuntimeError, TypeError, ValueError, AttributeError, AssertionError, KeyError) as error:
        raise HeadError(f"head {kind} does not take {inputs} columns: {str(error).splitlines()[0]}") from None
    if shape != (2, outputs):
        raise HeadError(f"head {kind} gives {shape[1:]} logits for a record, not {outputs}")


def with_weights(module: Any, weights: Mapping[str, Any], encrypted: bool) -> Any:
    """The module with these tensors for weights."""
    for name, value in weights.items():
        *path, leaf = name.split(".")
        layer = module
        for part in path:
            layer = dict(layer.named_children())[part]
        layer.set_parameter(leaf, value)
    for layer in module.modules():
        layer.encrypted = encrypted
    return module


def decays(value: Any) -> bool:
    """Whether the ridge applies to these weights: not to biases."""
    return value.ndim == 2 if isinstance(value, np.ndarray) else int(value.dim()) == 2
