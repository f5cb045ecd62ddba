"""Selective descendant discovery: noisy tables, scores, p-values, then roles with their confidence.

Each party's tables are opened to that party only. By default scores are computed under MPC from the noisy tables and
opened to all, and p-values and redraws follow from them at every party (`scores.py`). With other scores owners
announce all three. Everything after the release is post-processing of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

import numpy as np

from secure_sccvfl.accounting.budget import BudgetError
from secure_sccvfl.data.party import Attribute, Part, Party
from secure_sccvfl.discovery.decisions import DiscoveryConfig, RoleAssignment, benjamini_hochberg, confidence, decide
from secure_sccvfl.discovery.noisy_tables import NoisyTables, release_tables
from secure_sccvfl.discovery.residuals import Conditional, residual_hsic, residual_scores, residual_sums, risk_gains
from secure_sccvfl.discovery.scores import (
    PARTS,
    Evidence,
    Numbers,
    Opened,
    OpenedSquares,
    missing_p_value,
    packed,
    summed,
    unpacked,
    weigh,
)
from secure_sccvfl.discovery.statistics import PlainStatistics, Statistics, Tables
from secure_sccvfl.policy.card import PolicyCard
from secure_sccvfl.policy.roles import PolicyError
from secure_sccvfl.releases import catalogue
from secure_sccvfl.releases.catalogue import Kind
from secure_sccvfl.releases.noise import Noise

Audit = Callable[[str, Mapping[str, Any]], None]
"""Called with every decision and the numbers that it rests on."""


@dataclass(frozen=True)
class Discovery:
    """Discovery of one run: what stays the same in every release of the tables. Every process runs the same steps."""

    statistics: Statistics
    parties: Sequence[Party]
    protected: Sequence[Attribute]
    features: int
    config: DiscoveryConfig
    seed: int
    card: PolicyCard | None = None
    audit: Audit = lambda event, numbers: None
    records: str = ""
    owners: Mapping[str, str] = field(default_factory=dict)
    """The party of every feature; public."""
    tabled: tuple[str, ...] = ()
    """The columns that have a table; empty: all. Others have no score and no proposed role."""
    released: tuple[str, ...] | None = None
    """The columns that a release is about, where cached releases are of more than these; empty: all."""
    may_be_missing: tuple[str, ...] = ()
    """The columns of all parties that have a table and whose values may be missing; public."""

    def __post_init__(self) -> None:
        if self.card is not None:
            check_support(self.card, self.parties)

    @classmethod
    def plain(cls, noise: Noise, part: Part, features: int, config: DiscoveryConfig, seed: int, **more: Any) -> Self:
        """On the plaintext engine, about records of all parties."""
        return cls(PlainStatistics(noise), part.parties, part.protected, features, config, seed, **more)

    def conditional(self, others: Sequence[Party]) -> tuple[Conditional, ...]:
        """Dependence of features on s given their owner's other columns, if the settings ask for it: a release each.

        `others` holds the same columns of records that the statistic is not about: residuals are fitted on them.
        """
        given = self.statistics, self.parties, others, self.protected, self.features
        measures = []
        if self.config.conditional:
            evidence = residual_hsic(residual_scores(*given, self.seed), self.parties, self.protected, self.seed)
            measures.append(self._announced_conditional(catalogue.RESIDUAL_SCORES, evidence))
        if self.config.gain:
            evidence = risk_gains(residual_sums(*given), self.parties, self.protected, self.seed)
            measures.append(self._announced_conditional(catalogue.GAINS, evidence))
        return tuple(measures)

    def _announced_conditional(self, kind: Kind, evidence: Conditional) -> Conditional:
        publish = self.statistics.publish
        drawn = publish(catalogue.REDRAWN_CONDITIONAL.name, packed(evidence.redrawn))
        return Conditional(publish(kind.name, evidence.values), {k: v.tolist() for k, v in unpacked(drawn).items()})

    def refresh(
        self,
        number: int,
        tables: tuple[NoisyTables, ...] = (),
        assignment: RoleAssignment | None = None,
        conditional: Sequence[Conditional] = (),
    ) -> tuple[tuple[NoisyTables, ...], RoleAssignment]:
        """One more release, averaged with the earlier ones. If the budget refuses it, the last roles stay."""
        try:
            fresh = self._tables(catalogue.NOISY_TABLES.charged_as(number))
        except BudgetError as error:
            if assignment is None:
                raise
            self.audit("refresh refused", {"refresh": number, "reason": str(error)})
            logging.getLogger("party").warning("no refresh %d, tables and roles stay: %s", number, error)
            return tables, assignment
        if tables:
            fresh = tuple(a.merged(b, self.config.decay) for a, b in zip(tables, fresh, strict=True))
        evidence, opened = self._evidence(fresh)
        previous = assignment.proposed if assignment is not None else None
        decided = decide(evidence, self.config, previous, self.card, self.owners, conditional)
        records = tuple({**one._asdict(), "sizes": one.sizes.tolist()} for one in opened)
        decided = replace(decided, opened=records)
        numbers = {"refresh": number, "releases": fresh[0].releases, "deviation": fresh[0].deviation}
        beyond = [dict(measure.values) for measure in conditional]
        rests_on = {"tables": dict(evidence.scores), "conditional": beyond, "settings": asdict(self.config)}
        rests_on |= dict(zip(PARTS, map(dict, evidence.parts), strict=False))
        self.audit("roles", {**numbers, **decided.as_record(), **rests_on})
        return fresh, decided

    def proposed(self, releases: int, conditional: Sequence[Conditional] = ()) -> RoleAssignment:
        """So many releases one after the other, with nothing trained in between: roles with their confidence."""
        tables, assignment = self.refresh(0, conditional=conditional)
        for number in range(1, releases):
            tables, assignment = self.refresh(number, tables, assignment, conditional)
        return self.with_confidence(tables, assignment, conditional)

    def _tables(self, name: str) -> tuple[NoisyTables, ...]:
        clip = self.config.clip if self.config.sketch == "clipped" else None
        given = self.statistics, self.parties, self.protected
        about = self.tabled if self.released is None else self.released
        tables = release_tables(*given, name, self.features, self.records, clip, about)
        if not self.tabled:
            return tables
        return tuple(replace(t, tables={k: v for k, v in t.tables.items() if k in self.tabled}) for t in tables)

    def with_confidence(
        self, tables: Sequence[NoisyTables], assignment: RoleAssignment, conditional: Sequence[Conditional] = ()
    ) -> RoleAssignment:
        """The roles with the confidence of each proposal, after the last release. Every process calls this."""
        if self.config.score == "hsic":
            opened = [Opened(**{**one, "sizes": np.array(one["sizes"])}) for one in assignment.opened]
            redrawn = self._of_squares(tables, opened, redrawn=True)
        else:
            redrawn = self._of_owners(tables, redrawn=True)
        sure = confidence(redrawn, conditional, self.config, assignment.proposed, self.seed, self.owners)
        self.audit("confidence", {"proposed": dict(assignment.proposed), "confidence": sure})
        return replace(assignment, confidence=sure, missing_depends=self._missing_depends(tables))

    def _missing_depends(self, tables: Sequence[NoisyTables]) -> tuple[str, ...]:
        """Columns whose missingness depends on s: owners test their tables and announce p-values."""
        if not self.may_be_missing:
            return ()
        local: dict[str, float] = {}
        for noisy in tables:
            for party in self.parties:
                held = {k: noisy.tables[k] for k in party.layout.names if k in noisy.tables}
                for name in self.may_be_missing:
                    if name in held:
                        p = len(tables) * missing_p_value(name, held, noisy.deviation)
                        local[name] = min(local.get(name, 1.0), p)
        announced = self.statistics.publish(catalogue.MISSING_P_VALUES.name, local)
        depends = tuple(sorted(benjamini_hochberg(announced, self.config.fdr)))
        self.audit("missing values", {"p_values": announced, "missing_depends": depends})
        return depends

    def _evidence(self, tables: Sequence[NoisyTables]) -> tuple[Evidence, tuple[Opened, ...]]:
        """Evidence from the tables, and what was opened to all for it."""
        if self.config.score != "hsic":
            return self._of_owners(tables), ()
        counts = [len(a.groups) for a in self.protected]
        opened = self.statistics.projected(_by_attribute(tables), tables[0].releases, counts, self.tabled)
        return self._of_squares(tables, opened), opened

    def _of_squares(self, tables: Sequence[NoisyTables], opened: Sequence[Opened], redrawn: bool = False) -> Evidence:
        """Evidence from the squares that were opened to all: the strongest over attributes, each of which is a test.

        `redrawn`: what REDRAWS other runs might have given.
        """
        bins = self.statistics.bins(_by_attribute(tables), self.tabled)
        every = [OpenedSquares(t.attribute, one, bins, t.deviation) for t, one in zip(tables, opened, strict=True)]
        scores: dict[str, Any] = {}
        p_values: dict[str, Any] = {}
        for k in sorted(bins):
            squares = [one.redrawn(k, catalogue.REDRAWS, self.seed) if redrawn else None for one in every]
            drawn = list(zip(every, squares, strict=True))
            score = np.max([one.score(k, seen) for one, seen in drawn], axis=0)
            least = np.min([one.p_values(k, self.seed, seen) for one, seen in drawn], axis=0)
            p = np.minimum(1.0, len(every) * least)
            scores[k], p_values[k] = (score, p) if redrawn else (float(score), float(p))
        return Evidence(scores, p_values if self.config.rule == "fdr" else {})

    def _of_owners(self, tables: Sequence[NoisyTables], redrawn: bool = False) -> Evidence:
        """Evidence that owners compute from their own tables and announce to all."""
        names = [[k for k in p.layout.names if not self.tabled or k in self.tabled] for p in self.parties]
        evidence = weigh(tables, self.config, self.seed, names, redrawn)
        kinds = (
            (catalogue.REDRAWN_SCORES, catalogue.REDRAWN_P_VALUES)
            if redrawn
            else (catalogue.SCORES, catalogue.P_VALUES)
        )

        def announced(kind: Kind, values: Numbers) -> Numbers:
            if redrawn:
                return unpacked(self.statistics.publish(kind.name, packed(values)))
            return self.statistics.publish(kind.name, values)

        if evidence.parts:
            parts = [announced(kinds[0], part) for part in evidence.parts]
            return Evidence(summed(parts), {}, parts)
        return Evidence(
            announced(kinds[0], evidence.scores) if self.config.score != "conditional" else {},
            announced(kinds[1], evidence.p_values) if self.config.rule == "fdr" else {},
        )


def _by_attribute(tables: Sequence[NoisyTables]) -> Tables:
    return tuple(dict(one.tables) for one in tables)


def check_support(card: PolicyCard, parties: Sequence[Party]) -> None:
    """Raise if the card lets a column follow from s whose records all have one value: none supports that role.

    Each owner checks its own columns, before anything is opened.
    """
    followers = set(card.roles.descendants)
    for party in parties:
        for name, counts in (party.bin_counts() if followers else {}).items():
            if name in followers and (counts > 0).sum() < 2:
                raise PolicyError(
                    f"the policy card gives {name!r} role {card.roles.of[name]}, but no record of {party.name} "
                    "supports that: all have the same value there; give it role N"
                )
