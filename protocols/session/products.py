"""Products of tensors that share one tuple of the dealer: weighted sums of owners' rows, secret samples, split steps.

Each function takes CrypTen tensors and returns tensors. The rounds are those of the kernels in protocols/operations.
A result that says so waits for a round, like every product (protocols/session/tensors.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from protocols.errors import ProtocolError
from protocols.operations import weighted_sums as kernels
from protocols.operations.arithmetic import Finish
from protocols.operations.split_step import SplitKernel, SplitShape
from protocols.ring import Words
from protocols.session.binding_tensors import bits_in, of, value_of, words_in
from protocols.session.tensors import Held, Late, Owned, current

Halves = Callable[[], tuple[list[Words], Finish]]
"""Gives what to open, and what follows."""


def weighted_sums(rows: Any, weight: Any) -> Any:
    """G^T r for rows G of which every party knows its own columns, in the order of ranks, and a shared column r.

    A vector over all columns, with the fractions of both. One round, at once.
    """
    session, value = current(), value_of(rows)
    if not isinstance(value, Owned) or [owner for owner, *_ in value.blocks] != list(range(session.parties)):
        raise ProtocolError("weighted sums take one block of columns of every party, in the order of ranks")
    if tuple(weight.size()) != (*value.lead, 1):
        raise ProtocolError(f"rows of shape {value.shape} need a weight each, not {tuple(weight.size())}")
    session.operations["weighted_sums"] += 1
    own = _own_block(value, session.rank)
    widths = [width for *_, width in value.blocks]
    sums = kernels.weighted_sums(session.party, own, widths, words_in(weight))
    return of(Held(np.concatenate(sums)[:, 0], value.bits + bits_in(weight)))


def sampled_rows(weight: Any, threshold: int) -> Any:
    """A column where each row is in a secret sample with probability threshold / 2^16, else 0; waits for a round."""
    current().operations["sampled_rows"] += 1
    words = words_in(weight)
    if words.ndim != 2 or words.shape[1] != 1:
        raise ProtocolError(f"a sample is of a column, not of a tensor of shape {words.shape}")
    party = current().party
    return _late("secret batch", words.shape, bits_in(weight), lambda: kernels.sample(party, words, threshold))


class SplitProducts:
    """The products of one step of split learning: activations H, displacements D and one-hot rows S with the head.

    The blocks are known to their owners: H side by side (rows x columns), D of the parties that edit (rows x
    directions x their columns; None if nobody does), S of each attribute. One round opens them under masks, with the
    head (columns x outputs) and with its products with public probes (outputs x all probes).
    """

    def __init__(
        self,
        shape: SplitShape,
        activations: Any,
        deltas: Any | None,
        one_hot: Sequence[Any],
        weight: Any,
        probed: Any,
    ) -> None:
        session = current()
        session.operations["split_products"] += 1
        own: dict[str, Words] = {f"h{session.rank}": _own_block(value_of(activations), session.rank)}
        if deltas is not None and session.rank in shape.editing:
            own[f"d{session.rank}"] = _own_block(value_of(deltas), session.rank)
        for number, (holder, _) in enumerate(shape.attributes):
            if holder == session.rank:
                own[f"s{number}"] = _own_block(value_of(one_hot[number]), session.rank)
        own = {name: block.reshape(-1, block.shape[-1]) for name, block in own.items()}
        self._shape, self._inner = shape, bits_in(activations)
        self._kernel = SplitKernel(session.party, shape, own, words_in(weight), words_in(probed))
        self._head_bits = bits_in(weight)
        logits, shifts = self._kernel.forward()
        self.logits = of(Held(logits, self._inner + self._head_bits))
        """H w (rows x outputs)."""
        self._shifts = Held(shifts, self._inner + self._head_bits)

    def selected(self) -> Any:
        """D w in the direction of each record's own group, else 0 (rows x directions x outputs); waits."""
        shifts = self._shifts.words()
        if not self._shape.directions:
            return of(self._shifts)
        return _late("split logits", shifts.shape, self._shifts.bits, lambda: self._kernel.selection(shifts))

    def task(self, residual: Any) -> Any:
        """H^T r (columns x outputs); waits for a round."""
        words = words_in(residual)
        return self._gradient(bits_in(residual), lambda: self._kernel.task(words))

    def pull(self, chosen: Any) -> Any:
        """D^T y over all directions (columns x outputs), for y that `selected` gave; waits for a round."""
        words = words_in(chosen)
        return self._gradient(bits_in(chosen), lambda: self._kernel.pull(words))

    def _gradient(self, bits: int, start: Halves) -> Any:
        columns = sum(self._shape.widths)
        return _late("split residual", (columns, self._shape.outputs), self._inner + bits, start)

    def sketches(self, signal: Any, probed_signal: Any) -> Any:
        """For each party c (w^T V) and (Q^T c) w^T of its own columns w of the head, with the dither; waits.

        All of them one after the other, as a vector. signal: c (rows x outputs). probed_signal: Q^T c (probes x
        outputs).
        """
        shape, given = self._shape, (words_in(signal), words_in(probed_signal))
        size = shape.probes * (shape.rows * len(shape.widths) + sum(shape.widths))
        return _late(
            "split update", (size,), bits_in(signal) + self._head_bits, lambda: self._kernel.sketches(*given)
        )


def _late(step: str, shape: Sequence[int], bits: int, start: Halves) -> Any:
    return of(Late(step, shape, bits, lambda _: start()))


def _own_block(value: Any, rank: int) -> Words:
    """What the party of this rank knows."""
    if not isinstance(value, Owned):
        raise ProtocolError("this takes blocks that their owners know")
    result = [words for owner, words, _ in value.blocks if owner == rank and words is not None]
    if len(result) != 1:
        raise ProtocolError(f"party {rank} must know one block, not {len(result)}")
    return result[0]
