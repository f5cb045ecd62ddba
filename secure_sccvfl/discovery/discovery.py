"""Selective descendant discovery: noisy tables, scores, p-values, then roles with their confidence.

Each party's tables are opened to that party alone. By default scores are computed under MPC from the noisy tables and
opened to all, and p-values and redraws follow from them at every party (`projected.py`). With other scores owners
announce all three. Everything after the release is post-processing of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from accounting.budget import BudgetError
from secure_sccvfl.data.party import Attribute, Party
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.discovery.decisions import DiscoveryConfig, RoleAssignment, confidence, decide
from secure_sccvfl.discovery.evidence import Conditional, Evidence, OwnTables, Redrawn, p_value, packed, unpacked
from secure_sccvfl.discovery.gains import Halves, release_halves
from secure_sccvfl.discovery.noisy_tables import (
    NoisyTables,
    release_tables,
    residual_scores,
)
from secure_sccvfl.discovery.projected import Projected
from secure_sccvfl.discovery.scores import PARTS, ScoreKind, TableScore
from secure_sccvfl.discovery.statistics import Opened, Statistics
from secure_sccvfl.policy.card import PolicyCard
from secure_sccvfl.policy.roles import PolicyError
from secure_sccvfl.releases.kinds import REDRAWS, Kind
from secure_sccvfl.releases.releases import (
    GAINS,
    P_VALUES,
    REDRAWN_CONDITIONAL,
    REDRAWN_P_VALUES,
    REDRAWN_SCORES,
    RESIDUAL_SCORES,
    SCORES,
    SKETCH,
)

Audit = Callable[[str, Mapping[str, Any]], None]
"""Called with every decision and the numbers that it rests on."""


def _own_tables(
    sketches: Sequence[NoisyTables], kind: ScoreKind | TableScore, owners: Sequence[Sequence[str]]
) -> list[tuple[str, OwnTables]]:
    """The tables of each owner with each attribute, which is named; none if they are not scored."""
    made: list[tuple[str, OwnTables]] = []
    if kind == "hsic" or kind == "conditional":
        return made
    for sketch in sketches:
        for own in owners:
            tables = {k: sketch.tables[k] for k in own}
            made.append((sketch.attribute, OwnTables(tables, sketch.deviation, kind)))
    return made


def _independent(tables: OwnTables, attribute: str, name: str, config: DiscoveryConfig, seed: int) -> np.ndarray:
    return tables.independent_scores(name, config.simulations, stream(seed, "p", attribute, name))


def weigh(
    sketches: Sequence[NoisyTables],
    config: DiscoveryConfig,
    seed: int,
    owners: Sequence[Sequence[str]],
) -> Evidence:
    """Party step, local: scores and p-values of the features whose tables this process holds.

    `owners`: the features of each party of this process. A party's results use no other party's tables.
    """
    if config.rule == "tri-partition":
        parts = tuple(_strongest(sketches, kind, owners) for kind in PARTS)
        return Evidence(_summed(parts), {}, parts=parts)
    scores: dict[str, float] = {}
    p_values: dict[str, float] = {}
    for attribute, tables in _own_tables(sketches, config.score, owners):
        for name in tables.of:
            scores[name] = max(scores.get(name, 0.0), tables.score(name))
            if config.rule == "fdr":
                independent = _independent(tables, attribute, name, config, seed)
                p = len(sketches) * float(p_value(np.array(tables.score(name)), independent))
                p_values[name] = min(1.0, p, p_values.get(name, 1.0))
    return Evidence(scores, p_values)


def _strongest(
    sketches: Sequence[NoisyTables], kind: TableScore, owners: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Scores of one kind, the largest over attributes."""
    scores: dict[str, float] = {}
    for _, tables in _own_tables(sketches, kind, owners):
        scores |= {name: max(scores.get(name, 0.0), tables.score(name)) for name in tables.of}
    return scores


def _summed(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: sum(part[name] for part in parts) for name in parts[0]}


def redraw(
    sketches: Sequence[NoisyTables], config: DiscoveryConfig, seed: int, owners: Sequence[Sequence[str]]
) -> Redrawn:
    """Party step, local: the same numbers as another run might have given, REDRAWS times for each own feature.

    With the rule "tri-partition" both parts of a score are of the same redrawn tables.
    """
    drawn_as: list[dict[str, np.ndarray]] = []
    p_values: dict[str, np.ndarray] = {}
    by_parts = config.rule == "tri-partition"
    for kind in PARTS if by_parts else (config.score,):
        scores: dict[str, np.ndarray] = {}
        for attribute, tables in _own_tables(sketches, kind, owners):
            for name in tables.of:
                drawn = tables.redrawn_scores(name, REDRAWS, stream(seed, "redrawn role", attribute, name))
                scores[name] = np.maximum(scores.get(name, 0.0), drawn)
                if config.rule == "fdr":
                    p = len(sketches) * p_value(drawn, _independent(tables, attribute, name, config, seed))
                    p_values[name] = np.minimum(p_values.get(name, 1.0), p)
        drawn_as.append(scores)
    return Redrawn(_summed(drawn_as), p_values, drawn_as if by_parts else ())


@dataclass(frozen=True)
class Discovery:
    """Discovery of one run: the parts that stay the same in every refresh. Every process runs the same steps."""

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
    """The columns that a release is about, where kept tables are of more than these; empty: all."""

    def __post_init__(self) -> None:
        if self.card is not None:
            check_support(self.card, self.parties)

    def conditional(self, others: Sequence[Party]) -> tuple[Conditional, ...]:
        """What features show beyond their owner's other columns, as far as the settings ask: a release each.

        `others` holds the same columns of records that the statistic is not about: residuals are fitted on them.
        """
        given = self.statistics, self.parties, others, self.protected, self.features
        found = []
        if self.config.conditional:
            noisy, deviation = residual_scores(*given, self.seed)
            found.append(self._told(RESIDUAL_SCORES, self._dependence(noisy, deviation)))
        if self.config.gain:
            found.append(self._told(GAINS, self._gains(release_halves(*given))))
        return tuple(found)

    def _dependence(self, noisy: Sequence[Mapping[str, float]], deviation: float) -> Conditional:
        """Own residual HSIC, the largest over attributes, and the same with noise added once more."""
        redrawn: dict[str, np.ndarray] = {}
        for attribute, part in zip(self.protected, noisy, strict=True):
            for k, v in part.items():
                draws = stream(self.seed, "redrawn dependence", attribute.name, k).normal(v, deviation, REDRAWS)
                redrawn[k] = np.maximum(redrawn.get(k, 0.0), draws)
        values = {k: max(0.0, *(part[k] for part in noisy)) for k in redrawn}
        return Conditional(values, {k: v.tolist() for k, v in redrawn.items()})

    def _gains(self, halves: Sequence[Halves]) -> Conditional:
        """Own risk gains, the largest over attributes, and the same with noise added once more."""
        own = [p.layout.names for p in self.parties]
        values: dict[str, float] = {}
        redrawn: dict[str, np.ndarray] = {}
        for attribute, part in zip(self.protected, halves, strict=True):
            draws = {
                k: stream(self.seed, "redrawn gain", attribute.name, k).normal(size=(REDRAWS, *sums.shape))
                for k, sums in part.sums.items()
            }
            values |= {k: max(values.get(k, 0.0), v) for k, v in part.gains(own).items()}
            redrawn |= {k: np.maximum(redrawn.get(k, 0.0), v) for k, v in part.redrawn(own, draws).items()}
        return Conditional(values, {k: v.tolist() for k, v in redrawn.items()})

    def _told(self, kind: Kind, own: Conditional) -> Conditional:
        """The numbers of all parties."""
        publish = self.statistics.publish
        drawn = publish(REDRAWN_CONDITIONAL.name, packed(own.redrawn))
        return Conditional(publish(kind.name, own.values), {k: v.tolist() for k, v in unpacked(drawn).items()})

    def refresh(
        self,
        number: int,
        sketches: tuple[NoisyTables, ...] = (),
        finding: RoleAssignment | None = None,
        conditional: Sequence[Conditional] = (),
    ) -> tuple[tuple[NoisyTables, ...], RoleAssignment]:
        """One more release, averaged with the earlier ones. If the budget refuses it, the last masks stay."""
        name = SKETCH.charged_as(number)
        try:
            fresh = self._sketches(name)
        except BudgetError as error:
            if finding is None:
                raise
            self.audit("refresh refused", {"refresh": number, "reason": str(error)})
            logging.getLogger("party").warning("no refresh %d, tables and roles stay: %s", number, error)
            return sketches, finding
        if sketches:
            fresh = tuple(a.merged(b, self.config.decay) for a, b in zip(sketches, fresh, strict=True))
        sketches = fresh
        opened: tuple[Mapping[str, Any], ...] = ()
        if self.config.score == "hsic":
            evidence, opened = self._projected(sketches)
            evidence = replace(evidence, conditional=conditional)
        else:
            evidence = self._evidence(sketches, conditional)
        previous = finding.proposed if finding is not None else None
        decided = replace(decide(evidence, self.config, previous, self.card, self.owners), opened=opened)
        numbers = {"refresh": number, "releases": sketches[0].releases, "deviation": sketches[0].deviation}
        beyond = [dict(measure.values) for measure in conditional]
        rests_on = {"tables": dict(evidence.scores), "conditional": beyond, "settings": asdict(self.config)}
        rests_on |= dict(zip(PARTS, map(dict, evidence.parts), strict=False))
        self.audit("roles", {**numbers, **decided.as_record(), **rests_on})
        return sketches, decided

    def _sketches(self, name: str) -> tuple[NoisyTables, ...]:
        clip = self.config.clip if self.config.sketch == "clipped" else None
        given = self.statistics, self.parties, self.protected
        about = self.tabled if self.released is None else self.released
        made = release_tables(*given, name, self.features, self.records, clip, about)
        if not self.tabled:
            return made
        return tuple(replace(s, tables={k: v for k, v in s.tables.items() if k in self.tabled}) for s in made)

    @property
    def _own(self) -> list[list[str]]:
        """The columns of each party of this process that have a table."""
        return [[k for k in p.layout.names if not self.tabled or k in self.tabled] for p in self.parties]

    def with_confidence(
        self, sketches: Sequence[NoisyTables], finding: RoleAssignment, conditional: Sequence[Conditional] = ()
    ) -> RoleAssignment:
        """The finding with the confidence of each proposed role, after the last release. Every process calls this."""
        told = self._redrawn(sketches, finding)
        sure = confidence(told, conditional, self.config, finding.proposed, self.seed, self.owners)
        judged = replace(finding, confidence=sure)
        self.audit("confidence", {"proposed": dict(finding.proposed), "confidence": sure})
        return judged

    @property
    def _scored(self) -> bool:
        """Whether tables are scored by their owners."""
        return self.config.score not in ("hsic", "conditional")

    def _redrawn(self, sketches: Sequence[NoisyTables], finding: RoleAssignment) -> Redrawn:
        """Scores and p-values of all features as another run might have given them."""
        if self.config.score == "hsic":
            drawn = {
                k: [(one, one.redrawn(k, REDRAWS, self.seed)) for one in self._known(sketches, finding)]
                for k in finding.proposed
            }
            scores = {k: np.max([one.score(k, found) for one, found in of], axis=0) for k, of in drawn.items()}
            p_values = {k: self._least([one.p_values(k, self.seed, f) for one, f in of]) for k, of in drawn.items()}
            return Redrawn(scores, p_values if self.config.rule == "fdr" else {})
        own = redraw(sketches, self.config, self.seed, self._own)
        publish = self.statistics.publish
        if own.parts:
            parts = [unpacked(publish(REDRAWN_SCORES.name, packed(part))) for part in own.parts]
            return Redrawn(_summed(parts), {}, parts)
        return Redrawn(
            unpacked(publish(REDRAWN_SCORES.name, packed(own.scores))) if self._scored else {},
            unpacked(publish(REDRAWN_P_VALUES.name, packed(own.p_values))) if self.config.rule == "fdr" else {},
        )

    @staticmethod
    def _least(p_values: Sequence[np.ndarray]) -> np.ndarray:
        """The smallest over attributes, each of which counts as a test."""
        found: np.ndarray = np.minimum(1.0, len(p_values) * np.min(p_values, axis=0))
        return found

    def _known(self, sketches: Sequence[NoisyTables], finding: RoleAssignment) -> list[Projected]:
        """What all know of the squares that a finding rests on."""
        parts = tuple(dict(sketch.tables) for sketch in sketches)
        bins = self.statistics.bins(parts, self.tabled)
        return [
            Projected(s.attribute, Opened(**{**told, "sizes": np.array(told["sizes"])}), bins, s.deviation)
            for s, told in zip(sketches, finding.opened, strict=True)
        ]

    def _projected(self, sketches: Sequence[NoisyTables]) -> tuple[Evidence, tuple[Mapping[str, Any], ...]]:
        """Scores that are computed under MPC, and the opened numbers that they follow from."""
        parts = tuple(dict(sketch.tables) for sketch in sketches)
        counts = [len(a.groups) for a in self.protected]
        told = self.statistics.projected(parts, sketches[0].releases, counts, self.tabled)
        bins = self.statistics.bins(parts, self.tabled)
        made = [Projected(s.attribute, one, bins, s.deviation) for s, one in zip(sketches, told, strict=True)]
        scores = {k: float(max(one.score(k) for one in made)) for k in sorted(bins)}
        p_values = {k: float(self._least([one.p_values(k, self.seed) for one in made])) for k in sorted(bins)}
        opened = tuple({**one._asdict(), "sizes": one.sizes.tolist()} for one in told)
        return Evidence(scores, p_values if self.config.rule == "fdr" else {}), opened

    def _evidence(self, sketches: Sequence[NoisyTables], conditional: Sequence[Conditional]) -> Evidence:
        """Scores of the own tables, then those of all parties."""
        own = weigh(sketches, self.config, self.seed, self._own)
        publish = self.statistics.publish
        if own.parts:
            parts = tuple(publish(SCORES.name, part) for part in own.parts)
            return Evidence(_summed(parts), {}, conditional, parts)
        return Evidence(
            publish(SCORES.name, own.scores) if self._scored else {},
            publish(P_VALUES.name, own.p_values) if self.config.rule == "fdr" else {},
            conditional,
        )


def check_support(card: PolicyCard, parties: Sequence[Party]) -> None:
    """Raise if the card lets a column follow from s whose records all have one value: none supports that role.

    Each owner checks its own columns, before anything is opened.
    """
    followers = set(card.roles.descendants)
    for party in parties:
        for name, block in party.bins().items():
            if name in followers and (block.sum(axis=0) > 0).sum() < 2:
                raise PolicyError(
                    f"the policy card gives {name!r} role {card.roles.of[name]}, but no record of {party.name} "
                    "supports that: all have the same value there; give it role N"
                )
