"""CrypTen's tensors on a session: every function that is available is right, and every other one raises.

The cases run in a few sessions of two parties and of three. The names come from `binding.FUNCTIONS`: a function
without a case fails. Inputs are multiples of 2^-8, so they are exact with 16 and 32 fractional bits, and integers
with 0. What is linear must then be exact. A truncation is off by at most one unit of 2^-16 (two where the divisor is
no power of two), whatever the masks are: all tolerances are bounds, so no case fails by chance.
"""

from __future__ import annotations

import itertools
import pickle
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from secure_sccvfl.protocols.errors import ProtocolError, RangeError, Unavailable, UndeclaredRelease
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.session import binding
from secure_sccvfl.protocols.session.binding_tensors import METHODS
from secure_sccvfl.protocols.session.runtime import Session, crypten
from tests.support.sessions import results, run_session

ULP = 2.0**-16
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "crypten.md"
SESSIONS, DIMENSIONS, TIMES = 3, range(7), 1_000_000
"""The cases are divided among sessions, so that each stays far from the harness' time limit on a busy machine."""
EXAMPLE = torch.tensor([[1.0, -2.0, 3.0, 0.5]] * 3, dtype=torch.float64)
REALS = torch.tensor([0.5, -1.25, 2.0, 3.0], dtype=torch.float64)
WHOLES = torch.tensor([1, 2, -3, 4])
FLAGS = torch.tensor([True, False, True, False])
ONE_HOT = torch.tensor([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1]])
ORDER = torch.tensor([[3, 0, 7, 1], [2, 8, 5, 4], [6, 11, 9, 10]])
INDEX = torch.tensor([2, 0])
PAIR = ((3, 4), (3, 4))


@dataclass(frozen=True)
class Case:
    """One way to call a function, against torch (`reference`; None: the same call).

    within: the range of the inputs, on which the tolerance (units, absolute, relative) holds. in_place: compare the
    memory of the first operand instead of the result. gradient: how far off gradients may be; None: not tested.
    """

    call: Callable[..., Any]
    reference: Callable[..., Any] | None = None
    shapes: tuple[tuple[int, ...], ...] = ((3, 4),)
    within: tuple[float, float] = (-4.0, 4.0)
    units: float = 0.0
    absolute: float = 0.0
    relative: float = 0.0
    fractions: tuple[int, ...] = (0, 16, 32)
    layouts: tuple[str, ...] = ("plain", "view", "slice", "transposed")
    in_place: bool = False
    gradient: float | None = None

    def close(self, got: torch.Tensor, wanted: torch.Tensor) -> bool:
        tolerance = self.units * ULP + self.absolute + self.relative * wanted.abs()
        return got.shape == wanted.shape and bool(((got - wanted).abs() <= tolerance).all())


@dataclass(frozen=True)
class Trial:
    """A case with fractions and a memory layout."""

    name: str
    case: Case
    bits: tuple[int, ...]
    layout: str
    gradient: bool = False


NEAR: dict[str, Any] = {"gradient": 0.02}
HEAVY: dict[str, Any] = {"layouts": ("plain", "slice")}


def joined(how: str, *parts: Any, dim: int = 0) -> Any:
    """`cat` or `stack` of shared and public tensors."""
    if all(torch.is_tensor(part) for part in parts):
        return getattr(torch, how)([part.double() for part in parts], dim=dim)
    return getattr(crypten, how)(list(parts), dim=dim)


def compared(call: Callable[[Any, Any], Any]) -> list[Case]:
    return [
        Case(call, lambda x, y: call(x, y).double(), PAIR),
        *(Case(partial(call_with, call, y), partial(real_with, call, y)) for y in (1, 0.5, REALS)),
        Case(lambda x: call(x, x), lambda x: call(x, x).double()),
    ]


def call_with(call: Any, y: Any, x: Any) -> Any:
    return call(x, y)


def real_with(call: Any, y: Any, x: Any) -> Any:
    return call(x, y).double()


def triangle(x: torch.Tensor) -> torch.Tensor:
    row, column = torch.triu_indices(x.size(-1), x.size(-1))
    return x[..., row, column]


def whole(x: torch.Tensor) -> torch.Tensor:
    row, column = torch.triu_indices(3, 3)
    matrix = torch.zeros(*x.shape[:-1], 3, 3, dtype=x.dtype)
    matrix[..., row, column] = matrix[..., column, row] = x
    return matrix


def capped(x: torch.Tensor) -> torch.Tensor:
    """The slope of the capped loss where the label is 1 for positive logits."""
    sign = 1 - 2 * (x > 0).double()
    return sign * 0.75 * torch.sigmoid(sign * 1.5 * x + torch.log(torch.tensor(2.0)))


ROOT = {"within": (0.25, 64.0), "relative": 0.02, "gradient": 0.05, **HEAVY}
INTEGERS = {"fractions": (0, 16)}

TABLE: dict[str, list[Case]] = {
    "add": [
        Case(lambda x, y: x + y, shapes=PAIR, **NEAR),
        Case(lambda x, y: x.add(y), shapes=((3, 4), (4,))),
        *(Case(partial(lambda y, x: x + y, y)) for y in (2, 0.25, REALS, WHOLES, FLAGS)),
        Case(lambda x: 0.5 + x),
    ],
    "sub": [Case(lambda x, y: x - y, shapes=PAIR, **NEAR), Case(lambda x: x.sub(REALS)), Case(lambda x: 3 - x)],
    "neg": [Case(lambda x: -x, **NEAR)],
    "mul": [
        Case(lambda x, y: x * y, shapes=PAIR, units=1, **NEAR),
        Case(lambda x, y: x.mul(y), shapes=((3, 4), (4,)), units=1, **NEAR),
        Case(lambda x, y: x.mul(y), shapes=((), ()), units=1),
        *(Case(partial(lambda y, x: x * y, y), units=1) for y in (3, -0.25, REALS, WHOLES, FLAGS)),
        Case(lambda x: 2.5 * x, units=1),
    ],
    "matmul": [
        Case(lambda x, y: x @ y, shapes=((3, 4), (4, 2)), units=1, **NEAR),
        Case(lambda x, y: x.matmul(y), shapes=((3, 4), (4,)), units=1),
        Case(lambda x, y: x.matmul(y), shapes=((2, 3, 4), (4, 2)), units=1),
        Case(lambda x, y: x.matmul(y), shapes=((4,), (4,)), units=1, gradient=0.02),
        Case(lambda x: x.matmul(REALS), units=1),
        Case(lambda x: x.matmul(WHOLES), lambda x: x.matmul(WHOLES.double())),
    ],
    "square": [Case(lambda x: x.square(), units=1, **NEAR)],
    "div": [
        Case(lambda x: x / 4, units=1, **NEAR),
        Case(lambda x: x.div(3), units=2),
        Case(lambda x: x.div(-7.0), units=2),
        # the reciprocal is half a unit off, times 4
        *(Case(partial(lambda y, x: x / y, y), units=3) for y in (2.5, torch.tensor(2.5), REALS, WHOLES)),
        Case(lambda x, y: x / y, None, PAIR, (0.5, 4.0), absolute=0.02, relative=0.02, gradient=0.05, **HEAVY),
    ],
    "mean": [Case(lambda x: x.mean(), units=2, **NEAR), Case(lambda x: x.mean(1), units=2, **NEAR)],
    "sum": [
        Case(lambda x: x.sum(), **NEAR),
        Case(lambda x: x.sum(1), **NEAR),
        Case(lambda x: x.sum(dim=0, keepdim=True), **NEAR),
    ],
    # four factors of at most 4: two products off by a unit each, times 16 and 16, and one more
    "prod": [Case(lambda x: x.prod(1), units=40)],
    "cumsum": [Case(lambda x: x.cumsum(1))],
    # approximations
    "exp": [Case(lambda x: x.exp(), None, within=(-2.0, 2.0), absolute=2e-3, relative=0.03, gradient=0.06, **HEAVY)],
    "reciprocal": [
        Case(lambda x: x.reciprocal(), absolute=2e-3, **ROOT),
        Case(lambda x: 3 / -x, absolute=6e-3, **ROOT),
    ],
    "sigmoid": [Case(lambda x: x.sigmoid(), within=(-20.0, 20.0), absolute=5e-4, gradient=0.01, **HEAVY)],
    "tanh": [Case(lambda x: x.tanh(), within=(-20.0, 20.0), absolute=5e-4, gradient=0.01, **HEAVY)],
    # comparisons and choices
    "eq": compared(lambda x, y: x == y),
    "ne": compared(lambda x, y: x != y),
    "lt": compared(lambda x, y: x < y),
    "le": compared(lambda x, y: x <= y),
    "gt": compared(lambda x, y: x > y),
    "ge": compared(lambda x, y: x >= y),
    "abs": [Case(abs, units=1, **NEAR)],
    "sign": [Case(lambda x: x.sign(), lambda x: 2.0 * (x >= 0) - 1)],
    "relu": [Case(lambda x: x.relu(), units=1, **NEAR)],
    "where": [
        Case(lambda x, y: x.where(FLAGS, y), shapes=PAIR, units=2),
        Case(lambda x, y: x.where(x > 0, y), lambda x, y: torch.where(x > 0, x, y), PAIR, units=2),
    ],
    "max": [
        Case(lambda x: (x + ORDER * 16).max(), **HEAVY),
        Case(lambda x: (x + ORDER * 16).max(1)[0], **HEAVY),
        Case(lambda x: x.max(1)[0], **HEAVY),
    ],
    "argmax": [
        Case(lambda x: (x + ORDER * 16).argmax(), lambda x: ORDER.eq(ORDER.max()).double(), **HEAVY),
        Case(lambda x: (x + ORDER * 16).argmax(1, one_hot=False), lambda x: ORDER.argmax(1).double(), **HEAVY),
        Case(lambda x: (x * x.argmax(1)).sum(1), lambda x: x.max(1)[0], **HEAVY),  # ties fall anywhere
    ],
    "weighted_index": [
        Case(lambda x: (x * 0 + ONE_HOT).weighted_index(1), lambda x: ONE_HOT.double()),
        Case(lambda x: x.weighted_index(1).sum(1), lambda x: torch.ones(3, dtype=torch.float64), within=(1.0, 4.0)),
        Case(lambda x: (b := x.weighted_index()) * (1 - b), lambda x: x * 0, within=(1.0, 4.0)),
    ],
    # shapes
    "__getitem__": [
        Case(partial(lambda at, x: x[at], at))
        for at in (1, (slice(1, None), slice(None, None, 2)), INDEX, [0, 0, 2], (..., 1), FLAGS[:3])
    ],
    "cat": [
        Case(lambda x, y: joined("cat", x, y), shapes=PAIR),
        Case(lambda x, y: torch.cat([x, y], dim=1), shapes=PAIR),
    ],
    "stack": [
        Case(lambda x, y: joined("stack", x, y), shapes=PAIR),
        Case(lambda x, y: joined("stack", x, y, dim=-1), shapes=PAIR),
    ],
    "clone": [Case(lambda x: x.clone(), **NEAR), Case(lambda w: w.clone().add_(1), lambda w: None, in_place=True)],
    "expand": [Case(lambda x: x.expand(2, 3, 4))],
    "split": [Case(lambda x: x.split(3, dim=1)[1], lambda x: x[:, 3:])],
    "index_add": [Case(lambda x, y: x.index_add(0, INDEX, y), shapes=((3, 4), (2, 4)))],
    "flatten": [Case(lambda x: x.flatten(), **NEAR)],
    "narrow": [Case(lambda x: x.narrow(1, 1, 2), **NEAR)],
    "permute": [Case(lambda x: x.permute((2, 0, 1)), shapes=((2, 3, 4),), **NEAR)],
    "repeat": [Case(lambda x: x.repeat(2, 1))],
    "reshape": [Case(lambda x: x.reshape(4, 3), **NEAR), Case(lambda x: x.reshape(-1))],
    "roll": [Case(lambda x: x.roll(1, dims=1), **NEAR)],
    "squeeze": [Case(lambda x: x.squeeze(1), shapes=((3, 1, 4),), **NEAR)],
    "t": [Case(lambda x: x.t(), **NEAR)],
    "transpose": [Case(lambda x: x.transpose(0, 1), **NEAR)],
    "unsqueeze": [Case(lambda x: x.unsqueeze(1), **NEAR)],
    "view": [Case(lambda x: x.view(2, 6), layouts=("plain", "view", "slice"), **NEAR)],
    "pad": [Case(lambda x: x.pad((1, 2)), lambda x: torch.nn.functional.pad(x, (1, 2)))],
    # in place: w is written
    "add_": [
        Case(lambda w, y: w.add_(y), shapes=PAIR, units=1, in_place=True),
        Case(lambda w, y: w.add_(y), shapes=((3, 4), (4,)), units=1, in_place=True),
        Case(lambda w: w.add_(REALS), in_place=True),
        Case(lambda w: w.__iadd__(0.5), in_place=True),
    ],
    "mul_": [
        Case(lambda w, y: w.mul_(y), shapes=PAIR, units=2, in_place=True),
        Case(lambda w: w.mul_(2.5), units=1, in_place=True),
    ],
    "copy_": [
        Case(lambda w, y: w.copy_(y), shapes=PAIR, units=1, in_place=True),
        Case(lambda w, y: w.set(y), lambda w, y: w.copy_(y), PAIR, units=1, in_place=True),
    ],
    # added by this package
    "rescale": [
        Case(lambda x: x.rescale(20), lambda x: x, units=1),
        Case(lambda x: (x.rescale(20) / 3 - x).rescale(24), lambda x: x / 3 - x, units=2),
    ],
    "pinned": [
        Case(lambda x: x.pinned(), lambda x: x),
        Case(lambda x, y: x.pinned() @ y, lambda x, y: x @ y, ((3, 4), (4, 2)), units=1, **INTEGERS),
        Case(lambda x, y: x.pinned().t() @ y, lambda x, y: x.t() @ y, ((3, 4), (3, 2)), units=1, **INTEGERS),
    ],
    "gram": [
        Case(lambda x: x.pinned().gram(), lambda x: triangle(x.t() @ x), **INTEGERS),
        Case(lambda x: x.gram(), lambda x: x.t() @ x, **INTEGERS),
        Case(
            lambda x, w: x.pinned().gram(w),
            lambda x, w: triangle(torch.einsum("ni,kn,nj->kij", x, w, x)),
            ((5, 3), (2, 5)),
            **INTEGERS,
        ),
    ],
    "each": [
        Case(
            lambda x, y: x.pinned().each(y),
            lambda x, y: torch.einsum("gij,jg->ig", x, y),
            ((2, 4, 4), (4, 2)),
            **INTEGERS,
        )
    ],
    "packed": [Case(lambda x: x.packed(), triangle, ((2, 3, 3),))],
    "unpacked": [Case(lambda x: x.unpacked(3), whole, ((2, 6),))],
    "doubled": [
        Case(
            lambda x: crypten.cat(list(x.doubled(x, 3))),
            lambda x: triangle(whole(x) @ whole(x)).repeat(2, 1),
            ((2, 6),),
            units=1,
            fractions=(16,),
        )
    ],
    "exact": [
        Case(lambda x: x.exact() * x, lambda x: x * x, **INTEGERS),
        Case(lambda x: x.exact().square(), lambda x: x * x, **INTEGERS),
    ],
    "with_fraction": [Case(lambda x: x.with_fraction(8), lambda x: x / 256, fractions=(0,))],
    "sampled": [Case(lambda x: x.pinned().sampled(1), lambda x: x)],
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
ELSEWHERE = {"group_sums", "selected"}
"""These take blocks of owners: tests/contract/test_tensor_operators.py."""


def trials(name: str, case: Case, parties: int) -> Iterator[Trial]:
    """All fractions of one operand, or all pairs of two, with the layouts in turn; one of them with three parties."""
    mixes = list(itertools.product(case.fractions, repeat=min(2, len(case.shapes))))
    count = max(len(mixes), len(case.layouts))
    chosen = [(mixes[k % len(mixes)], case.layouts[k % len(case.layouts)]) for k in range(count)]
    for mix, layout in chosen if parties == 2 else chosen[-1:]:
        yield Trial(name, case, mix, layout)
    if case.gradient is not None and parties == 2:
        yield Trial(name, case, (16,) * len(case.shapes), "plain", gradient=True)


def values(trial: Trial) -> list[torch.Tensor]:
    """The plain operands: the same at every party, by name."""
    operands = []
    for at, (shape, bits) in enumerate(zip(trial.case.shapes, trial.bits, strict=True)):
        draw = np.random.default_rng(zlib.crc32(f"{trial.name} {at}".encode()))
        unit = 1 if bits == 0 else 256
        low, high = (end * unit for end in trial.case.within)
        array = draw.integers(int(np.ceil(low)), int(high), shape, endpoint=True) / unit
        operands.append(torch.from_numpy(np.asarray(array, np.float64)))
    return operands


def base_of(plain: torch.Tensor, layout: str) -> torch.Tensor:
    """Memory that holds an operand in this layout, with other values around it where there is room."""
    if layout == "view":
        return plain.reshape(-1).clone()
    if layout == "slice":
        filler = torch.ones((1, *plain.shape[1:]), dtype=plain.dtype)
        return torch.cat([filler, plain if plain.dim() else plain.reshape(1), filler])
    if layout == "transposed":
        return (plain.transpose(0, 1) if plain.dim() > 1 else torch.stack([plain, plain + 1])).contiguous()
    return plain.clone()


def seen_in(base: Any, plain: torch.Tensor, layout: str) -> Any:
    """The operand in that memory, torch's or a shared one."""
    if layout == "view":
        return base.view(plain.shape)
    if layout == "slice":
        return base[1:-1] if plain.dim() else base[1]
    if layout == "transposed":
        return base.transpose(0, 1) if plain.dim() > 1 else base[0]
    return base


def shared(session: Session, plain: torch.Tensor, bits: int) -> Any:
    """A tensor of party 1's values."""
    return session.share(plain.numpy() if session.rank == 1 else None, owner=1, shape=tuple(plain.shape), bits=bits)


def computed(trial: Trial, session: Session | None) -> list[Any]:
    """Results, gradients or written memory: on shares in a session, on torch's tensors without."""
    plains = values(trial)
    bases: list[Any] = [base_of(plain, trial.layout) for plain in plains]
    if session is not None:
        bases = [shared(session, base, bits) for base, bits in zip(bases, trial.bits, strict=True)]
    operands = [seen_in(base, plain, trial.layout) for base, plain in zip(bases, plains, strict=True)]
    if trial.gradient:
        operands = [operand.clone() for operand in operands]
        for operand in operands:
            operand.requires_grad = True
    call = trial.case.call if session is not None else trial.case.reference or trial.case.call
    result = call(*operands)
    if trial.gradient:
        weights = torch.arange(1.0, result.nelement() + 1, dtype=torch.float64).reshape(result.size()) / 8
        (result * weights).sum().backward()
        assert all(operand.grad is not None for operand in operands), "an operand has no gradient"
        return [operand.grad for operand in operands]
    return [bases[0]] if trial.case.in_place else [result]


Outcome = list[tuple[Trial, list[torch.Tensor] | Exception]]


def run_all(session: Session, names: list[str]) -> Outcome:
    """Every trial of these functions, on shares."""
    outcome: Outcome = []
    waiting: list[tuple[Any, list[torch.Tensor]]] = []
    for name in names:
        for trial in (trial for case in TABLE[name] for trial in trials(name, case, session.parties)):
            plain: list[torch.Tensor] = []
            try:
                waiting += [(value, plain) for value in computed(trial, session)]
                outcome.append((trial, plain))
            except (Exception, AssertionError) as error:
                outcome.append((trial, error))
    releases = results(session.parties, DIMENSIONS, TIMES)
    for start in range(0, len(waiting), 100):
        batch = waiting[start : start + 100]
        opened = session.open_each([(value, releases[value.dim()]) for value, _ in batch])
        for (_, kept), value in zip(batch, opened, strict=True):
            assert value is not None
            kept.append(value.double())
    return outcome


def faults(outcome: Outcome) -> list[str]:
    wrong = []
    for trial, got in outcome:
        if isinstance(got, Exception):
            # Integers may refuse what would need a fraction, and nothing else.
            if not (trial.case.in_place and trial.bits[0] == 0 and "integers cannot take fractions" in str(got)):
                wrong.append(f"{trial}: {type(got).__name__}: {got}")
            continue
        case, tolerance = trial.case, trial.case.gradient
        if trial.gradient:
            case = replace(case, units=0.0, absolute=tolerance, relative=tolerance)
        for value, reference in zip(got, computed(trial, None), strict=True):
            if not case.close(value, reference.detach().double()):
                wrong.append(f"{trial}: {value} instead of {reference}")
    return wrong


@pytest.mark.parametrize("parties", [2, 3])
def test_every_function_is_right(parties: int) -> None:
    plan = ReleasePlan(results(parties, DIMENSIONS, TIMES).values())
    for part in range(SESSIONS):
        outcome = run_session(partial(run_all, names=list(TABLE)[part::SESSIONS]), parties, plan=plan)[0]
        assert faults(outcome) == []


def test_a_fault_is_noticed() -> None:
    """A wrong value, an unexpected error, one unit too many and another shape are; a right value is not."""
    trial = Trial("x", Case(lambda x: x, shapes=((2,),)), (16,), "plain")
    right = computed(trial, None)
    for got, count in ((right, 0), ([right[0] + 1], 1), (ValueError("no"), 1)):
        assert len(faults([(trial, got)])) == count
    case, ones = Case(lambda x: x, units=1), torch.ones(2)
    assert case.close(ones + ULP, ones)
    assert not case.close(ones + 1.1 * ULP, ones) and not case.close(torch.ones(1), ones)


def test_every_available_function_has_a_case() -> None:
    named = {name for name in TABLE if not name.startswith("__")}
    assert named | ELSEWHERE == binding.FUNCTIONS | binding.IN_PLACE | METHODS


def test_every_other_function_raises() -> None:
    """Functions of CrypTen's tensor and of its autograd, and in-place forms."""
    tried: list[str] = []

    def job(session: Session) -> None:
        Tensor, value = crypten.mpc.MPCTensor, shared(session, EXAMPLE, 16)
        names = {name for name in dir(Tensor) if callable(type.__getattribute__(Tensor, name)) and name[0] != "_"}
        names |= {name for name in crypten.gradients.FUNCTION_REGISTRY if name[0] != "_"}
        names |= {f"{name}_" for name in names}
        allowed = binding.FUNCTIONS | binding.IN_PLACE | METHODS | binding._ATTRIBUTES
        for name in sorted(names - allowed):
            with pytest.raises(Unavailable, match=rf"^{name} is not available on a session$"):
                getattr(value, name)
            tried.append(name)
        for way in (
            lambda: value.__setitem__(0, 1.0),
            lambda: crypten.mpc.primitives.BinarySharedTensor(torch.ones(2)),
            lambda: crypten.cryptensor(torch.ones(2), ptype=crypten.mpc.binary),
            lambda: value._tensor.conv1d(value._tensor),
        ):
            with pytest.raises(Unavailable, match=r"is not available on a session$"):
                way()

    run_session(job, 2)
    assert len(tried) > 100 and {"var", "conv2d", "dropout", "scatter", "norm", "sum_"} <= set(tried)


def test_functions_without_gradients_raise_where_one_is_required() -> None:
    def job(session: Session) -> None:
        value = shared(session, EXAMPLE, 16)
        value.requires_grad = True
        for name in binding.without_gradient():
            with pytest.raises(Unavailable, match=f"^{name} with gradients is not available on a session$"):
                getattr(value, name)
            with crypten.no_grad():
                assert callable(getattr(value, name))

    run_session(job, 2)


def test_the_document_lists_the_functions() -> None:
    def documented(heading: str) -> set[str]:
        (line,) = re.findall(rf"^- {re.escape(heading)}: (.*)$", DOCUMENT.read_text(), re.MULTILINE)
        return set(re.findall(r"`([^`]+)`", line))

    run_session(lambda session: None, 2)  # `without_gradient` asks CrypTen
    assert documented("available") == binding.FUNCTIONS
    assert documented("written in place") == binding.IN_PLACE
    assert documented("without gradients") == binding.without_gradient()
    assert documented("of the package") == set(binding.UNAVAILABLE)


# shared memory, owners, copies, gradients, settings

SERIES = 5e-4
"""Largest error of a sigmoid."""


def M(value: Any, **options: Any) -> Any:
    return crypten.cryptensor(torch.as_tensor(value), **options)


def opened(session: Session, value: Any) -> np.ndarray:
    plain = session.open(value, results(session.parties, range(5))[value.dim()])
    assert plain is not None
    return plain.numpy()


def run(job: Any, parties: int) -> None:
    run_session(job, parties, plan=ReleasePlan(results(parties, range(5)).values()))


@pytest.mark.parametrize("parties", [2, 3])
def test_views_and_their_base_agree(parties: int) -> None:
    """Values with 32, 16 and 0 fractional bits, written through views and slices."""

    def job(session: Session) -> None:
        y = M(torch.zeros(4))
        y.view(2, 2).add_(M(torch.zeros(2, 2)).sigmoid())
        assert np.abs(opened(session, y) - 0.5).max() <= SERIES + ULP
        y = M(torch.zeros(4)).sigmoid()
        y.view(2, 2).mul_(2.5)
        assert np.abs(opened(session, y) - 1.25).max() <= 2.5 * SERIES + 3 * ULP
        y = M(torch.ones(4)) > 0
        with pytest.raises(ProtocolError, match="integers cannot take fractions in place"):
            y.view(2, 2).add_(0.5)
        y.view(2, 2)[0].mul_(3)
        assert opened(session, y).tolist() == [3, 3, 1, 1]
        with pytest.raises(RuntimeError):
            M(torch.zeros(1)).expand(3).add_(1)  # three elements at one address

    run(job, parties)


@pytest.mark.parametrize("parties", [2, 3])
def test_only_the_owner_gives_values(parties: int) -> None:
    def job(session: Session) -> None:
        mine = session.rank == 1
        for kind in (M, crypten.mpc.MPCTensor):
            value = kind(torch.tensor([1.5, -2.0]) if mine else torch.tensor([float("nan"), 1e300]), src=1)
            assert opened(session, value).tolist() == [1.5, -2.0]
        assert opened(session, M([1, 2**24 + 1])).tolist() == [1, 2**24 + 1]  # a float would round it
        with pytest.raises(UndeclaredRelease):
            M(torch.tensor([1.5]), src=1, broadcast_size=True)
        for src in (None, "0", 1.0, 7):
            with pytest.raises(AssertionError, match="source party does not exist"):
                M(torch.tensor([1, 2]), src=src)

    run(job, parties)


@pytest.mark.parametrize("parties", [2, 3])
def test_copies_of_tensors_are_refused_and_clones_are_not(parties: int) -> None:
    def job(session: Session) -> None:
        value = M([1.0, 2.0])
        with pytest.raises(UndeclaredRelease, match="pickling"):
            pickle.dumps(value)
        twin = value.clone()
        twin.add_(1.0)
        assert opened(session, value).tolist() == [1, 2] and opened(session, twin).tolist() == [2, 3]

    run(job, parties)


def test_integers_that_would_wrap_raise() -> None:
    def job(session: Session) -> None:
        value = M([1.0])
        for bad in (torch.tensor([1 << 50]), torch.tensor([-(1 << 63)]), 1 << 50):
            with pytest.raises(RangeError, match="too large"):
                value + bad

    run(job, 2)


def test_gradients_are_not_lost_in_silence() -> None:
    def job(session: Session) -> None:
        x = M([1.0, 2.0, 3.0])
        with pytest.raises(ProtocolError, match="no gradient depends"):
            x.sum().backward()
        x.requires_grad = True
        with pytest.raises(RuntimeError, match="in-place"):
            x.add_(1.0)
        for way in (lambda: x[0], lambda: crypten.stack([x, x])):
            with pytest.raises(Unavailable, match="with gradients"):
                way()

    run(job, 2)


def test_what_is_not_available_says_so() -> None:
    def job(session: Session) -> None:
        cfg = crypten.config.cfg
        for name in binding.UNAVAILABLE:
            with pytest.raises(Unavailable, match=f"^crypten.{name} is not available on a session$"):
                getattr(crypten, name)()
        for way in (
            lambda: setattr(cfg.debug, "validation_mode", True),
            lambda: cfg.__setitem__("debug.validation_mode", True),
            lambda: cfg.temp_override({"debug.validation_mode": True}).__enter__(),
            lambda: crypten.mpc.get_default_provider(),
        ):
            with pytest.raises(Unavailable, match=r"is not available on a session$"):
                way()
        assert not cfg.debug.validation_mode

    run(job, 2)
