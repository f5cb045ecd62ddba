"""Noise on statistics of s: the interface, and the plaintext engine's Gaussian.

What is charged and what is drawn come from one object. The neighbouring relation is adding or removing
one record. Issue C puts exact discrete noise, made in secret, behind the same interface.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import numpy as np
from dp_accounting import GaussianDpEvent, calibrate_dp_mechanism
from dp_accounting.rdp import RdpAccountant

from secure_sccvfl.streams import stream


class BudgetError(RuntimeError):
    """A release would cost more than the cap; nothing was released and nothing charged."""


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
        if not self.epsilon > 0:
            raise ValueError(f"epsilon must be positive, got {self.epsilon}")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta must lie between 0 and 1, got {self.delta}")
        if self.releases < 1 or self.copies < 1:
            raise ValueError(f"releases and copies must be at least 1, got {self.releases}, {self.copies}")

    @property
    def multiplier(self) -> float:
        """Noise deviation over sensitivity of one release."""
        return _calibrate(self.epsilon, self.delta, self.releases)


@lru_cache(maxsize=64)
def _calibrate(epsilon: float, delta: float, releases: int) -> float:
    def event(multiplier: float) -> GaussianDpEvent:
        return GaussianDpEvent(multiplier / math.sqrt(releases))

    return float(calibrate_dp_mechanism(RdpAccountant, event, epsilon, delta, tol=1e-4))


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


@dataclass
class GaussianNoise:
    """Plaintext engine: seeded Gaussian noise at the calibrated scale, refused beyond the cap."""

    budget: Budget
    seed: int
    charges: list[Charge] = field(default_factory=list)

    def deviation(self, sensitivity: float) -> float:
        return sensitivity * self.budget.multiplier * math.sqrt(self.budget.copies)

    def release(self, sums: dict[str, np.ndarray], name: str, sensitivity: float) -> dict[str, np.ndarray]:
        spent = RdpAccountant()
        for charge in self.charges:
            spent.compose(GaussianDpEvent(charge.multiplier))
        spent.compose(GaussianDpEvent(self.budget.multiplier))
        epsilon = float(spent.get_epsilon(self.budget.delta))
        if epsilon > self.budget.epsilon * (1 + 1e-3):
            raise BudgetError(f"{name}: epsilon would be {epsilon:.3f}, the cap is {self.budget.epsilon}")
        self.charges.append(Charge(name, sensitivity, self.budget.multiplier, epsilon))
        scale = self.deviation(sensitivity)
        return {k: v + stream(self.seed, "noise", name, k).normal(0, scale, v.shape) for k, v in sums.items()}


class NoNoise:
    """For comparison with noise-free scores only; no configuration of a run reaches it."""

    def deviation(self, sensitivity: float) -> float:
        return 0.0

    def release(self, sums: dict[str, np.ndarray], name: str, sensitivity: float) -> dict[str, np.ndarray]:
        return {k: v.astype(float) for k, v in sums.items()}
