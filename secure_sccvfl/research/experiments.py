"""The experiments: which methods each one compares, and everything about one seed of it.

The result of a seed depends on (experiment, data set, split, seed, card) alone. So seeds can run anywhere and in any
order, and a finished one is kept.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
import torch

from secure_sccvfl.audit.attacks.catalogue import ATTACKS
from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.checks import examine
from secure_sccvfl.data.dataset import Dataset, DataWarning, Task
from secure_sccvfl.data.randomness import torch_seed
from secure_sccvfl.data.splits import SplitKind, make_split
from secure_sccvfl.evaluation.certified import certificate_scores
from secure_sccvfl.evaluation.counterfactual_models import COUNTERFACTUAL_MODELS, OWN, RUN_MODELS, Counterfactuals
from secure_sccvfl.evaluation.coupling_bounds import guarantee_scores
from secure_sccvfl.evaluation.frontier import KAPPAS, along, pgd_scores
from secure_sccvfl.evaluation.methods import (
    METHODS,
    Fitted,
    Method,
    Prepared,
    cycle_error,
    default_run,
    drop_m,
    drop_m_guard,
    erm,
    own_counterfactuals,
    prepare,
    scc,
    sealed,
    trained,
    white_box_of,
    with_inputs,
    with_kappa,
    with_net_penalty,
    without_noise,
)
from secure_sccvfl.evaluation.scoring import (
    AwarePredictor,
    Scored,
    ScoringSet,
    edit_quality,
    fit_counterfactuals,
    group_table,
    logits_of,
    one_thread,
)
from secure_sccvfl.evaluation.views import views_of
from secure_sccvfl.models.aware import make_aware
from secure_sccvfl.policy.card import named_card
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.protocols.config import code_digest
from secure_sccvfl.releases.noise import SpendingPlan
from secure_sccvfl.research.paper.methods import PAPER_ABLATIONS, SWEEPS, SWITCHES, paper_with
from secure_sccvfl.research.results import short_name
from secure_sccvfl.training.config import Net, TrainConfig
from secure_sccvfl.training.engine import CURVATURE, Step
from secure_sccvfl.training.modes.options import RunOptions
from secure_sccvfl.training.plain import Penalty, PlainEngine

Methods = Mapping[str, Method]
PAPER_METHODS = ("adv_nomask", "uniform_cf", "policy_blind", "server_consistency", "paper")
"""The five methods of the paper's tables, paper-faithful."""
NAMED: Mapping[str, tuple[str, ...]] = {
    "tabular": (
        *("majority", "drop_m", "erm", "erm_network", *PAPER_METHODS),
        *("uniform_cf_repaired", "policy_blind_repaired", "server_consistency_repaired", "scc"),
    ),
    "attacks": ("erm", "erm_network", *PAPER_METHODS, "scc"),
    "folktables": (
        *("majority", "logreg", "drop_m", "drop_m_guard", "erm", "parity", "aware", "erm_network"),
        *(*PAPER_METHODS, "scc"),
    ),
    "runtime": ("erm_network", *PAPER_METHODS, "scc"),
}
"""Experiments that compare methods of the registry."""
EPSILONS = (1.0, 2.0, 4.0, 8.0)
"""Total budgets of tables and model."""
TOTALS = (0.5, *EPSILONS)
"""Those of the experiment `epsilon`."""
ROLE_SWITCHES = ("score_partition", "validation_fractions", "no_refresh", "repaired_roles")
"""The switches that change where the roles of the paper-faithful method come from."""
OF_DEFAULT = ("main", "folktables")
"""The experiments whose `scc` is a default run, with a private model. In the others no model has noise, so that one
element changes at a time; `private` compares the two.
"""
NOISED = ("scc", "drop_m_guard")
"""The methods that carry the noise of a private model in those experiments."""
CONTROL = "scc_not_private"
"""Our method without that noise."""
KAPPA_OF = ("scc", CONTROL)
"""The methods whose range penalty or net penalty is varied."""
SYMBOLS = {"rho_m": "tau_m", "edit_scale": "gamma_cf"}
"""Symbols of the paper's sweeps for settings that have another name here."""
SWEPT_FROM: Mapping[str, Any] = {"rho_m": 0.33, "partition": "score"}
"""Where the sweeps start: the row that all five tables of the paper share has .33, its text has .60. Its appendix
takes M by S_j.
"""


def _ablation() -> Methods:
    return {
        "scc": scc,
        "no_masks": no_masks,
        "no_generator": METHODS.get("server_consistency_repaired"),
        "no_consistency": erm,
        "no_guard": no_guard,
        "drop_m": drop_m,
        "drop_m_guard": drop_m_guard,
        "paper": paper_with(),
        **{name: paper_with(**changes) for name, changes in PAPER_ABLATIONS.items()},
    }


def _sweep() -> Methods:
    """Our method with one setting changed at a time."""
    base = TrainConfig()
    discovery, generator = base.discovery, base.generator
    configs = {
        **{f"fdr={v:g}": replace(base, discovery=replace(discovery, fdr=v)) for v in (0.01, 0.05, 0.10, 0.20)},
        **{
            f"rho_m={v:g}": replace(base, discovery=replace(discovery, rule="fractions", rho_m=v))
            for v in (0.15, 0.33, 0.60)
        },
        **{f"draws={v}": replace(base, generator=replace(generator, draws=v)) for v in (1, 4, 16)},
        **{f"edit_scale={v:g}": replace(base, generator=replace(generator, scale=v)) for v in (0.2, 0.5, 1.0)},
        **{f"guard={v:g}": replace(base, guard=v) for v in (0.0, 0.1, 0.3, 1.0)},
        **{f"ridge={v:g}": replace(base, ridge=v) for v in (1e-3, 5e-3, 2e-2)},
    }
    budgets = {f"epsilon={v:g}": with_config(base, SpendingPlan(epsilon=v)) for v in EPSILONS}
    return {name: with_config(config) for name, config in configs.items()} | budgets


def _paper_sweep() -> Methods:
    """The paper-faithful method with one setting changed at a time, on the paper's grids."""
    return {
        f"{SYMBOLS.get(setting, setting)}={value:g}": paper_with(**{**SWEPT_FROM, setting: value})
        for setting, grid in SWEEPS.items()
        for value in grid
    }


def _of_paper(switches: Mapping[str, Mapping[str, Any]]) -> Methods:
    """The paper-faithful method with one of its elements switched at a time."""
    return {f"paper, {name}": paper_with(**changes) for name, changes in switches.items()}


def _letter() -> Methods:
    """The paper-faithful method next to itself with other roles, both readings of Server-Consistency, and ours."""
    names = ("erm_network", "server_consistency", "server_consistency_flipped")
    switched = _of_paper({name: SWITCHES[name] for name in ROLE_SWITCHES})
    return {**{name: METHODS.get(name) for name in names}, "paper": paper_with(), **switched, "scc": scc}


def _private() -> Methods:
    """A private model under one total epsilon next to models without noise; roles are those of the default run.

    "records": the consistency penalty is taken over the training records. "tables": it follows from noisy tables.
    """
    base = TrainConfig().only(3.0)
    methods = {
        "records, not private": with_roles(replace(base, consistency_from="records")),
        "tables, not private": with_roles(base),
    }
    for epsilon in EPSILONS:
        budget = SpendingPlan(epsilon=epsilon, releases=base.charged)
        methods[f"private, epsilon {epsilon:g}"] = with_roles(replace(base, private=True), budget)
    return methods


def _ranges() -> Methods:
    """A default run with other weights of the range penalty, with and without the noise of a private model."""
    weights = (*KAPPAS, 1.0)
    runs = {f"{name}, kappa {kappa:g}": partial(with_kappa, kappa=kappa) for name in KAPPA_OF for kappa in weights}
    return {"erm": erm, "drop_m": drop_m, "scc": scc, **runs}


def _net() -> Methods:
    """Two lambdas with and without the penalty on net flips, with and without the noise of a private model."""
    nets: tuple[tuple[str, Net], ...] = (("", ""), (", net zero", "zero"))
    runs = {
        f"{name}, lambda {lam:g}{words}": partial(with_net_penalty, lam=lam, net=net)
        for name in KAPPA_OF
        for lam in (0.25, 3.0)
        for words, net in nets
    }
    return {"erm": erm, **runs}


def _epsilon() -> Methods:
    """Total budgets from .5 to 8, each for a private model with its tables, and for tables and a model without noise.

    Roles are those of the card, or of discovery at epsilon 8. A private model has tables of M and P alone. The rows
    "exact marginals" have the owners' own counts in these tables, which a private head must not.
    """
    base = TrainConfig().only(3.0)
    methods: dict[str, Method] = {"erm": erm, "drop_m": drop_m}
    for epsilon in TOTALS:
        budget = SpendingPlan(epsilon=epsilon, releases=base.charged)
        methods[f"private model, epsilon {epsilon:g}"] = with_roles(replace(base, private=True), budget)
        methods[f"tables of M and P alone, epsilon {epsilon:g}"] = with_roles(base, budget, by_card=True)
        exact = with_roles(replace(base, own_marginals=True), budget, by_card=True)
        methods[f"tables of M and P alone, exact marginals, epsilon {epsilon:g}"] = exact
        methods[f"tables of all columns alone, epsilon {epsilon:g}"] = with_roles(base, budget, by_card=False)
    return methods


def _heads() -> Methods:
    """A network as the head next to the linear one, both without noise."""
    heads: dict[str, dict[str, Any]] = {"linear": {"lambdas": (3.0,)}, "mlp": {"head": "mlp"}}
    public = {"pooled": True, "private_model": False}
    return {name: with_config(RunOptions.of({**public, **head}).train_config()) for name, head in heads.items()}


BUILT: Mapping[str, Callable[[], Methods]] = {
    "main": lambda: dict(METHODS.items()),
    "ablation": _ablation,
    "sensitivity-paper": _paper_sweep,
    "sensitivity": _sweep,
    "switches": lambda: {"paper": paper_with(), **_of_paper(SWITCHES)},
    "letter": _letter,
    "private": _private,
    "epsilon": _epsilon,
    "heads": _heads,
    "range": _ranges,
    "net": _net,
}
"""Experiments that compare methods with changed settings, or all methods of the registry."""
EXPERIMENTS = (*BUILT, *NAMED)


def methods_of(experiment: str) -> Methods:
    """The methods that an experiment compares, by name."""
    if experiment in BUILT:
        return BUILT[experiment]()
    return {name: METHODS.get(name) for name in NAMED[experiment]}


@cache
def _code() -> str:
    return code_digest().hex()[:8]


@dataclass(frozen=True)
class SeedRun:
    """One seed of one experiment. card: the policy card that fixes the roles; "": discovery proposes them."""

    experiment: str
    dataset: str
    split: SplitKind
    seed: int
    card: str = ""

    def __post_init__(self) -> None:
        if self.experiment not in EXPERIMENTS:
            raise ValueError(f"unknown experiment {self.experiment!r}; available: {', '.join(EXPERIMENTS)}")
        if self.split not in ("iid", "shift"):
            raise ValueError(f"unknown split {self.split!r}; available: iid, shift")

    @property
    def key(self) -> str:
        """File name of the finished seed. It changes with the code, so results of other code are not mixed in."""
        where = hashlib.sha256(f"{self.dataset} {self.card}".encode()).hexdigest()[:4]
        return f"{self.experiment}-{short_name(self.dataset)}-{where}-{self.split}-{_code()}-{self.seed}"

    def settings(self, data: Dataset) -> tuple[TrainConfig, SpendingPlan]:
        """Settings and budget of `scc`: those of a default run in `range`, `net` and the experiments of `OF_DEFAULT`.

        In the last every lambda of the grid is trained with the noise of a run that trains it alone.
        """
        if self.experiment in OF_DEFAULT:
            config, budget = default_run(data)
            return config.as_alternatives(), budget
        if self.experiment in ("range", "net"):
            return default_run(data)
        config = TrainConfig()
        return config, SpendingPlan(releases=config.charged)


def attack_scores(ready: Prepared, fitted: Fitted, full: bool) -> list[Scored]:
    """Every attack on every view that it takes. full: all views, with positive controls."""
    seed = torch_seed(ready.seed, "attack")
    views = views_of(ready, fitted, brief=not full)
    scored: dict[str, float] = {}
    for _, attack in ATTACKS.items():
        for name, view in views.get(attack.takes, {}).items():
            rates = attack.run(view, seed)
            if not rates:
                continue
            for rate in rates:
                way = rate.attack.replace("-", "_").replace(" ", "_")
                scored[attack.metric.format(view=name.replace(" ", "_"), way=way)] = rate.rate
            if attack.takes == "white box":
                scored[attack.main] = rates[-1].rate
            if rates[0].chance > 0:
                scored[f"{attack.stem}_chance"] = rates[0].chance
            if full:
                scored[f"{attack.stem}_positive_control"] = attack.control(view, seed)[-1].rate
    return [Scored(None, metric, value) for metric, value in scored.items()]


def _score(scoring: ScoringSet, own: Mapping[str, Counterfactuals], ready: Prepared, fitted: Fitted) -> list[Scored]:
    if own and fitted.counterfactuals is not None:
        own = {OWN: replace(own[OWN], inputs=fitted.counterfactuals(ready.split.test))}
    return scoring.score(fitted.predict, own)


def _quality(ready: Prepared, scoring: ScoringSet, own: Mapping[str, Counterfactuals]) -> list[dict[str, Any]]:
    """Figures of the counterfactuals themselves, from which the validity checks follow."""
    rows, columns = ready.split.train, ready.columns(ready.roles.named("M"))
    training = (ready.inputs[rows], ready.data.protected[0].codes[rows])
    figures = scoring.quality(training, columns, erm(ready).predict)
    if own:
        figures[OWN] = edit_quality(*training, scoring.inputs, scoring.codes, own[OWN], columns)
        figures[OWN]["edit_cycle_error"] = cycle_error(ready)
    return [
        {"method": "(edits)", "judge": name, "metric": metric, "value": value}
        for name, of_model in figures.items()
        for metric, value in of_model.items()
    ]


def runtime(seconds: float, notes: Mapping[str, float]) -> dict[str, float]:
    """Seconds of a method, its notes, and seconds per epoch and step where it counts them."""
    epochs, steps = notes.get("epochs_run", 0), notes.get("optimisation_steps", 0)
    return {
        "seconds": seconds,
        **notes,
        **({"seconds_per_epoch": seconds / epochs} if epochs else {}),
        **({"ms_per_step": 1000 * seconds / steps} if steps else {}),
    }


@one_thread()
def run_seed(run: SeedRun) -> dict[str, Any]:
    """Everything about one seed, as plain data. One thread: seeds run in parallel."""
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        data = load(run.dataset)
        report = examine(data)
    clock, card = time.perf_counter(), named_card(run.card, run.dataset)
    ready = prepare(data, make_split(data, run.split, run.seed), run.seed, *run.settings(data), card)
    default_seconds = time.perf_counter() - clock
    models = COUNTERFACTUAL_MODELS if run.experiment == "main" else RUN_MODELS
    scoring = fit_counterfactuals(data, ready.split, ready.roles, run.seed, models)
    own = own_counterfactuals(ready)
    scores = _quality(ready, scoring, own)
    if run.experiment in OF_DEFAULT:
        scores += [
            {"method": f"scc at {lam:g}", **asdict(s)}
            for lam, fitted in along(ready).items()
            for s in [
                *scoring.score(fitted.predict),
                *certificate_scores(ready, fitted),
                *pgd_scores(ready, fitted),
            ]
        ]
    groups: dict[str, Any] = {}
    methods, exact = methods_of(run.experiment), ready
    if ready.config.private:
        methods, exact = {**methods, CONTROL: scc}, without_noise(ready)
    for name, method in methods.items():
        clock, used = time.perf_counter(), ready if name.partition(",")[0] in NOISED else exact
        fitted = method(used)
        seconds = default_seconds if name == "scc" else time.perf_counter() - clock
        scored = [*_score(scoring, own, used, fitted), *guarantee_scores(used, fitted)]
        if run.experiment in ("main", "attacks"):
            scored += attack_scores(used, fitted, full=run.experiment == "attacks")
        elif run.experiment == "folktables":
            scored += pgd_scores(used, fitted)
        scored += [Scored(None, k, v) for k, v in runtime(seconds, fitted.notes or {}).items()]
        scores += [{"method": name, **asdict(s)} for s in scored]
        if data.task != "regression":
            logits = logits_of(fitted.predict, scoring.inputs, scoring.codes)
            groups[name] = group_table(logits, scoring.label, scoring.codes, data.task)
    return {
        "job": asdict(run),
        "data": {**asdict(report), "repeated": report.repeated},
        "roles": dict(ready.roles.of),
        "log": list(ready.model.assignment.log),
        "budget": [asdict(c) for c in ready.charges],
        "groups": groups,
        "scores": scores,
        "seconds": time.perf_counter() - started,
    }


PARITY_WEIGHT = 30.0
PARITY_STEPS = 600
CLOSE = 1e-6


def pcf(ready: Prepared) -> Fitted:
    """Factual and counterfactual predictions of ERM, averaged by the shares of the groups.

    After Zhou et al., "Counterfactual fairness by combining factual and counterfactual predictions", NeurIPS 2024.
    Counterfactuals are made by the run's own generator. The white box takes those of the test records as they are.
    """
    plain, task = erm(ready), ready.data.task
    versions = _versions(ready)
    test = ready.split.test
    inputs, codes = ready.inputs[test], ready.data.protected[0].codes[test]
    moved = [(weight, torch.tensor(edited - inputs)) for weight, edited in versions(inputs, codes)]

    def predict(inputs: np.ndarray, codes: np.ndarray) -> np.ndarray:
        made = [weight * _chances(torch.tensor(plain.predict(v)), task) for weight, v in versions(inputs, codes)]
        return np.asarray(_scores(torch.stack(made).sum(dim=0), task))

    def white_box(x: torch.Tensor) -> torch.Tensor:
        made = [weight * _chances(plain.white_box(x + by), task) for weight, by in moved]
        return _scores(torch.stack(made).sum(dim=0), task)

    return Fitted(AwarePredictor(predict), white_box)


Versions = Callable[[np.ndarray, np.ndarray], Iterator[tuple[float, np.ndarray]]]
"""From records and their groups to (weight, records as members of one group): of all groups, and several draws."""


def _versions(ready: Prepared) -> Versions:
    sketch, config = ready.model.noisy_tables[0], ready.config.generator
    generators = ready.generators(ready.roles, config)
    sizes = np.maximum(np.mean([table.sum(axis=0) for table in sketch.tables.values()], axis=0), 1.0)
    shares = sizes / sizes.sum()

    def versions(inputs: np.ndarray, codes: np.ndarray) -> Iterator[tuple[float, np.ndarray]]:
        for target, draw in product(range(len(shares)), range(config.draws)):
            made = inputs.copy()
            for source in np.unique(codes[codes != target]):
                rows = codes == source
                goal, parties = np.full(int(rows.sum()), target), with_inputs(ready.parties, inputs[rows])
                made[rows] = np.hstack([generators[p.rank](p.inputs, int(source), goal, draw) for p in parties])
            yield shares[target] / config.draws, made

    return versions


def _chances(logits: torch.Tensor, task: Task) -> torch.Tensor:
    """What is averaged: probabilities of classes, or the value itself."""
    if task == "regression":
        return logits
    return torch.sigmoid(logits) if task == "binary" else torch.softmax(logits, dim=1)


def _scores(chances: torch.Tensor, task: Task) -> torch.Tensor:
    """Back to logits."""
    if task == "regression":
        return chances
    return torch.logit(chances, eps=CLOSE) if task == "binary" else torch.log(chances.clamp(min=CLOSE))


def parity(ready: Prepared) -> Fitted:
    """A head that uses no difference between group means of M and P: their directions are penalised."""
    model, task = ready.model, ready.data.task
    roles = ready.roles.with_role("M", ready.roles.named("P"))
    blocks = {p.rank: model.encoders[p.rank](p.inputs[ready.split.train]) for p in ready.parties}
    made = [make_aware(p.layout, model.encoders[p.rank], model.noisy_tables[0], roles) for p in ready.parties]
    gram = np.zeros((sum(b.shape[1] for b in blocks.values()),) * 2)
    for offset, share in zip(np.hstack([m.offsets for m in made]), made[0].shares, strict=True):
        gram += share * np.outer(offset, offset)
    ridge = {rank: np.full(block.shape[1], ready.config.ridge) for rank, block in blocks.items()}
    engine = PlainEngine()
    batch = engine.bind(blocks, ready.data.label.values[ready.split.train], ridge)
    bound = CURVATURE[task] * batch.rows.var(axis=0) + batch.ridge + PARITY_WEIGHT * np.abs(gram).sum(axis=1)
    penalty = Penalty((), gram, np.zeros_like(gram))
    step = Step(lam=PARITY_WEIGHT)
    head = engine.head(batch, ready.data.outputs, task)
    head = engine.steps(head, engine.first_order(batch, penalty, step, {0: bound}), PARITY_STEPS)

    def predict(inputs: np.ndarray) -> np.ndarray:
        parties = with_inputs(ready.parties, inputs)
        return engine.logits(head, {p.rank: model.encoders[p.rank](p.inputs) for p in parties})

    box = white_box_of(head.weight, head.bias, model.encoders, ready.parties)
    return Fitted(predict, box, additive=True)


def no_masks(ready: Prepared) -> Fitted:
    """Ablation: every feature is a mediator."""
    return sealed(ready, ready.config, Roles(dict.fromkeys(ready.roles.of, "M")))


def no_guard(ready: Prepared) -> Fitted:
    """Ablation: no proxy penalty."""
    return sealed(ready, replace(ready.config, guard=0.0))


def with_roles(
    config: TrainConfig, budget: SpendingPlan | None = None, *, by_card: bool | None = None
) -> Callable[[Prepared], Fitted]:
    """The sealed method with other settings and the roles of the default run.

    by_card: tables are of M and P alone, as if a card had decided the roles; by default for a private model.
    """
    decided = config.private if by_card is None else by_card
    return lambda ready: trained(ready, config, budget, ready.roles, ready.roles if decided else None)


def with_config(config: TrainConfig, budget: SpendingPlan | None = None) -> Callable[[Prepared], Fitted]:
    """The sealed method with other settings and its own discovery; scored on the roles of the default run."""
    return lambda ready: trained(ready, config, budget)
