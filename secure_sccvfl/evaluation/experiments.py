"""Experiments as data: one seed gives scores, many seeds give rows with intervals.

A seed's result depends on (experiment, data set, split, seed) only. So seeds can run anywhere, and a finished one
is kept.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any, Literal, get_args

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from secure_sccvfl.audit.attacks.catalogue import ATTACKS
from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.checks import examine
from secure_sccvfl.data.dataset import Dataset, DataWarning
from secure_sccvfl.data.randomness import torch_seed
from secure_sccvfl.data.splits import SplitKind, make_split
from secure_sccvfl.evaluation import network_baselines
from secure_sccvfl.evaluation.baselines import erm, scc, with_config, with_roles
from secure_sccvfl.evaluation.fitted_judges import FittedJudges, fit_judges
from secure_sccvfl.evaluation.frontier import along, pgd_scores
from secure_sccvfl.evaluation.judges import HANDED_OUT, JUDGES, OWN, EditedRecords
from secure_sccvfl.evaluation.methods import ABLATIONS, METHODS, Method
from secure_sccvfl.evaluation.metrics import Scored, edit_quality, group_table, logits_of
from secure_sccvfl.evaluation.network_baselines import SWEEPS, SWITCHES, baseline, letter_with
from secure_sccvfl.evaluation.prepared import (
    Fitted,
    Prepared,
    cycle_error,
    default_config,
    default_run,
    own_rows,
    prepare,
    without_noise,
)
from secure_sccvfl.evaluation.summary import short_name
from secure_sccvfl.evaluation.views import views_of
from secure_sccvfl.policy.card import named_card
from secure_sccvfl.releases.noise import SpendingPlan
from secure_sccvfl.training.config import TrainConfig

Experiment = Literal[
    "main",
    "tabular",
    "ablation",
    "attacks",
    "folktables",
    "sensitivity-paper",
    "sensitivity",
    "switches",
    "letter",
    "runtime",
    "private",
]
EXPERIMENTS: tuple[Experiment, ...] = get_args(Experiment)
OF_PAPER = ("adv_nomask", "uniform_cf", "policy_blind", "server_consistency", "paper")
"""The five methods of the paper's tables, to the letter."""
ATTACKED = ("erm", "erm_network", *OF_PAPER, "scc")
LARGE = (
    *("majority", "logreg", "drop_m", "drop_m_guard", "erm", "parity", "aware", "erm_network"),
    *(*OF_PAPER, "scc"),
)
TABULAR = (
    *("majority", "drop_m", "erm", "erm_network", *OF_PAPER),
    *(f"{name}_repaired" for name in ("uniform_cf", "policy_blind", "server_consistency")),
    "scc",
)
"""Those of the paper's main table and the rows that they are read beside. No attack: `attacks` has these."""
TIMED = ("erm_network", *OF_PAPER, "scc")
EPSILONS = (1.0, 2.0, 4.0, 8.0)
"""Totals of tables and head."""
LETTER = (
    network_baselines.settings_of.__module__,
    *(f"secure_sccvfl.evaluation.letter.{name}" for name in ("roles", "generators", "trainer")),
    *(f"secure_sccvfl.evaluation.{name}" for name in ("network_baselines", "networks")),
    *(f"secure_sccvfl.models.{name}" for name in ("masked_cvae", "adversary", "cvae", "mlp")),
)
"""The modules that the letter is made of."""
ROLE_SWITCHES = ("score_partition", "validation_fractions", "no_refresh", "repaired_roles")
"""The switches that change where roles of the letter come from."""
OF_DEFAULT = ("main", "folktables")
"""The experiments whose `scc` is a default run, with a private head. In the others no head has noise, so that one
element changes at a time; `private` compares the two.
"""
NOISED = ("scc", "drop_m_guard")
"""The methods that have that noise in them. All others are as good as they can be without it."""
CONTROL = "scc_not_private"
"""Our method without that noise."""
SYMBOLS = {"rho_m": "tau_m", "edit_scale": "gamma_cf"}
"""What the paper's sweeps call a setting of the letter, where the names differ."""
SWEPT_FROM: Mapping[str, Any] = {"rho_m": 0.33, "partition": "score"}
"""Where the sweeps start: the row that all five of the paper's tables share is not at the .60 of its text. Its
appendix takes M by S_j.
"""


@dataclass(frozen=True)
class SeedRun:
    """One seed of one experiment. card: a policy card that fixes roles, as for a run; none: discovery decides."""

    experiment: Experiment
    dataset: str
    split: SplitKind
    seed: int
    card: str = ""

    def __post_init__(self) -> None:
        if self.experiment not in EXPERIMENTS:
            raise ValueError(f"unknown experiment {self.experiment!r}; use one of {EXPERIMENTS}")
        if self.split not in ("iid", "shift"):
            raise ValueError(f"unknown split {self.split!r}; use iid or shift")

    @property
    def key(self) -> str:
        """Name of the finished seed's file.

        It changes with defaults, judges and the code of the letter, so results of another program are not mixed in.
        """
        config = default_config() if self.experiment in OF_DEFAULT else TrainConfig()
        settings = f"{config}{SpendingPlan()}{JUDGES.names}{_code()}".encode()
        digest = hashlib.sha256(settings).hexdigest()[:8]
        where = hashlib.sha256(f"{self.dataset} {self.card}".encode()).hexdigest()[:4]
        return f"{self.experiment}-{short_name(self.dataset)}-{where}-{self.split}-{digest}-{self.seed}"


@cache
def _code() -> str:
    """A digest of the modules of the letter; their prose does not count."""
    digest = hashlib.sha256()
    for name in LETTER:
        tree = ast.parse(inspect.getsource(import_module(name)))
        for node in ast.walk(tree):
            described = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            if described and ast.get_docstring(node) is not None:  # type: ignore[arg-type]
                del node.body[0]  # type: ignore[attr-defined]
        digest.update(ast.dump(tree).encode())
    return digest.hexdigest()


def settings_of_run(run: SeedRun, data: Dataset) -> tuple[TrainConfig, SpendingPlan]:
    """Settings and budget of `scc`: those of a default run, where the experiment is about it.

    Every lambda of the grid is trained with the noise of a run that trains it alone.
    """
    if run.experiment in OF_DEFAULT:
        config, budget = default_run(data)
        return config.as_alternatives(), budget
    config = TrainConfig()
    return config, SpendingPlan(releases=config.charged)


def _sweep() -> dict[str, Method]:
    """One setting changed at a time; every other default kept."""
    base = TrainConfig()
    sweeps: dict[str, TrainConfig] = {}
    for level in (0.01, 0.05, 0.10, 0.20):
        sweeps[f"fdr={level:g}"] = replace(base, discovery=replace(base.discovery, fdr=level))
    for rho in (0.15, 0.33, 0.60):
        by_rank = replace(base.discovery, rule="fractions", rho_m=rho)
        sweeps[f"rho_m={rho:g}"] = replace(base, discovery=by_rank)
    for draws in (1, 4, 16):
        sweeps[f"draws={draws}"] = replace(base, generator=replace(base.generator, draws=draws))
    for scale in (0.2, 0.5, 1.0):
        sweeps[f"edit_scale={scale:g}"] = replace(base, generator=replace(base.generator, scale=scale))
    for guard in (0.0, 0.1, 0.3, 1.0):
        sweeps[f"guard={guard:g}"] = replace(base, guard=guard)
    for target in (0.02, 0.04, 0.07, 0.10):
        sweeps[f"gap_target={target:g}"] = replace(base, take_lambda=None, gap_target=target)
    for ridge in (1e-3, 5e-3, 2e-2):
        sweeps[f"ridge={ridge:g}"] = replace(base, ridge=ridge)
    methods: dict[str, Method] = {name: with_config(config) for name, config in sweeps.items()}
    for epsilon in (1.0, 2.0, 4.0, 8.0):
        methods[f"epsilon={epsilon:g}"] = with_config(base, SpendingPlan(epsilon=epsilon))
    return methods


def _private() -> dict[str, Method]:
    """A private head under one total epsilon, next to heads without noise; the roles are those of the default run.

    "records": the consistency penalty is taken over the training records. "tables": it follows from noisy tables.
    """
    base = TrainConfig().only(3.0)
    found: dict[str, Method] = {
        "records, not private": with_roles(replace(base, consistency_from="records")),
        "tables, not private": with_roles(base),
    }
    for epsilon in EPSILONS:
        budget = SpendingPlan(epsilon=epsilon, releases=base.charged)
        found[f"private, epsilon {epsilon:g}"] = with_roles(replace(base, private=True), budget)
    return found


def _paper_sweep() -> dict[str, Method]:
    """The letter with one setting changed at a time, on the paper's grids."""
    return {
        f"{SYMBOLS.get(setting, setting)}={value:g}": letter_with(**{**SWEPT_FROM, setting: value})
        for setting, grid in SWEEPS.items()
        for value in grid
    }


def _switched() -> dict[str, Method]:
    """The letter, and with one of its elements switched at a time."""
    switched = {f"paper, {name}": letter_with(**changes) for name, changes in SWITCHES.items()}
    return {"paper": METHODS.get("paper"), **switched}


def _letter() -> dict[str, Method]:
    """The letter beside the same with other roles, both readings of Server-Consistency, and the default."""
    beside = {name: baseline(name) for name in ("erm_network", "server_consistency", "server_consistency_flipped")}
    switched = {f"paper, {name}": letter_with(**SWITCHES[name]) for name in ROLE_SWITCHES}
    return {**beside, "paper": letter_with(), **switched, "scc": scc}


def methods_of(experiment: Experiment) -> Mapping[str, Method]:
    """Which methods an experiment runs."""
    named = {"tabular": TABULAR, "attacks": ATTACKED, "folktables": LARGE, "runtime": TIMED}
    if experiment in named:
        return {name: METHODS.get(name) for name in named[experiment]}
    if experiment == "ablation":
        return dict(ABLATIONS.items())
    if experiment == "sensitivity":
        return _sweep()
    if experiment == "sensitivity-paper":
        return _paper_sweep()
    if experiment == "switches":
        return _switched()
    if experiment == "letter":
        return _letter()
    if experiment == "private":
        return _private()
    return dict(METHODS.items())


def attack_scores(ready: Prepared, fitted: Fitted, experiment: Experiment) -> list[Scored]:
    """Every attack on every view that it takes; more views in `attacks` than in `main`."""
    seed = torch_seed(ready.seed, "attack")
    views = views_of(ready, fitted, brief=experiment != "attacks")
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
            if experiment == "attacks":
                scored[f"{attack.stem}_positive_control"] = attack.control(view, seed)[-1].rate
    return [Scored(None, metric, value) for metric, value in scored.items()]


def run_seed(run: SeedRun) -> dict[str, Any]:
    """Everything about one seed, as plain data. One thread: the seeds run in parallel."""
    torch.set_num_threads(1)
    with threadpool_limits(1):
        return _run(run)


def _own_edits(ready: Prepared) -> EditedRecords | None:
    """The run's own generator as a judge: a diagnostic."""
    if not ready.roles.named("M"):
        return None
    inputs, target = own_rows(ready)
    return EditedRecords(OWN, np.arange(len(inputs)), inputs, np.ones(len(inputs)), target)


def _score(judges: FittedJudges, own: EditedRecords | None, ready: Prepared, fitted: Fitted) -> list[Scored]:
    if own is None:
        return judges.score(fitted.predict)
    if fitted.own is not None:
        own = replace(own, inputs=fitted.own(ready.split.test))
    return judges.score(fitted.predict, {OWN: own})


def _edit_scores(ready: Prepared, judges: FittedJudges, own: EditedRecords | None) -> list[dict[str, Any]]:
    rows, columns = ready.split.train, ready.columns(ready.roles.named("M"))
    known = (ready.inputs[rows], ready.data.protected[0].codes[rows])
    found = judges.quality(known, columns, erm(ready).predict)
    if own is not None:
        found[OWN] = edit_quality(*known, judges.inputs, judges.codes, own, columns)
        found[OWN]["edit_cycle_error"] = cycle_error(ready)
    return [
        {"method": "(edits)", "judge": name, "metric": metric, "value": value}
        for name, figures in found.items()
        for metric, value in figures.items()
    ]


def _runtime(seconds: float, notes: Mapping[str, float]) -> dict[str, float]:
    """What a method took, and what it tells of its training."""
    epochs, steps = notes.get("epochs_run", 0), notes.get("optimisation_steps", 0)
    return {
        "seconds": seconds,
        **notes,
        **({"seconds_per_epoch": seconds / epochs} if epochs else {}),
        **({"ms_per_step": 1000 * seconds / steps} if steps else {}),
    }


def _run(run: SeedRun) -> dict[str, Any]:
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        data = load(run.dataset)
        report = examine(data)
    clock = time.perf_counter()
    card = named_card(run.card, run.dataset)
    ready = prepare(data, make_split(data, run.split, run.seed), run.seed, *settings_of_run(run, data), card)
    default_seconds = time.perf_counter() - clock
    kinds = JUDGES if run.experiment == "main" else HANDED_OUT
    judges, own = fit_judges(data, ready.split, ready.roles, run.seed, kinds), _own_edits(ready)
    scores = _edit_scores(ready, judges, own)
    if run.experiment in OF_DEFAULT:
        scores += [
            {"method": f"scc at {lam:g}", **asdict(s)}
            for lam, fitted in along(ready).items()
            for s in [*judges.score(fitted.predict), *pgd_scores(ready, fitted)]
        ]
    groups: dict[str, Any] = {}
    methods, exact = methods_of(run.experiment), ready
    if ready.config.private:
        methods, exact = {**methods, CONTROL: scc}, without_noise(ready)
    for name, method in methods.items():
        clock, used = time.perf_counter(), ready if name in NOISED else exact
        fitted = method(used)
        seconds = default_seconds if name == "scc" else time.perf_counter() - clock
        scored = _score(judges, own, used, fitted)
        if run.experiment in ("main", "attacks"):
            scored += attack_scores(used, fitted, run.experiment)
        elif run.experiment == "folktables":
            scored += pgd_scores(used, fitted)
        scored += [Scored(None, k, v) for k, v in _runtime(seconds, fitted.notes or {}).items()]
        scores += [{"method": name, **asdict(s)} for s in scored]
        if data.task != "regression":
            logits = logits_of(fitted.predict, judges.inputs, judges.codes)
            groups[name] = group_table(logits, judges.label, judges.codes, data.task)
    return {
        "job": asdict(run),
        "data": {**asdict(report), "repeated": report.repeated},
        "roles": dict(ready.roles.of),
        "log": list(ready.model.finding.log),
        "budget": [asdict(c) for c in ready.charges],
        "groups": groups,
        "scores": scores,
        "seconds": time.perf_counter() - started,
    }
