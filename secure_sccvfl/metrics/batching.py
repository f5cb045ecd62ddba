"""CrypTen operators on several tensors at once, in the rounds of one.

Values of an evaluation come from many places: records, copies of several judges, groups. What needs no result of
each other is put into one tensor first, so that rounds do not grow with the number of judges or groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from protocols.session.runtime import Session, crypten

Shared = Any
"""A CrypTen tensor. CrypTen has no types for mypy."""


def together(function: Callable[[Shared], Shared], *values: Shared) -> list[Shared]:
    """An elementwise operator on several tensors."""
    result = function(crypten.cat([value.reshape(-1) for value in values]))
    return split(result, [tuple(value.size()) for value in values])


def products(*pairs: tuple[Shared, Shared]) -> list[Shared]:
    """Products of whole numbers with numbers of any fraction; one round, and nothing is rounded.

    The factors of a pair are broadcast. All results have the longest fraction among the second factors.
    """
    shapes = [tuple(torch.broadcast_shapes(a.size(), b.size())) for a, b in pairs]
    factors = zip(*pairs, strict=True)
    left, right = (
        crypten.cat([one.expand(shape).reshape(-1) for one, shape in zip(side, shapes, strict=True)])
        for side in factors
    )
    return split(left * right, shapes)


def split(vector: Shared, shapes: Sequence[tuple[int, ...]]) -> list[Shared]:
    """A vector as tensors of these shapes, one after the other."""
    tensors, at = [], 0
    for shape in shapes:
        end = at + prod(shape)
        tensors.append(vector[at:end].reshape(shape))
        at = end
    return tensors


def squares(session: Session, value: Shared) -> Shared:
    """Squares with twice the fraction: nothing is rounded. One round."""
    whole = session.with_fraction(value, 0)
    return session.with_fraction(whole.square(), 2 * session.fraction(value))


def largest(values: Shared) -> Shared:
    """The largest of each row (rows x values). Each halving takes one comparison and one product."""
    while values.size(1) > 1:
        half = values.size(1) // 2
        one, other, rest = values[:, :half], values[:, half : 2 * half], values[:, 2 * half :]
        more = other - one
        values = crypten.cat([one + (more > 0) * more, rest], dim=1)
    return values[:, 0]
