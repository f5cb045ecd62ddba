"""A party's shares of batches, counterfactuals, penalties and heads: CrypTen tensors, and how they are shared.

The trainer passes these objects on and looks at none of their values. The engine pins values and unscales weights at
their first use and keeps the result here. All parties use an object in the same order, so these fields are filled at
every party or at none. Sharing needs no communication: the holder adds its value to shares of zero, or is the only
one with a share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from secure_sccvfl.data.dataset import Task
from secure_sccvfl.data.layout import one_hot
from secure_sccvfl.data.party import AtHolder, Blocks
from secure_sccvfl.protocols.alignment.hidden_intersection import MembershipMask
from secure_sccvfl.protocols.dealing.tuples import Request
from secure_sccvfl.protocols.ring import FRACTION_BITS, INPUT_LIMIT
from secure_sccvfl.protocols.session.rows import Scaled
from secure_sccvfl.protocols.session.runtime import MPCTensor, Session, crypten
from secure_sccvfl.protocols.steps import head
from secure_sccvfl.protocols.steps.head import Weights
from secure_sccvfl.protocols.steps.second_order import Curved, Plan, Shared, Slope
from secure_sccvfl.releases.mechanisms import HeadNoise
from secure_sccvfl.training.engine import Step
from secure_sccvfl.training.modules import HeadSpec

_TOGETHER = 1 << 20
"""Draws are selected together up to so many ring elements."""


@dataclass(frozen=True, repr=False, eq=False)
class SharedRows:
    """Encodings of all parties that s has selected, or membership; no party knows its own part of them.

    reach: the largest magnitude in each own column over all that could be selected. membership: the rows that count,
    if not all do; the others are zero.
    """

    tensor: Shared
    reach: np.ndarray
    membership: MembershipMask | None = None


@dataclass(repr=False, eq=False)
class SharedBatch:
    """Own encodings in the clear, or rows that were selected; own ridge; shares of the label (a column per output).

    masked: the unscaled encodings of all parties, under masks of their owners, or of nobody. seen: heads, and shares
    of their logits, which are computed once. codes: shares of the label as whole numbers, of classes.
    """

    encodings: np.ndarray | SharedRows
    ridge: np.ndarray
    label: Shared
    masked: Shared | None = None
    seen: tuple[tuple[SharedHead | SharedModule, ...], Shared] | None = None
    codes: Shared | None = None

    @property
    def rows(self) -> int:
        return int(self.label.size(0))

    @property
    def membership(self) -> MembershipMask | None:
        return self.encodings.membership if isinstance(self.encodings, SharedRows) else None

    @property
    def count(self) -> int:
        """The divisor of sums over the rows."""
        return self.rows if self.membership is None else self.membership.count


@dataclass(frozen=True, repr=False, eq=False)
class SharedDraws:
    """Shares of the selected displacements of every draw, in the columns of the head that may change."""

    draws: tuple[Shared, ...]
    columns: np.ndarray


NO_DRAWS = SharedDraws((), np.zeros(0, int))


@dataclass(repr=False, eq=False)
class SharedPenalty:
    """Counterfactuals, their mean Gram matrix over all columns, and own parts of the directions of proxies.

    masked_gram: the matrix under a mask. ranges: own block of the range penalty.
    """

    chosen: SharedDraws
    gram: Shared
    directions: tuple[np.ndarray, ...] = ()
    masked_gram: Shared | None = None
    ranges: np.ndarray | None = None


@dataclass(repr=False, eq=False)
class SharedHead:
    """Shares of a head's weights in scaled columns; `scale` is the factor of the own columns.

    optimizer: number of the optimizer whose columns these are; None for weights of no optimizer of this session.
    last_logits: shares of the logits of the last step. plain_weight: shares of the weight for unscaled columns.
    slope: of the last second-order step, with its rate.
    """

    weights: Weights
    scale: np.ndarray
    task: Task
    optimizer: int | None = None
    last_logits: Shared | None = None
    plain_weight: Shared | None = None
    slope: Slope | None = None


@dataclass(frozen=True, repr=False, eq=False)
class SharedModule:
    """Shares of the weights of a module and of their velocities, by name, HEAD_BITS.

    last_logits: as of `SharedHead`, with counterfactuals below the records.
    """

    spec: HeadSpec
    weights: Mapping[str, Shared]
    velocity: Mapping[str, Shared]
    task: Task
    outputs: int
    last_logits: Shared | None = None


@dataclass(frozen=True, repr=False, eq=False)
class SharedModuleOptimizer:
    """What all steps of a module use: records under masks, with their moved copies below, each with its weight.

    number, pattern: as of `SharedOptimizer`.
    """

    number: int
    batch: SharedBatch
    step: Step
    ridge: float
    rows: Shared
    weights: tuple[float, ...]
    pattern: list[Request] = field(default_factory=list)


@dataclass(frozen=True, repr=False, eq=False)
class SharedOptimizer:
    """What all first-order steps use: scaled encodings and penalty under masks, and requests to the dealer.

    number: counts the optimizers of an engine, the same at every party. pattern: the requests of one step; the first
    step fills it.
    """

    number: int
    batch: SharedBatch
    step: Step
    scale: np.ndarray
    rows: Shared
    square: Shared
    pattern: list[Request] = field(default_factory=list)

    @property
    def columns(self) -> int:
        """Number of the optimizer that has scaled the columns."""
        return self.number


@dataclass(frozen=True, repr=False, eq=False)
class SharedNoise:
    """Of private heads: public numbers of their noise; shares of it in the gradient, and of 1 / s and s (rows).

    inverse: with active security, what is negative where an owner's 1 / s is too small for its s.
    """

    noise: HeadNoise
    tilt: Shared
    scales: Shared
    inverse: Shared | None = None


@dataclass(frozen=True, repr=False, eq=False)
class SharedGrid:
    """What all second-order steps of a grid use: encodings with the bias under masks, penalties and inverses too.

    number, columns: as of `SharedOptimizer`. parts: ranges of weights that step together, each with the requests of
    one step. curved: what inverses are made of. private: the noise of private heads. begun: weights (None for zero
    weights), and gradient and logits there, for the first step.
    """

    number: int
    columns: int
    batch: SharedBatch
    plan: Plan
    scale: np.ndarray
    rows: Shared
    stack: Shared
    parts: tuple[tuple[range, list[Request]], ...]
    curved: Curved
    private: SharedNoise | None = None
    begun: tuple[Weights | None, Shared, Shared] | None = None


# sharing


def share_held(session: Session, values: AtHolder, holder: int, shape: tuple[int, ...], bits: int) -> Shared:
    """Share one party's values; the others pass anything."""
    if session.rank != holder:
        return session.share(owner=holder, shape=shape, bits=bits)
    if values is None:
        raise ValueError("the holder of the label or of s needs it")
    return session.share(np.asarray(values).reshape(shape), owner=holder, shape=shape, bits=bits)


def proven_held(session: Session, values: AtHolder, holder: int, shape: tuple[int, int]) -> Shared:
    """One party's bits, with a proof (`Session.proven_bits`); several columns are one-hot rows."""
    own = np.zeros((shape[0], 0), np.int64)
    if session.rank == holder:
        if values is None:
            raise ValueError("the holder of the label or of s needs it")
        own = np.asarray(values).reshape(shape).astype(np.int64)
    groups = [[(0, shape[1])] if rank == holder and shape[1] > 1 else [] for rank in range(session.parties)]
    widths = [shape[1] if rank == holder else 0 for rank in range(session.parties)]
    return session.proven_bits(own, widths, groups)[holder]


def side_by_side(
    session: Session,
    widths: Sequence[int],
    own_values: np.ndarray | Scaled,
    bits: int = FRACTION_BITS,
    limit: float = INPUT_LIMIT,
) -> Shared:
    """Values over the columns of all parties (last axis), where each party knows its own part, up to a limit."""
    lead = own_values.shape[:-1]
    blocks = [
        session.owned(own_values, owner=rank, shape=(*lead, width), bits=bits, limit=limit)
        for rank, width in enumerate((*widths[: session.rank], own_values.shape[-1], *widths[session.rank + 1 :]))
    ]
    return crypten.cat(blocks, dim=len(lead))


def on_diagonal(session: Session, widths: Sequence[int], own_block: np.ndarray, bits: int) -> Shared:
    """A matrix over the columns of all parties that has each party's block on its diagonal, and 0 elsewhere."""
    width, at = widths[session.rank], sum(widths[: session.rank])
    rows = np.zeros((width, sum(widths)))
    rows[:, at : at + width] = own_block
    return crypten.cat(
        [
            session.owned(rows, owner=owner, shape=(count, sum(widths)), bits=bits)
            for owner, count in enumerate(widths)
        ],
        dim=0,
    )


def present_rows(
    session: Session, widths: Sequence[int], rows: np.ndarray | SharedRows, membership: MembershipMask
) -> SharedRows:
    """Encodings that are zero where not all parties have a record; the rounds of `MembershipMask.masked`."""
    if not isinstance(rows, SharedRows):
        rows = SharedRows(side_by_side(session.tall, widths, rows), np.abs(rows).max(axis=0, initial=0.0))
    return SharedRows(membership.masked(session, rows.tensor), rows.reach, membership)


def with_bias(session: Session, rows: SharedRows, tensor: Shared) -> Shared:
    """These rows, and a last column: 1 where a row counts."""
    if rows.membership is None:
        ones = session.tall.public(np.ones((tensor.size(0), 1)))
    else:
        ones = rows.membership.tensor(session.tall)[:, None]
    return crypten.cat([tensor, ones], dim=1)


def in_head_group(tensor: Shared) -> Shared:
    """A tensor with a row for each record as one of the head group, where it is needed as a whole."""
    return tensor if isinstance(tensor, MPCTensor) else tensor.gathered()


def share_label(session: Session, label: AtHolder, holder: int, shape: tuple[int, int], bits: int) -> Shared:
    """The label (rows x outputs): a number or a bit in one column, or the one-hot of a class in several.

    Several numbers a record are shared as they are.
    """
    columns = label if label is None or shape[1] == 1 or np.ndim(label) == 2 else one_hot(label, shape[1])
    if session.active:
        return proven_held(session, columns, holder, shape).rescale(bits)
    return share_held(session, columns, holder, shape, bits)


def share_groups(session: Session, codes: AtHolder, holder: int, shape: tuple[int, int]) -> Shared:
    """The one-hot of a protected attribute (rows x groups), whole numbers."""
    if session.active:
        return proven_held(session, None if codes is None else one_hot(codes, shape[1]), holder, shape)
    return share_held(session, None if codes is None else one_hot(codes, shape[1]), holder, shape, 0)


def decisions(logits: Shared) -> Shared:
    """One-hot of the largest logit (FRACTION_BITS), or for a single one the bit [logit > 0]; whole numbers."""
    if logits.size(1) == 1:
        return -logits < 0
    return logits.argmax(dim=1, one_hot=True).rescale(0, sliced=True)


# selection by s


def selected(
    session: Session,
    widths: Sequence[int],
    holder: int,
    deltas: Iterable[Iterable[Blocks]],
    groups: AtHolder,
    moving: Mapping[int, np.ndarray] | None = None,
) -> SharedDraws:
    """The displacement of every record and draw that was made for its own group.

    Roles and the public dictionary say which columns may change. Only these are selected and enter the Gram matrix;
    all others are 0 by construction, which each owner checks for its columns. One round for each owner of such
    columns and 2^21 ring elements (protocols/operations/group_table.py), for several draws together.
    """
    rank = session.rank
    reached = [np.ones(width, bool) if moving is None else moving[at] for at, width in enumerate(widths)]
    counts = [int(of_owner.sum()) for of_owner in reached]
    squares, draws, waiting = np.zeros(counts[rank]), list[Shared](), list[np.ndarray]()
    for by_group in deltas:
        choices = np.stack([_only(blocks[rank], reached[rank]) for blocks in by_group], axis=1)
        squares += head.largest_squares(choices)
        head.check_gram(squares)
        waiting.append(choices)
        rows, groups_of, _ = choices.shape
        if len(waiting) * rows * groups_of * sum(counts) > _TOGETHER or session.shards is not None:
            draws += _select(session, counts, holder, waiting, groups)
            waiting = []
    if waiting:
        draws += _select(session, counts, holder, waiting, groups)
    if not draws:
        raise ValueError("no draw of counterfactuals")
    return SharedDraws(tuple(draws), np.flatnonzero(np.concatenate(reached)))


def _select(
    session: Session, counts: Sequence[int], holder: int, choices: Sequence[np.ndarray], groups: AtHolder
) -> list[Shared]:
    count, each = choices[0].shape[1], len(choices[0])
    chosen = None
    if session.rank == holder:
        if groups is None:
            raise ValueError("the holder of s needs it")
        chosen = np.tile(one_hot(groups, count, np.int64), (len(choices), 1))
    below = np.concatenate(choices)
    member = session.tall.owned(chosen, owner=holder, shape=(len(below), count), bits=0)
    with session.measure("select edits"):
        pieces = [
            session.tall.owned(below, owner=owner, shape=(len(below), count, columns)).selected(member)
            for owner, columns in enumerate(counts)
            if columns
        ]
    whole = crypten.cat(pieces, dim=1) if pieces else session.tall.public(np.zeros((len(below), 0)))
    return [whole[at : at + each] for at in range(0, len(below), each)]


def _only(displacement: np.ndarray, reached: np.ndarray) -> np.ndarray:
    """The columns that may change; raises if another one does."""
    if displacement[:, ~reached].any():
        raise ValueError("a counterfactual changed a column of a feature that is not edited")
    return displacement[:, reached]


def over_all_columns(session: Session, square: Shared, columns: np.ndarray, width: int) -> Shared:
    """A matrix over some columns as one over all, 0 elsewhere."""
    index, bits = torch.from_numpy(columns), session.fraction(square)
    rows = session.public(np.zeros((len(columns), width)), bits).index_add(1, index, square)
    return session.public(np.zeros((width, width)), bits).index_add(0, index, rows)
