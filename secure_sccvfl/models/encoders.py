"""Local encoders: input space to the columns that the head sees. None of these learns from labels.

`plain` is the default (one-hot categories, piecewise-linear numbers). `random` adds random ReLU features and
`autoencoder` a locally trained bottleneck, behind the same interface. Without a private head each is centred on local
means.

A private head (`releases.mechanisms`) needs rows that depend on nothing but their own record and on what was
released, and a public bound on their length. So encoders are then centred on public values (`public_centre`), and the
length of a row is at most `public_radius`, which follows from the public dictionary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

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


@runtime_checkable
class Network(Protocol):
    """What a party has trained with torch in mode `split`: an encoder or a generator, saved as arrays."""

    def arrays(self) -> dict[str, np.ndarray]: ...


@runtime_checkable
class NetworkEncoder(Network, Protocol):
    """An encoder of mode `split`."""

    def activations(self, x: torch.Tensor) -> torch.Tensor: ...


def plain_block(block: Block, inputs: np.ndarray) -> np.ndarray:
    columns = inputs[:, block.columns]
    if block.one_hot:
        return columns
    cuts = unit_cuts(block.feature)
    steps = np.clip((columns[:, :1] - cuts[:-1]) / np.diff(cuts), 0.0, 1.0)
    if block.width > 1:  # a missing number is in the middle of every step; its flag tells it apart
        steps = np.where(columns[:, 1:] > 0.5, 0.5, steps)
    return np.hstack([steps, columns[:, 1:]])


def _steps(block: Block) -> int:
    return len(unit_cuts(block.feature)) - 1


def plain_columns(block: Block) -> int:
    """How many columns the plain encoding of a feature has."""
    return block.width if block.one_hot else _steps(block) + block.width - 1


def public_centre(layout: Layout) -> np.ndarray:
    """The point around which the plain encoding of any record is short: 1/K of a category, 1/2 of a step."""
    parts = [
        np.full(block.width, 1 / block.width)
        if block.one_hot
        else np.concatenate([np.full(_steps(block), 0.5), np.zeros(block.width - 1)])
        for block in layout.blocks
    ]
    return np.concatenate(parts)


def public_reach(layout: Layout) -> np.ndarray:
    """The largest magnitude of every plain column around its public centre."""
    centre = public_centre(layout)
    return np.maximum(centre, 1 - centre)


def public_square(block: Block) -> float:
    """The largest squared length of the plain encoding of a feature around its public centre."""
    if block.one_hot:
        return 1 - 1 / block.width
    return max(_steps(block) / 4, 1.0 if block.width > 1 else 0.0)


def public_radius(layout: Layout) -> float:
    """The largest length of the plain encoding of a record of one party around its public centre."""
    return float(np.sqrt(sum(public_square(block) for block in layout.blocks)))


def edit_radius(layout: Layout, edited: Collection[str]) -> float:
    """The largest change of a party's plain encoding by a change of these features (`releases.mechanisms`)."""
    blocks = [block for block in layout.blocks if block.feature.name in edited]
    return float(np.sqrt(sum(2 if block.one_hot else _steps(block) for block in blocks)))


def shortened(rows: np.ndarray, radius: float) -> np.ndarray:
    """Rows that are longer than the radius, scaled to it."""
    length = np.sqrt((rows**2).sum(axis=1, keepdims=True))
    return np.asarray(rows * np.minimum(1.0, radius / np.maximum(length, 1e-12)))


def plain_encoding(layout: Layout, inputs: np.ndarray) -> np.ndarray:
    """One-hot categories and piecewise-linear numbers, not centred."""
    return np.hstack([plain_block(b, inputs) for b in layout.blocks])


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
        return np.concatenate(
            [np.full(plain_columns(b), float(b.feature.name not in self.dropped)) for b in self.layout.blocks]
        )

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        centred = plain_encoding(self.layout, inputs) - self.mean
        return centred * self.shown if self.dropped else centred


@dataclass(frozen=True)
class FeatureEncoder:
    """Plain columns followed by a fixed ReLU layer (random, the bottleneck of an autoencoder, or learned in `dp`).

    radius: rows are scaled to this length if they are longer; infinite without a private head.
    """

    plain: PlainEncoder
    weight: np.ndarray
    bias: np.ndarray
    mean: np.ndarray
    radius: float = float("inf")

    @property
    def columns(self) -> int:
        return self.plain.columns + self.weight.shape[1]

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        base = self.plain(inputs)
        rows = np.hstack([base, np.maximum(base @ self.weight + self.bias, 0.0) - self.mean])
        return rows if np.isinf(self.radius) else shortened(rows, self.radius)


def without(encoder: Encoder, names: Iterable[str], inputs: np.ndarray) -> Encoder:
    """Party step, local: the encoder with these features dropped.

    Further columns are centred on its own training rows, unless the head is private: then no row may follow from
    another record, and the public centre stays.
    """
    if isinstance(encoder, FeatureEncoder):
        plain = replace(encoder.plain, dropped=frozenset(names))
        if np.isfinite(encoder.radius):
            return replace(encoder, plain=plain)
        mean = np.maximum(plain(inputs) @ encoder.weight + encoder.bias, 0.0).mean(axis=0)
        return replace(encoder, plain=plain, mean=mean)
    if isinstance(encoder, PlainEncoder):
        return replace(encoder, dropped=frozenset(names))
    raise TypeError(f"an encoder of kind {type(encoder).__name__} cannot drop features")


def reached(layout: Layout, names: Iterable[str], kind: EncoderKind, width: int = WIDTH) -> np.ndarray:
    """Which columns of an encoder can change when these features change: public, as layout and roles are."""
    wanted = set(names)
    plain = np.concatenate([np.full(plain_columns(b), b.feature.name in wanted) for b in layout.blocks])
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


def public_encoder(layout: Layout) -> PlainEncoder:
    """Party step, local: the plain encoder around public values, which no record moves."""
    return PlainEncoder(layout, public_centre(layout))


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
