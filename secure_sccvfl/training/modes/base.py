"""The interface of gradient modes, what they get at one party, and what every mode opens."""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from secure_sccvfl.accounting.budget import Budget, BudgetError
from secure_sccvfl.accounting.calibration import HeadBudget, TargetError, noise_multiplier
from secure_sccvfl.accounting.events import Event
from secure_sccvfl.accounting.records import RecordSet
from secure_sccvfl.data.party_data import Schema
from secure_sccvfl.discovery.cached_releases import CachedReleases
from secure_sccvfl.discovery.statistics import Statistics
from secure_sccvfl.models.encoders import Encoder
from secure_sccvfl.policy.card import PolicyCard
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.protocols.records.private import private
from secure_sccvfl.protocols.records.releases import Release, ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.releases.catalogue import PlanFacts, plan_of
from secure_sccvfl.releases.charging import Charger
from secure_sccvfl.releases.mechanisms import COARSER, HeadPlan
from secure_sccvfl.training.config import TEMPERATURES, TrainConfig
from secure_sccvfl.training.model import Hooks, Problem, State
from secure_sccvfl.training.modes import gradient_mode
from secure_sccvfl.training.modes.options import RunOptions
from secure_sccvfl.training.secure import SecureEngine
from secure_sccvfl.training.trainer import Model, Phase, Trainer


@dataclass(frozen=True)
class PartyContext:
    """The inputs of a mode at one party. `state`: of a resumed run."""

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
                self.charger,
            )


@dataclass(frozen=True)
class Trained:
    """A model, the engine that holds its head, the steps taken, and the gradients opened to this party."""

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
        """(sampling, number) of charged releases other than the statistics of s."""
        ...

    def heads(self, options: RunOptions, schema: Schema) -> HeadPlan | None:
        """The inputs of the price of a private head; None if the model is not private."""
        ...

    def train(self, context: PartyContext) -> Trained:
        """Train; every process of a run calls this with its own data."""
        ...


def plan_facts(schema: Schema, options: RunOptions, sizes: Mapping[str, int] | None = None) -> PlanFacts:
    """The public facts that the plan of a run follows from."""
    dimensions = {"temperatures": len(TEMPERATURES) - 1, **(sizes or {})}
    names = options.tabled(schema)
    bins = {
        rank: {k: v for k, v in columns.items() if not names or k in names} for rank, columns in schema.bins.items()
    }
    facts = PlanFacts(bins, schema.group_counts, dimensions, may_be_missing=schema.may_be_missing)
    return facts.with_settings(SimpleNamespace(**options.flat()))


def discovery_releases(schema: Schema, options: RunOptions) -> list[Release]:
    """The releases of discovery only: alignment, statistics of s to their owners, scores to all."""
    return plan_of(replace(plan_facts(schema, options), bins=schema.bins), "alignment", "discovery")


def common_releases(schema: Schema, options: RunOptions) -> list[Release]:
    """What a run of any mode opens before it trains with consistency."""
    return plan_of(plan_facts(schema, options), "alignment", "discovery", "inputs", "edits")


def refuse_dp_sampling(options: RunOptions, mode: str) -> None:
    """Raise ConfigError if the options sample steps in a mode that cannot."""
    if options.training.dp_sampling != 1:
        raise ConfigError(f"dp_sampling is for mode dp, not {mode}")


def mode_plan(schema: Schema, options: RunOptions) -> ReleasePlan:
    """Everything that a run of its mode opens."""
    return ReleasePlan(gradient_mode(options.training.mode).releases(options, schema))


@dataclass(frozen=True)
class Spread:
    """How a run splits its budget: noise multiplier of a release of statistics, and the share of its heads."""

    multiplier: float
    heads: tuple[HeadPlan, HeadBudget] | None = None


def spread_of(options: RunOptions, schema: Schema, spent: tuple[Event, ...] = (), *, cached: bool = False) -> Spread:
    """A split such that all releases fit the budget without its reserve. cached: statistics are of an earlier run."""
    mode = gradient_mode(options.training.mode)
    steps, plan = mode.charged_steps(options), mode.heads(options, schema)
    coarse = tuple(COARSER.values()) if options.data.align == "hidden" and not cached else ()
    given = options.spendable, options.privacy.delta, 0 if cached else options.charged
    if plan is None:
        return Spread(noise_multiplier(*given, steps, spent, coarse))
    budget = plan.budget(*given, steps, spent, coarse)
    return Spread(budget.table_multiplier, (plan, budget))


def check_budget(options: RunOptions, schema: Schema) -> None:
    """Raise ConfigError if tables and heads together exceed the budget, from public inputs only.

    Any number of heads fits at noise that is large enough, so a grid of lambdas has the limit of `MOST_HEAD_NOISE`.
    """
    lam, cached = options.training.lambdas[-1], bool(options.privacy.cached_tables)
    try:
        all_heads = spread_of(options, schema, cached=cached)
        one = spread_of(options.changed(lambdas=(lam,), take_lambda=lam), schema, cached=cached)
    except TargetError as error:
        raise ConfigError(str(error)) from None
    if all_heads.heads is not None and _noise_of(all_heads) > MOST_HEAD_NOISE * _noise_of(one):
        raise ConfigError(
            f"{len(options.training.lambdas)} lambdas do not fit epsilon {options.spendable:g}: every head is charged"
            f", and each would carry more than {MOST_HEAD_NOISE:g} times the noise of one; give fewer lambdas"
        )


def noise_multiplier_of(options: RunOptions, schema: Schema) -> float:
    """Noise multiplier of every release of statistics."""
    return spread_of(options, schema).multiplier


MOST_NOISE = 4.0
"""How many times the noise of a fresh run a later one may carry to fit what is left of the cap."""
MOST_HEAD_NOISE = 8.0
"""The same for a head from cached tables, or one of a grid, over that of a head that has the whole cap."""
NOTHING_LEFT = (
    "too little is left of the cap for another head: every model that is trained is charged, also from cached "
    "tables; leave a reserve in the first run, or raise the cap together"
)


def planned_spread(
    session: Session,
    options: RunOptions,
    schema: Schema,
    budget: Budget,
    records: RecordSet,
    own_sessions: Collection[str],
    cached: CachedReleases | None = None,
) -> Spread:
    """Run by all parties together: the same for a run that shares the budget of these records with earlier ones.

    own_sessions: names of this run's sessions, whose charges it has planned itself. What is left may be the reserve
    of an earlier run, or come from a cap that was raised. If it would take more than `MOST_NOISE` times the noise of
    a fresh run, the plan is that of a fresh run, and the ledger refuses it. cached: statistics that were paid for
    before; then only heads are planned. One round of 8 bytes to each peer.

    The parties send each other one number, how much noise they need, and take the largest, so that no ledger is
    charged with more noise than is drawn. Everything else of the plan follows from that number and from public
    inputs, and each party computes it: another party can ask for more noise, and for nothing else. Figures that no
    honest party can need are refused.
    """
    if cached is not None and gradient_mode(options.training.mode).heads(options, schema) is None:
        return Spread(cached.multiplier)  # nothing is charged
    account = budget.account
    earlier = [charge for charge in account.charges if charge.key.partition(" ")[0] not in own_sessions]
    histories = replace(account, charges=tuple(earlier)).histories(records)
    fresh = spread_of(options, schema, cached=cached is not None)
    least, factor = _noise_of(fresh), MOST_NOISE if cached is None else MOST_HEAD_NOISE
    noise = max(_left(options, schema, events, cached is not None) for events in histories)
    if noise > factor * least and cached is not None:
        raise BudgetError(NOTHING_LEFT)
    mine = noise if noise <= factor * least else least
    wanted = [struct.unpack("<d", one)[0] for one in session.swap_bytes("planned noise", struct.pack("<d", mine))]
    for rank, value in enumerate(wanted):
        if not 0 < value <= factor * least:
            raise ProtocolError(f"party {rank} plans with noise that no run has; nothing was opened or charged")
    most = max(least, *wanted)
    spread = _at_noise(fresh, most)
    return spread if cached is None else replace(spread, multiplier=cached.multiplier)


def _left(options: RunOptions, schema: Schema, spent: tuple[Event, ...], cached: bool) -> float:
    """The noise at which a run fits the remaining budget, infinite if it does not."""
    try:
        return _noise_of(spread_of(options, schema, spent, cached=cached))
    except TargetError:
        return math.inf


def _noise_of(spread: Spread) -> float:
    """Of heads if there are any: their noise grows with that of the tables."""
    return spread.multiplier if spread.heads is None else spread.heads[1].head_multiplier


def _at_noise(fresh: Spread, noise: float) -> Spread:
    """How a run splits its budget at this noise, from the public plan of a fresh run."""
    if noise == _noise_of(fresh):
        return fresh
    if fresh.heads is None:
        return Spread(noise)
    plan, budget = fresh.heads
    noisier = plan.with_noise(budget, noise)
    return Spread(noisier.table_multiplier, (plan, noisier))


GRADIENTS = "gradients.npz"


@dataclass(frozen=True)
class Seen:
    """The view of a party of a step: the rows, and the gradient in its activations for each of them, as two factors.

    The gradient is a product of this rank (protocols/steps/split.py), so `signal` (rows x outputs) and `direction`
    (outputs x width) are all of it, and small enough that those of every step are kept.
    """

    rows: np.ndarray
    signal: np.ndarray = field(repr=False)
    direction: np.ndarray = field(repr=False)

    @classmethod
    def of(cls, rows: np.ndarray, gradient: np.ndarray, outputs: int) -> Seen:
        """The factors of a gradient (rows x width) of rank `outputs`."""
        u, values, v = np.linalg.svd(gradient, full_matrices=False)
        return cls(rows, u[:, :outputs] * values[:outputs], v[:outputs])


def keep_gradients(folder: Path, shown: tuple[Any, ...]) -> None:
    """Save the opened gradients as arrays for each step; the report and the security evaluation attack them."""
    arrays = {
        f"{field.name} {number}": getattr(step, field.name)
        for number, step in enumerate(shown)
        for field in fields(step)
    }
    with open(folder / GRADIENTS, "wb", opener=private) as file:
        np.savez(file, **arrays)
