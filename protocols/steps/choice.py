"""Choices under MPC: whether some bit is 1, and results that are withheld.

Before: the parties hold shares of bits. After: they hold shares of the choice. Nobody learns anything: only masked
values of comparisons and products are opened (`comparison.py` and `arithmetic.py` of protocols/operations).

| step | rounds | bytes to each peer |
|---|---|---|
| `some`: is one of the bits 1? | 6 | 15 |
| `withheld`: results of records that no party refuses | log2(parties) + 2 | about 18 for each record and number |

`withheld`. The parties hold the same records in the same order. Each party marks the records whose own cells it can
read and has not seen with other values (`readable`), and those for which it has no earlier answer on record
(`fresh`); it puts any values of the public range for cells that it cannot read. A result is shown if all
parties' marks of both kinds are 1. A party's own mark is its share of a bit and the others' shares are 0, so nothing
is sent to share them. The products over the parties are computed under MPC and multiplied with the result. Result
and mark (SHOWN, REFUSED: some party cannot read the record, or REPEATED: some party has answered for it before) are
then opened to the receiver only. It learns which records were withheld and which reason holds, but neither which
party said so (unless there are two parties, or it knows the marks of all others) nor anything of a withheld result.
The other parties learn nothing: all send the same number of uniform ring elements. No party can undo
the 0 of another one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from secure_sccvfl.protocols.net.transport import Array
from secure_sccvfl.protocols.session.runtime import Session


def some(bits: Any) -> Any:
    """The bit that says whether any of these is 1, as a tensor of one."""
    return -bits.reshape(-1).sum(0, keepdim=True) < 0


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
