"""Intervals of a rate that was observed on a number of records."""

from __future__ import annotations

import math

Z95 = 1.96


def wilson(rate: float, total: int) -> tuple[float, float]:
    """95 % Wilson interval of a proportion; it is also wide enough for a mean of shares between 0 and 1.

    The rate is inside, also where rounding would leave a rate of 0 or 1 outside.
    """
    square = Z95 * Z95 / total
    middle = (rate + square / 2) / (1 + square)
    half = Z95 * math.sqrt(max(rate * (1 - rate), 0.0) / total + square / (4 * total)) / (1 + square)
    return min(max(middle - half, 0.0), rate), max(min(middle + half, 1.0), rate)
