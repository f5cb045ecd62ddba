"""All products of one step of split learning from one tuple. Callers use tensors (protocols/session/products.py).

protocols/steps/split.py says who holds what, what each round opens, and why it is secure. Every mask of the tuple
serves one value of this step alone. A block that an owner knows is x = (x - A) + A: the owner multiplies x by what
was opened of the other factor, and all parties multiply x - A by their shares of the other factor's mask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from protocols import ring
from protocols.dealing.party import Party
from protocols.errors import ProtocolError
from protocols.net.transport import Spec
from protocols.operations.arithmetic import Finish
from protocols.ring import Words


class SplitShape(NamedTuple):
    """Public numbers of a step: the arguments of its tuple (protocols/dealing/tuples.py).

    widths: columns of each party. editing: who edits. attributes: holder and number of groups of each, none where
    nobody edits.
    """

    rows: int
    widths: tuple[int, ...]
    editing: tuple[int, ...]
    attributes: tuple[tuple[int, int], ...]
    outputs: int
    probes: int
    dither_bits: int

    @property
    def directions(self) -> int:
        """Hypothesised edits of a record."""
        return sum(count for _, count in self.attributes)


class SplitKernel:
    """Masks of one step, and what was opened of its inputs: head and owners' blocks, in one round at the start.

    own: what this party knows, by the name of its mask: activations h, their displacements d (a row for each record
    and direction), one-hot rows s. weight: a share of the head. probed: a share of the products of the head with
    public probes, side by side.
    """

    def __init__(
        self, party: Party, shape: SplitShape, own: Mapping[str, Words], weight: Words, probed: Words
    ) -> None:
        self._party, self._shape, self._own = party, shape, own
        ends = list(accumulate(shape.widths))
        self._slices = [slice(end - width, end) for end, width in zip(ends, shape.widths, strict=True)]
        self._fields = party.take("split_step", *shape)
        self._blocks, (self._head, self._probed) = self._first_round([weight, probed])

    def _first_round(self, shared: Sequence[Words]) -> tuple[dict[str, Words], list[Words]]:
        """Open the masked blocks of every owner and the masked head; returns opened blocks by name."""
        party, own, fields = self._party, self._own, self._fields
        shapes = {rank: self._owned(rank) for rank in range(party.parties)}
        if {name: block.shape for name, block in own.items()} != shapes[party.rank]:
            raise ProtocolError(f"a split step needs {shapes[party.rank]} of party {party.rank}")
        hidden = {name: own[name] - fields[name] for name in shapes[party.rank]}
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
        step = self._shape
        shapes = {f"h{rank}": (step.rows, step.widths[rank])}
        if step.directions:
            if rank in step.editing:
                shapes[f"d{rank}"] = (step.rows * step.directions, step.widths[rank])
            for number, (holder, count) in enumerate(step.attributes):
                if holder == rank:
                    shapes[f"s{number}"] = (step.rows, count)
        return shapes

    def forward(self) -> tuple[Words, Words]:
        """Shares of H w (rows x outputs) and of D w (rows x directions x outputs): x w = x d + (x - A) b + A b."""
        fields, blocks, step = self._fields, self._blocks, self._shape
        products = fields["hw"], fields.get("dw", np.zeros((0, step.outputs), np.int64))
        for rank, here in enumerate(self._slices):
            for name, product in zip((f"h{rank}", f"d{rank}"), products, strict=True):
                if name in blocks:
                    product += ring.matmul(blocks[name], fields["w"][here])
                if name in self._own:
                    product += ring.matmul(self._own[name], self._head[here])
        logits, shifts = products
        return logits, shifts.reshape(step.rows, step.directions, step.outputs)

    def selection(self, shifts: Words) -> tuple[list[Words], Finish]:
        """Shares of s v (rows x directions x outputs): zero except in the direction of each record's own group."""
        fields = self._fields

        def finish(opened: Sequence[Words]) -> Words:
            chosen, at = fields["sv"], 0
            for number, (_, count) in enumerate(self._shape.attributes):
                here, name = slice(at, at + count), f"s{number}"
                chosen[:, here] += self._blocks[name][:, :, None] * fields["v"][:, here]
                if name in self._own:
                    chosen[:, here] += self._own[name][:, :, None] * opened[0][:, here]
                at += count
            return chosen

        return [shifts - fields["v"]], finish

    def task(self, residual: Words) -> tuple[list[Words], Finish]:
        """Shares of H^T r (columns x outputs)."""
        return self._transposed("h", residual, self._fields["r"], self._fields["hr"])

    def pull(self, chosen: Words) -> tuple[list[Words], Finish]:
        """Shares of the sum over directions of D^T y (columns x outputs), for y as `selection` returns it."""
        zero = np.zeros((sum(self._shape.widths), self._shape.outputs), np.int64)
        return self._transposed("d", chosen, self._fields["y"], self._fields.get("dy", zero))

    def _transposed(self, kind: str, value: Words, mask: Words, product: Words) -> tuple[list[Words], Finish]:
        """Shares of the transposes of all blocks of a kind times a value under its mask, as in `forward`."""
        columns = self._shape.outputs

        def finish(opened: Sequence[Words]) -> Words:
            for rank, here in enumerate(self._slices):
                name = f"{kind}{rank}"
                if name in self._blocks:
                    product[here] += ring.matmul(self._blocks[name].T, mask.reshape(-1, columns))
                if name in self._own:
                    product[here] += ring.matmul(self._own[name].T, opened[0].reshape(-1, columns))
            return product

        return [value - mask], finish

    def sketches(self, signal: Words, probed_signal: Words) -> tuple[list[Words], Finish]:
        """Shares of what each party is shown of c w^T, with a dither, one after the other.

        Of party p that is c (w_p^T V_p), row by row, and (Q^T c) w_p^T, row by row.
        """
        fields, width = self._fields, self._shape.probes

        def finish(opened: Sequence[Words]) -> Words:
            e_c, e_q = opened
            by_probe = self._product(e_c, fields["c"], self._probed, fields["p"], fields["cp"])
            by_weight = self._product(e_q, fields["q"], self._head.T, fields["w"].T, fields["qw"])
            parts = [
                part.reshape(-1)
                for rank, here in enumerate(self._slices)
                for part in (by_probe[:, rank * width : (rank + 1) * width], by_weight[:, here])
            ]
            return np.concatenate(parts)

        return [signal - fields["c"], probed_signal - fields["q"]], finish

    def _product(self, e: Words, a: Words, d: Words, b: Words, c: Words) -> Words:
        """Shares of x y from e = x - a, d = y - b and c = a b."""
        c += ring.matmul(e, b + d if self._party.rank == 0 else b)
        c += ring.matmul(a, d)
        return c
