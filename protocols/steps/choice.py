"""Choices under MPC: does a ratio meet a target, the first that does, a temperature, results that are withheld.

Before: the parties hold shares of the values to compare, or of bits. Targets and temperatures are public. After:
they hold shares of the choice, or of the chosen value. Nobody learns anything: only masked values of comparisons and
products are opened (protocols/operations/comparison.py, protocols/operations/arithmetic.py).

| step | rounds | bytes to each peer |
|---|---|---|
| `meets`: is square <= target^2 * variance? | 7 | 23 |
| `first_kept`: keep the first for which a bit is 1, or the last | 1 | 8 x (values + 2) |
| `some`: is one of the bits 1? | 6 | 15 |
| `inverse_temperature`: 1 / T where the loss begins to rise | 0 | 0 |
| `withheld`: results of records that no party refuses | log2(parties) + 2 | about 18 for each record and number |

Precision of `meets`: target^2 is a fraction with at least 15 significant bits (relative error 2^-15). The product
with the variance is cut to the unit of the shares, 2^-32, with an error of one unit. So the answer is right unless
square and target^2 * variance differ by less than 2^-15 of the latter and two units.

`withheld`. The parties hold the same records in the same order. Each party marks the records whose own cells it can
read and has not seen with other values (`readable`), and those for which it has no earlier answer on record
(`fresh`); it puts any values of the public range in place of cells that it cannot read. A result is shown if all
parties' marks of both kinds are 1. A party's own mark is its share of a bit and the others' shares are 0, so nothing
is sent to share them. The products over the parties are computed under MPC and multiplied with the result. Result
and mark (SHOWN, REFUSED: some party cannot read the record, or REPEATED: some party has answered for it before) are
then opened to the receiver alone. It learns which records were withheld and which reason holds, but neither which
party said so (unless there are two parties, or it knows the marks of all others) nor anything of a withheld result.
The other parties learn nothing: everybody sends the same number of uniform ring elements. An honest party's marks
decide alone: no party can undo the 0 of another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import floor, log2
from typing import Any

import numpy as np
import torch

from protocols.errors import ProtocolError
from protocols.net.transport import Array
from protocols.session.runtime import Session, crypten

_FACTOR_BITS = 14
"""Significant bits of a squared target after the first: variances up to 2^15 with 32 fractional bits fit."""
_LONGEST = 60


def meets(square: Any, variance: Any, target: float) -> Any:
    """The bits [square <= target^2 * variance]; both have the same fraction, at most 32 bits."""
    if not 0 < target <= 1:
        raise ProtocolError(f"a target must be above 0 and at most 1, not {target}")
    bits = min(_LONGEST, _FACTOR_BITS - floor(2 * log2(target)))
    room = variance * round(target**2 * 2**bits) / (1 << bits) - square
    return 1 - (room < 0)


def first_kept(found: Any, kept: Any, new: Any, met: Any) -> tuple[Any, Any]:
    """`found` and `kept` after one more value.

    The value is kept unless one was found before. It counts as found if it met. Starting from found = 0, `kept`
    ends as the first value that met, or as the last one if none did.
    """
    change = (new - kept).with_fraction(0)
    moved = (1 - found) * crypten.cat([met.reshape(-1), change.reshape(-1)])
    more = moved[1:].reshape(kept.size()).with_fraction(kept.encoder._precision_bits)
    return found + moved[:1], kept + more


def first_of(values: Sequence[Any], met: Any) -> Any:
    """The first value for which its bit is 1, or the last one."""
    result, kept = met[:1], values[0]
    for at in range(1, len(values)):
        result, kept = first_kept(result, kept, values[at], met[at : at + 1])
    return kept


def some(bits: Any) -> Any:
    """The bit that says whether any of these is 1, as a tensor of one."""
    return -bits.reshape(-1).sum(0, keepdim=True) < 0


def inverse_temperature(rising: Any, temperatures: Sequence[float], bits: int) -> Any:
    """1 / T for the first temperature after which the loss rises, or for the last one; a tensor of one.

    rising: a bit for each temperature but the last. A loss that is convex in 1 / T first falls and then
    rises. So the bits are 0 ... 0 1 ... 1, and their weighted sum is the choice. Where two losses are almost equal,
    rounding may flip a bit. The result then lies between temperatures that are equally good.
    """
    inverse = [round(2**bits / t) for t in temperatures]
    falls = torch.tensor([one - other for one, other in pairwise(inverse)])
    return ((rising * falls).sum(0, keepdim=True) + inverse[-1]).with_fraction(bits)


SHOWN, REFUSED, REPEATED = range(3)


def withheld(session: Session, result: Any, readable: Array, fresh: Array) -> tuple[Any, Any]:
    """The result (records x numbers), 0 where it is withheld, and the mark of each record; CrypTen tensors."""
    rows = len(readable)
    bits = np.zeros((2 * rows, session.parties), np.uint8)
    bits[:, session.rank] = np.concatenate([readable, readable & fresh])
    by_all = session.all_ones(bits)
    readable_by_all, shown_by_all = by_all[:rows], by_all[rows:]
    # 1 - readable, and 2 (readable - shown): 0, 1 and 2 are the three marks
    return shown_by_all[:, None] * result, REFUSED + readable_by_all - REPEATED * shown_by_all
