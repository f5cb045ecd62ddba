"""Settings of a secure run as the session file holds them: public, and the same at every process."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from accounting.calibration import check_target
from protocols.alignment.seam import AlignKind
from protocols.config import ConfigError, wrong_kind
from protocols.operations.noise import NoiseKind
from protocols.session.runtime import Session
from protocols.steps.weighted_sums import nearest_sampling
from secure_sccvfl.data.catalogue import forget, is_benchmark
from secure_sccvfl.data.features import DataError
from secure_sccvfl.data.party_data import (
    PartyData,
    Schema,
    benchmark_part,
    benchmark_schema,
    own_part,
    own_schema,
    pooled,
)
from secure_sccvfl.data.splits import SplitKind
from secure_sccvfl.discovery.decisions import DiscoveryConfig, Rule, SketchKind
from secure_sccvfl.discovery.scores import ScoreKind
from secure_sccvfl.metrics.slices import Crossed
from secure_sccvfl.models.encoders import EncoderKind
from secure_sccvfl.models.generators import GeneratorConfig, Source
from secure_sccvfl.policy.card import PolicyCard, named_card
from secure_sccvfl.releases.ledgers import LEDGER, ledger_folder
from secure_sccvfl.releases.noise import SpendingPlan
from secure_sccvfl.releases.prediction_log import NO_LIMIT
from secure_sccvfl.training import RECIPES
from secure_sccvfl.training.config import ConsistencySource, Controls, EvaluationKind, TrainConfig
from secure_sccvfl.training.engine import ConsistencyKind
from secure_sccvfl.training.modes import MODES, gradient_mode
from secure_sccvfl.training.modules import HIDDEN, LINEAR, MODULE_RIDGE, MODULE_STEPS
from secure_sccvfl.training.paper_settings import settings_of

KEPT = "kept"
"""As `tables`: the last ones beside the ledger that fit."""
PREDICTIONS = 1000
"""How many people a model may answer for, unless the session file says otherwise."""
WEIGHTS = ("weight_identity", "weight_support", "weight_leak")
NO_WEIGHTS = (
    "in sealed and aware no parameter depends on it, and in dp its gradient would carry records into others' sums"
)

DISCOVERY_OPTIONS = (
    *("rule", "score", "rho_m", "rho_p", "fdr", "hysteresis", "per_party"),
    *("conditional", "gain", "sketch", "clip", "decay"),
)
"""Settings of discovery that are options of a run, under the same names."""


@dataclass(frozen=True)
class RunOptions:
    """One field per option. `ledger` is a folder that outlives runs.

    `align`: how records are brought together (`protocols.alignment`). "hidden" is the default for own data, where all
    settings allow it; "exact" elsewhere: ids must be equal. `align_bounds`: for "hidden", the most records of each
    party; then neither their number nor the size of the union is told, and tables are as long as all bounds together.
    `tables`: use the statistics of s that an earlier run has paid for, so that only the head is charged: that run's
    folder, or "kept" for the last ones beside the ledger (`runs.paid_tables`). `reserve`: the share of the cap that
    this run leaves for later ones. `cap`: a file with the decision of all parties to raise the cap (`releases.caps`).
    `generator_seed`: of encoders and edits, if not `seed`, which also makes the split.

    `card` is a path, "shipped" (the one for this data set) or the name of a shipped card.
    `dp_sampling`: a record's chance to take part in a step of mode `dp`, rounded to a multiple of 2^-16.
    `evaluation`: how validation and test records are evaluated. "noisy": what is opened about them has noise and is
    charged to their own budget. "exact" is not private, and the default for public benchmark data alone.
    `evaluations`: how many noisy evaluations of the same records the cap `evaluation_epsilon` is planned for.
    `min_group`: no rate of a group is opened that rests on fewer records. `slices`: the column that groups are
    crossed with for rates of intersections; the second protected attribute if there is one.
    `controls`: what noisy figures are compared with. "standard": the majority and flips under shuffled groups; where
    the model is not private (mode `sealed`, encoder `plain`, one logit) also a model without mediators and proxies
    that is trained beside it. "full": also rates of groups of that one. "none": less noise in what is left.
    `leak`: measure how well s is recovered from encodings of validation records; only with exact evaluation and a
    model that is not private. It reveals s of training records too, which no ledger covers.
    `private_model`: the head is differentially private, under the same `epsilon` as the statistics of s
    (`releases.heads`); it gets `head_share` of it, by default .75 where a card decides every column and tables are
    those of its M and P alone (`tabled`), else .6. Without it the model is not private, which is for research on
    public data. `consistency_from`: "tables" builds the consistency penalty from the released tables; "records" edits
    every training record. With a private model the Gram matrix of these edits is a charged release with noise
    (`releases.gram`; mode `sealed`); without, the model reveals s of them: for public data.
    `head`: "linear", or a module of CrypTen that is trained by its autograd (`training.modules`): "mlp" has `hidden`
    units. A module is not private, so it needs `private_model` = false, which is for public data; it goes with mode
    `sealed` and exact evaluation, has its penalty from records, and takes `steps` steps at one lambda by default.
    `method`: a recipe of `training.recipes`; options that are not given follow from it. `take_lambda`: the
    lambda of the model. A `gap_target` or `flip_target` above 0 lets validation records decide instead. `rule` to
    `decay` are settings of `DiscoveryConfig`.
    `predictions`: how many people the model may answer for, over all predictions; each of them once
    (`releases.prediction_log`). 0: no limit, for data that may be pooled alone, where it is the default.
    `weight_identity`, `weight_support`, `weight_leak`: alpha', beta' and eta' of the paper's objective, in mode
    `split` (`training.modes.split_local`). Support and identity weigh terms of generators that train, those of
    method `paper`.
    """

    dataset: str = "german"
    split: SplitKind = "iid"
    align: AlignKind = "exact"
    align_bounds: tuple[float, ...] = ()
    seed: int = 0
    pooled: bool = True
    method: str = RECIPES.names[0]
    mode: str = "sealed"
    epsilon: float = 8.0
    delta: float = 1e-5
    private_model: bool = True
    head_share: float = TrainConfig().head_share
    consistency_from: ConsistencySource = TrainConfig().consistency_from
    refreshes: int = TrainConfig().refreshes
    late_refreshes: int = TrainConfig().late_refreshes
    noise: NoiseKind = "dealer+holder"
    evaluation: EvaluationKind = "exact"
    evaluation_epsilon: float = 4.0
    evaluation_delta: float = 1e-5
    evaluations: int = 4
    min_group: int = 20
    leak: bool = False
    slices: str = ""
    controls: Controls = "standard"
    rule: Rule = DiscoveryConfig.rule
    score: ScoreKind = DiscoveryConfig.score
    rho_m: float = DiscoveryConfig.rho_m
    rho_p: float = DiscoveryConfig.rho_p
    fdr: float = DiscoveryConfig.fdr
    hysteresis: float = DiscoveryConfig.hysteresis
    per_party: bool = DiscoveryConfig.per_party
    conditional: bool = DiscoveryConfig.conditional
    gain: bool = DiscoveryConfig.gain
    sketch: SketchKind = DiscoveryConfig.sketch
    clip: float = DiscoveryConfig.clip
    decay: float = DiscoveryConfig.decay
    encoder: EncoderKind = "plain"
    head: str = LINEAR
    hidden: int = HIDDEN
    generator: str = GeneratorConfig.kind
    source: Source = "tables"
    consistency: ConsistencyKind = "squared"
    lambdas: tuple[float, ...] = (3.0,)
    take_lambda: float = 3.0
    gap_target: float = 0.0
    flip_target: float = 0.0
    guard: float = TrainConfig().guard
    guard_grows: bool = TrainConfig().guard_grows
    weight_identity: float = 0.0
    weight_support: float = 0.0
    weight_leak: float = 0.0
    warmup: int = TrainConfig().warmup
    steps: int = TrainConfig().steps
    grid_steps: int = TrainConfig().grid_steps
    ridge: float = TrainConfig().ridge
    dp_steps: int = 10
    dp_sampling: float = 1.0
    card: str = ""
    ledger: str = ""
    tables: str = ""
    reserve: float = 0.0
    cap: str = ""
    generator_seed: int = -1
    checkpoints: bool = True
    resume: bool = False
    model: str = ""
    records: str = ""
    scores: bool = False
    receiver: int = -1
    predictions: int = NO_LIMIT

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> RunOptions:
        """From a session file; unknown or impossible settings raise ConfigError."""
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(options) - known):
            raise ConfigError(f"a run has no option {unknown[0]!r}; there is {', '.join(sorted(known))}")
        for name, hint in get_type_hints(cls).items():
            if name in options:
                _check_kind(name, options[name], hint)
        given = {**options}
        try:
            given.setdefault("pooled", is_benchmark(given.get("dataset", cls.dataset)))
        except DataError as error:
            raise ConfigError(str(error)) from None
        given.setdefault("evaluation", "exact" if given["pooled"] else "noisy")
        given.setdefault("predictions", NO_LIMIT if given["pooled"] else PREDICTIONS)
        given.setdefault("private_model", _can_be_private(given))
        if not given["private_model"] and not given["pooled"]:
            raise ConfigError(
                "a model that is not private reveals training records: private_model = false (and mode split) are "
                "for public data"
            )
        rules = [name for name in ("take_lambda", "gap_target", "flip_target") if given.get(name)]
        if len(rules) > 1:
            raise ConfigError(f"{rules[0]} and {rules[1]} are two rules for lambda: give one")
        if rules and rules != ["gap_target"]:
            given["gap_target"] = 0.0
        module = given.get("head", LINEAR) != LINEAR
        if (
            module
            and not wrong_kind(given.get("take_lambda", 0.0), float)
            and not {"gap_target", "flip_target"} & {*rules}
        ):
            given.setdefault("lambdas", (float(given.get("take_lambda", cls.take_lambda)),))
        if "lambdas" not in given and not wrong_kind(given.get("take_lambda", 0.0), float):
            if given["private_model"]:  # every head is charged, so one is trained
                known = (_mode_options(given.get("mode")) or {"lambdas": (cls.take_lambda,)})["lambdas"]
                given["lambdas"] = (float(given["take_lambda"]),) if "take_lambda" in given else known
            elif "take_lambda" in given:
                grid = {*TrainConfig().lambdas, max(float(given["take_lambda"]), 0.0)}
                given["lambdas"] = tuple(sorted(grid))
        weighed = [name for name in WEIGHTS if given.get(name)]
        if weighed and given.get("mode", cls.mode) != "split":
            raise ConfigError(f"{weighed[0]} weighs what parties train in mode split; {NO_WEIGHTS}")
        recipe = recipe_options(
            given.get("method", cls.method), given.get("dataset", cls.dataset), given["evaluation"]
        )
        if given.get("source") == "moments":  # which are released once, for roles that no longer change
            recipe |= {"late_refreshes": 0, "refreshes": 1}
        if given.get("sketch") == "clipped" and recipe["score"] == "hsic":  # which is of counts
            recipe |= {"score": "stable"}
        if module:
            recipe |= {"consistency_from": "records", "steps": MODULE_STEPS, "ridge": MODULE_RIDGE}
        given = {**recipe, **_mode_options(given.get("mode")), **given}
        if "lambdas" in given:
            given["lambdas"] = tuple(float(v) for v in given["lambdas"])
        made = cls(**given)
        if made.mode not in MODES:
            raise ConfigError(f"no mode {made.mode!r}; there is {', '.join(MODES)}")
        if "align" not in given and not made.pooled and not made.hidden_refusal:
            made = replace(made, align="hidden")
        if made.align == "hidden" and made.hidden_refusal:
            raise ConfigError(
                f"align = hidden does not go with {made.hidden_refusal}: use align = revealed or exact, or leave "
                "that out"
            )
        try:
            check_target(made.epsilon, made.delta)
            check_target(made.evaluation_epsilon, made.evaluation_delta)
            made.train_config()
            nearest_sampling(made.dp_sampling)
        except (ValueError, TypeError) as error:
            hint = "; private_model = false trains without (public data only)" if made.private_model else ""
            raise ConfigError(f"{error}{hint if 'private head' in str(error) else ''}") from None
        if made.private_model and made.consistency_from == "records" and made.mode != "sealed":
            raise ConfigError(
                f"consistency_from = records with a private model is for mode sealed, not {made.mode}: use tables"
            )
        if module and made.mode != "sealed":
            raise ConfigError(f"head {made.head} is for mode sealed, not {made.mode}: use head linear")
        if not made.refreshes + made.late_refreshes:
            raise ConfigError("refreshes and late_refreshes are both 0: tables and roles are refreshed at least once")
        if made.method == "paper" and made.mode != "split":
            raise ConfigError(f"method paper trains by split learning: it needs mode split, not {made.mode}")
        if any(not 0 <= getattr(made, name) < float("inf") for name in WEIGHTS):
            raise ConfigError(
                f"weights of validity terms must not be negative: {[getattr(made, n) for n in WEIGHTS]}"
            )
        if any(bound < 1 or bound != int(bound) for bound in made.align_bounds):
            raise ConfigError(f"align_bounds must be whole numbers of records, not {list(made.align_bounds)}")
        if not 0 <= made.reserve < 1:
            raise ConfigError(f"reserve is a share of the cap, from 0 to below 1, not {made.reserve}")
        made.check_tables()
        if made.predictions < (NO_LIMIT if made.pooled else 1):
            raise ConfigError(f"predictions must be at least 1 (0, no limit, for pooled data): {made.predictions}")
        if made.dp_steps < 1:
            raise ConfigError(f"dp_steps must be at least 1, got {made.dp_steps}")
        if min(made.min_group, made.evaluations) < 1:
            raise ConfigError(f"min_group and evaluations must be at least 1: {made.min_group}, {made.evaluations}")
        return made

    def train_config(self) -> TrainConfig:
        recipe = RECIPES.get(self.method)
        latent = settings_of(self.dataset).latent if self.method == "paper" else recipe.generator.latent
        generator = replace(recipe.generator, kind=self.generator, source=self.source, latent=latent)
        discovery = replace(recipe.discovery, **{name: getattr(self, name) for name in DISCOVERY_OPTIONS})
        return replace(
            recipe,
            encoder=self.encoder,
            head=self.head,
            hidden=self.hidden,
            consistency=self.consistency,
            lambdas=self.lambdas,
            take_lambda=None if self.gap_target or self.flip_target else self.take_lambda,
            gap_target=self.gap_target or recipe.gap_target,
            flip_target=self.flip_target or None,
            guard=self.guard,
            guard_grows=self.guard_grows,
            refreshes=self.refreshes,
            late_refreshes=self.late_refreshes,
            warmup=self.warmup,
            steps=self.steps,
            grid_steps=self.grid_steps,
            ridge=self.ridge,
            evaluation=self.evaluation,
            leak=self.leak,
            control=self.trains_control,
            min_group=self.min_group,
            consistency_from=self.consistency_from,
            private=self.private_model,
            head_share=self.head_share,
            discovery=discovery,
            generator=generator,
        )

    @property
    def hidden_refusal(self) -> str:
        """The setting that needs to know which records all parties have, or their exact number; "" if none does."""
        needs = {
            f"mode {self.mode}": self.mode not in ("sealed", "aware"),
            "exact evaluation": self.evaluation == "exact",
            "conditional scores": self.conditional,
            "sketch clipped": self.sketch == "clipped",
            "data that are pooled": self.pooled,
        }
        return next((what for what, asked in needs.items() if asked), "")

    @property
    def trains_control(self) -> bool:
        """Whether a head without mediators is trained beside the others, where the task allows it."""
        wanted = self.evaluation == "noisy" and self.controls != "none" and not self.private_model
        return wanted and self.mode == "sealed" and self.encoder == "plain"

    def check_tables(self) -> None:
        """Raise ConfigError if this run cannot use kept tables, or they cannot be found."""
        if not self.tables:
            return
        if self.mode == "dp":
            raise ConfigError("mode dp pays for its gradients, so kept tables would not make it free: leave them out")
        if self.pooled and not self.ledger:
            if self.tables == KEPT:
                raise ConfigError("these data have a ledger for each run: name the run whose tables are to be used")
            if self.evaluation == "noisy":
                raise ConfigError("tables of a run with its own ledger go with exact evaluation; give a --ledger")

    @property
    def drawn_seed(self) -> int:
        """The seed of encoders and edits."""
        return self.seed if self.generator_seed < 0 else self.generator_seed

    @property
    def spendable(self) -> float:
        """What this run may spend: the cap without the reserve."""
        return self.epsilon * (1 - self.reserve)

    @property
    def charged(self) -> int:
        """How many releases of statistics of s the budget is planned for."""
        return self.train_config().charged

    def simulated_budget(self, parties: int) -> SpendingPlan:
        """The same cap, releases and noise for a simulation in the clear."""
        return SpendingPlan(self.spendable, self.delta, self.charged, self.noise, parties)

    def settings(self, description: str, records: str) -> dict[str, str]:
        """Everything that a run's state follows from, as its checkpoints carry it; files enter by their digests.

        The ledger is part of it: another one would not know what the run has spent.
        """
        files = ("dataset", "card", "checkpoints", "resume", "model", "records", "scores", "receiver", "cap")
        own = {f.name: str(getattr(self, f.name)) for f in fields(self) if f.name not in files}
        card = self.policy()
        roles = hashlib.sha256(("None" if card is None else card.rules()).encode()).hexdigest()
        return {**own, "description": description, "records": records, "card": roles}

    def policy(self, schema: Schema | None = None) -> PolicyCard | None:
        """The policy card, if there is one; it must fit the schema, if that is given."""
        card = named_card(self.card, self.dataset)
        if card is not None and schema is not None:
            card.check({f.name for own in schema.features for f in own}, schema.name)
        return card

    def tabled(self, schema: Schema) -> tuple[str, ...]:
        """The columns whose tables of s are released (`TrainConfig.tabled`); empty: all. Mode `aware` needs all."""
        card = self.policy() if self.mode != "aware" else None
        features = [f.name for own in schema.features for f in own]
        return self.train_config().tabled(None if card is None else card.roles, features)

    def ledger_folder(self, session: Session, home: Path | None = None) -> Path:
        """Where this party's ledgers lie; `home` is the run's folder if that is not the session's.

        A run on public data that uses another's tables goes on with that one's ledger and tags of records.
        """
        if self.tables and self.pooled and not self.ledger:
            other = Path(self.tables)
            return other if (other / LEDGER).is_file() else other / f"party-{session.rank}"
        return ledger_folder(self.dataset, self.ledger, self.pooled, session, home)

    def check(self, parties: int) -> None:
        """Raise for every error that can be found before a process starts or a record is read."""
        schema = self.schema(parties)
        if self.align_bounds and (self.align != "hidden" or len(self.align_bounds) != parties):
            raise ConfigError(f"align_bounds are for align = hidden: one for each of {parties} parties")
        if self.flip_target and schema.task == "regression":
            raise ConfigError("a flip_target is about decisions; the label of these data is a number: use gap_target")
        if self.slices and not (self.pooled and self.evaluation == "exact" and schema.task == "binary"):
            raise ConfigError(
                "slices are exact counts: they need two classes, exact evaluation and data that may be pooled"
            )
        Crossed.of(schema, self.slices)
        gradient_mode(self.mode).check(self, schema)
        self.policy(schema)

    def schema(self, parties: int) -> Schema:
        """The public description of the data set."""
        made = benchmark_schema(pooled(self.dataset, parties)) if self.pooled else own_schema(Path(self.dataset))
        if len(made.parties) != parties:
            raise ConfigError(f"{self.dataset} has {len(made.parties)} parties, the session {parties}")
        return made

    def load(self, rank: int, parties: int) -> PartyData:
        """What this process holds of the data set."""
        if self.pooled:
            part = benchmark_part(pooled(self.dataset, parties), rank, self.split, self.seed)
            forget()  # a party continues with its own columns alone
            return part
        self.schema(parties)
        return own_part(Path(self.dataset), rank, self.seed)


def prediction_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """What a prediction takes over from the options of the session that trained: its data, and how records meet.

    The log of predictions is next to the ledger. How many are allowed is in the model.
    """
    names = ("dataset", "split", "seed", "pooled", "align_bounds", "ledger")
    kept = {k: v for k, v in options.items() if k in names}
    return {**kept, "align": RunOptions.of(options).align}


def _can_be_private(given: Mapping[str, Any]) -> bool:
    """Whether a run's model is private unless its options say otherwise: not where the method opens more anyway."""
    return given.get("mode", RunOptions.mode) != "split" and given.get("method", RunOptions.method) == "scc"


def _mode_options(mode: Any) -> dict[str, Any]:
    """What a mode sets of the options that a user may also give: its own grid of lambda, if it has one."""
    return {"lambdas": MODES.get(mode).lambdas} if mode in MODES and MODES.get(mode).lambdas else {}


def recipe_options(method: str, dataset: str, evaluation: EvaluationKind) -> dict[str, Any]:
    """What a method sets of the options that a user may also give.

    Steps of method `paper` after its warm-up are those of its table, which stops early. Where evaluation has
    noise nothing stops early (`training.modes.split_settings`): there it takes the patience, the fewest that the
    paper can take.
    """
    if method not in RECIPES:
        raise ConfigError(f"no method {method!r}; there is {', '.join(RECIPES)}")
    recipe, own = RECIPES.get(method), {}
    if method == "paper":
        column = settings_of(dataset)
        own = {
            "take_lambda": column.lambda_cons,
            "warmup": column.warmup,
            "steps": column.epochs - column.warmup if evaluation == "exact" else column.patience,
            "weight_identity": column.lambda_gen * column.terms.alpha,
            "weight_support": column.lambda_gen * column.terms.beta,
            "weight_leak": column.lambda_adv,
        }
    return {
        **own,
        **{name: getattr(recipe.discovery, name) for name in DISCOVERY_OPTIONS},
        "generator": recipe.generator.kind,
        "consistency": recipe.consistency,
        "consistency_from": recipe.consistency_from,
        "lambdas": recipe.lambdas,
        "gap_target": recipe.gap_target if recipe.take_lambda is None else 0.0,
        "refreshes": recipe.refreshes,
        "late_refreshes": recipe.late_refreshes,
        "guard": recipe.guard,
        "guard_grows": recipe.guard_grows,
    }


def _check_kind(name: str, value: Any, hint: Any) -> None:
    """Raise ConfigError unless an option has a value of its kind: "no" is text, which Python would read as true."""
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ConfigError(f"no {name} {value!r}; there is {', '.join(get_args(hint))}")
        return
    if get_origin(hint) is tuple:
        if not isinstance(value, (list, tuple)) or any(wrong_kind(v, float) for v in value):
            raise ConfigError(f"{name} must be a list of numbers, not {value!r}")
    elif (odd := wrong_kind(value, hint)) is not None:
        raise ConfigError(f"{name} {odd}")
