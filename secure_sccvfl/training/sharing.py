"""How a value that one party holds becomes shares, and how shared logits become decisions.

Sharing needs no communication: the holder adds its value to shares of zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from protocols import ring
from protocols.alignment.presence import Presence
from protocols.dealing.party import Party
from protocols.operations import arithmetic, comparison
from protocols.ring import FRACTION_BITS, Words
from protocols.session.runtime import Session, words_of
from secure_sccvfl.data.layout import one_hot
from secure_sccvfl.data.party import AtHolder
from secure_sccvfl.training.handles import SharedRows


def share_held(session: Session, values: AtHolder, holder: int, shape: tuple[int, ...], bits: int) -> Words:
    """Shares of what one party holds; the others pass anything."""
    shares = session.party.zero_share(shape)
    if session.rank == holder:
        if values is None:
            raise ValueError("the holder of the label or of s needs it")
        shares += ring.encode(np.asarray(values).reshape(shape), bits)
    return shares


def share_columns(party: Party, widths: Sequence[int], own: np.ndarray, bits: int = FRACTION_BITS) -> Words:
    """Shares over the columns of all parties (last axis), where each party knows its own part."""
    at = sum(widths[: party.rank])
    shares = party.zero_share((*own.shape[:-1], sum(widths)))
    shares[..., at : at + own.shape[-1]] += ring.encode(own, bits)
    return shares


def counted(party: Party, widths: Sequence[int], rows: np.ndarray | SharedRows, presence: Presence) -> SharedRows:
    """Encodings that are zero where not all parties have a record; the rounds of `Presence.kept`."""
    if not isinstance(rows, SharedRows):
        rows = SharedRows(share_columns(party, widths, rows), np.abs(rows).max(axis=0, initial=0.0))
    return SharedRows(presence.kept(party, rows.words), rows.reach, presence)


def with_bias(rows: SharedRows, words: Words, rank: int) -> Words:
    """These shares of the rows, and a last column: 1 where a row counts."""
    if rows.presence is None:
        ones: Words = np.full((len(words), 1), int(rank == 0) << FRACTION_BITS, np.int64)
    else:
        ones = np.left_shift(rows.presence.bits[:, None], FRACTION_BITS)
    return np.concatenate([words, ones], axis=1)


def share_label(session: Session, label: AtHolder, holder: int, shape: tuple[int, int], bits: int) -> Words:
    """Shares of the label (rows x outputs): a number or a bit in one column, or the one-hot of a class in several.

    Several numbers a record are shared as they are.
    """
    columns = label if label is None or shape[1] == 1 or np.ndim(label) == 2 else one_hot(label, shape[1])
    return share_held(session, columns, holder, shape, bits)


def share_groups(session: Session, codes: AtHolder, holder: int, shape: tuple[int, int]) -> Words:
    """Shares of the one-hot of a protected attribute (rows x groups), whole numbers."""
    return share_held(session, None if codes is None else one_hot(codes, shape[1]), holder, shape, 0)


def decisions(session: Session, logits: Words) -> Words:
    """One-hot of the largest logit (FRACTION_BITS), or for a single one the bit [logit > 0]; whole numbers."""
    if logits.shape[1] == 1:
        return comparison.negative(session.party, -logits)
    chosen = session.wrap(logits, FRACTION_BITS).argmax(dim=1, one_hot=True)
    words, bits = words_of(chosen), int(chosen.encoder._precision_bits)
    return arithmetic.truncate(session.party, words, bits) if bits else words
