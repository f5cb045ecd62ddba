"""What a gradient mode is, what it trains with at one party, and what every mode opens."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from accounting.budget import Budget
from accounting.calibration import noise_multiplier
from accounting.events import Event
from accounting.records import RecordSet
from protocols.config import ConfigError
from protocols.records.private import private
from protocols.records.releases import Release, ReleasePlan
from protocols.session.runtime import Session
from secure_sccvfl.data.party_data import Schema
from secure_sccvfl.discovery.statistics import Statistics
from secure_sccvfl.model.encoders import Encoder
from secure_sccvfl.modes import gradient_mode
from secure_sccvfl.modes.options import RunOptions
from secure_sccvfl.policy.card import PolicyCard
from secure_sccvfl.privacy.charging import Charger
from secure_sccvfl.privacy.kinds import Facts
from secure_sccvfl.privacy.noise import COARSER
from secure_sccvfl.privacy.releases import plan_of
from secure_sccvfl.training.config import TEMPERATURES, TrainConfig
from secure_sccvfl.training.secure import SecureEngine
from secure_sccvfl.training.state import Hooks, Problem, State
from secure_sccvfl.training.trainer import Model, Phase, Trainer


@dataclass(frozen=True)
class Workplace:
    """What a mode trains with at one party. `state` is the state of a resumed run."""

    engine: SecureEngine
    statistics: Statistics
    schema: Schema
    problem: Problem
    options: RunOptions
    charger: Charger
    hooks: Hooks
    phase: Phase
    card: PolicyCard | None = None
    state: State | None = None

    def trainer(
        self,
        config: TrainConfig,
        encoders: Mapping[int, Encoder] | None = None,
        driver: type[Trainer] = Trainer,
    ) -> Trainer:
        """The driver of the sealed method; making it shares the inputs. `encoders` were trained before."""
        with self.phase("inputs"):
            return driver(
                self.engine,
                self.statistics,
                self.problem,
                config,
                self.options.drawn_seed,
                self.card,
                self.hooks,
                encoders,
            )


@dataclass(frozen=True)
class Trained:
    """A model, the engine that holds its head, the steps taken, and the gradients that this party was shown."""

    model: Model
    engine: SecureEngine
    steps: int
    shown: tuple[Any, ...] = field(default=(), repr=False)


class GradientMode(Protocol):
    """One way to train after the statistics of s are known."""

    def check(self, options: RunOptions, schema: Schema) -> None:
        """Raise ConfigError for settings that the mode does not support."""
        ...

    def releases(self, options: RunOptions, schema: Schema) -> list[Release]:
        """Everything that a run of this mode opens."""
        ...

    def charged_steps(self, options: RunOptions) -> tuple[tuple[float, int], ...]:
        """(sampling, number) of charged releases besides the statistics of s."""
        ...

    def train(self, place: Workplace) -> Trained:
        """Every process of a run calls this with what it holds."""
        ...


def facts_of(schema: Schema, options: RunOptions, sizes: Mapping[str, int] | None = None) -> Facts:
    """What the plan of a run follows from."""
    known = {"temperatures": len(TEMPERATURES) - 1, **(sizes or {})}
    return Facts(schema.bins, schema.group_counts, known).with_settings(options)


def discovery_releases(schema: Schema, options: RunOptions) -> list[Release]:
    """The first releases of every run: alignment, statistics of s to their owners, scores to all."""
    return plan_of(facts_of(schema, options), "alignment", "discovery")


def common_releases(schema: Schema, options: RunOptions) -> list[Release]:
    """What a run of any mode opens before it trains with consistency."""
    return plan_of(facts_of(schema, options), "alignment", "discovery", "inputs", "edits")


def check_sampling(options: RunOptions, mode: str) -> None:
    """Raise ConfigError if the options sample steps in a mode that cannot."""
    if options.dp_sampling != 1:
        raise ConfigError(f"dp_sampling is for mode dp, not {mode}")


def mode_plan(schema: Schema, options: RunOptions) -> ReleasePlan:
    """Everything that a run of its mode opens."""
    return ReleasePlan(gradient_mode(options.mode).releases(options, schema))


def noise_multiplier_of(options: RunOptions, spent: tuple[Event, ...] = ()) -> float:
    """Hidden noise over sensitivity of every release: together they fit the cap without its reserve."""
    steps = gradient_mode(options.mode).charged_steps(options)
    coarse = tuple(COARSER.values()) if options.align == "hidden" else ()
    return noise_multiplier(options.spendable, options.delta, options.charged, steps, spent, coarse)


MOST_NOISE = 4.0
"""How many times the noise of a fresh run a later one may carry to fit what is left of the cap."""


def planned_multiplier(
    session: Session, options: RunOptions, budget: Budget, records: RecordSet, own: Collection[str]
) -> float:
    """Run by all parties together: the same for a run that shares the cap of these records with earlier ones.

    own: names of this run's sessions, whose charges it has planned itself. What is left may be the reserve of an
    earlier run, or come from a cap that was raised. If it would take more than `MOST_NOISE` times the noise of a
    fresh run, the plan is that of a fresh run, and the ledger refuses it. The parties take the largest of their
    figures, so that no ledger is charged with more noise than is drawn. One round of 8 bytes to each peer.
    """
    account = budget.account
    earlier = [charge for charge in account.charges if charge.key.partition(" ")[0] not in own]
    histories = replace(account, charges=tuple(earlier)).histories(records)
    fresh = noise_multiplier_of(options)
    found = max(noise_multiplier_of(options, events) for events in histories)
    mine = found if found <= MOST_NOISE * fresh else fresh
    told = session.swap_bytes("planned noise", np.float64(mine).tobytes())
    return max(float(np.frombuffer(one, np.float64)[0]) for one in told)


GRADIENTS = "gradients.npz"


def keep_gradients(folder: Path, shown: tuple[Any, ...]) -> None:
    """Keep what this party was shown, as arrays for each step; the report and the security evaluation attack it."""
    arrays = {
        f"{field.name} {number}": getattr(step, field.name)
        for number, step in enumerate(shown)
        for field in fields(step)
    }
    with open(folder / GRADIENTS, "wb", opener=private) as file:
        np.savez(file, **arrays)
