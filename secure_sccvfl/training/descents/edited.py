"""Selected edits on shares: of every record the displacement that was made for its own group.

Roles and the public dictionary say which columns an edit may change. Only these are selected and enter the Gram
matrix; all others are 0 by construction, which each owner checks of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from protocols import ring
from protocols.ring import Words
from protocols.session.runtime import Session
from protocols.steps import head
from secure_sccvfl.data.layout import one_hot
from secure_sccvfl.data.party import AtHolder, Blocks
from secure_sccvfl.training.handles import SharedChoices

_TOGETHER = 1 << 20
"""Draws are selected together up to so many words."""


def selected(
    session: Session,
    widths: Sequence[int],
    holder: int,
    deltas: Iterable[Iterable[Blocks]],
    groups: AtHolder,
    moving: Mapping[int, np.ndarray] | None = None,
) -> SharedChoices:
    """Shares of the displacement of every record and draw in the direction of its own group.

    One round for each owner of such columns and 2^21 words (`head.select`), for several draws together.
    """
    rank = session.rank
    reached = [np.ones(width, bool) if moving is None else moving[at] for at, width in enumerate(widths)]
    counts = [int(of_owner.sum()) for of_owner in reached]
    squares, draws, waiting = np.zeros(counts[rank]), list[Words](), list[Words]()
    for by_group in deltas:
        choices = np.stack([ring.encode(only(blocks[rank], reached[rank])) for blocks in by_group], axis=1)
        squares += largest_squares(choices)
        head.check_gram(squares)
        waiting.append(choices)
        rows, groups_of, _ = choices.shape
        if len(waiting) * rows * groups_of * sum(counts) > _TOGETHER:
            draws += _select(session, counts, holder, waiting, groups)
            waiting = []
    if waiting:
        draws += _select(session, counts, holder, waiting, groups)
    if not draws:
        raise ValueError("no draw of counterfactual edits")
    return SharedChoices(tuple(draws), np.flatnonzero(np.concatenate(reached)))


def _select(
    session: Session, counts: Sequence[int], holder: int, choices: Sequence[Words], groups: AtHolder
) -> list[Words]:
    """Shares of the selected displacements of several draws."""
    count = choices[0].shape[1]
    chosen = None
    if session.rank == holder:
        if groups is None:
            raise ValueError("the holder of s needs it")
        chosen = np.tile(one_hot(groups, count, np.int64), (len(choices), 1))
    below = np.concatenate(choices)
    with session.measure("select edits"):
        pieces = [
            head.select(
                session.party,
                owner,
                holder,
                below if owner == session.rank else None,
                chosen,
                (len(below), count, columns),
            )
            for owner, columns in enumerate(counts)
            if columns
        ]
    whole = np.concatenate(pieces, axis=1) if pieces else np.zeros((len(below), 0), np.int64)
    return np.split(whole, len(choices))


def largest_squares(choices: Words) -> np.ndarray:
    """Of each column the sum over rows of the largest square that could be selected; one group at a time."""
    largest = np.zeros((len(choices), choices.shape[2]))
    for group in range(choices.shape[1]):
        np.maximum(largest, choices[:, group].astype(np.float64) ** 2, out=largest)
    found: np.ndarray = largest.sum(axis=0)
    return found


def only(displacement: np.ndarray, reached: np.ndarray) -> np.ndarray:
    """The columns that an edit may change; raises if it changed another."""
    if displacement[:, ~reached].any():
        raise ValueError("an edit changed a column of a feature that is not edited")
    return displacement[:, reached]


def spread_out(square: Words, columns: np.ndarray, width: int) -> Words:
    """A matrix over some columns as one over all, 0 elsewhere."""
    whole = np.zeros((width, width), np.int64)
    whole[np.ix_(columns, columns)] = square
    return whole
