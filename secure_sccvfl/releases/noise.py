"""Noise of plaintext runs: the interface of noisy statistics, the budget of a run, and seeded Gaussian noise.

Events, sensitivities and scales are those of secure runs (`mechanisms.py`); the refusal beyond the budget is that of
`accounting`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from secure_sccvfl.accounting.budget import Budget
from secure_sccvfl.accounting.calibration import HeadBudget, check_target, noise_multiplier
from secure_sccvfl.accounting.events import Event, Mechanism, Sensitivity
from secure_sccvfl.accounting.records import RecordSet
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.protocols.operations import noise
from secure_sccvfl.protocols.operations.noise import NoiseKind
from secure_sccvfl.releases.mechanisms import (
    GramNoise,
    HeadNoise,
    HeadPlan,
    NoiseLevel,
    gram_event,
    noise_of_model,
    noised_event,
    price_head,
)

SIMULATION = RecordSet(np.zeros(1, np.uint64))
"""The records of a plaintext run: all of its releases are about the same records, so one stands for them."""


@dataclass(frozen=True)
class SpendingPlan:
    """The budget of one run and how it is spent: equal releases, with the noise of a secure run of this kind.

    head: a private head takes its share of the budget.
    """

    epsilon: float = 8.0
    delta: float = 1e-5
    releases: int = 2
    noise: NoiseKind = "dealer+holder"
    parties: int = 2
    head: HeadPlan | None = None

    def __post_init__(self) -> None:
        check_target(self.epsilon, self.delta)
        if self.releases < 1 or noise.copies(self.noise, self.parties) < 1:
            raise ValueError(f"releases and parties must be at least 1, got {self.releases}, {self.parties}")

    @property
    def multiplier(self) -> float:
        """Hidden noise over sensitivity of one release."""
        if self.head is not None:
            return self.head_budget.table_multiplier
        return noise_multiplier(self.epsilon, self.delta, self.releases)

    @property
    def head_budget(self) -> HeadBudget:
        """How tables and head share the budget."""
        if self.head is None:
            raise ValueError("this plan has no private head")
        return self.head.budget(self.epsilon, self.delta, self.releases)

    @property
    def level(self) -> NoiseLevel:
        """The noise of every release."""
        return NoiseLevel(self.multiplier, self.noise, self.parties)


@dataclass(frozen=True)
class SimulatedCharge:
    """One release as a plaintext run charged it."""

    name: str
    sensitivity: float
    multiplier: float
    epsilon_after: float


class Noise(Protocol):
    """Adds noise to a statistic of s and charges it in the same call."""

    def release(
        self, sums: dict[str, np.ndarray], name: str, sensitivity: Sensitivity, mechanism: Mechanism = "gaussian"
    ) -> dict[str, np.ndarray]:
        """The statistics with noise, charged together as one release of this joint sensitivity.

        mechanism "paper" says that these are tables that were scaled to a length.
        """
        ...

    def deviation(self, sensitivity: Sensitivity) -> float:
        """Standard deviation of what `release` adds, known to all."""
        ...

    def check(self, rows: int) -> None:
        """Refuse a budget that guarantees nothing for this many records."""
        ...


@dataclass
class GaussianNoise:
    """Plaintext runs: seeded Gaussian noise at the calibrated scale, refused beyond the budget."""

    plan: SpendingPlan
    seed: int
    charges: list[SimulatedCharge] = field(default_factory=list)
    account: Budget = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.account = Budget.in_memory(self.plan.epsilon, self.plan.delta)

    def check(self, rows: int) -> None:
        check_target(self.plan.epsilon, self.plan.delta, rows)

    def deviation(self, sensitivity: Sensitivity) -> float:
        sigma = self._event("deviation", sensitivity).sigma
        return noise.deviation(self.plan.noise, sigma, self.plan.parties)

    def release(
        self, sums: dict[str, np.ndarray], name: str, sensitivity: Sensitivity, mechanism: Mechanism = "gaussian"
    ) -> dict[str, np.ndarray]:
        event = self._event(name, sensitivity, mechanism)
        self._charge(event)
        deviation = noise.deviation(self.plan.noise, event.sigma, self.plan.parties)
        return {k: v + stream(self.seed, "noise", name, k).normal(0, deviation, v.shape) for k, v in sums.items()}

    def charge_gram(self, moved: Sensitivity) -> GramNoise:
        """Charge the Gram matrix of counterfactual changes; the plaintext engine draws its noise from the seed."""
        event, plan = gram_event(moved, self.plan.level, SIMULATION.digest), self.plan
        if plan.head is None or not plan.head.gram:
            raise ValueError("the budget has no share for the Gram matrix of records' counterfactuals")
        self._charge(event)
        kind = noise_of_model(plan.noise)
        return GramNoise(noise.deviation(kind, event.sigma, plan.parties), kind, seed=self.seed)

    def charge_heads(self, count: int) -> HeadNoise:
        """Charge the planned heads; the plaintext engine draws their noise from the seed."""
        plan = self.plan
        if plan.head is None:
            raise ValueError("the budget has no share for a private head")
        priced = price_head(plan.head, plan.head_budget, count, plan.noise, plan.parties, SIMULATION.digest)
        for event in priced.events:
            self._charge(event)
        factor = noise.deviation(priced.noise.kind, 1.0, plan.parties)  # all contributions as one
        return priced.noise.simulated(factor, self.seed)

    def _charge(self, event: Event) -> None:
        quote = self.account.charge(event, f"{len(self.charges)} {event.name}", SIMULATION)
        self.charges.append(SimulatedCharge(event.name, event.sensitivity, event.multiplier, quote.after))

    def _event(self, name: str, sensitivity: Sensitivity, mechanism: Mechanism = "gaussian") -> Event:
        level, number = self.plan.level, len(self.charges)
        return noised_event(name, sensitivity, level, SIMULATION.digest, number, mechanism=mechanism)


class NoNoise:
    """For comparison with noise-free scores only; no configuration of a run reaches it."""

    def check(self, rows: int) -> None:
        pass

    def deviation(self, sensitivity: Sensitivity) -> float:
        return 0.0

    def release(
        self, sums: dict[str, np.ndarray], name: str, sensitivity: Sensitivity, mechanism: Mechanism = "gaussian"
    ) -> dict[str, np.ndarray]:
        return {k: v.astype(float) for k, v in sums.items()}
