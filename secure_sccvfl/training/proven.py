"""Encodings that their owners prove to be in range, for sessions with active security.

A private head holds its epsilon only if every row is as short as the public description says (`models.encoders`). So
owners share the bits that an encoding consists of, with a proof (protocols/operations/inputs.py), and the encoding is
computed from them under MPC. Per record and feature: a category is its one-hot row. A number is the one-hot row of
its bin or of the missing value, and its place f within the bin in 17 bits of which two weigh 1, so 0 <= f <= 1. The
piecewise-linear column k is then sum over j > k of bin_j, plus f bin_k, plus 1/2 if the value is missing. One round
for the bits and one for the products f bin_k, for each chunk of rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from secure_sccvfl.data.layout import Block, Layout
from secure_sccvfl.models.encoders import plain_columns, public_centre
from secure_sccvfl.protocols.errors import RangeError
from secure_sccvfl.protocols.ring import FRACTION_BITS
from secure_sccvfl.protocols.session.runtime import Session, crypten
from secure_sccvfl.training.shared import Shared, SharedRows

_ONE = 1 << FRACTION_BITS
_PLACE = np.array([*(1 << j for j in range(FRACTION_BITS)), 1])
"""What the bits of a place within a bin weigh."""
_AT_ONCE = 1 << 19


@dataclass(frozen=True)
class _Part:
    """A block, its first column in the encoding, and its first bit."""

    block: Block
    column: int
    bit: int

    @property
    def steps(self) -> int:
        """Piecewise-linear columns; 0 for a category."""
        return 0 if self.block.one_hot else plain_columns(self.block) - (self.block.width - 1)

    @property
    def exclusive(self) -> int:
        """Bits of the one-hot row: categories, or bins and the missing value."""
        return self.block.width if self.block.one_hot else self.steps + self.block.width - 1

    @property
    def bits(self) -> int:
        return self.exclusive + (0 if self.block.one_hot else len(_PLACE))


@dataclass(frozen=True)
class EncodingForm:
    """The public form of a party's plain encoding, centred on public values. dropped: features with columns of 0."""

    layout: Layout
    dropped: frozenset[str] = frozenset()

    @cached_property
    def parts(self) -> list[_Part]:
        parts, column, bit = list[_Part](), 0, 0
        for block in self.layout.blocks:
            if block.feature.name not in self.dropped:
                parts.append(_Part(block, column, bit))
                bit += parts[-1].bits
            column += plain_columns(block)
        return parts

    @property
    def columns(self) -> int:
        return sum(map(plain_columns, self.layout.blocks))

    @property
    def bits(self) -> int:
        return sum(part.bits for part in self.parts)

    @property
    def groups(self) -> list[tuple[int, int]]:
        return [(part.bit, part.bit + part.exclusive) for part in self.parts]

    @cached_property
    def centre(self) -> np.ndarray:
        shown = np.zeros(self.columns)
        for part in self.parts:
            shown[part.column : part.column + plain_columns(part.block)] = 1.0
        return public_centre(self.layout) * shown

    def of(self, encodings: np.ndarray) -> np.ndarray:
        """Party step, local: the bits of own centred encodings."""
        rows, result = encodings + self.centre, np.zeros((len(encodings), self.bits), np.int64)
        for part in self.parts:
            columns = rows[:, part.column : part.column + plain_columns(part.block)]
            bits = result[:, part.bit : part.bit + part.bits]
            if not part.steps:
                bits[:] = np.rint(columns)
                continue
            steps = columns[:, : part.steps]
            missing = columns[:, part.steps] > 0.5 if part.block.width > 1 else np.zeros(len(rows), bool)
            bin_of = np.minimum((steps >= 1.0).sum(axis=1), part.steps - 1)
            place = np.rint(steps[np.arange(len(rows)), bin_of] * _ONE).astype(np.int64)
            bits[np.arange(len(rows)), np.where(missing, part.steps, bin_of)] = 1
            place = np.where(missing, 0, place)
            low = np.minimum(place, _ONE - 1)
            bits[:, part.exclusive : -1] = (low[:, None] >> np.arange(FRACTION_BITS)) & 1
            bits[:, -1] = place - low
        return result

    @cached_property
    def matrices(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Public matrices from bits to: columns without f bin_k; f and bin_k of each step; from steps to columns."""
        steps = sum(part.steps for part in self.parts)
        direct, place, bins = (np.zeros((self.bits, width), np.int64) for width in (self.columns, steps, steps))
        to_columns, at = np.zeros((steps, self.columns), np.int64), 0
        for part in self.parts:
            first, column, count = part.bit, part.column, part.steps
            if not count:
                direct[first : first + part.bits, column : column + part.bits] = np.eye(part.bits, dtype=int) * _ONE
                continue
            for k in range(count):
                direct[first + k + 1 : first + count, column + k] = _ONE
                place[first + part.exclusive : first + part.bits, at + k] = _PLACE
                bins[first + k, at + k] = to_columns[at + k, column + k] = 1
            if part.block.width > 1:
                direct[first + count, column : column + count] = _ONE // 2
                direct[first + count, column + count] = _ONE
            at += count
        return direct, place, bins, to_columns


def proven_rows(session: Session, forms: Sequence[EncodingForm], own: np.ndarray) -> SharedRows:
    """The encodings of all parties, side by side, as shared rows; `own` are those of this party."""
    form, chunks = forms[session.rank], list[Shared]()
    each = max(1, _AT_ONCE // max(1, sum(one.bits for one in forms)))
    for start in range(0, len(own), each):
        here = own[start : start + each]
        bits = session.proven_bits(form.of(here), [one.bits for one in forms], [one.groups for one in forms])
        parts = [
            [tensor @ torch.from_numpy(matrix) for matrix in one.matrices[:3]]
            for one, tensor in zip(forms, bits, strict=True)
        ]
        places, bins = (crypten.cat([part[at] for part in parts], dim=1) for at in (1, 2))
        products, first, blocks = places * bins if places.size(1) else places, 0, []
        for one, (direct, _, _) in zip(forms, parts, strict=True):
            *_, to_columns = one.matrices
            mine = products[:, first : first + len(to_columns)]
            first += len(to_columns)
            whole = direct + mine @ torch.from_numpy(to_columns) if len(to_columns) else direct
            blocks.append(whole.with_fraction(FRACTION_BITS) - one.centre[None])
        chunks.append(crypten.cat(blocks, dim=1))
    return SharedRows(crypten.cat(chunks), np.abs(own).max(axis=0, initial=0.0))


def forms_of(layouts: Sequence[Layout], dropped: Collection[str]) -> list[EncodingForm]:
    return [EncodingForm(layout, frozenset(dropped)) for layout in layouts]


def proven_numbers(session: Session, own: np.ndarray, widths: Sequence[int], bits: int, reach: int) -> Shared:
    """Numbers of all parties side by side (rows x columns) with `bits` fractional bits, between -2^reach and 2^reach.

    Each party knows its own columns, and proves their range by their bits. One round.
    """
    length = bits + reach + 1
    whole = np.rint(own * 2.0**bits).astype(np.int64) + (1 << (length - 1))
    if whole.size and (int(whole.min()) < 0 or int(whole.max()) >= 1 << length):
        raise RangeError(f"a number of the penalty is not between -{1 << reach} and {1 << reach}")
    digits = (whole[:, :, None] >> np.arange(length)) & 1
    shares = session.proven_bits(digits.reshape(len(own), -1), [width * length for width in widths])
    weigh = torch.from_numpy(1 << np.arange(length, dtype=np.int64))
    numbers = [
        (share.reshape(-1, length) @ weigh[:, None]).reshape(len(own), width) - (1 << (length - 1))
        for share, width in zip(shares, widths, strict=True)
        if width
    ]
    return crypten.cat(numbers, dim=1).with_fraction(bits)
