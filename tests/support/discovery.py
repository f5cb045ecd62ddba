"""A small consortium for tests of secret statistics: public layout, data of each party, a session that runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from secure_sccvfl.accounting.budget import Budget
from secure_sccvfl.accounting.records import RecordSet
from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.party import make_parties
from secure_sccvfl.discovery.decisions import DiscoveryConfig
from secure_sccvfl.discovery.noisy_tables import release_tables
from secure_sccvfl.discovery.residuals import ResidualDependence
from secure_sccvfl.discovery.scores import weigh
from secure_sccvfl.discovery.secure_statistics import SecureStatistics
from secure_sccvfl.discovery.statistics import GroupSums, PlainStatistics, Statistic
from secure_sccvfl.protocols.alignment.hidden_intersection import MembershipMask
from secure_sccvfl.protocols.records.releases import Release, ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.releases.catalogue import GROUP_SIZES, HSIC, RISK_GAINS, PlanFacts, plan_of
from secure_sccvfl.releases.charging import Charger
from secure_sccvfl.releases.noise import NoNoise
from tests.support.sessions import run_session

WIDTH = 8
MULTIPLIER = 3.0
WIDE = replace(RISK_GAINS, title="moments for party P", charge="moments", shape=("*", "groups"))
"""A release of sums that are wider than counts; no run makes it."""
PAPER = DiscoveryConfig(rule="fractions", score="paper")
"""A score without ties: others are 0 for every column in which noise explains the difference."""


def membership_shares(session: Session, held: np.ndarray) -> np.ndarray:
    """This party's shares of whether all parties have a record at a row, as the dealer deals them."""
    shares = session.party.zero_share((len(held),))
    return shares + held.all(axis=1) if session.rank == 0 else shares


class Noiseless(SecureStatistics):
    """The test switch: no configuration of a run makes one of these."""

    def _noise(self, event: Any, unit: float, rows: int, holders: Sequence[tuple[int]]) -> Any:
        return self._session.public(np.zeros((rows, len(holders))), 0)


@dataclass
class Consortium:
    """One-hot bins and kernel features that depend on the first protected attribute."""

    rows: int = 300
    columns: dict[int, dict[str, int]] = field(
        default_factory=lambda: {0: {"a": 3, "b": 2}, 1: {"c": 4}, 2: {"d": 2}}
    )
    holders: tuple[int, ...] = (1, 2)
    counts: tuple[int, ...] = (2, 3)
    seed: int = 0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.codes = [rng.permutation(np.arange(self.rows) % count) for count in self.counts]
        self.bins, self.kernel = {}, {}
        for widths in self.columns.values():
            for name, width in widths.items():
                self.bins[name] = np.eye(width)[(rng.integers(0, width, self.rows) + self.codes[0]) % width]
                angle = rng.normal(size=(self.rows, WIDTH // 2)) + self.codes[0][:, None]
                self.kernel[name] = np.hstack([np.cos(angle), np.sin(angle)]) / (WIDTH / 2) ** 0.5

    @property
    def features(self) -> int:
        return sum(len(widths) for widths in self.columns.values())

    @property
    def records(self) -> RecordSet:
        return RecordSet(np.arange(self.rows, dtype=np.uint64))

    @property
    def sensitivity(self) -> float:
        """What one record adds."""
        return float(np.sqrt(self.features * len(self.counts)))

    def party_columns(self, rank: int, what: str = "bins") -> dict[str, np.ndarray]:
        return {name: getattr(self, what)[name] for name in self.columns[rank]}

    def held(self, rank: int) -> list[np.ndarray | None]:
        return [codes if holder == rank else None for codes, holder in zip(self.codes, self.holders, strict=True)]

    def table(self, name: str, attribute: int) -> np.ndarray:
        return self.bins[name].T @ np.eye(self.counts[attribute])[self.codes[attribute]]

    def plan(self, tables: int = 3, more: Sequence[Release] = ()) -> ReleasePlan:
        facts = PlanFacts(self.columns, tuple(self.counts), refreshes=tables - 1, align="hidden")
        opened = [r for kind in (GROUP_SIZES, HSIC) for r in kind.releases(replace(facts, score="hsic"))]
        return ReleasePlan(
            [
                *plan_of(replace(facts, conditional=True, gain=True), "discovery"),
                *opened,
                *WIDE.releases(facts, times=1),
                *more,
            ]
        )

    def run(
        self,
        job: Callable[[Session, SecureStatistics, Budget], Any],
        kind: type[SecureStatistics] = Noiseless,
        cap: float = 100.0,
        noise: Any = "dealer+holder",
        plan: ReleasePlan | None = None,
        held: np.ndarray | None = None,
        **settings: Any,
    ) -> list[Any]:
        """`job` at every party, with its own budget in memory. held: at which rows each party has a record."""

        def work(session: Session) -> Any:
            budget = Budget.in_memory(cap, 1e-5)
            charger = Charger(session, budget, MULTIPLIER, session.agree_on_name(), self.records, noise)
            membership = None if held is None else MembershipMask.of(membership_shares(session, held))
            statistics = kind(session, self.columns, self.holders, self.rows, charger, membership)
            return job(session, statistics, budget)

        return run_session(work, len(self.columns), plan or self.plan(), **settings)

    def release_counts(self, session: Session, statistics: SecureStatistics, number: int = 0) -> Any:
        """One release of this party's tables."""
        return self.release(session, statistics, GroupSums(f"sketch-{number}", self.sensitivity))

    def release(
        self, session: Session, statistics: SecureStatistics, statistic: Statistic, columns: Any = None
    ) -> Any:
        """What this party gets of a release about its bins, its kernel features, or other columns of its own."""
        rank = session.rank
        what = "kernel" if isinstance(statistic, ResidualDependence) else "bins"
        columns = self.party_columns(rank, what) if columns is None else columns
        return statistics.release(statistic, columns, self.held(rank), self.counts).tables


class Study:
    """All records of a data set, its true scores, and noisy ones."""

    def __init__(self, name: str) -> None:
        self.data = load(name)
        self.parties = make_parties(self.data)
        self.owners = [p.layout.names for p in self.parties]
        self.features = len(self.data.features)
        self.truth = self.scores(PlainStatistics(NoNoise()))

    def noisy_tables(self, statistics, releases=1, protected=None):
        merged = ()
        for number in range(releases):
            protected = protected or self.data.protected
            fresh = release_tables(statistics, self.parties, protected, f"sketch-{number}", self.features)
            merged = tuple(a.merged(b) for a, b in zip(merged, fresh, strict=True)) if merged else fresh
        return merged

    def scores(self, statistics, releases=1):
        return weigh(self.noisy_tables(statistics, releases), PAPER, 0, self.owners).scores
