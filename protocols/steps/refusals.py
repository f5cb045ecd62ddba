"""New records that some party cannot read are not decided: only the receiver of predictions learns which these are.

Before: the parties hold the same records in the same order. Each marks those of which it can read its own cells, and
puts any values of the public range in place of the others. They hold shares of a result for every record.

The mark of a record is 1 if all parties' marks are 1. Each party's own mark is its share of a bit, and the others'
shares of it are 0, so nothing is sent to share them. The product over the parties is taken in secret under masks that
are used once (protocols/operations/comparison.py), turned into a number, and multiplied with the result.

After: shares of the result, which is 0 where a party refused the record, and shares of the marks. Both are then
opened to the receiver alone. It learns which records were refused. It learns neither by whom (unless there are two
parties, or it knows of all others that they did not) nor anything of a result that rests on a value put in place. The
other parties learn nothing, not even whether a record was refused: everybody sends the same number of uniform words,
and the dealer is told shapes alone.

log2(parties) + 2 rounds, rounded up; about 17 bytes for each record and number to each peer.
"""

from __future__ import annotations

import numpy as np

from protocols.net.transport import Array
from protocols.operations import arithmetic, comparison
from protocols.ring import Words
from protocols.session.runtime import Session


def withheld(session: Session, result: Words, readable: Array) -> tuple[Words, Words]:
    """Shares of the result (records x numbers), 0 where a party cannot read the record; and of 1 for such records."""
    bits = np.zeros((len(readable), session.parties), np.uint8)
    bits[:, session.rank] = readable
    party = session.party
    kept = comparison.to_arithmetic(party, comparison.all_ones(party, bits))
    shown = arithmetic.bilinear(party, "mul", result, np.repeat(kept[:, None], result.shape[1], axis=1))
    return shown, (1 if session.rank == 0 else 0) - kept
