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


def selected(
    session: Session,
    widths: Sequence[int],
    holder: int,
    deltas: Iterable[Iterable[Blocks]],
    groups: AtHolder,
    moving: Mapping[int, np.ndarray] | None = None,
) -> SharedChoices:
    """Shares of the displacement of every record and draw in the direction of its own group.

    One round for each owner of such columns and 2^21 words (`head.select`).
    """
    rank = session.rank
    reached = [np.ones(width, bool) if moving is None else moving[at] for at, width in enumerate(widths)]
    draws: list[Words] = []
    squares = np.zeros(int(reached[rank].sum()))
    for by_group in deltas:
        choices = np.stack([ring.encode(only(blocks[rank], reached[rank])) for blocks in by_group], axis=1)
        squares += largest_squares(choices)
        head.check_gram(squares)
        rows, count, _ = choices.shape
        chosen = None
        if rank == holder:
            if groups is None:
                raise ValueError("the holder of s needs it")
            chosen = one_hot(groups, count, np.int64)
        with session.measure("select edits"):
            pieces = [
                head.select(
                    session.party,
                    owner,
                    holder,
                    choices if owner == rank else None,
                    chosen,
                    (rows, count, int(of_owner.sum())),
                )
                for owner, of_owner in enumerate(reached)
                if of_owner.any()
            ]
        draws.append(np.concatenate(pieces, axis=1) if pieces else np.zeros((rows, 0), np.int64))
    if not draws:
        raise ValueError("no draw of counterfactual edits")
    return SharedChoices(tuple(draws), np.flatnonzero(np.concatenate(reached)))


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
