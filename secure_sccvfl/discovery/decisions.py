"""From evidence to roles: which features depend on s, which of them are proxies, and the confidence of each role.

Discovery proposes, a policy card decides, and a trial counterfactual may show that a mediator does not respond.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np

from secure_sccvfl.data.randomness import stream
from secure_sccvfl.discovery.residuals import Conditional
from secure_sccvfl.discovery.scores import Evidence, ScoreKind
from secure_sccvfl.policy.card import PolicyCard
from secure_sccvfl.policy.roles import Role, Roles
from secure_sccvfl.releases.catalogue import REDRAWS

Rule = Literal["fractions", "fdr", "tri-partition"]
SketchKind = Literal["counts", "clipped"]
MIXES = 400
"""Joint redraws of all features: each takes one of the redraws of every feature, which are independent."""


@dataclass(frozen=True)
class DiscoveryConfig:
    """How scores become roles. `rule`: which features are descendants of s; `rho_p` of those are proxies.

    By default none is: data cannot distinguish a proxy from a permitted mediator; a policy can.
    "fdr" takes those that the evidence shows at this false-discovery rate, "fractions" the first `rho_m` of all by
    score. "tri-partition" is section 3.2 of the paper, for score "paper": the first `rho_m` by HSIC are descendants,
    and the first `rho_p` of these by probability gap are proxies. With `per_party` fractions are taken within the
    features of each party, as in the paper. After a refresh a feature keeps its role unless the evidence is clear by
    `hysteresis`: scores and p-values of earlier descendants are that much stronger, of the others weaker, so the
    false-discovery rate is at most 1 + `hysteresis` times `fdr`.
    `score`: "hsic" is computed under MPC from noisy tables and opened to all (`scores.py`). The others are
    announced by owners of tables: "stable" weighs groups by their size and allows for noise, "paper" is the paper's
    S_j (`scores.paper_scores`). `conditional` and `gain` add what a feature shows beyond its owner's other columns:
    residual HSIC and risk gain (`residuals.py`), a charged release each. With score "conditional" they alone
    decide. `sketch` "clipped": tables are scaled to length `clip` before noise is added, as in the paper; the noise
    hides the same share of a record, and the table is smaller. `decay` is the weight that older tables keep when
    the records have changed since.
    """

    rule: Rule = "fdr"
    score: ScoreKind = "hsic"
    rho_m: float = 0.60
    rho_p: float = 0.0
    fdr: float = 0.10
    hysteresis: float = 0.10
    per_party: bool = False
    conditional: bool = False
    gain: bool = False
    sketch: SketchKind = "counts"
    clip: float = 1.0
    simulations: int = 400
    decay: float = 0.5

    def __post_init__(self) -> None:
        for name, kind in (("rule", Rule), ("score", ScoreKind), ("sketch", SketchKind)):
            if getattr(self, name) not in get_args(kind):
                raise ValueError(f"unknown {name} {getattr(self, name)!r}; use {' or '.join(get_args(kind))}")
        for name in ("rho_m", "rho_p", "fdr", "decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie between 0 and 1, got {getattr(self, name)}")
        if not 0 < self.clip < float("inf"):
            raise ValueError(f"clip must be above 0 and finite, got {self.clip}")
        if self.hysteresis < 0 or self.simulations < 20:
            raise ValueError(f"bad hysteresis {self.hysteresis} or simulations {self.simulations}")
        if self.score == "hsic" and self.sketch != "counts":
            raise ValueError("score hsic is of tables of counts: sketch clipped goes with another score")
        if self.rule == "tri-partition" and (self.score != "paper" or self.holds_out):
            raise ValueError("rule tri-partition ranks by HSIC and gap of tables: set score = paper")
        if self.score == "conditional" and (self.rule != "fractions" or not self.holds_out):
            raise ValueError(
                "score conditional ranks by residuals alone and has no p-values: "
                "it needs rule fractions, and gain or conditional"
            )

    @property
    def holds_out(self) -> bool:
        """Whether residuals are needed, which are fitted on records that the statistics are not about."""
        return self.conditional or self.gain


@dataclass(frozen=True)
class RoleAssignment:
    """Roles with the numbers they follow from.

    `proposed`: the roles before a card overrode those of `by_card`. `confidence`: how likely another run proposes the
    same role, by redraws; empty until it is computed. `opened`: what was opened of each attribute for the score
    `hsic`: numbers of all features, and group sizes. `missing_depends`: the columns in which it depends on s whether
    a value is missing, by a test at the false-discovery rate `fdr`.
    """

    roles: Roles
    scores: Mapping[str, float]
    p_values: Mapping[str, float]
    log: tuple[str, ...] = field(default_factory=tuple)
    proposed: Mapping[str, Role] = field(default_factory=dict)
    by_card: tuple[str, ...] = ()
    confidence: Mapping[str, float] = field(default_factory=dict)
    opened: tuple[Mapping[str, Any], ...] = ()
    missing_depends: tuple[str, ...] = ()

    def as_record(self) -> dict[str, Any]:
        roles = {"roles": dict(self.roles.of), "proxies": self.roles.proxies, "mask": self.roles.digest()}
        numbers = {k: dict(getattr(self, k)) for k in ("scores", "p_values", "proposed", "confidence")}
        return {
            **roles,
            **numbers,
            "changes": list(self.log),
            "by_card": list(self.by_card),
            "opened": list(self.opened),
            "missing_depends": list(self.missing_depends),
        }

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> RoleAssignment:
        numbers = {k: record[k] for k in ("scores", "p_values", "proposed", "confidence")}
        lists = {"log": record["changes"], "by_card": record["by_card"]}
        lists |= {k: record.get(k, ()) for k in ("opened", "missing_depends")}
        values: dict[str, Any] = numbers | {k: tuple(v) for k, v in lists.items()}
        return cls(Roles(record["roles"], record["proxies"]), **values)


def combined(measures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """One score per feature: the sum of all measures with values, each scaled to the largest value of the first."""
    present = [values for values in measures if values]
    unit = max(present[0].values()) or 1.0
    scales = [unit / (max(values.values()) or 1.0) for values in present]
    return {k: sum(scale * values[k] for scale, values in zip(scales, present, strict=True)) for k in present[0]}


def benjamini_hochberg(p_values: Mapping[str, float], level: float) -> set[str]:
    """The features discovered at this false-discovery rate (Benjamini-Hochberg)."""
    ordered = sorted(p_values, key=lambda k: (p_values[k], k))
    passed = [rank for rank, k in enumerate(ordered, start=1) if p_values[k] <= level * rank / len(ordered)]
    return set(ordered[: max(passed, default=0)])


_RANK: Mapping[Role, float] = {"N": -0.5, "M": 0.0, "P": 0.5}


def _propose(
    scores: Mapping[str, float],
    p_values: Mapping[str, float],
    config: DiscoveryConfig,
    owners: Mapping[str, str],
    previous: Mapping[str, Role] | None = None,
    parts: Sequence[Mapping[str, float]] = (),
) -> dict[str, Role]:
    """Roles by evidence only. A feature keeps its previous role unless it clears the boundary by a margin.

    `parts`: with the rule "tri-partition" what descendants, and proxies among them, are ranked by; else the scores.
    """

    def ranked(names: Collection[str], by: Mapping[str, float]) -> list[str]:
        weight = {k: 1.0 if previous is None else 1 + config.hysteresis * _RANK[previous[k]] for k in names}
        return sorted(names, key=lambda k: (-by[k] * weight[k], k))

    dependence, gaps = parts if config.rule == "tri-partition" else (scores, scores)
    if previous is not None:
        margin = 1 + config.hysteresis
        p_values = {k: min(1.0, p * margin if previous[k] == "N" else p / margin) for k, p in p_values.items()}
    every = ranked(scores, dependence)
    carriers = benjamini_hochberg(p_values, config.fdr) if config.rule == "fdr" else set(every)
    share = 1.0 if config.rule == "fdr" else config.rho_m
    roles: dict[str, Role] = dict.fromkeys(sorted(scores), "N")
    for features in _apart(every, owners) if config.per_party else [every]:
        carrying = [k for k in features if k in carriers]
        descendants = carrying[: round(share * len(carrying))]
        proxies = ranked(descendants, gaps)[: round(config.rho_p * len(descendants))]
        roles |= {k: "P" if k in proxies else "M" for k in descendants}
    return roles


def _apart(ranked: Sequence[str], owners: Mapping[str, str]) -> list[list[str]]:
    if unknown := [k for k in ranked if k not in owners]:
        raise ValueError(f"per_party needs the owner of every feature; that of {unknown[0]!r} is not known")
    return [[k for k in ranked if owners[k] == owner] for owner in sorted(set(owners.values()))]


def decide(
    evidence: Evidence,
    config: DiscoveryConfig,
    previous: Mapping[str, Role] | None = None,
    card: PolicyCard | None = None,
    owners: Mapping[str, str] | None = None,
    conditional: Sequence[Conditional] = (),
) -> RoleAssignment:
    """Turn scores into roles; the card decides. `previous`: the roles that were proposed before.

    `owners`: the party of every feature, for roles within parties, and to know the columns without evidence: none
    is needed where the card decides.
    """
    scores = combined([evidence.scores, *(measure.values for measure in conditional)])
    proposed = _propose(scores, evidence.p_values, config, owners or {}, previous, evidence.parts)
    log = [] if previous is None else [f"{k}: {previous[k]} -> {v}" for k, v in proposed.items() if previous[k] != v]
    roles = Roles(proposed)
    by_card = () if card is None else tuple(sorted(card.decisions))
    if card is not None:
        unproposed = {k: v for k, v in card.roles.of.items() if k in (owners or {}) and k not in proposed}
        roles = card.apply(Roles({**proposed, **unproposed}))
        for k in by_card:
            if k in proposed and roles.of[k] != proposed[k]:
                log.append(f"{k}: {proposed[k]} -> {roles.of[k]} by card: {card.decisions[k].reason}")
    return RoleAssignment(roles, scores, evidence.p_values, tuple(log), proposed, by_card)


def confidence(
    redrawn: Evidence,
    conditional: Sequence[Conditional],
    config: DiscoveryConfig,
    proposed: Mapping[str, Role],
    seed: int,
    owners: Mapping[str, str] | None = None,
) -> dict[str, float]:
    """For each feature, the share of joint redraws that propose the same role."""
    names, rng = sorted(proposed), stream(seed, "joint redraws")
    same = dict.fromkeys(names, 0)

    def taken(drawn: Mapping[str, Sequence[float] | np.ndarray], picked: np.ndarray) -> dict[str, float]:
        return {k: float(drawn[k][at]) for k, at in zip(names, picked, strict=True) if k in drawn}

    for picks in zip(*rng.integers(0, REDRAWS, (1 + len(conditional), MIXES, len(names))), strict=True):
        further = [taken(measure.redrawn, at) for measure, at in zip(conditional, picks[1:], strict=True)]
        scores, p_values = (taken(drawn, picks[0]) for drawn in (redrawn.scores, redrawn.p_values))
        parts = [taken(drawn, picks[0]) for drawn in redrawn.parts]
        again = _propose(combined([scores, *further]), p_values, config, owners or {}, parts=parts)
        same = {k: same[k] + (again[k] == proposed[k]) for k in names}
    return {k: round(count / MIXES, 4) for k, count in same.items()}


def interventional_check(
    assignment: RoleAssignment,
    fixed_moved: Mapping[str, float],
    edited_moved: Mapping[str, float],
    decided: Collection[str] = (),
) -> RoleAssignment:
    """After a trial edit: what is fixed must not have moved at all, and an M that does not respond becomes N.

    `decided`: features whose role people decided. They keep it; the log says that they do not respond.
    """
    broken = sorted(k for k, v in fixed_moved.items() if v != 0.0)
    if broken:
        raise RuntimeError(f"a generator changed features that must stay fixed: {broken}")
    idle = sorted(k for k, v in edited_moved.items() if v == 0.0 and assignment.roles.of[k] == "M")
    freed = tuple(k for k in idle if k not in decided)
    log = [f"{k}: {'M -> N' if k in freed else 'M by card, kept'}, does not respond to a change of s" for k in idle]
    return replace(assignment, roles=assignment.roles.with_role("N", freed), log=(*assignment.log, *log))
