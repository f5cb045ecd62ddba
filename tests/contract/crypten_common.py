"""What MPCTensor and ArithmeticSharedTensor have in common, and the operands of all cases."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from protocols.errors import UndeclaredRelease
from protocols.session.runtime import crypten
from tests.contract.crypten_cases import Case, Entry, Public, Refused

REALS = torch.tensor([0.5, -1.25, 2.0, 3.0], dtype=torch.float64)
WHOLES = torch.tensor([1, 2, -3, 4])
FLAGS = torch.tensor([True, False, True, False])
ONE_HOT = torch.tensor([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1]])
ORDER = torch.tensor([[3, 0, 7, 1], [2, 8, 5, 4], [6, 11, 9, 10]])
INDEX = torch.tensor([2, 0])
HEIGHTS = torch.arange(50).mul(7).remainder(50).reshape(1, 2, 5, 5) * 16
PLACES = torch.tensor([[0, 2, 1, 1], [2, 0, 0, 2]])
OPENED = "use Session.open with a declared release"

PAIR = ((3, 4), (3, 4))
HEAVY: dict[str, Any] = {"layouts": ("plain", "slice"), "long": True}
"""Long approximations are tried in two layouts: what they are made of is tried in all."""
LONG: dict[str, Any] = {"layouts": ("plain",), "fractions": (16,), "long": True}
"""Losses and the like, made of the former."""
NEAR: dict[str, Any] = {"gradient": 0.02}


def M() -> Any:
    return crypten.mpc.MPCTensor


def is_shared(x: Any) -> bool:
    return not torch.is_tensor(x)


def joined(how: str, *tensors: Any, dim: int = 0) -> Any:
    """`cat` or `stack` of whatever these are."""
    if all(torch.is_tensor(tensor) for tensor in tensors):
        return getattr(torch, how)([tensor.double() for tensor in tensors], dim=dim)
    first = next(tensor for tensor in tensors if is_shared(tensor))
    return getattr(type(first), how)(list(tensors), dim=dim)


def item_set(index: Any, value: Any) -> Callable[..., Any]:
    """x[index] = value, or what `value` makes of the other operand."""

    def call(x: Any, *others: Any) -> Any:
        x[index] = value(*others) if callable(value) else value
        return x

    return call


def overlapping(x: Any) -> Any:
    x[1:] = x[:-1] if is_shared(x) else x[:-1].clone()
    return x


# functions that MPCTensor and ArithmeticSharedTensor have in common; `w` is written in place

SUMS: dict[str, list[Entry]] = {
    "add": [
        Case(lambda x, y: x.add(y), shapes=PAIR, **NEAR),
        Case(lambda x, y: x.add(y), shapes=((3, 4), (4,))),
        Case(lambda x: x.add(2)),
        Case(lambda x: x.add(0.25)),
        Case(lambda x: x.add(REALS)),
        Case(lambda x: x.add(WHOLES)),
        Case(lambda x: x.add(FLAGS)),
    ],
    "sub": [
        Case(lambda x, y: x.sub(y), shapes=PAIR, **NEAR),
        Case(lambda x: x.sub(REALS)),
        Case(lambda x: x.sub(3)),
    ],
    "neg": [Case(lambda x: x.neg(), **NEAR)],
    "__add__": [Case(lambda x, y: x + y, shapes=PAIR), Case(lambda x: x + 0.5)],
    "__radd__": [Case(lambda x: 0.5 + x), Case(lambda x: 2 + x)],
    "__sub__": [Case(lambda x, y: x - y, shapes=PAIR)],
    "__rsub__": [Case(lambda x: 0.5 - x, **NEAR), Case(lambda x: 3 - x)],
    "__neg__": [Case(lambda x: -x)],
    "__iadd__": [
        Case(lambda w, y: w.__iadd__(y), shapes=PAIR, units=1, in_place=True),
        Case(lambda w: w.__iadd__(0.5), in_place=True),
    ],
    "__isub__": [Case(lambda w, y: w.__isub__(y), shapes=PAIR, units=1, in_place=True)],
    "add_": [
        Case(lambda w, y: w.add_(y), shapes=PAIR, units=1, in_place=True),
        Case(lambda w, y: w.add_(y), shapes=((3, 4), (4,)), units=1, in_place=True),
        Case(lambda w: w.add_(2), in_place=True),
        Case(lambda w: w.add_(REALS), in_place=True),
    ],
    "sub_": [Case(lambda w, y: w.sub_(y), shapes=PAIR, units=1, in_place=True)],
    "neg_": [Case(lambda w: w.neg_(), in_place=True)],
    "copy_": [
        Case(lambda w, y: w.copy_(y), shapes=PAIR, units=1, in_place=True),
        Case(lambda w, y: w.copy_(y), shapes=((3, 4), (4,)), units=1, in_place=True),
        Case(lambda w: w[:3, :3].copy_(w[:3, :3].t() if is_shared(w) else w[:3, :3].t().clone()), in_place=True),
    ],
}

PRODUCTS: dict[str, list[Entry]] = {
    "mul": [
        Case(lambda x, y: x.mul(y), shapes=PAIR, units=1, **NEAR),
        Case(lambda x, y: x.mul(y), shapes=((3, 4), (4,)), units=1, **NEAR),
        Case(lambda x, y: x.mul(y), shapes=((), ()), units=1),
        Case(lambda x: x.mul(3)),
        Case(lambda x: x.mul(-0.25), units=1),
        Case(lambda x: x.mul(REALS), units=1),
        Case(lambda x: x.mul(WHOLES)),
        Case(lambda x: x.mul(FLAGS)),
    ],
    "__mul__": [Case(lambda x, y: x * y, shapes=PAIR, units=1)],
    "__rmul__": [Case(lambda x: 2.5 * x, units=1), Case(lambda x: 3 * x)],
    "__imul__": [
        Case(lambda w, y: w.__imul__(y), shapes=PAIR, units=2, in_place=True),
        Case(lambda w: w.__imul__(2), in_place=True),
    ],
    "mul_": [
        Case(lambda w, y: w.mul_(y), shapes=PAIR, units=2, in_place=True),
        Case(lambda w: w.mul_(2.5), units=1, in_place=True),
        Case(lambda w: w.mul_(WHOLES), in_place=True),
    ],
    "matmul": [
        Case(lambda x, y: x.matmul(y), shapes=((3, 4), (4, 2)), units=1, **NEAR),
        Case(lambda x, y: x.matmul(y), shapes=((3, 4), (4,)), units=1),
        Case(lambda x, y: x.matmul(y), shapes=((2, 3, 4), (4, 2)), units=1),
        Case(lambda x: x.matmul(REALS), units=1),
        Case(lambda x: x.matmul(WHOLES), lambda x: x.matmul(WHOLES.double())),
    ],
    "square": [Case(lambda x: x.square(), units=1, **NEAR)],
    "square_": [Case(lambda w: w.square_(), units=1, in_place=True)],
    "div": [
        Case(lambda x: x.div(4), units=1, **NEAR),
        Case(lambda x: x.div(3), units=2),
        Case(lambda x: x.div(-7.0), units=2),
        Case(lambda x: x.div(2.5), units=3),  # the reciprocal is half a unit off, times 4
        Case(lambda x: x.div(torch.tensor(2.5)), units=3),
        Case(lambda x: x.div(REALS), units=3),
        Case(lambda x: x.div(WHOLES), units=3),
    ],
    "div_": [
        Case(lambda w: w.div_(4), units=1, in_place=True),
        Case(lambda w: w.div_(REALS), units=3, in_place=True),
    ],
    "__truediv__": [Case(lambda x: x / 4, units=1)],
    "__div__": [Case(lambda x: x.__div__(4), lambda x: x / 4, units=1)],
    "__itruediv__": [
        Case(lambda w: w.__itruediv__(4), units=1, in_place=True),
        Case(lambda w: w.__itruediv__(3), units=2, in_place=True),
    ],
    "dot": [
        Case(lambda x, y: x.dot(y), shapes=((5,), (5,)), units=5, **NEAR),
        Case(lambda x: x.dot(REALS), shapes=((4,),), units=4),
    ],
    "ger": [Case(lambda x, y: x.ger(y), shapes=((3,), (4,)), units=1, **NEAR)],
    "prod": [
        # four factors of at most 4: two products off by a unit each, times 16 and 16, and one more
        Case(lambda x: x.prod(1), units=40),
        Case(lambda x: x.prod(dim=0, keepdim=True), units=12),
        Case(lambda x: x.prod(), shapes=((4,),), units=40),
    ],
    "conv1d": [
        Case(
            lambda x, k: x.conv1d(k, padding=1, stride=2),
            lambda x, k: F.conv1d(x, k, padding=1, stride=2),
            shapes=((2, 3, 8), (4, 3, 3)),
            units=1,
            gradient=0.02,
        ),
        Case(
            lambda x: x.conv1d(torch.ones(4, 3, 3)),
            lambda x: F.conv1d(x, torch.ones(4, 3, 3).double()),
            ((2, 3, 8),),
            units=1,
        ),
    ],
    "conv2d": [
        Case(
            lambda x, k: x.conv2d(k, padding=1),
            lambda x, k: F.conv2d(x, k, padding=1),
            shapes=((2, 2, 5, 5), (3, 2, 3, 3)),
            units=1,
            gradient=0.02,
        ),
    ],
    "conv_transpose1d": [
        Case(
            lambda x, k: x.conv_transpose1d(k, stride=2),
            lambda x, k: F.conv_transpose1d(x, k, stride=2),
            shapes=((2, 3, 4), (3, 2, 3)),
            units=1,
        ),
    ],
    "conv_transpose2d": [
        Case(
            lambda x, k: x.conv_transpose2d(k, padding=1),
            lambda x, k: F.conv_transpose2d(x, k, padding=1),
            shapes=((2, 2, 4, 4), (2, 3, 3, 3)),
            units=1,
        ),
    ],
    "avg_pool2d": [
        Case(lambda x: x.avg_pool2d(2), lambda x: F.avg_pool2d(x, 2), ((2, 2, 4, 4),), units=1, gradient=0.02),
        Case(
            lambda x: x.avg_pool2d((3, 2), stride=1, padding=1),
            lambda x: F.avg_pool2d(x, (3, 2), stride=1, padding=1),
            ((2, 2, 4, 4),),
            units=2,
        ),
    ],
    "where": [
        Case(lambda x, y: x.where(FLAGS, y), shapes=PAIR, units=2),
        Case(lambda x: x.where(FLAGS, REALS), units=2),
        Case(
            lambda x, c, y: x.where(chosen(c), y),
            lambda x, c, y: torch.where(c > 0, x, y),
            ((3, 4), (3, 4), (3, 4)),
            units=2,
        ),
    ],
    "mean": [
        Case(lambda x: x.mean(), units=2, **NEAR),
        Case(lambda x: x.mean(1), units=2, **NEAR),
        Case(lambda x: x.mean(dim=0, keepdim=True), units=2),
    ],
    "var": [
        # (x - mean)^2 is off by 2 |x - mean| units and one more, and the division by two
        Case(lambda x: x.var(), units=24, **NEAR),
        Case(lambda x: x.var(unbiased=False), units=24, **NEAR),
        Case(lambda x: x.var(1), units=28, **NEAR),
        Case(lambda x: x.var(1, unbiased=False, keepdim=True), units=24, **NEAR),
        Case(lambda x: x.var(0, True), units=32),
        Refused(lambda x: x[:1, :1].var(), "no unbiased variance"),
    ],
}


def chosen(condition: Any) -> Any:
    """A shared bit from a shared value."""
    if isinstance(condition, crypten.mpc.MPCTensor):
        return condition > 0
    return (M().from_shares(condition.share, precision=condition.encoder._precision_bits) > 0)._tensor


SHAPES: dict[str, list[Entry]] = {
    "__getitem__": [
        Case(lambda x: x[1], **NEAR),
        Case(lambda x: x[1:, ::2], **NEAR),
        Case(lambda x: x[..., 1]),
        Case(lambda x: x[INDEX], **NEAR),
        Case(lambda x: x[torch.tensor([0, 0, 2])], **NEAR),
        Case(lambda x: x[FLAGS[:3]]),
    ],
    "cat": [
        Case(lambda x, y: joined("cat", x, y), shapes=PAIR, **NEAR),
        Case(lambda x, y: joined("cat", x, y, dim=1), shapes=PAIR),
        Case(lambda x: joined("cat", x, torch.ones(2, 4))),
        Case(lambda x: joined("cat", torch.ones(2, 4, dtype=torch.long), x)),
    ],
    "stack": [
        Case(lambda x, y: joined("stack", x, y), shapes=PAIR, **NEAR),
        Case(lambda x, y: joined("stack", x, y, dim=-1), shapes=PAIR),
        Case(lambda x: joined("stack", x, torch.full((3, 4), 0.5))),
    ],
    "clone": [Case(lambda x: x.clone(), **NEAR)],
    "cumsum": [Case(lambda x: x.cumsum(1), **NEAR), Case(lambda x: x.cumsum(0))],
    "expand": [Case(lambda x: x.expand(2, 3, 4))],
    "flatten": [Case(lambda x: x.flatten(), **NEAR), Case(lambda x: x.flatten(1), shapes=((2, 3, 2),))],
    "flip": [Case(lambda x: x.flip(1), **NEAR), Case(lambda x: x.flip((0, 1)))],
    "gather": [Case(lambda x: x.gather(0, PLACES), **NEAR)],
    "index_select": [Case(lambda x: x.index_select(0, INDEX), **NEAR)],
    "narrow": [Case(lambda x: x.narrow(1, 1, 2), **NEAR)],
    "permute": [Case(lambda x: x.permute((2, 0, 1)), shapes=((2, 3, 4),), **NEAR)],
    "repeat": [Case(lambda x: x.repeat(2, 1))],
    "reshape": [Case(lambda x: x.reshape(4, 3), **NEAR), Case(lambda x: x.reshape(-1))],
    "roll": [Case(lambda x: x.roll(1, dims=1), **NEAR), Case(lambda x: x.roll((1, 2), dims=(0, 1)), **NEAR)],
    "split": [Case(lambda x: x.split(3, dim=1)), Case(lambda x: x.split([1, 2]))],
    "squeeze": [
        Case(lambda x: x.squeeze(1), shapes=((3, 1, 4),), **NEAR),
        Case(lambda x: x.squeeze(), shapes=((3, 1),)),
    ],
    "sum": [
        Case(lambda x: x.sum(), **NEAR),
        Case(lambda x: x.sum(1), **NEAR),
        Case(lambda x: x.sum(dim=0, keepdim=True), **NEAR),
    ],
    "t": [Case(lambda x: x.t(), **NEAR)],
    "take": [
        Case(lambda x: x.take(torch.tensor([0, 5, 11])), **NEAR),
        Case(lambda x: x.take(INDEX, 0), lambda x: x[INDEX]),
        Case(lambda x: x.take(INDEX, dimension=1), lambda x: x[:, INDEX]),
    ],
    "trace": [Case(lambda x: x.trace(), shapes=((3, 3),), **NEAR)],
    "transpose": [Case(lambda x: x.transpose(0, 1), **NEAR)],
    "unbind": [Case(lambda x: x.unbind(1))],
    "unfold": [Case(lambda x: x.unfold(1, 2, 1))],
    "unsqueeze": [Case(lambda x: x.unsqueeze(1), **NEAR)],
    "view": [Case(lambda x: x.view(2, 6), layouts=("plain", "view", "slice"), **NEAR)],
    "pad": [
        Case(lambda x: x.pad((1, 2)), lambda x: F.pad(x, (1, 2)), **NEAR),
        Case(lambda x: x.pad((1, 0, 0, 2), value=0.5), lambda x: F.pad(x, (1, 0, 0, 2), value=0.5)),
        Case(lambda x: x.pad((1, 1), value=-3), lambda x: F.pad(x, (1, 1), value=-3)),
        Case(lambda x, v: x.pad((1, 1), value=v), lambda x, v: F.pad(x, (1, 1), value=v.item()), ((3, 4), ())),
        Refused(lambda x: x.pad((1, 1), mode="reflect")),
    ],
    "index_add": [
        Case(lambda x, y: x.index_add(0, INDEX, y), shapes=((3, 4), (2, 4))),
        Case(lambda x: x.index_add(0, INDEX, torch.full((2, 4), 0.5, dtype=torch.float64))),
    ],
    "scatter": [
        Case(lambda x, y: x.scatter(0, PLACES[:1], y), shapes=((3, 4), (1, 4))),
        Case(lambda x: x.scatter(0, PLACES[:1], REALS.reshape(1, 4))),
    ],
    "scatter_add": [
        Case(lambda x, y: x.scatter_add(0, PLACES, y), shapes=((3, 4), (2, 4))),
        Case(lambda x: x.scatter_add(0, PLACES[:1], REALS.reshape(1, 4))),
    ],
    "index_add_": [Case(lambda w, y: w.index_add_(0, INDEX, y), shapes=((3, 4), (2, 4)), units=1, in_place=True)],
    "scatter_": [Case(lambda w, y: w.scatter_(0, PLACES[:1], y), shapes=((3, 4), (1, 4)), units=1, in_place=True)],
    "scatter_add_": [
        Case(lambda w, y: w.scatter_add_(0, PLACES, y), shapes=((3, 4), (2, 4)), units=2, in_place=True)
    ],
    "__setitem__": [
        Case(item_set(1, lambda y: y), shapes=((3, 4), (4,)), units=1, in_place=True),
        Case(item_set((slice(None), slice(1, 3)), lambda y: y), shapes=((3, 4), (3, 2)), units=1, in_place=True),
        Case(item_set(slice(1, None), 2), in_place=True),
        Case(item_set(0, REALS), in_place=True),
        Case(item_set(0, WHOLES), in_place=True),
        Case(item_set((0, 1), 0.25), in_place=True),
        Case(overlapping, in_place=True),
    ],
    "shallow_copy": [
        Case(lambda x: x.shallow_copy(), lambda x: x),
        Case(lambda w: w.shallow_copy().add_(1), lambda w: w.add_(1), in_place=True),
    ],
    "__copy__": [
        Case(copy.copy, lambda x: x),
        Case(lambda w: copy.copy(w).add_(1), lambda w: w.add_(1), in_place=True),
    ],
    "__deepcopy__": [
        Case(copy.deepcopy, lambda x: x),
        Case(lambda w: copy.deepcopy(w).add_(1), lambda w: None, in_place=True),
    ],
    "to": [
        Case(lambda x: x.to("cpu"), lambda x: x),
        Refused(lambda x: x.to("cuda")),
        Refused(lambda x: x.to(torch.float32)),
        Refused(lambda x: x.to(dtype=torch.int32)),
    ],
    "cpu": [Case(lambda x: x.cpu())],
    "cuda": [Refused(lambda x: x.cuda())],
    "__len__": [Public(len)],
    "dim": [Public(lambda x: x.dim())],
    "nelement": [Public(lambda x: x.nelement())],
    "numel": [Public(lambda x: x.numel())],
    "size": [Public(lambda x: (x.size(), x.size(1)))],
    "device": [Public(lambda x: x.device)],
    "is_cuda": [Public(lambda x: x.is_cuda)],
    "share": [Public(lambda x: x.share.size(), lambda x: x.size())],
    "get_plain_text": [Refused(lambda x: x.get_plain_text(), OPENED, UndeclaredRelease)],
    "reveal": [Refused(lambda x: x.reveal(dst=0), OPENED, UndeclaredRelease)],
    "__repr__": [Refused(repr, OPENED, UndeclaredRelease)],
    "__str__": [Refused(str, OPENED, UndeclaredRelease)],
    "__format__": [Refused(lambda x: f"{x}", OPENED, UndeclaredRelease)],
    "__reduce_ex__": [Refused(lambda x: x.__reduce_ex__(2), OPENED, UndeclaredRelease)],
    "__bool__": [Refused(bool, "boolean", RuntimeError)],
    "__nonzero__": [Refused(lambda x: x.__nonzero__(), "boolean", RuntimeError)],
}
