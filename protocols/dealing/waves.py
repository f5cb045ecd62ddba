"""Sines and cosines of random angles, which only the dealer computes."""

from __future__ import annotations

import numpy as np

from protocols.net.transport import Array

_AT_ONCE = 1 << 13
"""So many values at a time stay in the cache."""


def waves(t: Array, period_bits: int, terms: int, fraction_bits: int, word: str) -> dict[str, Array]:
    """cos(k w t) and sin(k w t), k = 1, 3, 5, ..., where 2^period_bits is one period; as words of this type."""
    made = {name: np.empty((terms, t.size), f"<i{word[2]}") for name in ("cos", "sin")}
    for start in range(0, t.size, _AT_ONCE):
        here = slice(start, start + _AT_ONCE)
        angle = (t[here] & ((1 << period_bits) - 1)).astype(np.float64)
        step = np.exp(2j * np.pi * angle / (1 << period_bits))
        turn = step * (1 << fraction_bits)
        step *= step
        for k in range(terms):
            np.rint(turn.real, out=made["cos"][k, here], casting="unsafe")
            np.rint(turn.imag, out=made["sin"][k, here], casting="unsafe")
            turn *= step
    return {name: wave.view(word) for name, wave in made.items()}
