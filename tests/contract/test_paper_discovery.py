"""The paper's tri-partition on both engines: from the same noisy tables each proposes the same roles."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.accounting.budget import Budget
from secure_sccvfl.accounting.calibration import noise_multiplier
from secure_sccvfl.accounting.records import RecordSet
from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.party import make_parties, part_of
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.discovery.decisions import RoleAssignment
from secure_sccvfl.discovery.discovery import Discovery
from secure_sccvfl.discovery.noisy_tables import NoisyTables
from secure_sccvfl.discovery.scores import PARTS, probability_gap, table_hsic
from secure_sccvfl.discovery.secure_statistics import SecureStatistics
from secure_sccvfl.discovery.statistics import PlainStatistics, Released
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.releases.catalogue import PlanFacts, plan_of
from secure_sccvfl.releases.charging import Charger
from secure_sccvfl.training import RECIPES
from tests.support.gradient_modes import GROUP_HOLDERS, PARTIES, german, parts
from tests.support.sessions import Recorded, run_session

RECIPE = RECIPES.get("paper")
DATA = load("german")
COLUMNS = {rank: {f.name: f.bins for f in table.features} for rank, table in enumerate(DATA.parties)}
RELEASES = 1 + RECIPE.late_refreshes


@dataclass
class Kept:
    """What one engine released and decided; `audited`: the numbers of each refresh, `first`: its first sketch."""

    tables: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    deviation: float = 0.0
    first: dict[str, np.ndarray] = field(default_factory=dict)
    assignments: list[RoleAssignment] = field(default_factory=list)
    audited: list[dict[str, Any]] = field(default_factory=list)

    def discover(self, statistics: Any, part: Any) -> Kept:
        """All releases of a run of method `paper`, and then the confidence of its roles."""

        def audit(event: str, numbers: Any) -> None:
            if event == "roles":
                self.audited.append(dict(numbers))

        given = (statistics, part.parties, part.protected, len(DATA.features), RECIPE.discovery, 0)
        discovery = Discovery(*given, audit=audit, owners=DATA.owners)
        noisy_tables: tuple[NoisyTables, ...] = ()
        assignment: RoleAssignment | None = None
        for number in range(RELEASES):
            noisy_tables, assignment = discovery.refresh(number, noisy_tables, assignment)
            self.assignments.append(assignment)
            self.first = self.first or dict(noisy_tables[0].tables)
        assert assignment is not None
        self.assignments.append(discovery.with_confidence(noisy_tables, assignment))
        return self


class Watched(SecureStatistics):
    """Keeps the noisy tables that this party's own columns were released with."""

    kept: Kept

    def release(self, statistic: Any, columns: Any, groups: Any, counts: Any) -> Released:
        released = super().release(statistic, columns, groups, counts)
        self.kept.tables[statistic.name] = {k: np.hstack([part[k] for part in released.tables]) for k in columns}
        self.kept.deviation = released.numbers["deviation"]
        return released


@pytest.fixture(scope="module")
def secure() -> list[Kept]:
    """Three parties under MPC, each with its own columns."""
    rows = len(make_split(DATA, "iid", 0).train)

    def job(session: Session) -> Kept:
        part = parts(german(), session.rank)[0]
        records = RecordSet(np.arange(rows, dtype=np.uint64))
        multiplier = noise_multiplier(8.0, 1e-5, RELEASES)
        budget = Budget.in_memory(8.0, 1e-5)
        charger = Charger(session, budget, multiplier, session.agree_on_name(), records, "dealer+holder")
        statistics = Watched(session, COLUMNS, GROUP_HOLDERS, rows, charger)
        statistics.kept = Kept()
        return statistics.kept.discover(statistics, part)

    facts = PlanFacts(COLUMNS, (2,)).with_settings(RECIPE, RECIPE.discovery)
    return run_session(job, PARTIES, ReleasePlan(plan_of(facts, "discovery")))


@pytest.fixture(scope="module")
def plain(secure: list[Kept]) -> Kept:
    """The plaintext engine on the tables of that session."""
    tables = {name: {k: v for kept in secure for k, v in kept.tables[name].items()} for name in secure[0].tables}
    noise = Recorded(tables, secure[0].deviation)
    part = part_of(DATA, make_split(DATA, "iid", 0).train, make_parties(DATA))
    return Kept().discover(PlainStatistics(noise), part)


def test_both_engines_propose_the_same_roles_from_the_same_noisy_tables(secure: list[Kept], plain: Kept) -> None:
    """After each release, with hysteresis; scores and confidence are the same numbers, too."""
    for kept in secure:
        assert [f.proposed for f in kept.assignments] == [f.proposed for f in plain.assignments]
        for assignment, reference in zip(kept.assignments, plain.assignments, strict=True):
            assert assignment.scores == reference.scores
        assert kept.assignments[-1].confidence == plain.assignments[-1].confidence
    assert set(plain.assignments[-1].confidence) == set(DATA.owners)


def test_roles_under_mpc_are_those_of_section_3_2(secure: list[Kept]) -> None:
    """Decided again from the tables, without the code of discovery: HSIC for M, the gap within M for P, by party."""
    tables = {k: v for kept in secure for k, v in kept.first.items()}
    hsic = {k: float(table_hsic(v)) for k, v in tables.items()}
    gap = {k: float(probability_gap(v)) for k, v in tables.items()}
    wanted = dict.fromkeys(tables, "N")
    for names in COLUMNS.values():
        m = sorted(names, key=lambda k: (-hsic[k], k))[: round(0.6 * len(names))]
        p = sorted(m, key=lambda k: (-gap[k], k))[: round(0.5 * len(m))]
        wanted |= dict.fromkeys(m, "M") | dict.fromkeys(p, "P")
    assignment, numbers = secure[0].assignments[0], secure[0].audited[0]
    assert dict(assignment.proposed) == wanted
    assert assignment.scores == pytest.approx({k: hsic[k] + gap[k] for k in hsic}), "their sum is the score"
    assert [numbers[name] == pytest.approx(part) for name, part in zip(PARTS, (hsic, gap), strict=True)] == [True] * 2


def test_the_cap_on_refreshes_is_that_of_the_plan(secure: list[Kept]) -> None:
    assert [sorted(kept.tables) for kept in secure] == [["sketch-0", "sketch-1"]] * PARTIES
    assert RECIPE.charged == RELEASES == 2
