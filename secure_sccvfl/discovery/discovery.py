"""Selective descendant discovery: noisy tables, scores, p-values, and N / M / P.

Each party's tables are opened to that party alone; only scores and roles go to all. Everything after the release is
post-processing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from accounting.budget import BudgetError
from secure_sccvfl.data.party import MOMENT_GRID, MOMENTS, Attribute, Party
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.discovery.roles import PolicyCard, Role, Roles
from secure_sccvfl.discovery.scores import denoised, table_score, table_scores
from secure_sccvfl.discovery.statistics import Statistics
from secure_sccvfl.privacy.releases import MOMENTS as MOMENTS_RELEASE
from secure_sccvfl.privacy.releases import NUMBERS, P_VALUES, RESIDUAL_SCORES, RESIDUALS, SCORES, SKETCH

Rule = Literal["fractions", "fdr"]
Audit = Callable[[str, Mapping[str, Any]], None]
"""Called with every decision and the numbers that it rests on."""


@dataclass(frozen=True)
class DiscoveryConfig:
    """How scores become roles. With rule `fdr` the features found at this false-discovery rate are descendants.

    With rule `fractions` they are the `rho_m` with the highest scores. `rho_p` of the descendants are proxies, the
    rest mediators. By default none is: data cannot tell a proxy from a permitted mediator, a policy can.
    `decay` is the weight that older tables keep when the records have changed since. `denoise` removes known noise
    from tables before they are scored.
    """

    rule: Rule = "fdr"
    rho_m: float = 0.60
    rho_p: float = 0.0
    fdr: float = 0.10
    hysteresis: float = 0.10
    conditional: bool = False
    simulations: int = 400
    decay: float = 0.5
    denoise: bool = False

    def __post_init__(self) -> None:
        if self.rule not in ("fractions", "fdr"):
            raise ValueError(f"unknown rule {self.rule!r}; use fractions or fdr")
        for name in ("rho_m", "rho_p", "fdr", "decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie between 0 and 1, got {getattr(self, name)}")
        if self.hysteresis < 0 or self.simulations < 20:
            raise ValueError(f"bad hysteresis {self.hysteresis} or simulations {self.simulations}")


@dataclass(frozen=True)
class Sketch:
    """Noisy tables of one protected attribute, averaged over releases, and the noise still in them.

    `records` names the records they are about.
    """

    attribute: str
    tables: Mapping[str, np.ndarray]
    deviation: float
    releases: int = 1
    records: str = ""

    def merged(self, newer: Sketch, decay: float = 1.0) -> Sketch:
        """Inverse-variance average; older tables of other records count `decay` times as much."""
        if self.deviation == 0 or newer.deviation == 0:
            return newer
        weight = 1.0 if self.records == newer.records else decay
        a, b = weight * self.deviation**-2, newer.deviation**-2
        tables = {k: (a * t + b * newer.tables[k]) / (a + b) for k, t in self.tables.items()}
        deviation = np.hypot(a * self.deviation, b * newer.deviation) / (a + b)
        return Sketch(self.attribute, tables, float(deviation), self.releases + newer.releases, newer.records)


@dataclass(frozen=True)
class Moments:
    """Noisy sums of count, u and u^2 by group of the numbers among the mediators, in real units."""

    attribute: str
    sums: Mapping[str, np.ndarray]
    deviation: float


@dataclass(frozen=True)
class Evidence:
    """Numbers per feature that go to all: they follow from noisy releases alone."""

    scores: Mapping[str, float]
    p_values: Mapping[str, float]
    residual: Mapping[str, float]


@dataclass(frozen=True)
class Finding:
    """Roles with the numbers they rest on."""

    roles: Roles
    scores: Mapping[str, float]
    p_values: Mapping[str, float]
    log: tuple[str, ...] = field(default_factory=tuple)

    def as_record(self) -> dict[str, Any]:
        """The finding as an entry of the audit log."""
        return {
            "roles": dict(self.roles.of),
            "mask": self.roles.digest(),
            "scores": dict(self.scores),
            "p_values": dict(self.p_values),
            "changes": list(self.log),
        }


def release_sketches(
    statistics: Statistics,
    parties: Sequence[Party],
    protected: Sequence[Attribute],
    name: str,
    features: int,
    records: str = "",
) -> tuple[Sketch, ...]:
    """One release of the tables of all features with all protected attributes; each goes to its owner.

    A record touches one cell of each table, so the joint l2 sensitivity is sqrt(features x attributes).
    `features` counts those of all parties; `parties` are the ones of this process.
    """
    bins = {key: block for party in parties for key, block in party.bins().items()}
    sensitivity = float(np.sqrt(features * len(protected)))
    counts = [len(a.groups) for a in protected]
    sums = statistics.group_sums(bins, [a.codes for a in protected], counts, name, sensitivity)
    scale = statistics.deviation(sensitivity)
    return tuple(Sketch(a.name, part, scale, records=records) for a, part in zip(protected, sums, strict=True))


def release_moments(
    statistics: Statistics, parties: Sequence[Party], protected: Sequence[Attribute], names: Sequence[str]
) -> tuple[Moments, ...]:
    """One release of bounded sums of these numbers (of all parties); each goes to its owner.

    On the grid of `Party.moments` a record adds a row of norm at most MOMENT_GRID sqrt(3) for each number.
    """
    columns = {key: block for party in parties for key, block in party.moments(names).items()}
    sensitivity = MOMENT_GRID * float(np.sqrt(MOMENTS * len(names) * len(protected)))
    counts, codes = [len(a.groups) for a in protected], [a.codes for a in protected]
    name, widths = MOMENTS_RELEASE.charged_as(), dict.fromkeys(names, MOMENTS)
    sums = statistics.group_sums(columns, codes, counts, name, sensitivity, widths)
    scale = statistics.deviation(sensitivity) / MOMENT_GRID
    return tuple(
        Moments(a.name, {k: v / MOMENT_GRID for k, v in part.items()}, scale)
        for a, part in zip(protected, sums, strict=True)
    )


def residual_scores(
    statistics: Statistics,
    parties: Sequence[Party],
    others: Sequence[Party],
    protected: Sequence[Attribute],
    seed: int,
) -> dict[str, float]:
    """Conditional HSIC of this process's features, the largest over attributes: one further release.

    `others` holds the same columns of other records, on which the residuals are fitted.
    """
    columns: dict[str, np.ndarray] = {}
    for party, other in zip(parties, others, strict=True):
        columns.update(party.residual_features(seed, other.inputs))
    counts, codes = [len(a.groups) for a in protected], [a.codes for a in protected]
    found = statistics.residual_dependence(columns, codes, counts, RESIDUALS.charged_as())
    return {k: max(0.0, *(part[k] for part in found)) for k in columns}


def independence_p(table: np.ndarray, deviation: float, simulations: int, rng: np.random.Generator) -> float:
    """Monte-Carlo p-value of the table's score if s and the feature were independent, noise included."""
    counts = np.clip(table, 0.0, None)
    total = counts.sum()
    if round(total) < 1:
        return 1.0
    cells = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / total**2
    observed = table_score(table)
    draws = rng.multinomial(round(total), cells.ravel() / cells.sum(), size=simulations)
    noisy = draws.reshape(simulations, *table.shape) + rng.normal(0, deviation, (simulations, *table.shape))
    beyond = int((table_scores(noisy) >= observed).sum())
    return (1 + beyond) / (1 + simulations)


def benjamini_hochberg(p_values: Mapping[str, float], level: float) -> set[str]:
    """Features found at this false-discovery rate."""
    ordered = sorted(p_values, key=lambda k: (p_values[k], k))
    passed = 0
    for rank, name in enumerate(ordered, start=1):
        if p_values[name] <= level * rank / len(ordered):
            passed = rank
    return set(ordered[:passed])


def _by_fractions(scores: Mapping[str, float], descendants: int, proxies: int) -> dict[str, Role]:
    ranked = sorted(scores, key=lambda k: (-scores[k], k))
    return {k: ("P" if i < proxies else "M" if i < descendants else "N") for i, k in enumerate(ranked)}


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
    names = sorted(sketches[0].tables)
    scores = dict.fromkeys(names, 0.0)
    for sketch in sketches:
        for own in owners:
            tables = {k: sketch.tables[k] for k in own}
            for k, table in (denoised(tables, sketch.deviation) if config.denoise else tables).items():
                scores[k] = max(scores[k], table_score(table))
    p_values: dict[str, float] = {}
    for k in names if config.rule == "fdr" else ():
        tests = [
            independence_p(s.tables[k], s.deviation, config.simulations, stream(seed, "p", s.attribute, k))
            for s in sketches
        ]
        p_values[k] = min(1.0, len(tests) * min(tests))
    return Evidence(scores, p_values, residual or {})


def decide(
    evidence: Evidence,
    config: DiscoveryConfig,
    previous: Roles | None = None,
    card: PolicyCard | None = None,
) -> Finding:
    """Turn scores into roles. A feature keeps its previous role unless its score clears the boundary by a margin."""
    scores, p_values = dict(evidence.scores), evidence.p_values
    names = sorted(scores)
    if evidence.residual:
        unit = max(scores.values()) / (max(evidence.residual.values()) or 1.0)
        scores = {k: scores[k] + unit * evidence.residual[k] for k in names}
    if config.rule == "fdr":
        found = benjamini_hochberg(p_values, config.fdr)
        boosted = {k: scores[k] + (10.0 if k in found else 0.0) for k in names}
        count = len(found)
    else:
        boosted, count = scores, round(config.rho_m * len(names))
    proposed: dict[str, Role] = _by_fractions(boosted, count, round(config.rho_p * count))
    log = []
    if previous is not None:
        kept = {k: v * (1 + config.hysteresis * _rank(previous.of[k])) for k, v in boosted.items()}
        proposed = _by_fractions(kept, count, round(config.rho_p * count))
        log = [f"{k}: {previous.of[k]} -> {proposed[k]}" for k in names if previous.of[k] != proposed[k]]
    roles = Roles(proposed)
    if card is not None:
        overridden = card.apply(roles)
        for k in names:
            if overridden.of[k] != roles.of[k]:
                log.append(f"{k}: {roles.of[k]} -> {overridden.of[k]} by card: {card.decisions[k].reason}")
        roles = overridden
    return Finding(roles, scores, p_values, tuple(log))


def _rank(role: Role) -> float:
    return {"N": -0.5, "M": 0.0, "P": 0.5}[role]


def interventional_check(
    finding: Finding,
    fixed_moved: Mapping[str, float],
    edited_moved: Mapping[str, float],
    decided: Collection[str] = (),
) -> Finding:
    """After a trial edit: N must not have moved at all, and an M that does not respond becomes N.

    `decided`: features whose role people decided. They keep it; the log says that they do not respond.
    """
    broken = sorted(k for k, v in fixed_moved.items() if v != 0.0)
    if broken:
        raise RuntimeError(f"a generator changed features that must stay fixed: {broken}")
    idle = sorted(k for k, v in edited_moved.items() if v == 0.0)
    freed = tuple(k for k in idle if k not in decided)
    log = [f"{k}: {'M -> N' if k in freed else 'M by card, kept'}, does not respond to a change of s" for k in idle]
    return replace(finding, roles=finding.roles.with_role("N", freed), log=(*finding.log, *log))


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
        decided = decide(evidence, self.config, finding.roles if finding is not None else None, self.card)
        numbers = {"refresh": number, "releases": sketches[0].releases, "deviation": sketches[0].deviation}
        rests_on = {"residual": dict(evidence.residual), "settings": asdict(self.config)}
        self.audit("roles", {**numbers, **decided.as_record(), **rests_on})
        return sketches, decided

    def moments(self, roles: Roles) -> tuple[Moments, ...]:
        """Group moments of the mediators that are numbers; nothing if there is none or no budget is left."""
        own = {b.feature.name: 1.0 for p in self.parties for b in p.layout.blocks if not b.one_hot}
        names = sorted(set(self.statistics.publish(NUMBERS.name, own)) & set(roles.named("M")))
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
