"""Encodings that their owners prove to be in range, for sessions with active security.

A private head holds its epsilon only if every row is as short as the public description says (`models.encoders`). So
owners share the bits that an encoding consists of (protocols/operations/inputs.py), and the encoding is computed from
them under MPC. All phases take the same shares (`Session.committed`). Per record and feature: a category is its
one-hot row. A number is the one-hot row of its bin or of the missing value, and its place f within the bin in 17
bits of which two weigh 1, so 0 <= f <= 1. The piecewise-linear column k is then sum over j > k of bin_j, plus f
bin_k, plus 1/2 if the value is missing. One round for the bits of each chunk of rows, and one for the products f
bin_k.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from secure_sccvfl.data.layout import Block, Layout, unit_cuts
from secure_sccvfl.models.encoders import plain_columns, public_centre
from secure_sccvfl.protocols.errors import RangeError
from secure_sccvfl.protocols.ring import FRACTION_BITS
from secure_sccvfl.protocols.session.runtime import Session, crypten
from secure_sccvfl.training.shared import Shared

TRAINING, VALIDATION = "training", "validation"
_ONE = 1 << FRACTION_BITS
_PLACE = np.array([*(1 << j for j in range(FRACTION_BITS)), 1])
"""What the bits of a place within a bin weigh."""
_WEIGHTS = torch.from_numpy(_PLACE.astype(np.int64)[:, None])
_AT_ONCE = 1 << 19


@dataclass(frozen=True)
class _Part:
    """A block: its first column in the encoding, and its first bits among one-hot rows and places."""

    block: Block
    column: int
    bit: int
    place: int

    @property
    def steps(self) -> int:
        """Piecewise-linear columns; 0 for a category."""
        return 0 if self.block.one_hot else plain_columns(self.block) - (self.block.width - 1)

    @property
    def exclusive(self) -> int:
        """Bits of the one-hot row: categories, or bins and the missing value."""
        return self.block.width if self.block.one_hot else self.steps + self.block.width - 1


@dataclass(frozen=True)
class EncodingForm:
    """The public form of a party's plain encoding, centred on public values. dropped: features with columns of 0."""

    layout: Layout
    dropped: frozenset[str] = frozenset()

    @cached_property
    def parts(self) -> list[_Part]:
        parts, column, bit, place = list[_Part](), 0, 0, 0
        for block in self.layout.blocks:
            parts.append(_Part(block, column, bit, place))
            column += plain_columns(block)
            bit += parts[-1].exclusive
            place += not block.one_hot
        return parts

    @property
    def columns(self) -> int:
        return sum(map(plain_columns, self.layout.blocks))

    @property
    def exclusive(self) -> int:
        return sum(part.exclusive for part in self.parts)

    @property
    def numbers(self) -> int:
        return sum(part.steps > 0 for part in self.parts)

    @property
    def bits(self) -> int:
        """All one-hot rows, then the bits of all places."""
        return self.exclusive + len(_PLACE) * self.numbers

    @property
    def groups(self) -> list[tuple[int, int]]:
        return [(part.bit, part.bit + part.exclusive) for part in self.parts]

    @cached_property
    def shown(self) -> np.ndarray:
        parts = [
            np.full(plain_columns(part.block), part.block.feature.name not in self.dropped) for part in self.parts
        ]
        return np.concatenate(parts) if parts else np.zeros(0, bool)

    def of(self, inputs: np.ndarray) -> np.ndarray:
        """Party step, local: the bits of own records, from input space."""
        result = np.zeros((len(inputs), self.bits), np.int64)
        for part in self.parts:
            bins = self.layout.bin_one_hot(part.block, inputs)
            result[:, part.bit : part.bit + part.exclusive] = bins
            if not part.steps:
                continue
            cuts, inner = unit_cuts(part.block.feature), bins[:, : part.steps].argmax(axis=1)
            place = (inputs[:, part.block.start] - cuts[inner]) / np.diff(cuts)[inner]
            present = bins[:, : part.steps].any(axis=1)
            whole = np.rint(np.where(present, np.clip(place, 0.0, 1.0), 0.0) * _ONE).astype(np.int64)
            low, first = np.minimum(whole, _ONE - 1), self.exclusive + len(_PLACE) * part.place
            result[:, first : first + FRACTION_BITS] = (low[:, None] >> np.arange(FRACTION_BITS)) & 1
            result[:, first + FRACTION_BITS] = whole - low
        return result

    @cached_property
    def matrices(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Public matrices: from one-hot rows to columns without f bin_k, and to bin_k of each step; from places to f
        of each step; from steps to columns.
        """
        steps = sum(part.steps for part in self.parts)
        direct, bins = (np.zeros((self.exclusive, width), np.int64) for width in (self.columns, steps))
        place, to_columns, at = (
            np.zeros((self.numbers, steps), np.int64),
            np.zeros((steps, self.columns), np.int64),
            0,
        )
        for part in self.parts:
            first, column, count = part.bit, part.column, part.steps
            if not count:
                direct[first : first + part.exclusive, column : column + part.exclusive] = (
                    np.eye(part.exclusive) * _ONE
                )
                continue
            for k in range(count):
                direct[first + k + 1 : first + count, column + k] = _ONE
                place[part.place, at + k] = bins[first + k, at + k] = to_columns[at + k, column + k] = 1
            if part.block.width > 1:
                direct[first + count, column : column + count] = _ONE // 2
                direct[first + count, column + count] = _ONE
            at += count
        return direct * self.shown, bins, place, to_columns * self.shown


@dataclass(frozen=True, repr=False, eq=False)
class Committed:
    """Shares of the records of all parties, by rank: one-hot rows of all features, and places of numbers in bins."""

    exclusive: tuple[Shared, ...]
    places: tuple[Shared, ...]

    def features(self, forms: Sequence[EncodingForm]) -> dict[tuple[int, str], Shared]:
        """The one-hot rows of each feature, by rank and name."""
        return {
            (rank, part.block.feature.name): tensor[:, part.bit : part.bit + part.exclusive]
            for rank, (form, tensor) in enumerate(zip(forms, self.exclusive, strict=True))
            for part in form.parts
        }


@dataclass(frozen=True)
class Records:
    """The records of a part (`training`, `validation`) as owners commit to them: public forms, and own inputs."""

    part: str
    forms: Sequence[EncodingForm]
    inputs: Mapping[int, np.ndarray]


def commit(session: Session, forms: Sequence[EncodingForm], own: np.ndarray) -> Committed:
    """Each owner puts its records under masks once, and proves their form. own: the bits of this party's records."""
    chunks = list[list[Shared]]()
    each = max(1, _AT_ONCE // max(1, sum(form.bits for form in forms)))
    for start in range(0, len(own), each):
        bits = session.proven_bits(
            own[start : start + each], [form.bits for form in forms], [form.groups for form in forms]
        )
        exclusive = [tensor[:, : form.exclusive] for form, tensor in zip(forms, bits, strict=True)]
        rows = len(own[start : start + each])
        places = [
            (tensor[:, form.exclusive :].reshape(rows * form.numbers, len(_PLACE)) @ _WEIGHTS).reshape(
                rows, form.numbers
            )
            if form.numbers
            else tensor[:, :0]
            for form, tensor in zip(forms, bits, strict=True)
        ]
        chunks.append([*exclusive, *places])
    joined = [crypten.cat(list(parts)) for parts in zip(*chunks, strict=True)]
    return Committed(tuple(joined[: len(forms)]), tuple(joined[len(forms) :]))


def rows_of(forms: Sequence[EncodingForm], committed: Committed) -> Shared:
    """The centred encodings of all parties, side by side; one round."""
    products, blocks, first = list[Shared](), list[Shared](), 0
    for form, exclusive, places in zip(forms, committed.exclusive, committed.places, strict=True):
        _, bins, place, _ = form.matrices
        if form.numbers:
            products.append(
                crypten.cat([exclusive @ torch.from_numpy(bins), places @ torch.from_numpy(place)], dim=0)
            )
    if products:
        whole = crypten.cat(products, dim=1)
        half = whole.size(0) // 2
        within = whole[:half] * whole[half:]
    for form, exclusive in zip(forms, committed.exclusive, strict=True):
        direct, _, _, to_columns = form.matrices
        block = exclusive @ torch.from_numpy(direct)
        if len(to_columns):
            block = block + within[:, first : first + len(to_columns)] @ torch.from_numpy(to_columns)
            first += len(to_columns)
        blocks.append(block.with_fraction(FRACTION_BITS) - (public_centre(form.layout) * form.shown)[None])
    return crypten.cat(blocks, dim=1)


def forms_of(layouts: Sequence[Layout], dropped: Collection[str] = ()) -> list[EncodingForm]:
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
