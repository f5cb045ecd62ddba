"""Local encoders: input space to the columns that the head sees. None of these learns from labels.

`plain` is the default (one-hot categories, piecewise-linear numbers). `random` adds random ReLU features and
`autoencoder` a locally trained bottleneck, behind the same interface. Each is centred on local means.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import torch

from secure_sccvfl.data.layout import Block, Layout, unit_cuts
from secure_sccvfl.data.randomness import stream, torch_seed

EncoderKind = Literal["plain", "random", "autoencoder"]
WIDTH = 16
"""How many columns the other kinds add."""


class Encoder(Protocol):
    """Party step, local: input space (n x width) to encodings (n x columns)."""

    def __call__(self, inputs: np.ndarray) -> np.ndarray: ...

    @property
    def columns(self) -> int: ...


def _plain_block(block: Block, inputs: np.ndarray) -> np.ndarray:
    columns = inputs[:, block.columns]
    if block.one_hot:
        return columns
    cuts = unit_cuts(block.feature)
    steps = np.clip((columns[:, :1] - cuts[:-1]) / np.diff(cuts), 0.0, 1.0)
    return np.hstack([steps, columns[:, 1:]])


def plain_encoding(layout: Layout, inputs: np.ndarray) -> np.ndarray:
    """One-hot categories and piecewise-linear numbers, not centred."""
    return np.hstack([_plain_block(b, inputs) for b in layout.blocks])


@dataclass(frozen=True)
class PlainEncoder:
    """The default: label-free, linear in categories, piecewise linear in numbers.

    `dropped`: features that the model must not see; their columns are 0 for every record.
    """

    layout: Layout
    mean: np.ndarray
    dropped: frozenset[str] = frozenset()

    @property
    def columns(self) -> int:
        return len(self.mean)

    @property
    def shown(self) -> np.ndarray:
        """1 for each column that the model sees, 0 for those of dropped features."""
        nothing = np.zeros((1, self.layout.width))
        return np.concatenate(
            [
                np.full(_plain_block(b, nothing).shape[1], float(b.feature.name not in self.dropped))
                for b in self.layout.blocks
            ]
        )

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        centred = plain_encoding(self.layout, inputs) - self.mean
        return centred * self.shown if self.dropped else centred


@dataclass(frozen=True)
class FeatureEncoder:
    """Plain columns followed by a fixed ReLU layer (random, or the bottleneck of an autoencoder)."""

    plain: PlainEncoder
    weight: np.ndarray
    bias: np.ndarray
    mean: np.ndarray

    @property
    def columns(self) -> int:
        return self.plain.columns + self.weight.shape[1]

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        base = self.plain(inputs)
        return np.hstack([base, np.maximum(base @ self.weight + self.bias, 0.0) - self.mean])


def without(encoder: Encoder, names: Iterable[str], inputs: np.ndarray) -> Encoder:
    """Party step, local: the encoder with these features dropped, centred on its own training rows."""
    if isinstance(encoder, FeatureEncoder):
        plain = replace(encoder.plain, dropped=frozenset(names))
        mean = np.maximum(plain(inputs) @ encoder.weight + encoder.bias, 0.0).mean(axis=0)
        return replace(encoder, plain=plain, mean=mean)
    if isinstance(encoder, PlainEncoder):
        return replace(encoder, dropped=frozenset(names))
    raise TypeError(f"an encoder of kind {type(encoder).__name__} cannot drop features")


def reached(layout: Layout, names: Iterable[str], kind: EncoderKind, width: int = WIDTH) -> np.ndarray:
    """Which columns of an encoder can change when these features change: public, as layout and roles are."""
    wanted, nothing = set(names), np.zeros((1, layout.width))
    plain = np.concatenate(
        [np.full(_plain_block(b, nothing).shape[1], b.feature.name in wanted) for b in layout.blocks]
    )
    return plain if kind == "plain" else np.concatenate([plain, np.full(width, plain.any())])


def _autoencoder(base: np.ndarray, width: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.tensor(base, dtype=torch.float32)
    down = (torch.randn(x.shape[1], width, generator=generator) / x.shape[1] ** 0.5).requires_grad_()
    bias = torch.zeros(width, requires_grad=True)
    up = (torch.randn(width, x.shape[1], generator=generator) / width**0.5).requires_grad_()
    optimiser = torch.optim.Adam([down, bias, up], lr=0.02)
    for _ in range(150):
        optimiser.zero_grad()
        loss = ((torch.relu(x @ down + bias) @ up - x) ** 2).mean()
        loss.backward()
        optimiser.step()
    return down.detach().double().numpy(), bias.detach().double().numpy()


def fit_encoder(layout: Layout, inputs: np.ndarray, kind: EncoderKind, seed: int, width: int = WIDTH) -> Encoder:
    """Party step, local: fit an encoder on its own training rows, without labels and without s."""
    plain = PlainEncoder(layout, plain_encoding(layout, inputs).mean(axis=0))
    if kind == "plain":
        return plain
    base = plain(inputs)
    if kind == "random":
        rng = stream(seed, "encoder", *layout.names)
        weight, bias = rng.normal(size=(base.shape[1], width)), rng.normal(size=width)
    elif kind == "autoencoder":
        weight, bias = _autoencoder(base, width, torch_seed(seed, "encoder", *layout.names))
    else:
        raise ValueError(f"unknown encoder {kind!r}; use plain, random or autoencoder")
    scale = np.maximum(np.maximum(base @ weight + bias, 0.0).std(axis=0), 1e-6)
    weight, bias = weight / scale, bias / scale
    return FeatureEncoder(plain, weight, bias, np.maximum(base @ weight + bias, 0.0).mean(axis=0))
