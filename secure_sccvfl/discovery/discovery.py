"""Selective descendant discovery: noisy tables, scores, p-values, then roles with their confidence.

Each party's tables are opened to that party alone; only scores, p-values and redrawn ones go to all. Everything
after the release is post-processing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from accounting.budget import BudgetError
from secure_sccvfl.data.party import Attribute, Party
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.discovery.decisions import DiscoveryConfig, Finding, confidence, decide
from secure_sccvfl.discovery.evidence import Evidence, OwnTables, Redrawn, p_value, packed, unpacked
from secure_sccvfl.discovery.inputs import check_support
from secure_sccvfl.discovery.scores import denoised
from secure_sccvfl.discovery.sketches import Moments, Sketch, release_moments, release_sketches, residual_scores
from secure_sccvfl.discovery.statistics import Statistics
from secure_sccvfl.policy.card import PolicyCard
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.privacy.kinds import REDRAWS
from secure_sccvfl.privacy.releases import (
    NUMBERS,
    P_VALUES,
    REDRAWN_P_VALUES,
    REDRAWN_SCORES,
    RESIDUAL_SCORES,
    SCORES,
    SKETCH,
)

Audit = Callable[[str, Mapping[str, Any]], None]
"""Called with every decision and the numbers that it rests on."""


def _own_tables(
    sketches: Sequence[Sketch], config: DiscoveryConfig, owners: Sequence[Sequence[str]]
) -> list[tuple[str, OwnTables]]:
    """The tables of each owner with each attribute, which is named."""
    made = []
    for sketch in sketches:
        for own in owners:
            tables = {k: sketch.tables[k] for k in own}
            made.append((sketch.attribute, OwnTables(tables, sketch.deviation, config.score)))
    return made


def _independent(tables: OwnTables, attribute: str, name: str, config: DiscoveryConfig, seed: int) -> np.ndarray:
    return tables.independent_scores(name, config.simulations, stream(seed, "p", attribute, name))


def weigh(
    sketches: Sequence[Sketch],
    config: DiscoveryConfig,
    seed: int,
    owners: Sequence[Sequence[str]],
    residual: Mapping[str, float] | None = None,
) -> Evidence:
    """Party step, local: scores and p-values of the features whose tables this process holds.

    `owners`: the features of each party of this process. A party's results use no other party's tables.
    """
    scores: dict[str, float] = {}
    p_values: dict[str, float] = {}
    for attribute, tables in _own_tables(sketches, config, owners):
        clean = denoised(tables.of, tables.deviation) if config.denoise else tables.of
        for name in tables.of:
            scores[name] = max(scores.get(name, 0.0), replace(tables, of=clean).score(name))
            if config.rule == "fdr":
                independent = _independent(tables, attribute, name, config, seed)
                p = len(sketches) * float(p_value(np.array(tables.score(name)), independent))
                p_values[name] = min(1.0, p, p_values.get(name, 1.0))
    return Evidence(scores, p_values, residual or {})


def redraw(
    sketches: Sequence[Sketch], config: DiscoveryConfig, seed: int, owners: Sequence[Sequence[str]]
) -> Redrawn:
    """Party step, local: the same numbers as another run might have given, REDRAWS times for each own feature."""
    scores: dict[str, np.ndarray] = {}
    p_values: dict[str, np.ndarray] = {}
    for attribute, tables in _own_tables(sketches, config, owners):
        for name in tables.of:
            drawn = tables.redrawn_scores(name, REDRAWS, stream(seed, "redrawn role", attribute, name))
            scores[name] = np.maximum(scores.get(name, 0.0), drawn)
            if config.rule == "fdr":
                p = len(sketches) * p_value(drawn, _independent(tables, attribute, name, config, seed))
                p_values[name] = np.minimum(p_values.get(name, 1.0), p)
    return Redrawn(scores, p_values)


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

    def __post_init__(self) -> None:
        if self.card is not None:
            check_support(self.card, self.parties)

    def residual(self, others: Sequence[Party]) -> dict[str, float]:
        """Conditional scores of own features; the fit uses records that the statistic is not about."""
        return residual_scores(self.statistics, self.parties, others, self.protected, self.seed)

    def refresh(
        self,
        number: int,
        sketches: tuple[Sketch, ...] = (),
        finding: Finding | None = None,
        residual: Mapping[str, float] | None = None,
    ) -> tuple[tuple[Sketch, ...], Finding]:
        """One more release, averaged with the earlier ones. If the budget refuses it, the last masks stay."""
        name = SKETCH.charged_as(number)
        try:
            fresh = release_sketches(self.statistics, self.parties, self.protected, name, self.features, self.records)
        except BudgetError as error:
            if finding is None:
                raise
            self.audit("refresh refused", {"refresh": number, "reason": str(error)})
            return sketches, finding
        if sketches:
            fresh = tuple(a.merged(b, self.config.decay) for a, b in zip(sketches, fresh, strict=True))
        sketches = fresh
        evidence = self._evidence(sketches, residual)
        decided = decide(evidence, self.config, finding.proposed if finding is not None else None, self.card)
        numbers = {"refresh": number, "releases": sketches[0].releases, "deviation": sketches[0].deviation}
        rests_on = {"residual": dict(evidence.residual), "settings": asdict(self.config)}
        self.audit("roles", {**numbers, **decided.as_record(), **rests_on})
        return sketches, decided

    def judged(
        self, sketches: Sequence[Sketch], finding: Finding, residual: Mapping[str, float] | None = None
    ) -> Finding:
        """The finding with the confidence of each proposed role, after the last release. Every process calls this."""
        own = redraw(sketches, self.config, self.seed, [p.layout.names for p in self.parties])
        publish = self.statistics.publish
        told = Redrawn(
            unpacked(publish(REDRAWN_SCORES.name, packed(own.scores))),
            unpacked(publish(REDRAWN_P_VALUES.name, packed(own.p_values))) if self.config.rule == "fdr" else {},
        )
        shared = publish(RESIDUAL_SCORES.name, residual) if residual is not None else {}
        sure = confidence(told, shared, self.config, finding.proposed, self.seed)
        judged = replace(finding, confidence=sure)
        self.audit("confidence", {"proposed": dict(finding.proposed), "confidence": sure})
        return judged

    def moments(self, roles: Roles) -> tuple[Moments, ...]:
        """Group moments of the edited features that are numbers; nothing if there is none or no budget is left."""
        own = {b.feature.name: 1.0 for p in self.parties for b in p.layout.blocks if not b.one_hot}
        names = sorted(set(self.statistics.publish(NUMBERS.name, own)) & set(roles.edited))
        if not names:
            return ()
        try:
            return release_moments(self.statistics, self.parties, self.protected, names)
        except BudgetError as error:
            self.audit("moments refused", {"reason": str(error)})
            return ()

    def _evidence(self, sketches: Sequence[Sketch], residual: Mapping[str, float] | None) -> Evidence:
        """Scores of the own tables, then those of all parties."""
        own = weigh(sketches, self.config, self.seed, [p.layout.names for p in self.parties], residual)
        publish = self.statistics.publish
        return Evidence(
            publish(SCORES.name, own.scores),
            publish(P_VALUES.name, own.p_values) if self.config.rule == "fdr" else {},
            publish(RESIDUAL_SCORES.name, own.residual) if residual is not None else {},
        )
