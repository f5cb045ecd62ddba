"""How a function of a CrypTen tensor is tried: inputs, layouts, fractions, what torch says, how far off it may be.

Inputs are multiples of 2^-8, so they are exact with 16 and 32 fractional bits, and whole with 0. What is linear must
then be exact. A truncation is off by at most one unit of 2^-16 (two where the divisor is no power of two), whatever
the masks are: all tolerances are bounds, so no case fails by chance.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from protocols.errors import ProtocolError
from protocols.session.runtime import Session, crypten

ULP = 2.0**-16
FRACTIONS = (0, 16, 32)
LAYOUTS = ("plain", "view", "slice", "transposed")

Range = tuple[float, float]


@dataclass(frozen=True)
class Case:
    """One way to call a function, against torch."""

    call: Callable[..., Any]
    reference: Callable[..., Any] | None = None
    """On torch tensors; None: the same call."""
    shapes: tuple[tuple[int, ...], ...] = ((3, 4),)
    within: Range = (-4.0, 4.0)
    """Where the inputs lie: for approximations the range on which the tolerance holds."""
    units: float = 0.0
    absolute: float = 0.0
    relative: float = 0.0
    fractions: tuple[int, ...] = FRACTIONS
    layouts: tuple[str, ...] = LAYOUTS
    in_place: bool = False
    """The memory of the first operand is compared, not the result."""
    long: bool = False
    """Takes many rounds and is made of other functions: with more than two parties it is tried once."""
    gradient: float | None = None
    """How far off gradients may be, absolute and relative; None: not tried."""

    def close(self, got: torch.Tensor, wanted: torch.Tensor) -> bool:
        room = self.units * ULP + self.absolute + self.relative * wanted.abs()
        return got.shape == wanted.shape and bool(((got - wanted).abs() <= room).all())


@dataclass(frozen=True)
class Refused:
    """A call that must raise, with what the one line says."""

    call: Callable[[Any], Any]
    says: str = "not available on a session"
    error: type[Exception] = ProtocolError


@dataclass(frozen=True)
class Public:
    """Not about values: what comes back is public and the same as torch's."""

    call: Callable[[Any], Any]
    reference: Callable[[Any], Any] | None = None


Entry = Case | Refused | Public


@dataclass(frozen=True)
class Trial:
    """A case with fractions and layouts chosen."""

    name: str
    case: Case
    bits: tuple[int, ...]
    layout: str
    gradient: bool = False

    def __str__(self) -> str:
        how = " in place" if self.case.in_place else ""
        return f"{self.name}{how}, {self.bits} bits, {self.layout}{', gradients' if self.gradient else ''}"

    @property
    def whole(self) -> bool:
        return self.bits[0] == 0


def trials(name: str, case: Case, kind: str, parties: int, passed_on: bool) -> Iterator[Trial]:
    """All fractions of one operand, or all pairs of two, the layouts in turn; in place every layout for one.

    With more than two parties one trial of each long function and no gradient: both are made of the rest; and one
    of what an MPCTensor passes on to its shares, on which it is tried in full. Only MPCTensor has gradients.
    """
    mixes = list(itertools.product(case.fractions, repeat=min(2, len(case.shapes))))
    if case.in_place and len(case.shapes) == 1:
        chosen = list(itertools.product(mixes, case.layouts))
    else:
        count = max(len(mixes), len(case.layouts))
        chosen = [(mixes[k % len(mixes)], case.layouts[k % len(case.layouts)]) for k in range(count)]
    if parties > 2 and (case.long or (passed_on and not case.in_place)):
        chosen = chosen[-1:]
    for mix, layout in chosen:
        yield Trial(name, case, (*mix, *(mix[-1] for _ in case.shapes[2:])), layout)
    if case.gradient is not None and parties == 2 and kind == "MPCTensor":
        yield Trial(name, case, (16,) * len(case.shapes), "plain", gradient=True)


def values(trial: Trial) -> list[torch.Tensor]:
    """The plain operands: the same at every party, by name."""
    made = []
    for place, (shape, bits) in enumerate(zip(trial.case.shapes, trial.bits, strict=True)):
        draw = np.random.default_rng(zlib.crc32(f"{trial.name} {place}".encode()))
        low, high = trial.case.within
        if bits == 0:
            array = draw.integers(int(np.ceil(low)), int(high), shape, endpoint=True).astype(float)
        else:
            array = draw.integers(int(np.ceil(low * 256)), int(high * 256), shape, endpoint=True) / 256
        made.append(torch.from_numpy(np.asarray(array)))
    return made


def base_of(plain: torch.Tensor, layout: str) -> torch.Tensor:
    """Memory in which an operand lies in this way, with other values around it where there is room."""
    if layout == "view":
        return plain.reshape(-1).clone()
    if layout == "slice":
        filler = (
            torch.ones((1, *plain.shape[1:]), dtype=plain.dtype) if plain.dim() else torch.ones(1, dtype=plain.dtype)
        )
        return torch.cat([filler, plain if plain.dim() else plain.reshape(1), filler])
    if layout == "transposed":
        return (plain.transpose(0, 1) if plain.dim() > 1 else torch.stack([plain, plain + 1])).contiguous()
    return plain.clone()


def seen_in(base: Any, plain: torch.Tensor, layout: str) -> Any:
    """The operand in that memory: torch's or a shared one."""
    if layout == "view":
        return base.view(plain.shape)
    if layout == "slice":
        return base[1:-1] if plain.dim() else base[1]
    if layout == "transposed":
        return base.transpose(0, 1) if plain.dim() > 1 else base[0]
    return base


def shared(session: Session, plain: torch.Tensor, bits: int, kind: str) -> Any:
    """Shares of exact words with this fraction, of party 1's."""
    words = np.asarray(np.rint(plain.numpy() * 2.0**bits), dtype=np.int64)
    share = session.party.zero_share(words.shape, "xor" if kind == "BinarySharedTensor" else "add")
    if session.rank == 1:
        share = share ^ words if kind == "BinarySharedTensor" else share + words
    share_tensor = torch.from_numpy(np.asarray(share))
    if kind == "MPCTensor":
        return crypten.mpc.MPCTensor.from_shares(share_tensor, precision=bits)
    return getattr(crypten.mpc.primitives, kind).from_shares(share_tensor, precision=bits)


def expected(trial: Trial) -> list[torch.Tensor]:
    """What torch says."""
    plains = values(trial)
    bases = [base_of(plain, trial.layout) for plain in plains]
    operands = [seen_in(base, plain, trial.layout) for base, plain in zip(bases, plains, strict=True)]
    if trial.gradient:
        operands = [operand.clone().requires_grad_() for operand in operands]
    result = (trial.case.reference or trial.case.call)(*operands)
    if trial.gradient:
        _weighted(flat(result)[0]).backward()
        return [operand.grad for operand in operands]
    return [bases[0]] if trial.case.in_place else flat(result)


def computed(session: Session, trial: Trial, kind: str) -> list[Any]:
    """The same on shares, still shared."""
    plains = values(trial)
    bases = [
        shared(session, base_of(plain, trial.layout), bits, kind)
        for plain, bits in zip(plains, trial.bits, strict=True)
    ]
    operands = [seen_in(base, plain, trial.layout) for base, plain in zip(bases, plains, strict=True)]
    if trial.gradient:
        for operand in operands:
            operand.requires_grad = True
    result = trial.case.call(*operands)
    if trial.gradient:
        _weighted(flat(result)[0]).backward()
        assert all(operand.grad is not None for operand in operands), "an operand has no gradient"
        return [operand.grad for operand in operands]
    return [bases[0]] if trial.case.in_place else flat(result)


def _weighted(result: Any) -> Any:
    """A sum in which every element has a weight of its own, so that gradients differ."""
    weights = torch.arange(1.0, result.nelement() + 1, dtype=torch.float64).reshape(result.size()) / 8
    return (result * weights).sum()


def flat(result: Any) -> list[Any]:
    if isinstance(result, (tuple, list)):
        return [item for part in result for item in flat(part)]
    return [result]


def gradient_room(case: Case) -> Case:
    """The same case with the tolerance of its gradients."""
    room = case.gradient or 0.0
    return replace(case, units=0.0, absolute=room, relative=room)
