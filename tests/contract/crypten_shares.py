"""What the two kinds of shares have: ArithmeticSharedTensor and BinarySharedTensor."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from protocols.errors import UndeclaredRelease
from protocols.session.runtime import crypten
from tests.contract.crypten_cases import Case, Entry, Public, Refused
from tests.contract.crypten_common import (
    FLAGS,
    INDEX,
    OPENED,
    PAIR,
    PLACES,
    PRODUCTS,
    REALS,
    SHAPES,
    SUMS,
    WHOLES,
    item_set,
    overlapping,
)


def arithmetic_only(name: str) -> bool:
    """Entries above that ArithmeticSharedTensor has too."""
    return name in ("__copy__", "__deepcopy__") or hasattr(crypten.mpc.primitives.ArithmeticSharedTensor, name)


def A() -> Any:
    return crypten.mpc.primitives.ArithmeticSharedTensor


def same_encoder(bits: int) -> Any:
    return crypten.encoder.FixedPointEncoder(precision_bits=bits)


ARITHMETIC: dict[str, list[Entry]] = {
    **{name: entries for name, entries in (SUMS | PRODUCTS | SHAPES).items() if arithmetic_only(name)},
    "new": [Case(lambda x: x + A().new(REALS), lambda x: x + REALS)],
    "from_shares": [Case(lambda x: A().from_shares(x.share, precision=x.encoder._precision_bits), lambda x: x)],
    "encode": [
        Case(lambda x: x.encode(same_encoder(32)), lambda x: x),
        Case(lambda x: x.encode(same_encoder(16)), lambda x: x, units=1),
        Refused(lambda x: x.encode(same_encoder(0)), "integers cannot take fractions"),
    ],
    "encode_as": [Case(lambda x, y: x.encode_as(y * 1.0), lambda x, y: x, PAIR, units=1)],
    "encode_": [
        Case(lambda w: w.encode_(w.encoder), lambda w: None, in_place=True),
        Refused(lambda x: x.encode_(same_encoder(32))),
    ],
    "encode_as_": [
        Case(lambda w: w.encode_as_(w), lambda w: None, in_place=True),
        Refused(lambda x: x.encode_as_(A()(REALS, precision=32))),
    ],
    "PRZS": [Case(lambda x: A().PRZS(3, 4), lambda x: x * 0), Case(lambda x: A().PRZS((3, 4)), lambda x: x * 0)],
    "PRSS": [
        Case(lambda x: A().PRSS((3, 4)) * 0, lambda x: x * 0),
        Case(lambda x: A().PRSS(3, 4) * 0, lambda x: x * 0),
    ],
    "rank": [Public(lambda x: x.rank in (0, 1, 2), lambda x: True)],
    "reveal_batch": [Refused(lambda x: A().reveal_batch([x]), OPENED, UndeclaredRelease)],
    "data": [Public(lambda x: x.data.size(), lambda x: x.size())],
}
ARITHMETIC["div"] = [*ARITHMETIC["div"], Refused(lambda x: x.div(x), "MPCTensor has it")]


def B() -> Any:
    return crypten.mpc.primitives.BinarySharedTensor


WORDS = {"fractions": (0,), "within": (-9.0, 9.0)}


def whole(call: Callable[..., Any], shapes: Any = PAIR, **options: Any) -> Case:
    """On integers alone; the reference is torch's on 64-bit integers."""

    def reference(*operands: torch.Tensor) -> Any:
        return call(*(operand.long() for operand in operands)).double()

    return Case(call, reference, shapes, **{**WORDS, **options})


def whole_in_place(call: Callable[..., Any], shapes: Any = PAIR) -> Case:
    def reference(w: torch.Tensor, *others: torch.Tensor) -> None:
        words = w.long()
        call(words, *(other.long() for other in others))
        w.copy_(words)

    return Case(call, reference, shapes, **WORDS, in_place=True)


def same_fractions(entries: list[Entry]) -> list[Entry]:
    """Binary shares with one operand keep their fraction; two must have the same."""
    kept: list[Entry] = []
    for entry in entries:
        if isinstance(entry, Case):
            several = len(entry.shapes) > 1
            options = dict(vars(entry))
            options |= {"units": 0.0, "fractions": (0,) if several else entry.fractions}
            kept.append(Case(**options))
        else:
            kept.append(entry)
    return kept


# fmt: off
_SHAPES_OF_BITS = (
    "__getitem__", "clone", "expand", "flatten", "flip", "gather", "index_select", "narrow", "permute", "repeat",
    "reshape", "roll", "split", "squeeze", "t", "take", "transpose", "unbind", "unfold", "unsqueeze", "view", "to",
    "cpu", "cuda", "__len__", "dim", "nelement", "numel", "size", "device", "is_cuda", "share", "get_plain_text",
    "reveal", "__repr__", "__str__", "__format__", "__reduce_ex__", "__bool__", "__nonzero__",
)
# fmt: on


def value_pairs(call: Callable[[Any, Any], Any]) -> list[Entry]:
    """A sum or comparison of values: also with fractions that are the same."""
    return [
        Case(call, lambda x, y: 1.0 * call(x, y), PAIR, fractions=(0,)),
        Case(call, lambda x, y: 1.0 * call(x, y), PAIR, fractions=(16,)),
        Case(lambda x: call(x, 2), lambda x: 1.0 * call(x, 2), fractions=(0, 16)),
        Case(lambda x: call(x, x), lambda x: 1.0 * call(x, x)),
        Case(lambda x: call(x, WHOLES), lambda x: 1.0 * call(x, WHOLES), fractions=(0, 16)),
        Refused(lambda x: call(x, B().from_shares(x.share, precision=32)), "do not mix"),
        Refused(lambda x: call(x, A()(REALS)), "do not mix"),
    ]


BINARY: dict[str, list[Entry]] = {
    **{name: same_fractions(SHAPES[name]) for name in _SHAPES_OF_BITS},
    **{
        name: value_pairs(call)
        for name, call in {
            "add": lambda x, y: x.add(y),
            "__add__": lambda x, y: x + y,
            "eq": lambda x, y: x.eq(y),
            "ne": lambda x, y: x.ne(y),
            "lt": lambda x, y: x.lt(y),
            "le": lambda x, y: x.le(y),
            "gt": lambda x, y: x.gt(y),
            "ge": lambda x, y: x.ge(y),
            "__eq__": lambda x, y: x == y,
            "__ne__": lambda x, y: x != y,
            "__lt__": lambda x, y: x < y,
            "__le__": lambda x, y: x <= y,
            "__gt__": lambda x, y: x > y,
            "__ge__": lambda x, y: x >= y,
        }.items()
    },
    "__radd__": [whole(lambda x: 5 + x, ((3, 4),))],
    "__and__": [
        whole(lambda x, y: x & y),
        whole(lambda x: x & 6, ((3, 4),)),
        whole(lambda x: x & WHOLES, ((3, 4),)),
        Refused(lambda x: x & B().from_shares(x.share, precision=32), "do not mix"),
    ],
    "__xor__": [whole(lambda x, y: x ^ y), whole(lambda x: x ^ 6, ((3, 4),)), whole(lambda x: x ^ WHOLES, ((3, 4),))],
    "__or__": [whole(lambda x, y: x | y), whole(lambda x: x | 6, ((3, 4),)), whole(lambda x: x | WHOLES, ((3, 4),))],
    "__rand__": [whole(lambda x: 6 & x, ((3, 4),))],
    "__rxor__": [whole(lambda x: 6 ^ x, ((3, 4),))],
    "__ror__": [whole(lambda x: 6 | x, ((3, 4),))],
    "__iand__": [whole_in_place(lambda w, y: w.__iand__(y)), whole_in_place(lambda w: w.__iand__(6), ((3, 4),))],
    "__ixor__": [whole_in_place(lambda w, y: w.__ixor__(y)), whole_in_place(lambda w: w.__ixor__(6), ((3, 4),))],
    "__ior__": [whole_in_place(lambda w, y: w.__ior__(y)), whole_in_place(lambda w: w.__ior__(6), ((3, 4),))],
    "__invert__": [whole(lambda x: ~x, ((3, 4),))],
    "lshift": [Case(lambda x: x.lshift(3), lambda x: x.long() * 8.0, ((3, 4),), **WORDS)],
    "rshift": [Case(lambda x: x.rshift(1), lambda x: (x.long() >> 1).double(), ((3, 4),), **WORDS)],
    "__lshift__": [whole(lambda x: x << 3, ((3, 4),))],
    "__rshift__": [whole(lambda x: x >> 1, ((3, 4),))],
    "__ilshift__": [whole_in_place(lambda w: w.__ilshift__(2), ((3, 4),))],
    "__irshift__": [whole_in_place(lambda w: w.__irshift__(1), ((3, 4),))],
    "lshift_": [Case(lambda w: w.lshift_(2), lambda w: w.mul_(4), ((3, 4),), **WORDS, in_place=True)],
    "rshift_": [Case(lambda w: w.rshift_(1), lambda w: w.copy_(w.long() >> 1), ((3, 4),), **WORDS, in_place=True)],
    "sum": [Case(lambda x: x.sum()), Case(lambda x: x.sum(1)), Case(lambda x: x.sum(dim=0))],
    "cat": [
        *same_fractions(SHAPES["cat"][:2]),
        Refused(lambda x: B().cat([x, B().from_shares(x.share, precision=32)]), "do not mix"),
    ],
    "stack": [
        *same_fractions(SHAPES["stack"][:2]),
        Refused(lambda x: B().stack([x, B().from_shares(x.share, precision=32)]), "do not mix"),
    ],
    "where": [
        Case(lambda x, y: x.where(FLAGS, y), shapes=PAIR, fractions=(0,)),
        Case(lambda x, y: x.where(FLAGS, y), shapes=PAIR, fractions=(16,)),
        Case(
            lambda x, c, y: x.where(c > 0, y),
            lambda x, c, y: torch.where(c > 0, x, y),
            ((3, 4),) * 3,
            fractions=(16,),
        ),
        Case(lambda x: x.where(FLAGS, WHOLES), lambda x: torch.where(FLAGS, x, WHOLES.double()), fractions=(0, 16)),
        Refused(lambda x: x.where(x, x), "a condition is a bit"),
    ],
    "scatter": [
        Case(lambda x, y: x.scatter(0, PLACES[:1], y), shapes=((3, 4), (1, 4)), fractions=(0,)),
        Case(
            lambda x: x.scatter(0, PLACES[:1], WHOLES.reshape(1, 4)),
            lambda x: x.scatter(0, PLACES[:1], WHOLES.reshape(1, 4).double()),
            fractions=(0, 16),
        ),
    ],
    "scatter_": [
        Case(lambda w, y: w.scatter_(0, PLACES[:1], y), shapes=((3, 4), (1, 4)), fractions=(0,), in_place=True)
    ],
    "__setitem__": [
        Case(item_set(1, lambda y: y), shapes=((3, 4), (4,)), fractions=(0,), in_place=True),
        Case(item_set(0, WHOLES), in_place=True, fractions=(0, 16)),
        Case(item_set((0, 1), 3), in_place=True, fractions=(0, 16)),
        Case(item_set((0, 1), 0.25), in_place=True, fractions=(16,)),
        Case(overlapping, in_place=True),
        Refused(item_set(0, lambda: B()(WHOLES)), "do not mix"),
    ],
    "copy_": [
        Case(lambda w, y: w.copy_(y), shapes=PAIR, fractions=(0,), in_place=True),
        Refused(lambda x: x.copy_(B()(WHOLES)), "do not mix"),
    ],
    "shallow_copy": [
        Case(lambda x: x.shallow_copy(), lambda x: x),
        Case(lambda w: w.shallow_copy().lshift_(1), lambda w: w.mul_(2), in_place=True),
    ],
    "__copy__": [
        Case(copy.copy, lambda x: x),
        Case(lambda w: copy.copy(w).lshift_(1), lambda w: w.mul_(2), in_place=True),
    ],
    "__deepcopy__": [
        Case(copy.deepcopy, lambda x: x),
        Case(lambda w: copy.deepcopy(w).lshift_(1), lambda w: None, in_place=True),
    ],
    "new": [Case(lambda x: x ^ B().new(WHOLES), lambda x: (x.long() ^ WHOLES).double(), **WORDS)],
    "from_shares": [Case(lambda x: B().from_shares(x.share, precision=x.encoder._precision_bits), lambda x: x)],
    "PRZS": [Case(lambda x: B().PRZS(3, 4), lambda x: x * 0)],
    "rand": [
        Case(lambda x: B().rand(3, 4, bits=4) >> 4, lambda x: x * 0),
        Case(lambda x: B().rand((3, 4)) & 0, lambda x: x * 0),
    ],
    "rank": [Public(lambda x: x.rank in (0, 1, 2), lambda x: True)],
    "reveal_batch": [Refused(lambda x: B().reveal_batch([x]), OPENED, UndeclaredRelease)],
    "__hash__": [Refused(hash, "unhashable", TypeError)],
    "mean": [Refused(lambda x: x.mean())],
    "var": [Refused(lambda x: x.var())],
    "prod": [Refused(lambda x: x.prod())],
    "dot": [Refused(lambda x: x.dot(x))],
    "ger": [Refused(lambda x: x.ger(x))],
    "trace": [Refused(lambda x: x.trace())],
    "cumsum": [Refused(lambda x: x.cumsum(0))],
    "index_add": [Refused(lambda x: x.index_add(0, INDEX, x))],
    "scatter_add": [Refused(lambda x: x.scatter_add(0, PLACES, x))],
}
