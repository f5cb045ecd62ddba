"""How a value that one party holds becomes a tensor, and how logits become decisions.

Sharing needs no communication: the holder adds its value to shares of zero, or is the only one with a share.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from protocols.alignment.presence import Presence
from protocols.ring import FRACTION_BITS, INPUT_LIMIT
from protocols.session.runtime import Session, crypten
from protocols.steps.second_order import Shared
from secure_sccvfl.data.layout import one_hot
from secure_sccvfl.data.party import AtHolder
from secure_sccvfl.training.handles import SharedRows


def share_held(session: Session, values: AtHolder, holder: int, shape: tuple[int, ...], bits: int) -> Shared:
    """What one party holds; the others pass anything."""
    if session.rank != holder:
        return session.share(owner=holder, shape=shape, bits=bits)
    if values is None:
        raise ValueError("the holder of the label or of s needs it")
    return session.share(np.asarray(values).reshape(shape), owner=holder, shape=shape, bits=bits)


def side_by_side(
    session: Session,
    widths: Sequence[int],
    own: np.ndarray,
    bits: int = FRACTION_BITS,
    limit: float = INPUT_LIMIT,
) -> Shared:
    """Values over the columns of all parties (last axis), where each party knows its own part, up to a limit."""
    lead = own.shape[:-1]
    blocks = [
        session.own(own, owner=rank, shape=(*lead, width), bits=bits, limit=limit)
        for rank, width in enumerate((*widths[: session.rank], own.shape[-1], *widths[session.rank + 1 :]))
    ]
    return crypten.cat(blocks, dim=len(lead))


def counted(session: Session, widths: Sequence[int], rows: np.ndarray | SharedRows, presence: Presence) -> SharedRows:
    """Encodings that are zero where not all parties have a record; the rounds of `Presence.kept`."""
    if not isinstance(rows, SharedRows):
        rows = SharedRows(side_by_side(session, widths, rows), np.abs(rows).max(axis=0, initial=0.0))
    return SharedRows(presence.kept(session, rows.words), rows.reach, presence)


def with_bias(session: Session, rows: SharedRows, words: Shared) -> Shared:
    """These rows, and a last column: 1 where a row counts."""
    if rows.presence is None:
        ones = session.public(np.ones((words.size(0), 1)))
    else:
        ones = rows.presence.marks(session)[:, None]
    return crypten.cat([words, ones], dim=1)


def share_label(session: Session, label: AtHolder, holder: int, shape: tuple[int, int], bits: int) -> Shared:
    """The label (rows x outputs): a number or a bit in one column, or the one-hot of a class in several.

    Several numbers a record are shared as they are.
    """
    columns = label if label is None or shape[1] == 1 or np.ndim(label) == 2 else one_hot(label, shape[1])
    return share_held(session, columns, holder, shape, bits)


def share_groups(session: Session, codes: AtHolder, holder: int, shape: tuple[int, int]) -> Shared:
    """The one-hot of a protected attribute (rows x groups), whole numbers."""
    return share_held(session, None if codes is None else one_hot(codes, shape[1]), holder, shape, 0)


def decisions(logits: Shared) -> Shared:
    """One-hot of the largest logit (FRACTION_BITS), or for a single one the bit [logit > 0]; whole numbers."""
    if logits.size(1) == 1:
        return -logits < 0
    return logits.argmax(dim=1, one_hot=True).rescale(0, sliced=True)
