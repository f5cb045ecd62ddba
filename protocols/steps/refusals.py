"""Withhold the results of some new records: unreadable at a party, or answered before.

Before: the parties hold the same records in the same order. Each party marks the records whose own cells it can read
and that it has not seen with other values (`readable`), and those that it has no earlier answer for on record
(`fresh`). It puts any values of the public range in place of cells that it cannot read. The parties hold shares of a
result for every record.

A result is shown if all parties' marks of both kinds are 1. A party's own mark is its share of a bit, and the others'
shares of it are 0, so nothing is sent to share them. The products over the parties are taken under MPC with masks
that are used once (protocols/operations/comparison.py), turned into a number, and multiplied with the result.

After: shares of the result, which is 0 where it is withheld, and of one mark for each record: SHOWN, REFUSED (a party
says that the record is not readable) or REPEATED (readable everywhere, but a party has answered for it before). Both
are then opened to the receiver alone. It learns which records were withheld and which of the two reasons holds. It
learns neither which party said so (unless there are two parties, or it knows of all others that they did not) nor
anything of a withheld result. The other parties learn nothing, not even whether a record was withheld: everybody
sends the same number of uniform ring elements, and the dealer is told shapes alone.

An honest party's marks decide alone: no party can undo the 0 of another one.

log2(parties) + 2 rounds, rounded up; about 18 bytes for each record and number to each peer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from protocols.net.transport import Array
from protocols.session.runtime import Session

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
