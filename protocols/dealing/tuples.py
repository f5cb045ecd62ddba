"""Correlated randomness: the fields of each kind of tuple, defined once for dealer and parties.

A tuple has *free* and *bound* fields. Every party expands its share of a free field from the key that it shares with
the dealer. A bound field is a function of the free ones. All parties but one expand a random share of it too. That
one, the receiver (the counter modulo m), gets its share from the dealer as a correction. So the dealer sends one
share of the bound fields per tuple, and nothing for the rest.

Why it is secure: a party's expanded randomness is a ChaCha20 stream under a key that only it and the dealer know. The
correction is the bound value minus at least one such stream unknown to the receiver. So any m-1 parties see uniform
ring elements. The streams are bound to the whole request: if the dealer were given another kind, shape, deviation or
owner than a party, its stream and that party's would be unrelated. The dealer sees only requests: kinds, shapes and
the rank that owns a mask.

A field with an owner is random at that party and zero elsewhere: the owner knows the whole value (the mask of its
own block).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from typing import Any, Literal

import numpy as np

from secure_sccvfl.protocols import ring
from secure_sccvfl.protocols.dealing.gaussian import discrete_gaussian
from secure_sccvfl.protocols.dealing.randomness import Draw
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.protocols.net.transport import Array, Spec
from secure_sccvfl.protocols.ring import Shape

Band = tuple[int, tuple[tuple[int, int], ...]]
"""The number of rows, and for each block its mask's number and its columns."""
Fields = dict[str, Array]
Masks = dict[int, Array]
"""Masks that the dealer stores for later products, by counter."""


@dataclass(frozen=True)
class Field:
    """One array of a tuple: its shape, its type, and how shares make up the value."""

    shape: Shape
    dtype: str = "<i8"
    how: Literal["add", "xor"] = "add"
    owner: int | None = None
    bits: bool = False
    """Random bits, one in each byte."""

    @property
    def spec(self) -> Spec:
        return Spec(self.dtype, self.shape)

    def expand(self, draw: Draw, rank: int) -> Array:
        """The share of party `rank`, read from its stream."""
        if self.owner not in (None, rank):
            return np.zeros(self.shape, self.dtype)
        return draw.bits(self.shape) if self.bits else draw.elements(self.shape, self.dtype)

    def total(self, shares: Sequence[Array]) -> Array:
        if self.owner is not None:
            return shares[self.owner]
        return reduce(np.add if self.how == "add" else np.bitwise_xor, shares)

    def correction(self, value: Array, others: Iterable[Array]) -> Array:
        """The share that completes `others` to `value`; takes one of them after the other."""
        result = np.array(value, self.dtype)  # also of a product without dimensions, which NumPy gives as a scalar
        for other in others:
            (np.subtract if self.how == "add" else np.bitwise_xor)(result, other, out=result)
        return result


@dataclass(frozen=True)
class Request:
    """A kind of tuple and its public arguments: all that the dealer receives."""

    kind: str
    arguments: tuple[Any, ...]

    def to_json(self) -> list[Any]:
        return [self.kind, *self.arguments]

    @cached_property
    def use(self) -> bytes:
        """A description of the use of this tuple's ring elements, the same at dealer and parties."""
        return json.dumps(self.to_json()).encode()

    @classmethod
    def from_json(cls, data: list[Any]) -> Request:
        return cls(str(data[0]), tuple(_frozen(item) for item in data[1:]))


@dataclass(frozen=True)
class Recipe:
    """Fields of one request, and how the dealer finds the bound ones."""

    free: dict[str, Field]
    bound: dict[str, Field]
    compute: Callable[[Fields, Masks], Fields]
    """From the totals of the free fields to the values of the bound ones; run by the dealer."""

    @property
    def fields(self) -> dict[str, Field]:
        return {**self.free, **self.bound}


@lru_cache(maxsize=256)
def recipe(request: Request) -> Recipe:
    try:
        make = _KINDS[request.kind]
    except KeyError:
        raise ProtocolError(f"no such kind of tuple: {request.kind!r}") from None
    return make(*request.arguments)


def bilinear(op: str, shape_a: Shape, shape_b: Shape, options: tuple[()] = ()) -> Recipe:
    """c = op(a, b): Beaver's triple for products and matrix products. options: empty, part of the request format."""
    out = ring.shape_of(op, shape_a, shape_b)
    return Recipe(
        {"a": Field(shape_a), "b": Field(shape_b)},
        {"c": Field(out)},
        lambda free, masks: {"c": ring.apply(op, free["a"], free["b"])},
    )


def scaled_bilinear(op: str, shape_a: Shape, shape_b: Shape, options: tuple[()], divisor: int) -> Recipe:
    """For a product that is divided at once: m = op(a, b) + r, and the fields of `truncation` for r."""
    out = ring.shape_of(op, shape_a, shape_b)
    divided = truncation(out, divisor)

    def compute(free: Fields, masks: Masks) -> Fields:
        r = free["m"] - ring.apply(op, free["a"], free["b"])
        return divided.compute({"r": r}, masks)

    return Recipe({"a": Field(shape_a), "b": Field(shape_b), "m": Field(out)}, divided.bound, compute)


def square(shape: Shape) -> Recipe:
    return Recipe({"a": Field(shape)}, {"b": Field(shape)}, lambda free, masks: {"b": free["a"] * free["a"]})


def bit_and(shape: Shape) -> Recipe:
    """c = a & b on single bits."""
    field = Field(shape, "|u1", "xor", bits=True)
    return Recipe({"a": field, "b": field}, {"c": field}, lambda free, masks: {"c": free["a"] & free["b"]})


def bit(shape: Shape) -> Recipe:
    """A random bit, shared both ways: `b` by exclusive or, `a` by addition."""
    return Recipe(
        {"b": Field(shape, "|u1", "xor", bits=True)},
        {"a": Field(shape)},
        lambda free, masks: {"a": free["b"].astype(np.int64)},
    )


def shared_bit(shape: Shape) -> Recipe:
    """a: random bits, shared by addition alone."""
    return Recipe({"u": Field(shape)}, {"a": Field(shape)}, lambda free, masks: {"a": free["u"] & 1})


def owned_bits(shapes: tuple[Shape, ...]) -> Recipe:
    """a0, a1, ...: random bits, each block known to the party of its number."""
    free = {f"a{rank}": Field(shape, "|u1", owner=rank, bits=True) for rank, shape in enumerate(shapes)}
    return Recipe(free, {}, lambda free, masks: {})


def truncation(shape: Shape, divisor: int) -> Recipe:
    """q = r // divisor and top = the highest bit of r, both with r read as unsigned.

    For a divisor 2^d the top bit is multiplied by 2^(64 - d), so shares of it modulo 2^d are enough.
    """
    power = divisor & (divisor - 1) == 0
    top = Field(shape, "<u2" if power and divisor <= 1 << 16 else "<u4" if power and divisor <= 1 << 32 else "<i8")

    def compute(free: Fields, masks: Masks) -> Fields:
        return {"q": ring.unsigned_quotient(free["r"], divisor), "top": ring.unsigned_quotient(free["r"], 1 << 63)}

    return Recipe({"r": Field(shape)}, {"q": Field(shape), "top": top}, compute)


def comparison(count: int) -> Recipe:
    """For `count` values: a ring element r, and each of its 16 hexadecimal digits as a shared one-hot row.

    The top digit leaves out the highest bit of r, which is shared on its own.
    """

    def compute(free: Fields, masks: Masks) -> Fields:
        r = free["r"].view(np.uint64)
        low = r & np.uint64((1 << 63) - 1)
        shifts = np.arange(60, -4, -4, dtype=np.uint64)
        digits = (low[:, None] >> shifts) & np.uint64(15)
        return {
            "digits": (np.uint16(1) << digits.astype(np.uint16)),
            "top": (r >> np.uint64(63)).astype(np.uint8),
        }

    return Recipe(
        {"r": Field((count,))},
        {"digits": Field((count, 16), "<u2", "xor"), "top": Field((count,), "|u1", "xor", bits=True)},
        compute,
    )


def digits(count: int) -> Recipe:
    """As `comparison`, with every one-hot row of the hexadecimal digits of r, and its top bit, shared by addition."""

    def compute(free: Fields, masks: Masks) -> Fields:
        r = free["r"].view(np.uint64)
        low, shifts = r & np.uint64((1 << 63) - 1), np.arange(60, -4, -4, dtype=np.uint64)
        index = ((low[:, None] >> shifts) & np.uint64(15)).astype(np.intp)
        return {"digits": np.eye(16, dtype=np.int64)[index], "top": (r >> np.uint64(63)).astype(np.int64)}

    return Recipe({"r": Field((count,))}, {"digits": Field((count, 16, 16)), "top": Field((count,))}, compute)


def trig(count: int, period_bits: int, terms: int, fraction_bits: int, word: str = "<i8") -> Recipe:
    """cos(k w t) and sin(k w t), k = 1, 3, 5, ..., for t uniform modulo 2^period_bits = one period."""

    term = Field((terms, count), word)
    return Recipe(
        {"t": Field((count,), word)},
        {"cos": term, "sin": term},
        lambda free, masks: sines_and_cosines(free["t"], period_bits, terms, fraction_bits, word),
    )


def lifting(count: int) -> Recipe:
    """A 32-bit element b, and shares modulo 2^64 of it, and modulo 2^32 of its top bit."""

    def compute(free: Fields, masks: Masks) -> Fields:
        return {"whole": free["b"].astype(np.int64), "top": free["b"] >> np.uint32(31)}

    shape = (count,)
    return Recipe({"b": Field(shape, "<u4")}, {"whole": Field(shape), "top": Field(shape, "<u4")}, compute)


def mask(shape: Shape, owner: int | None) -> Recipe:
    """A mask that the dealer keeps for later products; an owner knows all of it."""
    return Recipe({"a": Field(shape, owner=owner)}, {}, lambda free, masks: {})


def band_matmul(bands: tuple[Band, ...], columns: int, shape_b: Shape, transposed: bool) -> Recipe:
    """Products of a tall matrix in bands of rows. Each band consists of blocks side by side, under kept masks.

    c = A @ b with the bands below each other, or A_i^T @ b_i separately for every band i. The parties may have to
    truncate the latter before they add.
    """
    outputs = shape_b[1]

    def compute(free: Fields, masks: Masks) -> Fields:
        b, parts, at = free["b"], [], 0
        for rows, blocks in bands:
            part, left = np.zeros((columns if transposed else rows, outputs), np.int64), 0
            for counter, width in blocks:
                if transposed:
                    part[left : left + width] = ring.matmul(masks[counter].T, b[at : at + rows])
                else:
                    part += ring.matmul(masks[counter], b[left : left + width])
                left += width
            parts.append(part)
            at += rows
        return {"c": np.stack(parts) if transposed else np.concatenate(parts)}

    rows = sum(rows for rows, _ in bands)
    shape = (len(bands), columns, outputs) if transposed else (rows, outputs)
    return Recipe({"b": Field(shape_b)}, {"c": Field(shape)}, compute)


def band_grams(bands: tuple[Band, ...], columns: int, together: int) -> Recipe:
    """c = the upper triangle of A^T @ A over every `together` bands of a tall matrix under kept masks."""
    starts = range(0, len(bands), together)

    def compute(free: Fields, masks: Masks) -> Fields:
        sums = np.zeros((len(starts), columns, columns), np.int64)
        for at, (_, blocks) in enumerate(bands):
            whole = np.concatenate([masks[counter] for counter, _ in blocks], axis=1)
            sums[at // together] += ring.matmul(whole.T, whole)
        return {"c": ring.upper_triangles(sums)}

    return Recipe({}, {"c": Field((len(starts), columns * (columns + 1) // 2))}, compute)


def doubling(matrices: int, columns: int, divisor: int) -> Recipe:
    """m = (a @ a, b @ a) + r for symmetric a and b, and the fields of `truncation` for r; upper triangles."""
    shape = (matrices, columns * (columns + 1) // 2)
    divided = truncation((2, *shape), divisor)

    def compute(free: Fields, masks: Masks) -> Fields:
        a, b = ring.symmetric_matrices(free["a"], columns), ring.symmetric_matrices(free["b"], columns)
        r = free["m"] - ring.upper_triangles(np.stack([ring.matmul(a, a), ring.matmul(b, a)]))
        return divided.compute({"r": r}, masks)

    return Recipe({"a": Field(shape), "b": Field(shape), "m": Field((2, *shape))}, divided.bound, compute)


def stack_matmul(mask_counter: int, columns: int, indices: tuple[int, ...]) -> Recipe:
    """c[:, g] = A_k @ b[:, g] with k = indices[g], for square matrices below each other under one kept mask."""
    shape = (columns, len(indices))

    def compute(free: Fields, masks: Masks) -> Fields:
        kept = masks[mask_counter].reshape(-1, columns, columns)[list(indices)]
        return {"c": np.einsum("gij,jg->ig", kept, free["b"])}

    return Recipe({"b": Field(shape)}, {"c": Field(shape)}, compute)


def selection(rows: int, groups: int, columns: int, owner: int, holder: int) -> Recipe:
    """c = sum over groups of b[:, g] * a[:, g]; `owner` knows a, `holder` knows b."""
    return Recipe(
        {"a": Field((rows, groups, columns), owner=owner), "b": Field((rows, groups), owner=holder)},
        {"c": Field((rows, columns))},
        lambda free, masks: {"c": np.einsum("ng,ngc->nc", free["b"], free["a"])},
    )


def cross(rows: int, widths: Shape, groups: int, holder: int, dtype: str) -> Recipe:
    """c = [a0 | a1 | ...]^T @ b: masks of each owner's block and of the holder's, each known to its owner only.

    The holder's own block needs no mask, so the width at its rank must be 0.
    """
    if dtype not in ("<i4", "<i8") or not 0 <= holder < len(widths) or widths[holder] != 0:
        raise ProtocolError("a cross product needs 32- or 64-bit ring elements and no columns of the holder")
    free = {f"a{rank}": Field((rows, width), dtype, owner=rank) for rank, width in enumerate(widths) if width}
    free["b"] = Field((rows, groups), dtype, owner=holder)

    def compute(free: Fields, masks: Masks) -> Fields:
        blocks = [ring.cross(free[f"a{rank}"], free["b"]) for rank, width in enumerate(widths) if width]
        return {"c": np.concatenate(blocks)}

    return Recipe(free, {"c": Field((sum(widths), groups), dtype)}, compute)


def noise(shape: Shape, sigma: float) -> Recipe:
    """e: discrete Gaussian noise that no party knows."""
    return Recipe({}, {"e": Field(shape)}, lambda free, masks: {"e": discrete_gaussian(sigma, shape)})


def uniform(shape: Shape, owner: int | None) -> Recipe:
    """a: uniform ring elements that only the owner knows, or nobody."""
    return Recipe({"a": Field(shape, owner=owner)}, {}, lambda free, masks: {})


def zeros(shape: Shape) -> Recipe:
    """a: fresh shares of zero."""
    return Recipe({}, {"a": Field(shape)}, lambda free, masks: {"a": np.zeros(shape, np.int64)})


def confirmation(parties: int) -> Recipe:
    """c[p] = t_p: two ring elements for every party, which only it knows. Opened to it, they confirm the request.

    Without the dealer no one else learns a party's row of c. The dealer provides it only if all parties sent the same
    requests.
    """
    free = {f"t{rank}": Field((2,), owner=rank) for rank in range(parties)}
    return Recipe(
        free,
        {"c": Field((parties, 2))},
        lambda free, masks: {"c": np.stack([free[f"t{rank}"] for rank in range(parties)])},
    )


def weighted_sums(rows: int, widths: tuple[int, ...]) -> Recipe:
    """c_p = a_p^T b: each owner knows its mask a_p; b is the mask of a shared column."""
    free = {f"a{rank}": Field((rows, width), owner=rank) for rank, width in enumerate(widths)}
    return Recipe(
        {**free, "b": Field((rows, 1))},
        {f"c{rank}": Field((width, 1)) for rank, width in enumerate(widths)},
        lambda free, masks: {f"c{rank}": ring.matmul(free[f"a{rank}"].T, free["b"]) for rank in range(len(widths))},
    )


def sampled(rows: int, chance: int) -> Recipe:
    """b = [u < chance] for u uniform on 16 bits, and a * b: membership in a secret batch, and a masked
    weight.
    """

    def compute(free: Fields, masks: Masks) -> Fields:
        taking = (free["u"] < chance).astype(np.int64)
        return {"b": taking, "ab": free["a"] * taking}

    column = Field((rows, 1))
    return Recipe({"u": Field((rows, 1), "<u2"), "a": column}, {"b": column, "ab": column}, compute)


def bundle(*parts: tuple[Any, ...]) -> Recipe:
    """Several requests as one tuple: one draw of each party, one correction. Numbers prefix the field names."""
    recipes = [recipe(Request(part[0], part[1:])) for part in parts]

    def joined(fields: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {f"{number} {name}": field for number, some in enumerate(fields) for name, field in some.items()}

    def compute(free: Fields, masks: Masks) -> Fields:
        parts = unbundle(free, len(recipes))
        return joined([one.compute(totals, masks) for one, totals in zip(recipes, parts, strict=True)])

    return Recipe(joined([one.free for one in recipes]), joined([one.bound for one in recipes]), compute)


def unbundle(fields: Mapping[str, Array], count: int) -> list[dict[str, Array]]:
    parts: list[dict[str, Array]] = [{} for _ in range(count)]
    for name, value in fields.items():
        number, _, rest = name.partition(" ")
        parts[int(number)][rest] = value
    return parts


def split_step(
    rows: int,
    widths: tuple[int, ...],
    editing: tuple[int, ...],
    attributes: tuple[tuple[int, int], ...],
    outputs: int,
    probes: int,
    dither_bits: int,
) -> Recipe:
    """All products of one step of split learning (protocols/steps/split.py), with masks for this step only.

    h, d, s are masks of activations, their counterfactual displacements and one-hot rows, known to their owners.
    w, v, r, y, c, p, q are masks of shared values. `cp` and `qw` hold a uniform dither besides the product.
    """
    columns, directions = sum(widths), sum(count for _, count in attributes)
    starts = [sum(widths[:rank]) for rank in range(len(widths))]
    free = {f"h{rank}": Field((rows, width), owner=rank) for rank, width in enumerate(widths)}
    if directions:
        free |= {f"d{rank}": Field((rows * directions, widths[rank]), owner=rank) for rank in editing}
        free |= {f"s{a}": Field((rows, count), owner=holder) for a, (holder, count) in enumerate(attributes)}
    free |= {
        "w": Field((columns, outputs)),
        "v": Field((rows, directions, outputs)),
        "r": Field((rows, outputs)),
        "y": Field((rows, directions, outputs)),
        "c": Field((rows, outputs)),
        "p": Field((outputs, len(widths) * probes)),
        "q": Field((probes, outputs)),
        "dither cp": Field((rows, len(widths) * probes)),
        "dither qw": Field((probes, columns)),
    }
    bound = {
        "hw": Field((rows, outputs)),
        "hr": Field((columns, outputs)),
        "cp": Field((rows, len(widths) * probes)),
        "qw": Field((probes, columns)),
    }
    if directions:
        bound |= {
            "dw": Field((rows * directions, outputs)),
            "sv": Field((rows, directions, outputs)),
            "dy": Field((columns, outputs)),
        }

    def compute(free: Fields, masks: Masks) -> Fields:
        low = (1 << dither_bits) - 1
        output = {name: np.zeros(field.shape, np.int64) for name, field in bound.items()}
        output["cp"] = ring.matmul(free["c"], free["p"]) + (free["dither cp"] & low)
        output["qw"] = ring.matmul(free["q"], free["w"].T) + (free["dither qw"] & low)
        for rank, width in enumerate(widths):
            here = slice(starts[rank], starts[rank] + width)
            output["hw"] += ring.matmul(free[f"h{rank}"], free["w"][here])
            output["hr"][here] = ring.matmul(free[f"h{rank}"].T, free["r"])
            if directions and rank in editing:
                output["dw"] += ring.matmul(free[f"d{rank}"], free["w"][here])
                output["dy"][here] = ring.matmul(free[f"d{rank}"].T, free["y"].reshape(-1, outputs))
        if directions:
            one_hot = np.concatenate([free[f"s{a}"] for a in range(len(attributes))], axis=1)
            output["sv"] = one_hot[:, :, None] * free["v"]
        return output

    return Recipe(free, bound, compute)


_KINDS: dict[str, Callable[..., Recipe]] = {
    make.__name__: make
    for make in (
        *(bilinear, scaled_bilinear, square, bit_and, bit, shared_bit, owned_bits, truncation),
        *(comparison, digits, trig, lifting, mask, band_matmul, band_grams, doubling, stack_matmul),
        *(
            selection,
            cross,
            noise,
            uniform,
            zeros,
            confirmation,
            weighted_sums,
            sampled,
            bundle,
            split_step,
        ),
    )
}


def _frozen(item: Any) -> Any:
    return tuple(_frozen(part) for part in item) if isinstance(item, list) else item


_AT_ONCE = 1 << 13
"""So many values at a time stay in the cache."""


def sines_and_cosines(t: Array, period_bits: int, terms: int, fraction_bits: int, word: str) -> dict[str, Array]:
    """cos(k w t) and sin(k w t), k = 1, 3, 5, ..., where 2^period_bits is one period; of this dtype."""
    output = {name: np.empty((terms, t.size), f"<i{word[2]}") for name in ("cos", "sin")}
    elements = t.view(f"<u{word[2]}")
    modulus = elements.dtype.type((1 << period_bits) - 1)
    for start in range(0, t.size, _AT_ONCE):
        here = slice(start, start + _AT_ONCE)
        angle = (elements[here] & modulus).astype(np.float64)
        step = np.exp(2j * np.pi * angle / 2.0**period_bits)
        turn = step * (1 << fraction_bits)
        step *= step
        for k in range(terms):
            np.rint(turn.real, out=output["cos"][k, here], casting="unsafe")
            np.rint(turn.imag, out=output["sin"][k, here], casting="unsafe")
            turn *= step
    return {name: part.view(word) for name, part in output.items()}
