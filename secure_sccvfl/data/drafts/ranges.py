"""Public ranges for columns, rounded outward to a friendly grid: never the least or the largest value itself.

A bound tells between which two points of the grid the extreme lies, and no more. The grid has steps of 1, 2 or 5
times a power of ten, at most ten over the range of the values; of dates it has whole months, years or decades. Zero
stays zero where no value is negative: all such columns have it, so it tells nothing of the least value.
"""

from __future__ import annotations

import datetime
import math

import numpy as np

STEPS = 10
"""At most so many steps of the grid over the range of the values."""
SKEWED = 0.5
"""More than this share of values in the lowest of five equal parts: bins get smaller towards 0."""


def friendly_step(width: float) -> float:
    """The least of 1, 2, 5 times a power of ten that is at least this.

    >>> [friendly_step(width) for width in (0.03, 1, 5.6, 1817)]
    [0.05, 1.0, 10.0, 2000.0]
    """
    power = math.floor(math.log10(width))
    scaled = [digit * 10.0 ** (power + more) for more in (0, 1) for digit in (1, 2, 5)]
    return next(_rounded(step) for step in scaled if step >= width * (1 - 1e-9))


def public_range(values: np.ndarray) -> tuple[float, float]:
    """Low and high around numbers.

    >>> public_range(np.array([19, 75])), public_range(np.array([250, 18424])), public_range(np.array([0, 100]))
    ((10.0, 80.0), (0.0, 20000.0), (0.0, 110.0))
    >>> public_range(np.array([-3.5, 2.0]))
    (-4.0, 3.0)
    """
    low, high = float(values.min()), float(values.max())
    step = friendly_step((high - low) / STEPS if high > low else max(abs(high), 1.0) / STEPS)
    below = math.ceil(_rounded(low / step)) - 1
    above = math.floor(_rounded(high / step)) + 1
    if low >= 0:
        below = max(below, 0)
    elif high <= 0:
        above = min(above, 0)
    return _rounded(below * step), _rounded(above * step)


def public_edges(values: np.ndarray, low: float, high: float) -> list[float]:
    """Edges of bins where equal steps would put most values into one; none otherwise.

    They are fixed parts of the range (a 20th, a tenth, a fifth, a half), whole where all values are. So they tell
    nothing of the values but that most are small.

    >>> public_edges(np.array([0, 0, 0, 1, 13]), 0, 14.0), public_edges(np.array([0.5, 0.6, 6.5]), 0, 7.0)
    ([0.0, 1.0, 2.0, 3.0, 7.0, 14.0], [0.0, 0.35, 0.7, 1.4, 3.5, 7.0])
    """
    if low != 0 or np.mean(values < high / 5) <= SKEWED:
        return []
    parts = [_rounded(high / divisor) for divisor in (20, 10, 5, 2)]
    if (values == np.rint(values)).all():
        parts = [float(math.ceil(part)) for part in parts]
    return sorted({0.0, *parts, high})


def code_edges(low: float, high: float) -> list[float]:
    """Edges that cut the range of a code into equal parts of the grid."""
    step = friendly_step((high - low) / STEPS)
    inner = np.arange(1, math.ceil(_rounded((high - low) / step))) * step + low
    return [low, *(_rounded(float(edge)) for edge in inner), high]


def public_dates(first: datetime.date, last: datetime.date) -> tuple[datetime.date, datetime.date, str]:
    """Low and high around dates, and the unit that suits them.

    >>> [str(day) for day in public_dates(datetime.date(2019, 3, 5), datetime.date(2019, 11, 30))[:2]]
    ['2019-03-01', '2019-12-01']
    >>> [str(day) for day in public_dates(datetime.date(1931, 3, 5), datetime.date(2001, 11, 30))[:2]]
    ['1930-01-01', '2010-01-01']
    """
    years = last.year - first.year
    if years < 2:
        before = first - datetime.timedelta(days=1)
        after = (last.replace(day=1) + datetime.timedelta(days=32)).replace(day=1)
        return before.replace(day=1), after, "days"
    step = 10 if years >= 30 else 1
    before = first - datetime.timedelta(days=1)
    low = max(before.year // step * step, 1)
    return datetime.date(low, 1, 1), datetime.date((last.year // step + 1) * step, 1, 1), "years"


def _rounded(number: float) -> float:
    """Without the dust of binary fractions."""
    return float(f"{number:.12g}")
