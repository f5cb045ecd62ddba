"""What MPCTensor has: approximations with their ranges, comparisons, selections, sampling, losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from protocols.session.binding_functions import IN_PLACE
from protocols.session.runtime import crypten
from tests.contract.crypten_cases import Case, Entry, Public, Refused
from tests.contract.crypten_common import (
    HEAVY,
    HEIGHTS,
    LONG,
    NEAR,
    ONE_HOT,
    ORDER,
    PAIR,
    PRODUCTS,
    REALS,
    SHAPES,
    SUMS,
    M,
)


def by_method(method: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def with_method(x: Any) -> Any:
        with crypten.config.cfg.temp_override({"functions.max_method": method}):
            return call(x)

    return with_method


def binary_and_back(x: Any) -> Any:
    return x.to(crypten.mpc.binary).to(crypten.mpc.arithmetic)


# approximations: (range, absolute, relative)

EXP = {"within": (-2.0, 2.0), "absolute": 2e-3, "relative": 0.03, **HEAVY}
LOG = {"within": (0.25, 64.0), "absolute": 0.03, "relative": 0.02, **HEAVY}
RECIPROCAL = {"within": (0.25, 64.0), "absolute": 2e-3, "relative": 0.01, **HEAVY}
ROOT = {"within": (0.25, 64.0), "absolute": 5e-3, "relative": 0.02, **HEAVY}
TURN = {"within": (-3.0, 3.0), "absolute": 0.1, **HEAVY}
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
    "cos": [Case(lambda x: x.cos(), **TURN, gradient=0.15)],
    "sin": [Case(lambda x: x.sin(), **TURN, gradient=0.15)],
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
            Case(by_method(method, lambda x: x.max(1)[0]), lambda x: x.max(1)[0], **LONG)
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
        Case(lambda x: (x + ORDER * 16).argmax(), lambda x: ORDER.eq(ORDER.max()).double(), **HEAVY),
        Case(lambda x: (x + ORDER * 16).argmax(1, one_hot=False), lambda x: ORDER.argmax(1).double(), **HEAVY),
        Case(lambda x: (x * x.argmax(1)).sum(1), lambda x: x.max(1)[0], **HEAVY),  # ties fall anywhere
        *(
            Case(
                by_method(method, lambda x: (x + ORDER * 16).argmax(0, keepdim=True, one_hot=False)),
                lambda x: ORDER.argmax(0, keepdim=True).double(),
                fractions=(16,),
                layouts=("plain",),
                long=True,
            )
            for method in ("pairwise", "double_log_reduction", "accelerated_cascade")
        ),
    ],
    "argmin": [
        Case(lambda x: (x + ORDER * 16).argmin(1), lambda x: F.one_hot(ORDER.argmin(1), 4).double(), **HEAVY),
        Case(lambda x: (x + ORDER * 16).argmin(one_hot=False), lambda x: ORDER.argmin().double(), **HEAVY),
    ],
    "max_pool2d": [
        *(
            Case(
                lambda x, k=k: (x + HEIGHTS - 900).max_pool2d(**k),
                lambda x, k=k: F.max_pool2d(x + HEIGHTS - 900, **k),
                ((1, 2, 5, 5),),
                layouts=("plain",),
                long=True,
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
                long=True,
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
            long=True,
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
        Case(lambda x: bounded(-(2.0**-16), 1)(M().rand(3, 4)), torch.ones_like),
        Case(lambda x: bounded(-(2.0**-16), 1)(M().rand((3, 4))), torch.ones_like),
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
            long=approximate,
            in_place=True,
        )
    ]


def triangle(x: torch.Tensor) -> torch.Tensor:
    row, column = torch.triu_indices(x.size(-1), x.size(-1))
    return x[..., row, column]


def whole(x: torch.Tensor, columns: int) -> torch.Tensor:
    row, column = torch.triu_indices(columns, columns)
    made = torch.zeros(*x.shape[:-1], columns, columns, dtype=x.dtype)
    made[..., row, column] = made[..., column, row] = x
    return made


def capped(x: torch.Tensor) -> torch.Tensor:
    """The slope of the capped loss where the label is 1 for positive logits."""
    sign = 1 - 2 * (x > 0).double()
    return sign * 0.75 * torch.sigmoid(sign * 1.5 * x + torch.log(torch.tensor(2.0)))


SHORT: dict[str, Any] = {"fractions": (0, 16)}
LATE: dict[str, list[Entry]] = {
    "rescale": [
        Case(lambda x: x.rescale(20), lambda x: x, units=1),
        Case(lambda x: (x.rescale(20) / 3 - x).rescale(24), lambda x: x / 3 - x, units=2),
    ],
    "pinned": [
        Case(lambda x: x.pinned(), lambda x: x),
        Case(lambda x, y: x.pinned() @ y, lambda x, y: x @ y, ((3, 4), (4, 2)), units=1, **SHORT),
        Case(lambda x, y: x.pinned().t() @ y, lambda x, y: x.t() @ y, ((3, 4), (3, 2)), units=1, **SHORT),
    ],
    "gram": [
        Case(lambda x: x.pinned().gram(), lambda x: triangle(x.t() @ x), **SHORT),
        Case(lambda x: x.gram(), lambda x: x.t() @ x, **SHORT),
        Case(
            lambda x, w: x.pinned().gram(w),
            lambda x, w: triangle(torch.einsum("ni,kn,nj->kij", x, w, x)),
            ((5, 3), (2, 5)),
            fractions=(0, 16),
        ),
    ],
    "each": [
        Case(
            lambda x, y: x.pinned().each(y),
            lambda x, y: torch.einsum("gij,jg->ig", x, y),
            ((2, 4, 4), (4, 2)),
            **SHORT,
        )
    ],
    "packed": [Case(lambda x: x.packed(), triangle, ((2, 3, 3),))],
    "unpacked": [Case(lambda x: x.unpacked(3), lambda x: whole(x, 3), ((2, 6),))],
    "doubled": [
        Case(
            lambda x: crypten.cat(list(x.doubled(x, 3))),
            lambda x: triangle(whole(x, 3) @ whole(x, 3)).repeat(2, 1),
            ((2, 6),),
            units=1,
            fractions=(16,),
        )
    ],
    "exact": [
        Case(lambda x: x.exact() * x, lambda x: x * x, **SHORT),
        Case(lambda x: x.exact().square(), lambda x: x * x, **SHORT),
    ],
    "with_fraction": [Case(lambda x: x.with_fraction(8), lambda x: x / 256, fractions=(0,))],
    "sampled": [Case(lambda x: x.pinned().sampled(1), lambda x: x)],
    "selected": [Refused(lambda x: x.selected(x), "the one-hot rows of another")],
    "group_sums": [Refused(lambda x: x.group_sums(x, bound=9.0), "whole-number columns of owners")],
    "sigmoid_and_slope": [
        Case(
            lambda x: crypten.stack(list(x.sigmoid_and_slope())),
            lambda x: torch.stack([x.sigmoid(), x.sigmoid() * (1 - x.sigmoid())]),
            absolute=2e-3,
            fractions=(32,),
        )
    ],
    "capped_slope_and_bend": [
        Case(lambda x: x.capped_slope_and_bend(x > 0)[0], capped, absolute=5e-4, fractions=(32,))
    ],
    "capped_slope": [Case(lambda x: x.capped_slope(x > 0, fine=False), capped, absolute=5e-4, fractions=(32,))],
}

MPC: dict[str, list[Entry]] = {
    **LATE,
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
