"""The configuration of a run: public settings, the same at every process, in seven sections.

To add an option, add its field here: one line. Defaults are those of method `scc`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from secure_sccvfl.config.fields import Option, option, options_of
from secure_sccvfl.protocols.config import ConfigError, unknown_name
from secure_sccvfl.releases.default_budget import EPSILON_RULE

CACHED = "kept"
"""As `cached_tables`: the last DP releases next to the ledger that fit."""

ANSWERS = ("scores", "certified", "what_if", "reasons", "receiver")
"""The flat names of what the answers of a prediction have, and who receives them."""


@dataclass(frozen=True)
class Data:
    """The records, and how the parties bring them together."""

    dataset: str = option(
        "german",
        "benchmark name, or the description of your own data (loans.toml)",
        shown=True,
        inferred="german; run_mpc without it: acs12-gender with its shipped card",
    )
    split: Literal["iid", "shift"] = option("iid", "how benchmark data are split")
    align: Literal["exact", "hidden", "revealed"] = option(
        "exact",
        "how records of several parties are matched: pre-aligned (ids must be equal), psi (all parties learn the "
        "common ids), hidden (nobody learns them; modes sealed and aware, noisy evaluation)",
        shown=True,
        synonyms={"pre-aligned": "exact", "psi": "revealed"},
        inferred="hidden for your own data where all settings allow it, else pre-aligned",
    )
    align_bounds: tuple[float, ...] = option(
        (), "align hidden: most records of each party; then neither their number nor the union's size is revealed"
    )
    seed: int = option(0, "seed of split, encoders and counterfactuals", shown=True)
    pooled: bool = option(True, "the data may be pooled on one machine", inferred="true for benchmark data")


@dataclass(frozen=True)
class Privacy:
    """The differential-privacy budget of training records, and what it is spent on."""

    epsilon: float = option(8.0, "total privacy budget of a training record", shown=True, inferred=EPSILON_RULE)
    delta: float = option(1e-5, "delta of the budget; must be below 1 / records")
    private_model: bool = option(
        True,
        "train a differentially private head within epsilon; without it the model reveals training records, which is "
        "for research on public data",
        shown=True,
        inferred="true; false in mode split and method paper",
    )
    head_share: float = option(
        0.0, "share of the budget for the head", inferred="0.6; 0.75 where a card decides every column"
    )
    table_releases: int = option(
        0, "further releases of the contingency tables before joint training", wire="refreshes"
    )
    late_table_releases: int = option(
        1, "releases of the tables during joint training; roles and penalty follow them", wire="late_refreshes"
    )
    noise: Literal["dealer+holder", "dealer", "all-parties"] = option("dealer+holder", "who contributes noise")
    ledger: str = option(
        "", "folder of the privacy ledgers, kept from run to run", shown=True, inferred="the run's folder"
    )
    cached_tables: str = option(
        "",
        'reuse the DP tables that this run folder has paid for ("kept": the last ones in the ledger)',
        wire="tables",
    )
    reserve: float = option(0.0, "share of the budget that is left for later runs")
    cap_decision: str = option(
        "", "file with the parties' decision to raise the budget (sccvfl raise-cap)", wire="cap"
    )
    predictions: int = option(
        0, "most people the model may score, each once; 0: no limit", inferred="1000; 0 for pooled data"
    )


@dataclass(frozen=True)
class Discovery:
    """Which columns depend on the protected attribute s (`discovery.decisions.DiscoveryConfig`)."""

    rule: Literal["fractions", "fdr", "tri-partition"] = option(
        "fdr", "fdr: columns with evidence; fractions: the highest scores; tri-partition: section 3.2 of the paper"
    )
    score: Literal["hsic", "stable", "paper", "conditional"] = option(
        "hsic",
        "hsic: under MPC, from noisy tables; stable: distance of groups minus expected noise; paper: its probability "
        "gap plus HSIC; conditional: gain and conditional alone",
    )
    rho_m: float = option(0.6, "rules fractions and tri-partition: share of columns that depend on s")
    rho_p: float = option(0.0, "share of those that are proxies")
    fdr: float = option(0.1, "rule fdr: accepted false-discovery rate")
    hysteresis: float = option(0.1, "margin by which evidence must pass a boundary to change a role")
    per_party: bool = option(False, "take shares within the columns of each party")
    conditional: bool = option(
        False, "score dependence beyond the owner's other columns by residual HSIC: one more charged release"
    )
    gain: bool = option(False, "score how much s improves the prediction of a column: one more charged release")
    table_kind: Literal["counts", "clipped"] = option(
        "counts", "tables of counts, or clipped to a fixed norm before noise is added", wire="sketch"
    )
    clip: float = option(1.0, "table_kind clipped: the norm")
    decay: float = option(0.5, "weight of older tables after the records have changed")


@dataclass(frozen=True)
class Model:
    """Head and counterfactual generator."""

    head: str = option("linear", "linear, or mlp: a crypten.nn module (not private, public data)")
    hidden_units: int = option(16, "head mlp: hidden units", wire="hidden")
    generator: str = option(
        "minimal", "generator of counterfactuals", registry="secure_sccvfl.models.generators:GENERATORS"
    )
    generator_seed: int = option(-1, "seed of encoders and counterfactuals alone", inferred="data.seed")


@dataclass(frozen=True)
class Training:
    """The method: roles fixed by a card, gradient mode, consistency penalty and optimisation."""

    mode: str = option(
        "sealed",
        "gradient mode; aware uses s under MPC for every decision, which the card must declare in [aware]",
        shown=True,
        registry="secure_sccvfl.training.modes:MODES",
    )
    method: str = option(
        "scc", "recipe that sets options which are not given", registry="secure_sccvfl.training:RECIPES"
    )
    card: str = option(
        "", 'policy card that fixes roles: a file, "shipped" or the name of a shipped card', shown=True
    )
    lambda_: float = option(3.0, "weight of the consistency penalty", wire="take_lambda", flag="lambda", shown=True)
    lambdas: tuple[float, ...] = option(
        (3.0,), "ascending grid of lambda; every private head is charged", inferred="lambda alone"
    )
    consistency_from: Literal["tables", "records"] = option(
        "tables",
        "build the penalty from released tables, or from counterfactuals of every training record (a further charged "
        "release; without a private model exact, which reveals s)",
    )
    proxy_penalty: float = option(0.1, "penalty on the direction in which proxies predict s", wire="guard")
    kappa: float = option(
        0.0, "range penalty: narrows what mediators can do to a logit, for more certified decisions; uses no s"
    )
    net: Literal["", "zero"] = option(
        "",
        "zero: hold expected shifts of the logit between groups near zero, against net flips; from released tables",
    )
    weight_identity: float = option(0.0, "mode split: weight of the identity term of the paper's objective")
    weight_support: float = option(0.0, "mode split: weight of its support term")
    weight_leak: float = option(0.0, "mode split: weight of its adversary on s")
    warmup: int = option(60, "mode split: steps before consistency")
    steps: int = option(60, "first-order steps at each lambda (head mlp, mode split)")
    newton_steps: int = option(9, "second-order steps of all lambdas at once", wire="grid_steps")
    ridge: float = option(0.0, "L2 penalty of a head that is not private; 0: 2.8 / training records, at least 3e-4")
    dp_steps: int = option(10, "mode dp: noisy steps of the encoders")
    dp_sampling: float = option(1.0, "mode dp: probability that a record is in a step, a multiple of 2^-16")


@dataclass(frozen=True)
class Evaluation:
    """How validation and test records are evaluated, and their separate privacy budget."""

    kind: Literal["noisy", "exact"] = option(
        "exact",
        "evaluate with noise that is charged, or exactly, which is not private",
        wire="evaluation",
        shown=True,
        inferred="noisy; exact for benchmark data",
    )
    epsilon: float = option(4.0, "privacy budget of held-out records", wire="evaluation_epsilon")
    delta: float = option(1e-5, "its delta", wire="evaluation_delta")
    planned: int = option(4, "noisy evaluations of the same records that the budget is for", wire="evaluations")
    min_group: int = option(20, "fewest records behind a reported rate of a group")
    controls: Literal["none", "standard"] = option(
        "standard", "baselines of noisy figures: majority and permuted groups, or none, for less noise"
    )
    baselines: bool = option(
        False,
        "train plain training and the model without the mediators too, and release their figures in the same noisy "
        "evaluation; they take 35 % of the model's budget (measured accuracy: -.001 to -.007)",
    )
    certificate: bool = option(
        True,
        "release the share of test records whose decision no values of the mediators change",
        flag="certified-share",
        inferred="true in mode sealed with head linear",
    )


@dataclass(frozen=True)
class Session:
    """What one session does with a run's folder or its model."""

    checkpoints: bool = option(True, "write checkpoints, from which a run can be resumed")
    resume: bool = option(False, "continue from the last checkpoint", flag="")
    security: Literal["semi-honest", "active"] = option(
        "semi-honest", "active: detect parties that deviate from the protocol, and abort", shown=True
    )
    model: str = option("", "predict: folder of the run whose model is used", flag="")
    records: str = option("", "predict: CSV with the ids and features of new records", flag="")
    scores: bool = option(False, "predict: open calibrated logits, not only decisions")
    certificate: bool = option(
        False,
        "predict: also open whether no values of the mediators change the decision",
        wire="certified",
        flag="certificate",
        inferred="true with what_if, where there is a certificate",
    )
    what_if: bool = option(
        False,
        "predict: also open the decision in every other group of s, of which its holder brings the column; with the "
        "certificate",
    )
    reasons: bool = option(
        False,
        "predict: also open the names of the three columns that weigh most for a decision, and against it, whoever "
        "holds them",
    )
    port: int = option(8490, "serve: port of the receiver's endpoint on its own host; 0: any", flag="")
    receiver: int = option(-1, "predict: rank that receives the predictions", inferred="the label holder")


@dataclass(frozen=True)
class Config:
    """All settings of a run. `flat` is the canonical serialised form: one key per field, its wire name."""

    data: Data = field(default_factory=Data)
    privacy: Privacy = field(default_factory=Privacy)
    discovery: Discovery = field(default_factory=Discovery)
    model: Model = field(default_factory=Model)
    training: Training = field(default_factory=Training)
    evaluation: Evaluation = field(default_factory=Evaluation)
    session: Session = field(default_factory=Session)

    def flat(self) -> dict[str, Any]:
        return {o.wire: getattr(getattr(self, o.section), o.attribute) for o in OPTIONS}

    @classmethod
    def of_flat(cls, **settings: Any) -> Self:
        """Defaults with these flat settings; nothing is inferred."""
        return cls().changed(**settings)

    def changed(self, **settings: Any) -> Self:
        """The same with other values of these flat names."""
        sections: dict[str, dict[str, Any]] = {}
        for name, value in settings.items():
            sections.setdefault(BY_WIRE[name].section, {})[BY_WIRE[name].attribute] = value
        new = {name: dataclasses.replace(getattr(self, name), **values) for name, values in sections.items()}
        return dataclasses.replace(self, **new)


OPTIONS: tuple[Option, ...] = options_of(Config)
BY_WIRE: Mapping[str, Option] = {o.wire: o for o in OPTIONS}
SECTIONS: tuple[str, ...] = tuple(dict.fromkeys(o.section for o in OPTIONS))


def wire_names(*sections: str) -> tuple[str, ...]:
    return tuple(o.wire for o in OPTIONS if o.section in sections)


def checked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Flat settings whose names and types are right, with values in their flat form."""
    for name in settings:
        if name not in BY_WIRE:
            raise ConfigError(unknown_name("option", name, BY_WIRE))
    return {name: BY_WIRE[name].check(value) for name, value in settings.items()}


def flattened(tables: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for section, table in tables.items():
        section_options = {o.key: o for o in OPTIONS if o.section == section}
        if not isinstance(table, dict):
            raise ConfigError(f"{section} is a section: write [{section}] and its options below")
        for key, value in table.items():
            if key not in section_options:
                raise ConfigError(f"[{section}]: " + unknown_name("option", key, section_options))
            flat[section_options[key].wire] = section_options[key].check(value)
    return flat
