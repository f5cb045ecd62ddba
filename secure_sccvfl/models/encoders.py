"""Local encoders: input space to the columns that the head sees. None of these learns from labels.

Categories are one-hot, numbers piecewise linear. Mode `dp` adds units that it has trained. Without a private head
columns are centred on local means.

A private head (`releases.mechanisms`) needs rows that depend only on their own record and on what was
released, and a public bound on their length. So encoders are then centred on public values (`public_centre`), and the
length of a row is at most `public_radius`, which follows from the public dictionary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from secure_sccvfl.data.layout import Block, Layout, unit_cuts


class Encoder(Protocol):
    """Party step, local: input space (n x width) to encodings (n x columns)."""

    def __call__(self, inputs: np.ndarray) -> np.ndarray: ...

    @property
    def columns(self) -> int: ...


@runtime_checkable
class Network(Protocol):
    """An encoder or generator that a party trained with torch in mode `split`, saved as arrays."""

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
    if block.width > 1:  # a missing number is in the middle of every step; its flag marks it
        steps = np.where(columns[:, 1:] > 0.5, 0.5, steps)
    return np.hstack([steps, columns[:, 1:]])


def _steps(block: Block) -> int:
    return len(unit_cuts(block.feature)) - 1


def plain_columns(block: Block) -> int:
    """Number of columns of the plain encoding of a feature."""
    return block.width if block.one_hot else _steps(block) + block.width - 1


def public_centre(layout: Layout) -> np.ndarray:
    """The public centre that keeps every plain encoding short: 1/K for a category, 1/2 for a step."""
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
    """The largest change of a party's plain encoding if these features change (`releases.mechanisms`)."""
    blocks = [block for block in layout.blocks if block.feature.name in edited]
    return float(np.sqrt(sum(_edit_square(block) for block in blocks)))


def _edit_square(block: Block) -> float:
    """The largest squared change of one feature.

    A number that becomes missing or present changes no step by more than 1/2, and its flag by 1.
    """
    if block.one_hot:
        return 2.0
    return max(_steps(block), _steps(block) / 4 + 1 if block.width > 1 else 0.0)


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
    """Plain columns followed by a fixed ReLU layer, which mode `dp` has trained.

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


def reached(layout: Layout, names: Collection[str]) -> np.ndarray:
    """Which plain columns can change when these features change; public."""
    return np.concatenate([np.full(plain_columns(b), b.feature.name in names) for b in layout.blocks])


def public_encoder(layout: Layout) -> PlainEncoder:
    """Party step, local: the plain encoder centred on public values, which no record changes."""
    return PlainEncoder(layout, public_centre(layout))


def fit_encoder(layout: Layout, inputs: np.ndarray) -> PlainEncoder:
    """Party step, local: the plain encoder centred on means of its own training rows; it sees no label and no s."""
    return PlainEncoder(layout, plain_encoding(layout, inputs).mean(axis=0))
