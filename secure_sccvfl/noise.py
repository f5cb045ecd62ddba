"""Noise on statistics of s: the interface, and the plaintext engine's Gaussian.

What is charged and what is drawn come from one object; prices, calibration and the refusal beyond the cap are
those of `accounting`. The neighbouring relation is adding or removing one record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from accounting.budget import Budget as Account
from accounting.budget import BudgetError
from accounting.calibration import check_target, noise_multiplier
from accounting.events import Event, Mechanism
from accounting.paper import scaled_sensitivity
from secure_sccvfl.streams import stream

if TYPE_CHECKING:
    from secure_sccvfl.discovery import Sketch

__all__ = ["Budget", "BudgetError", "Charge", "GaussianNoise", "NoNoise", "Noise", "ReleasedTables"]

SIMULATION = "benchmark records of a plaintext run"


@dataclass(frozen=True)
class Budget:
    """Cap for one run and how it is spent: equal releases, each noised `copies` times at full scale.

    Two copies stand for the secure default, where the dealer and the holder of s each add full noise;
    only one of them is counted in the guarantee.
    """

    epsilon: float = 8.0
    delta: float = 1e-5
    releases: int = 5
    copies: int = 2

    def __post_init__(self) -> None:
        check_target(self.epsilon, self.delta)
        if self.releases < 1 or self.copies < 1:
            raise ValueError(f"releases and copies must be at least 1, got {self.releases}, {self.copies}")

    @property
    def multiplier(self) -> float:
        """Noise deviation over sensitivity of one release."""
        return noise_multiplier(self.epsilon, self.delta, self.releases)


@dataclass(frozen=True)
class Charge:
    """One release as it was charged."""

    name: str
    sensitivity: float
    multiplier: float
    epsilon_after: float


class Noise(Protocol):
    """Adds noise to a statistic of s and charges it in the same call."""

    def release(self, sums: dict[str, np.ndarray], name: str, sensitivity: float) -> dict[str, np.ndarray]:
        """Noisy copies of the statistics, charged together as one release of this joint sensitivity."""
        ...

    def deviation(self, sensitivity: float) -> float:
        """Standard deviation of what `release` adds, known to all."""
        ...

    def check(self, rows: int) -> None:
        """Refuse a cap that promises nothing for this many records."""
        ...


@dataclass
class GaussianNoise:
    """Plaintext engine: seeded Gaussian noise at the calibrated scale, refused beyond the cap.

    mechanism "paper": every table is scaled to norm `scale` first, as the paper does, and the noise is
    calibrated to what that leaves of the sensitivity. Same budget, correctly priced; for comparison.
    """

    budget: Budget
    seed: int
    mechanism: Mechanism = "gaussian"
    scale: float = 1.0
    charges: list[Charge] = field(default_factory=list)
    account: Account = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.account = Account.in_memory(SIMULATION, self.budget.epsilon, self.budget.delta)

    def check(self, rows: int) -> None:
        check_target(self.budget.epsilon, self.budget.delta, rows)

    def deviation(self, sensitivity: float) -> float:
        return self._event("deviation", sensitivity).sigma * math.sqrt(self.budget.copies)

    def release(self, sums: dict[str, np.ndarray], name: str, sensitivity: float) -> dict[str, np.ndarray]:
        exact = {k: self._scaled(v) for k, v in sums.items()}
        event = self._event(name, sensitivity)
        quote = self.account.charge(event, key=f"{len(self.charges)} {name}")
        self.charges.append(Charge(name, event.sensitivity, event.multiplier, quote.after))
        deviation = self.deviation(sensitivity)
        return {k: v + stream(self.seed, "noise", name, k).normal(0, deviation, v.shape) for k, v in exact.items()}

    def _event(self, name: str, sensitivity: float) -> Event:
        if self.mechanism == "paper":
            sensitivity = scaled_sensitivity(sensitivity, self.scale)
        sigma = sensitivity * self.budget.multiplier
        return Event(name, sensitivity, sigma, SIMULATION, refresh=len(self.charges), mechanism=self.mechanism)

    def _scaled(self, table: np.ndarray) -> np.ndarray:
        if self.mechanism != "paper":
            return table
        if (table < 0).any() or (table != np.round(table)).any():
            raise ValueError("the paper's mechanism is for tables of counts")
        norm = float(np.linalg.norm(table))
        return table * min(1.0, self.scale / norm) if norm > 0 else table


class NoNoise:
    """For comparison with noise-free scores only; no configuration of a run reaches it."""

    def check(self, rows: int) -> None:
        pass

    def deviation(self, sensitivity: float) -> float:
        return 0.0

    def release(self, sums: dict[str, np.ndarray], name: str, sensitivity: float) -> dict[str, np.ndarray]:
        return {k: v.astype(float) for k, v in sums.items()}


@dataclass(frozen=True)
class ReleasedTables:
    """Gives back what another run released, whatever it is asked: to compare engines on the same releases."""

    tables: Mapping[str, np.ndarray]
    scale: float

    @classmethod
    def of(cls, parts: Sequence[Sequence[Sketch]]) -> ReleasedTables:
        """From the averaged sketches of every party; the scale is that of a single release."""
        tables: dict[str, np.ndarray] = {}
        for sketches in parts:
            for name in sketches[0].tables:
                tables[name] = np.hstack([sketch.tables[name] for sketch in sketches])
        first = parts[0][0]
        return cls(tables, first.deviation * math.sqrt(first.releases))

    def check(self, rows: int) -> None:
        """Nothing is charged."""

    def deviation(self, sensitivity: float) -> float:
        return self.scale

    def release(self, sums: dict[str, np.ndarray], name: str, sensitivity: float) -> dict[str, np.ndarray]:
        return {key: self.tables[key] for key in sums}
