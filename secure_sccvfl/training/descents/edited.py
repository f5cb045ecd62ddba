"""Selected edits: of every record the displacement that was made for its own group.

Roles and the public dictionary say which columns an edit may change. Only these are selected and enter the Gram
matrix; all others are 0 by construction, which each owner checks of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch

from protocols.session.runtime import Session, crypten
from protocols.steps import head
from protocols.steps.second_order import Shared
from secure_sccvfl.data.layout import one_hot
from secure_sccvfl.data.party import AtHolder, Blocks
from secure_sccvfl.training.handles import SharedChoices

_TOGETHER = 1 << 20
"""Draws are selected together up to so many ring elements."""


def selected(
    session: Session,
    widths: Sequence[int],
    holder: int,
    deltas: Iterable[Iterable[Blocks]],
    groups: AtHolder,
    moving: Mapping[int, np.ndarray] | None = None,
) -> SharedChoices:
    """The displacement of every record and draw in the direction of its own group.

    One round for each owner of such columns and 2^21 words (protocols/operations/selection.py), for several draws
    together.
    """
    rank = session.rank
    reached = [np.ones(width, bool) if moving is None else moving[at] for at, width in enumerate(widths)]
    counts = [int(of_owner.sum()) for of_owner in reached]
    squares, draws, waiting = np.zeros(counts[rank]), list[Shared](), list[np.ndarray]()
    for by_group in deltas:
        choices = np.stack([only(blocks[rank], reached[rank]) for blocks in by_group], axis=1)
        squares += head.largest_squares(choices)
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
    session: Session, counts: Sequence[int], holder: int, choices: Sequence[np.ndarray], groups: AtHolder
) -> list[Shared]:
    """The selected displacements of several draws."""
    count, each = choices[0].shape[1], len(choices[0])
    chosen = None
    if session.rank == holder:
        if groups is None:
            raise ValueError("the holder of s needs it")
        chosen = np.tile(one_hot(groups, count, np.int64), (len(choices), 1))
    below = np.concatenate(choices)
    member = session.own(chosen, owner=holder, shape=(len(below), count), bits=0)
    with session.measure("select edits"):
        pieces = [
            session.own(below, owner=owner, shape=(len(below), count, columns)).selected(member)
            for owner, columns in enumerate(counts)
            if columns
        ]
    whole = crypten.cat(pieces, dim=1) if pieces else session.public(np.zeros((len(below), 0)))
    return [whole[at : at + each] for at in range(0, len(below), each)]


def only(displacement: np.ndarray, reached: np.ndarray) -> np.ndarray:
    """The columns that an edit may change; raises if it changed another."""
    if displacement[:, ~reached].any():
        raise ValueError("an edit changed a column of a feature that is not edited")
    return displacement[:, reached]


def spread_out(session: Session, square: Shared, columns: np.ndarray, width: int) -> Shared:
    """A matrix over some columns as one over all, 0 elsewhere."""
    whole = session.public(np.zeros((width, width)), session.fraction(square))
    places = torch.from_numpy(columns)
    whole[places[:, None], places[None]] = square
    return whole
