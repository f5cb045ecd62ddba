"""Settings of the method, and the rule that picks a lambda."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np

from secure_sccvfl.discovery.decisions import DiscoveryConfig
from secure_sccvfl.model.encoders import EncoderKind
from secure_sccvfl.model.generators import GeneratorConfig
from secure_sccvfl.privacy.releases import charged_statistics
from secure_sccvfl.training.engine import ConsistencyKind, Target

TEMPERATURES = tuple(float(t) for t in np.geomspace(0.5, 3.0, 25))
EvaluationKind = Literal["noisy", "exact"]
"""How held-out records are evaluated: with noise that is charged, or exactly, which is not private."""


@dataclass(frozen=True)
class TrainConfig:
    """Settings of the sealed method; reports use the defaults.

    Rule for lambda: the smallest value of the grid at which, on validation and under the run's own generator, the
    root-mean-square gap is at most `gap_target` of the logit's spread; the largest if none. `flip_target` replaces
    the gap by the share of decisions that flip. `take_lambda` names a lambda of the grid instead. With evaluation
    `noisy` nothing about validation records is opened. On German ten times as many `steps` change the validation loss
    by less than .002 at the first lambda and .0005 at the others.

    `guard` is the weight of the guard on proxies. With `guard_grows` it is a share of lambda instead.
    """

    encoder: EncoderKind = "plain"
    consistency: ConsistencyKind = "squared"
    lambdas: tuple[float, ...] = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0)
    gap_target: float = 0.07
    flip_target: float | None = None
    take_lambda: float | None = None
    guard: float = 0.1
    guard_grows: bool = False
    ridge: float = 5e-3
    refreshes: int = 4
    warmup: int = 60
    steps: int = 60
    rate: float = 0.2
    momentum: float = 0.9
    keep_every: int = 10
    evaluation: EvaluationKind = "exact"
    discovery: DiscoveryConfig = field(default_factory=DiscoveryConfig)
    generator: GeneratorConfig = field(default_factory=GeneratorConfig)

    def __post_init__(self) -> None:
        if not self.lambdas or list(self.lambdas) != sorted(self.lambdas) or self.lambdas[0] < 0:
            raise ValueError(f"lambdas must rise from 0 or more, got {self.lambdas}")
        if not 0 < self.gap_target <= 1 or self.guard < 0 or self.ridge <= 0:
            raise ValueError(f"bad gap_target {self.gap_target}, guard {self.guard} or ridge {self.ridge}")
        if self.flip_target is not None and not 0 < self.flip_target <= 1:
            raise ValueError(f"flip_target must be above 0 and at most 1, got {self.flip_target}")
        if self.take_lambda is not None and self.take_lambda not in self.lambdas:
            raise ValueError(f"lambda {self.take_lambda:g} is not in the grid {self.lambdas}")
        if self.take_lambda is not None and self.flip_target is not None:
            raise ValueError("name a lambda or a target of flips, not both")
        if min(self.warmup, self.steps, self.keep_every) < 1 or self.refreshes < 0:
            raise ValueError("warmup, steps and keep_every must be at least 1, refreshes at least 0")
        if self.evaluation not in get_args(EvaluationKind):
            raise ValueError(f"evaluation must be noisy or exact, got {self.evaluation!r}")

    @property
    def target(self) -> Target:
        """The rule for lambda where none is named."""
        return Target("gap", self.gap_target) if self.flip_target is None else Target("flips", self.flip_target)

    def only(self, lam: float) -> TrainConfig:
        """The same with a grid of this one lambda."""
        return replace(self, lambdas=(lam,), take_lambda=None)

    @property
    def charged(self) -> int:
        """How many releases of statistics of s a run makes, for which its budget is planned."""
        return charged_statistics(self, self.discovery, self.generator)


def warmup_steps(config: TrainConfig) -> int:
    """Steps before consistency: the same number after each release of the sketch."""
    rounds = config.refreshes + 1
    return config.warmup // rounds * rounds
