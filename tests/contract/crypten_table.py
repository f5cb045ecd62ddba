"""Every public function of the three tensor kinds: how it is called and what torch says, or that it raises.

`tests/contract/test_crypten_functions.py` finds the functions by introspection, so a name without an entry fails.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from protocols.binding_functions import IN_PLACE
from protocols.errors import UndeclaredRelease
from protocols.runtime import crypten
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
HEAVY: dict[str, Any] = {"layouts": ("plain", "slice")}
"""Long approximations are tried in two layouts: what they are made of is tried in all."""
LONG: dict[str, Any] = {"layouts": ("plain",), "fractions": (16,)}
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


def by_method(method: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def with_method(x: Any) -> Any:
        with crypten.config.cfg.temp_override({"functions.max_method": method}):
            return call(x)

    return with_method


def binary_and_back(x: Any) -> Any:
    return x.to(crypten.mpc.binary).to(crypten.mpc.arithmetic)


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

# approximations: (range, absolute, relative)

EXP = {"within": (-2.0, 2.0), "absolute": 2e-3, "relative": 0.03, **HEAVY}
LOG = {"within": (0.25, 64.0), "absolute": 0.03, "relative": 0.02, **HEAVY}
RECIPROCAL = {"within": (0.25, 64.0), "absolute": 2e-3, "relative": 0.01, **HEAVY}
ROOT = {"within": (0.25, 64.0), "absolute": 5e-3, "relative": 0.02, **HEAVY}
TURN = {"within": (-3.0, 3.0), "absolute": 0.06, **HEAVY}
SERIES = {"absolute": 5e-4, "within": (-20.0, 20.0), **HEAVY}
SOFT = {"within": (-2.0, 2.0), "absolute": 0.06, **HEAVY}


def bounded(low: float, high: float) -> Callable[[Any], Any]:
    """Ones where a random result lies in its range."""
    return lambda x: (x > low) * (x < high)


APPROXIMATIONS: dict[str, list[Entry]] = {
    "exp": [Case(lambda x: x.exp(), **EXP, gradient=0.06)],
    "log": [
        Case(lambda x: x.log(), **LOG, gradient=0.05),
        Case(
            lambda x: x.log(input_in_01=True),
            lambda x: x.log(),
            **{**LOG, "within": (0.03125, 1.0), "absolute": 0.12},
        ),  # 2 % of log 100
    ],
    "reciprocal": [
        Case(lambda x: x.reciprocal(), **RECIPROCAL, gradient=0.05),
        Case(lambda x: (-x).reciprocal(), **RECIPROCAL),
        Case(
            lambda x: x.reciprocal(input_in_01=True),
            lambda x: x.reciprocal(),
            **{**RECIPROCAL, "within": (0.25, 1.0), "relative": 0.1},
        ),
    ],
    "__rtruediv__": [Case(lambda x: 3 / x, **{**RECIPROCAL, "absolute": 6e-3}, gradient=0.05)],
    "inv_sqrt": [Case(lambda x: x.inv_sqrt(), lambda x: x.rsqrt(), **ROOT)],
    "sqrt": [Case(lambda x: x.sqrt(), **ROOT, gradient=0.05)],
    "cos": [Case(lambda x: x.cos(), **TURN, gradient=0.1)],
    "sin": [Case(lambda x: x.sin(), **TURN, gradient=0.1)],
    "cossin": [Case(lambda x: x.cossin(), lambda x: (x.cos(), x.sin()), **TURN)],
    "sigmoid": [Case(lambda x: x.sigmoid(), **SERIES, gradient=0.01)],
    "tanh": [Case(lambda x: x.tanh(), **SERIES, gradient=0.01)],
    "erf": [Case(lambda x: x.erf(), within=(-1.0, 1.0), absolute=2e-3, gradient=0.05, **HEAVY)],
    "softmax": [Case(lambda x: x.softmax(1), **SOFT, gradient=0.1)],
    "log_softmax": [Case(lambda x: x.log_softmax(1), **{**SOFT, "absolute": 0.1}, gradient=0.1)],
    "pos_pow": [
        Case(
            lambda x: x.pos_pow(1.5),
            lambda x: x.pow(1.5),
            within=(0.5, 3.0),
            absolute=0.05,
            relative=0.1,
            gradient=0.3,
            **HEAVY,
        ),
        Case(lambda x: x.pos_pow(3), lambda x: x.pow(3), units=80, gradient=0.05),
    ],
    "norm": [
        Case(lambda x: x.norm(), **{**ROOT, "within": (0.25, 2.0)}, gradient=0.05),
        Case(lambda x: x.norm(p=1, dim=1), units=1, gradient=0.05),
        Case(lambda x: x.norm(p=2, dim=1), **{**ROOT, "within": (0.25, 3.0)}, gradient=0.05),
        Case(lambda x: x.norm(p=float("inf"), dim=1), units=1),
        Case(lambda x: x.norm(p=3), **{**HEAVY, "within": (0.5, 1.0), "absolute": 0.05, "relative": 0.1}),
    ],
    "cosine_similarity": [
        Case(
            lambda x, y: x.cosine_similarity(y, dim=1),
            lambda x, y: F.cosine_similarity(x, y, dim=1),
            PAIR,
            **{**ROOT, "within": (0.5, 2.0), "absolute": 0.05, "fractions": (16, 32)},
            gradient=0.1,
        ),
        Case(
            lambda x, y: x.cosine_similarity(y, dim=-1),
            lambda x, y: F.cosine_similarity(x, y, dim=-1),
            ((4, 4), (4, 4)),
            **{**ROOT, "within": (0.5, 2.0), "absolute": 0.05, **LONG},
        ),
    ],
    "batchnorm": [
        Case(
            lambda x, a, b: x.batchnorm(a, b, training=True),
            lambda x, a, b: F.batch_norm(x, None, None, a, b, training=True),
            ((8, 3), (3,), (3,)),
            **{**ROOT, "within": (-2.0, 2.0), "absolute": 0.05, "relative": 0.05, **LONG},
            gradient=0.15,
        ),
        Case(
            lambda x, a, b: x.batchnorm(a, b, REALS[:3], REALS[:3].abs()),
            lambda x, a, b: F.batch_norm(x, REALS[:3], REALS[:3].abs(), a, b),
            ((8, 3), (3,), (3,)),
            units=120,
            within=(-2.0, 2.0),
            **LONG,
        ),
    ],
    "binary_cross_entropy": [
        Case(
            lambda x: x.sigmoid().binary_cross_entropy(shared_like(x, ONE_HOT)),
            lambda x: F.binary_cross_entropy(x.sigmoid(), ONE_HOT.double()),
            within=(-2.0, 2.0),
            absolute=0.12,
            gradient=0.05,
            **LONG,
        )
    ],
    "binary_cross_entropy_with_logits": [
        Case(
            lambda x: x.binary_cross_entropy_with_logits(shared_like(x, ONE_HOT)),
            lambda x: F.binary_cross_entropy_with_logits(x, ONE_HOT.double()),
            within=(-2.0, 2.0),
            absolute=0.12,
            gradient=0.02,
            **LONG,
        )
    ],
    "rappor_loss": [
        Case(
            lambda x: x.rappor_loss(shared_like(x, ONE_HOT), 0.75),
            lambda x: F.binary_cross_entropy(0.75 * x.sigmoid() + 0.25 * (1 - x.sigmoid()), ONE_HOT.double()),
            within=(-2.0, 2.0),
            absolute=0.12,
            gradient=0.05,
            **LONG,
        )
    ],
    "cross_entropy": [
        Case(
            lambda x: x.cross_entropy(shared_like(x, ONE_HOT)),
            lambda x: F.cross_entropy(x, ONE_HOT.double()),
            within=(-2.0, 2.0),
            absolute=0.15,
            gradient=0.1,
            **LONG,
        )
    ],
}


def shared_like(x: Any, public: torch.Tensor) -> Any:
    return M()(public.float())


def paired(call: Callable[[Any, Any], Any]) -> list[Entry]:
    return [
        Case(call, lambda x, y: call(x, y).double(), PAIR),
        Case(lambda x: call(x, 1), lambda x: call(x, 1).double()),
        Case(lambda x: call(x, 0.5), lambda x: call(x, 0.5).double()),
        Case(lambda x: call(x, REALS), lambda x: call(x, REALS).double()),
        Case(lambda x: call(x, x), lambda x: call(x, x).double()),
    ]


COMPARISONS: dict[str, list[Entry]] = {
    name: paired(call)
    for operator, call in {
        "eq": lambda x, y: x == y,
        "ne": lambda x, y: x != y,
        "lt": lambda x, y: x < y,
        "le": lambda x, y: x <= y,
        "gt": lambda x, y: x > y,
        "ge": lambda x, y: x >= y,
    }.items()
    for name in (f"__{operator}__",)
} | {
    name: [Case(call, lambda x, y, call=call: call(x, y).double(), PAIR)]
    for name, call in {
        "eq": lambda x, y: x.eq(y),
        "ne": lambda x, y: x.ne(y),
        "lt": lambda x, y: x.lt(y),
        "le": lambda x, y: x.le(y),
        "gt": lambda x, y: x.gt(y),
        "ge": lambda x, y: x.ge(y),
    }.items()
}

SELECTIONS: dict[str, list[Entry]] = {
    "abs": [Case(lambda x: x.abs(), units=1, **NEAR)],
    "__abs__": [Case(abs, units=1)],
    "sign": [Case(lambda x: x.sign(), lambda x: 2.0 * (x >= 0) - 1)],
    "relu": [Case(lambda x: x.relu(), units=1, **NEAR)],
    "relu6": [Case(lambda x: (x * 3).relu6(), lambda x: F.relu6(x * 3), units=1, **NEAR)],
    "hardtanh": [
        Case(lambda x: x.hardtanh(), lambda x: F.hardtanh(x), units=1, **NEAR),
        Case(lambda x: x.hardtanh(-0.5, 2), lambda x: F.hardtanh(x, -0.5, 2), units=1, **NEAR),
    ],
    "max": [
        Case(lambda x: (x + ORDER * 16).max(), **HEAVY, **NEAR),
        Case(lambda x: (x + ORDER * 16).max(1)[0], **HEAVY, **NEAR),
        Case(
            lambda x: (x + ORDER * 16).max(0, keepdim=True, one_hot=False),
            lambda x: tuple(part.double() for part in (x + ORDER * 16).max(0, keepdim=True)),
            **HEAVY,
        ),
        Case(lambda x: x.max(1)[0], **HEAVY),
        *(
            Case(by_method(method, lambda x: x.max(1)[0]), lambda x: x.max(1)[0], fractions=(16,), layouts=("plain",))
            for method in ("pairwise", "double_log_reduction", "accelerated_cascade")
        ),
    ],
    "min": [
        Case(lambda x: (x + ORDER * 16).min(), **HEAVY, **NEAR),
        Case(lambda x: x.min(1)[0], **HEAVY),
        Case(
            lambda x: (x + ORDER * 16).min(0)[1],
            lambda x: F.one_hot((x + ORDER * 16).min(0)[1], 3).t().double(),
            **HEAVY,
        ),
    ],
    "argmax": [
        Case(lambda x: (x + ORDER * 16).argmax(), lambda x: (ORDER.max() == ORDER).double()),
        Case(lambda x: (x + ORDER * 16).argmax(1, one_hot=False), lambda x: ORDER.argmax(1).double()),
        Case(lambda x: (x * x.argmax(1)).sum(1), lambda x: x.max(1)[0]),  # ties fall anywhere
        *(
            Case(
                by_method(method, lambda x: (x + ORDER * 16).argmax(0, keepdim=True, one_hot=False)),
                lambda x: ORDER.argmax(0, keepdim=True).double(),
                fractions=(16,),
                layouts=("plain",),
            )
            for method in ("pairwise", "double_log_reduction", "accelerated_cascade")
        ),
    ],
    "argmin": [
        Case(lambda x: (x + ORDER * 16).argmin(1), lambda x: F.one_hot(ORDER.argmin(1), 4).double()),
        Case(lambda x: (x + ORDER * 16).argmin(one_hot=False), lambda x: ORDER.argmin().double()),
    ],
    "max_pool2d": [
        *(
            Case(
                lambda x, k=k: (x + HEIGHTS - 900).max_pool2d(**k),
                lambda x, k=k: F.max_pool2d(x + HEIGHTS - 900, **k),
                ((1, 2, 5, 5),),
                layouts=("plain",),
                gradient=0.02,
            )
            for k in ({"kernel_size": 2}, {"kernel_size": 3, "padding": 1, "stride": 2})
        ),
        *(
            Case(
                lambda x, k=k: (x + HEIGHTS - 900).max_pool2d(**k),
                lambda x, k=k: F.max_pool2d(x + HEIGHTS - 900, **k),
                ((1, 2, 5, 5),),
                layouts=("plain",),
            )
            for k in (
                {"kernel_size": (2, 3), "padding": (0, 1), "stride": (2, 1)},
                {"kernel_size": 2, "stride": 2, "ceil_mode": True},
                {"kernel_size": 2, "dilation": 2, "stride": 1},
            )
        ),
        Refused(lambda x: with_grad(x.view(1, 1, 3, 4)).max_pool2d(2, ceil_mode=True)),
    ],
    "adaptive_max_pool2d": [
        Case(
            lambda x: x.adaptive_max_pool2d((2, 3)),
            lambda x: F.adaptive_max_pool2d(x, (2, 3)),
            ((1, 2, 5, 5),),
            layouts=("plain",),
        ),
    ],
    "adaptive_avg_pool2d": [
        Case(
            lambda x: x.adaptive_avg_pool2d((2, 3)),
            lambda x: F.adaptive_avg_pool2d(x, (2, 3)),
            ((1, 2, 5, 5),),
            units=6,
        ),
    ],
    "polynomial": [
        # powers up to 4 of at most 2, then coefficients of at most 1
        Case(
            lambda x: x.polynomial([0.5, -0.25, 1.0, 0.125]),
            lambda x: 0.5 * x - 0.25 * x**2 + x**3 + 0.125 * x**4,
            within=(-2.0, 2.0),
            units=24,
            gradient=0.02,
        ),
        Case(lambda x: x.polynomial(torch.tensor([2.0])), lambda x: 2 * x, units=1),
    ],
    "pow": [
        *(
            Case(lambda x, p=p: x.pow(p), within=(-2.0, 2.0), units=4 * p * 2 ** (p - 1) + 1, gradient=0.05)
            for p in (0, 1, 2, 3, 5, 6, 7)
        ),
        Case(lambda x: x.pow(3.0), within=(-2.0, 2.0), units=50),
        Case(lambda x: x.pow(-2), within=(0.5, 4.0), absolute=0.02, relative=0.02, **HEAVY),
        Refused(lambda x: x.pow(0.5), "integer exponent", TypeError),
    ],
    "__pow__": [Case(lambda x: x**3, within=(-2.0, 2.0), units=50)],
    "__matmul__": [Case(lambda x, y: x @ y, shapes=((3, 4), (4, 2)), units=1)],
    "__imatmul__": [Case(lambda x, y: x.__imatmul__(y), lambda x, y: x @ y, ((3, 4), (4, 2)), units=1)],
    "set": [
        Case(lambda w, y: w.set(y), lambda w, y: w.copy_(y), PAIR, units=1, in_place=True),
        Case(lambda w: w.set(REALS.expand(3, 4).clone()), lambda w: w.copy_(REALS), in_place=True, units=1),
    ],
    "detach": [Case(lambda x: x.detach())],
    "detach_": [Case(lambda x: x.detach_(), lambda x: x)],
    "backward": [Case(lambda x: (x * x).sum(), units=12, gradient=0.01)],
}

ZERO_ONE = {"within": (0.0, 1.0), "fractions": (0,)}
CHANCE: dict[str, list[Entry]] = {
    # What comes out is random; what holds for every outcome is not.
    "dropout": [
        Case(lambda x: dropped(x, x.dropout(0.5)), lambda x: x * 0, units=20),
        Case(lambda x: x.dropout(0.5, training=False), lambda x: x),
        Case(lambda x: x.dropout(0.0), lambda x: x),
        Case(lambda x: x.dropout(1.0), lambda x: x * 0),
    ],
    "_feature_dropout": [
        Case(lambda x: dropped(x, x._feature_dropout(0.5)), lambda x: x * 0, units=20),
        Case(lambda x: x._feature_dropout(0.5, training=False), lambda x: x),
    ],
    "bernoulli": [
        Case(lambda x: x.bernoulli(), lambda x: x, **ZERO_ONE),
        Case(lambda x: bits_only(x.bernoulli()), lambda x: x * 0, within=(0.0, 1.0)),
    ],
    "rand": [
        Case(lambda x: bounded(-(2.0**-20), 1)(M().rand(3, 4)), torch.ones_like),
        Case(lambda x: bounded(-(2.0**-20), 1)(M().rand((3, 4))), torch.ones_like),
    ],
    "randn": [Case(lambda x: bounded(-8, 8)(M().randn(3, 4)), torch.ones_like, layouts=("plain",), fractions=(16,))],
    "weighted_index": [
        Case(lambda x: (x * 0 + ONE_HOT).weighted_index(1), lambda x: ONE_HOT.double()),
        Case(lambda x: x.weighted_index(1).sum(1), lambda x: torch.ones(3, dtype=torch.float64), within=(1.0, 4.0)),
        Case(lambda x: bits_only(x.weighted_index()), lambda x: x * 0, within=(1.0, 4.0)),
    ],
    "weighted_sample": [
        Case(
            lambda x: (x * 0 + ONE_HOT * 3).weighted_sample(1),
            lambda x: (torch.full((3,), 3.0).double(), ONE_HOT.double()),
        ),
    ],
}


def dropped(x: Any, result: Any) -> Any:
    """Zero where an element is 0 or twice the input."""
    return result * (result - 2 * x)


def bits_only(x: Any) -> Any:
    return x * (1 - x)


def with_grad(x: Any) -> Any:
    x.requires_grad = True
    return x


def in_place_of(name: str, entries: list[Entry]) -> list[Entry]:
    """`name_` from the first case of `name`."""
    first = next(entry for entry in entries if isinstance(entry, Case))
    arguments = {"pow": (3,), "cumsum": (1,)}.get(name, ())

    def call(w: Any, *others: Any) -> Any:
        return getattr(w, f"{name}_")(*others, *arguments)

    def reference(w: Any, *others: Any) -> Any:
        return getattr(w, f"{name}_")(*others, *arguments) if name != "sign" else w.copy_(2.0 * (w >= 0) - 1)

    units = max(first.units, 80.0 if name == "pow" else 1.0)
    approximate = first.absolute > 0 or name == "pow"
    return [
        Case(
            call,
            reference,
            first.shapes,
            within=(-2.0, 2.0) if name == "pow" else first.within,
            units=units,
            absolute=first.absolute,
            relative=first.relative,
            fractions=(16, 32) if approximate else first.fractions,
            layouts=("slice",) if approximate else first.layouts,
            in_place=True,
        )
    ]


MPC: dict[str, list[Entry]] = {
    **SUMS,
    **PRODUCTS,
    **SHAPES,
    **APPROXIMATIONS,
    **COMPARISONS,
    **SELECTIONS,
    **CHANCE,
    "new": [Case(lambda x: x + M().new(REALS), lambda x: x + REALS)],
    "from_shares": [Case(lambda x: M().from_shares(x.share, precision=x.encoder._precision_bits), lambda x: x)],
    "encoder": [Public(lambda x: x.encoder._precision_bits >= 0, lambda x: True)],
    "data": [Public(lambda x: x.data.size(), lambda x: x.size())],
    "shape": [Public(lambda x: x.shape)],
    "__hash__": [Public(lambda x: isinstance(hash(x), int))],
    "no_grad": [Public(lambda x: callable(M().no_grad), lambda x: True)],
    "enable_grad": [Public(lambda x: callable(M().enable_grad), lambda x: True)],
    "set_grad_enabled": [Public(lambda x: callable(M().set_grad_enabled), lambda x: True)],
    "register_cryptensor": [Public(lambda x: callable(M().register_cryptensor), lambda x: True)],
    "__torch_function__": [
        Case(lambda x, y: torch.cat([x, y]), shapes=PAIR),
        Refused(lambda x: torch.exp(x), "does not support torch function", NotImplementedError),
    ],
}
MPC["div"] = [
    *MPC["div"],
    Case(lambda x, y: x.div(y), shapes=PAIR, within=(0.5, 4.0), absolute=0.02, relative=0.02, gradient=0.05, **HEAVY),
]
MPC["to"] = [*MPC["to"], Case(binary_and_back, lambda x: x, units=1, layouts=("plain", "transposed"))]
MPC["dropout"] = [
    *MPC["dropout"],
    Refused(lambda x: with_grad(x).dropout(0.5, inplace=True)),
]
for _name in sorted(IN_PLACE - {"copy", "detach"}):
    if f"{_name}_" not in MPC:
        MPC[f"{_name}_"] = in_place_of(_name, MPC[_name])


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


_SHAPES_OF_BITS = (
    "__getitem__ clone expand flatten flip gather index_select narrow permute repeat reshape roll split squeeze t take "
    "transpose unbind unfold unsqueeze view to cpu cuda __len__ dim nelement numel size device is_cuda share "
    "get_plain_text reveal __repr__ __str__ __format__ __reduce_ex__ __bool__ __nonzero__"
)


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
    **{name: same_fractions(SHAPES[name]) for name in _SHAPES_OF_BITS.split()},
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
    "cat": same_fractions(SHAPES["cat"][:2])
    + [Refused(lambda x: B().cat([x, B().from_shares(x.share, precision=32)]), "do not mix")],
    "stack": same_fractions(SHAPES["stack"][:2])
    + [Refused(lambda x: B().stack([x, B().from_shares(x.share, precision=32)]), "do not mix")],
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

TABLE = {"MPCTensor": MPC, "ArithmeticSharedTensor": ARITHMETIC, "BinarySharedTensor": BINARY}
