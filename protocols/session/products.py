"""Products of tensors that share one tuple of the dealer: weighted sums of owners' rows, secret samples, split steps.

Each function takes CrypTen tensors and returns tensors. A result that says so waits for a round, like every product
(protocols/session/tensors.py). protocols/steps/weighted_sums.py and protocols/steps/split.py say who holds what, what
each round opens, and why it is secure. Every mask of a tuple serves one value of one call. A block that an owner
knows is x = (x - A) + A: the owner multiplies x by what was opened of the other factor, and all parties multiply
x - A by their shares of the other factor's mask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from secure_sccvfl.protocols import ring
from secure_sccvfl.protocols.errors import ProtocolError, RangeError
from secure_sccvfl.protocols.net.transport import Spec
from secure_sccvfl.protocols.operations.arithmetic import Halves
from secure_sccvfl.protocols.ring import RingArray, Share
from secure_sccvfl.protocols.session.binding_tensors import bits_in, of, share_in, value_of
from secure_sccvfl.protocols.session.tensors import Held, Late, Owned, current


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
    party, rank, count = session.party, session.rank, value.lead[0]
    local_block, widths = _own_block(value, rank), tuple(width for *_, width in value.blocks)
    shift = share_in(weight)  # what waits is sent before the tuple is taken
    fields = party.take("weighted_sums", count, widths)
    hidden, shift = local_block - fields[f"a{rank}"], shift - fields["b"]
    specs = {peer: [Spec("<i8", (count, widths[peer])), Spec.of(shift)] for peer in party.others}
    received = party.broadcast("weighted sums", [hidden, shift], specs)
    masked = {rank: hidden} | {peer: arrays[0] for peer, arrays in received.items()}
    for arrays in received.values():
        shift = shift + arrays[1]
    sums = []
    for owner in range(session.parties):
        share = fields[f"c{owner}"]
        share += ring.matmul(masked[owner].T, fields["b"])
        if owner == rank:
            share += ring.matmul(local_block.T, shift)
        sums.append(share)
    return of(Held(np.concatenate(sums)[:, 0], value.bits + bits_in(weight)))


def sampled_rows(weight: Any, threshold: int) -> Any:
    """A column: the weight of each row in a secret sample of probability threshold / 2^16, else 0; waits."""
    current().operations["sampled_rows"] += 1
    elements = share_in(weight)
    if elements.ndim != 2 or elements.shape[1] != 1:
        raise ProtocolError(f"a sample is of a column, not of a tensor of shape {elements.shape}")

    def start() -> Halves:
        fields = current().party.take("sampled", len(elements), threshold)
        return [elements - fields["a"]], lambda opened: fields["b"] * opened[0] + fields["ab"]

    return _late("secret batch", elements.shape, bits_in(weight), start)


MOST_ROWS = 1 << 11


@dataclass(frozen=True)
class SplitLayout:
    """Public shape of a split step: columns by party, parties with mediators, (holder, groups) by attribute."""

    rows: int
    widths: tuple[int, ...]
    editing: tuple[int, ...]
    attributes: tuple[tuple[int, int], ...]
    outputs: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.rows <= MOST_ROWS:
            raise RangeError(f"a split step takes 1 to {MOST_ROWS} rows, not {self.rows}; use smaller batches")

    @property
    def selecting(self) -> tuple[tuple[int, int], ...]:
        """Attributes whose groups select a counterfactual: none without mediators."""
        return self.attributes if self.editing else ()

    @property
    def directions(self) -> int:
        """Hypothesised counterfactuals of a record: one for each group of each attribute."""
        return sum(count for _, count in self.selecting)

    @property
    def probes(self) -> int:
        """Two more than the rank of a gradient, so that some combination of its rows is far from zero."""
        return self.outputs + 2

    @property
    def columns(self) -> int:
        return sum(self.widths)

    def of(self, rank: int) -> slice:
        """The columns of a party."""
        end = sum(self.widths[: rank + 1])
        return slice(end - self.widths[rank], end)

    @property
    def projection_sizes(self) -> tuple[int, ...]:
        """How many numbers of a step are opened to each party."""
        return tuple(self.probes * (self.rows + width) for width in self.widths)


class SplitProducts:
    """The products of one step of split learning: activations H, displacements D and one-hot rows S with the head.

    The blocks are known to their owners: H side by side (rows x columns), D of the parties that edit (rows x
    directions x their columns; None if nobody does), S of each attribute. One round opens them under masks, with the
    head (columns x outputs) and with its products with public probes (outputs x all probes).
    """

    def __init__(
        self,
        layout: SplitLayout,
        dither_bits: int,
        activations: Any,
        deltas: Any | None,
        one_hot: Sequence[Any],
        weight: Any,
        probed: Any,
    ) -> None:
        session = current()
        session.operations["split_products"] += 1
        rank = session.rank
        local_blocks: dict[str, RingArray] = {f"h{rank}": _own_block(value_of(activations), rank)}
        if deltas is not None and rank in layout.editing:
            local_blocks[f"d{rank}"] = _own_block(value_of(deltas), rank)
        for number, (holder, _) in enumerate(layout.selecting):
            if holder == rank:
                local_blocks[f"s{number}"] = _own_block(value_of(one_hot[number]), rank)
        self._local_blocks = {name: block.reshape(-1, block.shape[-1]) for name, block in local_blocks.items()}
        """What this party knows, by the name of its mask: activations h, displacements d, one-hot rows s."""
        self._party, self._layout = session.party, layout
        self._inner, self._head_bits = bits_in(activations), bits_in(weight)
        self._slices = [layout.of(rank) for rank in range(session.parties)]
        shared = [share_in(weight), share_in(probed)]  # what waits is sent before the tuple is taken
        request = layout.rows, layout.widths, layout.editing, layout.selecting, layout.outputs, layout.probes
        self._fields = self._party.take("split_step", *request, dither_bits)
        self._blocks, (self._head, self._probed) = self._first_round(shared)
        logits, self._shifts = self._forward()
        self.logits = of(Held(logits, self._inner + self._head_bits))
        """H w (rows x outputs)."""

    def _first_round(self, shared: Sequence[RingArray]) -> tuple[dict[str, RingArray], list[RingArray]]:
        """Open the masked blocks of every owner, by name, and the masked head and its probed products."""
        party, local_blocks, fields = self._party, self._local_blocks, self._fields
        shapes = {rank: self._owned(rank) for rank in range(party.parties)}
        if {name: block.shape for name, block in local_blocks.items()} != shapes[party.rank]:
            raise ProtocolError(f"a split step needs {shapes[party.rank]} of party {party.rank}")
        hidden = {name: local_blocks[name] - fields[name] for name in shapes[party.rank]}
        masked = [shared[0] - fields["w"], shared[1] - fields["p"]]
        receive = {
            peer: [*(Spec("<i8", shape) for shape in shapes[peer].values()), *(Spec.of(m) for m in masked)]
            for peer in party.others
        }
        received = party.broadcast("split activations", [*hidden.values(), *masked], receive)
        for peer, arrays in received.items():
            hidden |= zip(shapes[peer], arrays[:-2], strict=True)
            for total, array in zip(masked, arrays[-2:], strict=True):
                total += array
        return hidden, masked

    def _owned(self, rank: int) -> dict[str, tuple[int, int]]:
        """Names and shapes of the blocks that a party masks."""
        step = self._layout
        shapes = {f"h{rank}": (step.rows, step.widths[rank])}
        if step.directions:
            if rank in step.editing:
                shapes[f"d{rank}"] = (step.rows * step.directions, step.widths[rank])
            for number, (holder, count) in enumerate(step.selecting):
                if holder == rank:
                    shapes[f"s{number}"] = (step.rows, count)
        return shapes

    def _forward(self) -> tuple[RingArray, RingArray]:
        """Shares of H w (rows x outputs) and of D w (rows x directions x outputs): x w = x d + (x - A) b + A b."""
        fields, blocks, step = self._fields, self._blocks, self._layout
        products = fields["hw"], fields.get("dw", np.zeros((0, step.outputs), np.int64))
        for rank, here in enumerate(self._slices):
            for name, product in zip((f"h{rank}", f"d{rank}"), products, strict=True):
                if name in blocks:
                    product += ring.matmul(blocks[name], fields["w"][here])
                if name in self._local_blocks:
                    product += ring.matmul(self._local_blocks[name], self._head[here])
        logits, shifts = products
        return logits, shifts.reshape(step.rows, step.directions, step.outputs)

    def selected(self) -> Any:
        """D w in the direction of each record's own group, else 0 (rows x directions x outputs); waits."""
        shifts, bits, fields = self._shifts, self._inner + self._head_bits, self._fields
        if not self._layout.directions:
            return of(Held(shifts, bits))

        def finish(opened: Sequence[RingArray]) -> Share:
            chosen, at = fields["sv"], 0
            for number, (_, count) in enumerate(self._layout.selecting):
                here, name = slice(at, at + count), f"s{number}"
                chosen[:, here] += self._blocks[name][:, :, None] * fields["v"][:, here]
                if name in self._local_blocks:
                    chosen[:, here] += self._local_blocks[name][:, :, None] * opened[0][:, here]
                at += count
            return chosen

        return _late("split logits", shifts.shape, bits, lambda: ([shifts - fields["v"]], finish))

    def task(self, residual: Any) -> Any:
        """H^T r (columns x outputs); waits for a round."""
        return self._transposed("h", residual, self._fields["r"], self._fields["hr"])

    def pull(self, chosen: Any) -> Any:
        """D^T y over all directions (columns x outputs), for y of `selected`; waits for a round."""
        zero = np.zeros((self._layout.columns, self._layout.outputs), np.int64)
        return self._transposed("d", chosen, self._fields["y"], self._fields.get("dy", zero))

    def _transposed(self, kind: str, tensor: Any, mask: RingArray, product: RingArray) -> Any:
        """The transposes of all blocks of a kind times a value under its mask, as in `_forward`."""
        value, columns = share_in(tensor), self._layout.outputs

        def finish(opened: Sequence[RingArray]) -> RingArray:
            for rank, here in enumerate(self._slices):
                name = f"{kind}{rank}"
                if name in self._blocks:
                    product[here] += ring.matmul(self._blocks[name].T, mask.reshape(-1, columns))
                if name in self._local_blocks:
                    product[here] += ring.matmul(self._local_blocks[name].T, opened[0].reshape(-1, columns))
            return product

        return _late("split residual", product.shape, self._inner + bits_in(tensor), lambda: ([value - mask], finish))

    def projections(self, signal: Any, probed_signal: Any) -> Any:
        """For each party c (w^T V) and (Q^T c) w^T of its own columns w of the head, with the dither; waits.

        All of them one after the other, row by row, as a vector. signal: c (rows x outputs). probed_signal: Q^T c
        (probes x outputs).
        """
        fields, width = self._fields, self._layout.probes
        c, q = share_in(signal), share_in(probed_signal)

        def finish(opened: Sequence[RingArray]) -> RingArray:
            by_probe = self._product(opened[0], fields["c"], self._probed, fields["p"], fields["cp"])
            by_weight = self._product(opened[1], fields["q"], self._head.T, fields["w"].T, fields["qw"])
            parts = [
                part.reshape(-1)
                for rank, here in enumerate(self._slices)
                for part in (by_probe[:, rank * width : (rank + 1) * width], by_weight[:, here])
            ]
            return np.concatenate(parts)

        size = sum(self._layout.projection_sizes)
        bits = bits_in(signal) + self._head_bits
        return _late("split update", (size,), bits, lambda: ([c - fields["c"], q - fields["q"]], finish))

    def _product(self, e: RingArray, a: RingArray, d: RingArray, b: RingArray, c: RingArray) -> RingArray:
        """Shares of x y from e = x - a, d = y - b and c = a b."""
        c += ring.matmul(e, b + d if self._party.rank == 0 else b)
        c += ring.matmul(a, d)
        return c


def _late(step: str, shape: Sequence[int], bits: int, start: Callable[[], Halves]) -> Any:
    return of(Late(step, shape, bits, lambda _: start()))


def _own_block(value: Any, rank: int) -> RingArray:
    """The block of the party of this rank."""
    if not isinstance(value, Owned):
        raise ProtocolError("this takes blocks that their owners know")
    blocks = [elements for owner, elements, _ in value.blocks if owner == rank and elements is not None]
    if len(blocks) != 1:
        raise ProtocolError(f"party {rank} must know one block, not {len(blocks)}")
    return blocks[0].astype(np.int64, copy=False)
