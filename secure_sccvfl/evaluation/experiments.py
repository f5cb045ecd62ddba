"""Experiments as data: one seed gives scores, many seeds give rows with intervals.

A seed's result depends on (experiment, data set, split, seed) only. So seeds can run anywhere, and a finished one
is kept.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from scipy import stats
from threadpoolctl import threadpool_limits

from secure_sccvfl.attacks.catalogue import ATTACKS
from secure_sccvfl.attacks.view import RADII, View, WhiteBox
from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.checks import examine
from secure_sccvfl.data.dataset import DataWarning, Task
from secure_sccvfl.data.randomness import torch_seed
from secure_sccvfl.data.splits import SplitKind, make_split
from secure_sccvfl.evaluation.baselines import erm, with_config
from secure_sccvfl.evaluation.judges import FIRST, JUDGES, OWN, EditedRecords, judge, shuffled
from secure_sccvfl.evaluation.methods import ABLATIONS, METHODS, Method
from secure_sccvfl.evaluation.metrics import (
    Predictor,
    Scored,
    edit_quality,
    evaluate,
    group_table,
    logits_of,
    net_flips,
    s_held,
    stability,
)
from secure_sccvfl.evaluation.networks import TrainedNetwork, returned_gradients
from secure_sccvfl.evaluation.prepared import Fitted, Prepared, cycle_error, own_rows, prepare
from secure_sccvfl.privacy.noise import SpendingPlan
from secure_sccvfl.training.trainer import TrainConfig

Experiment = Literal["main", "ablation", "attacks", "sensitivity", "folktables", "runtime"]
EXPERIMENTS: tuple[Experiment, ...] = ("main", "ablation", "attacks", "sensitivity", "folktables", "runtime")
ATTACKED = ("erm", "adv_nomask", "uniform_cf", "policy_blind", "server_consistency_repaired", "paper", "scc")
LARGE = ("majority", "logreg", "drop_m", "drop_m_guard", "erm", "scc")
LABEL_ROWS = 256


@dataclass(frozen=True)
class SeedRun:
    """One seed of one experiment."""

    experiment: Experiment
    dataset: str
    split: SplitKind
    seed: int

    def __post_init__(self) -> None:
        if self.experiment not in EXPERIMENTS:
            raise ValueError(f"unknown experiment {self.experiment!r}; use one of {EXPERIMENTS}")
        if self.split not in ("iid", "shift"):
            raise ValueError(f"unknown split {self.split!r}; use iid or shift")

    @property
    def key(self) -> str:
        """Name of the finished seed's file; changes with defaults and judges, so old results are not mixed in."""
        settings = f"{TrainConfig()}{SpendingPlan()}{JUDGES.names}".encode()
        digest = hashlib.sha256(settings).hexdigest()[:8]
        where = hashlib.sha256(self.dataset.encode()).hexdigest()[:4]
        return f"{self.experiment}-{short_name(self.dataset)}-{where}-{self.split}-{digest}-{self.seed}"


def _sweep() -> dict[str, Method]:
    """One setting changed at a time; every other default kept."""
    base = TrainConfig()
    sweeps: dict[str, TrainConfig] = {}
    for lam in (0.0, 1.0, 4.0, 16.0, 64.0, 256.0):
        sweeps[f"lambda={lam:g}"] = replace(base, lambdas=(lam,))
    for rho in (0.15, 0.25, 0.33, 0.45, 0.60):
        sweeps[f"rho_m={rho:g}"] = replace(base, discovery=replace(base.discovery, rho_m=rho))
    for keep in (0.0, 0.25, 0.5, 1.0):
        sweeps[f"thinning={keep:g}"] = replace(base, generator=replace(base.generator, thinning=keep))
    for scale in (0.2, 0.5, 1.0):
        sweeps[f"edit_scale={scale:g}"] = replace(base, generator=replace(base.generator, scale=scale))
    for guard in (0.0, 0.05, 0.2, 1.0):
        sweeps[f"guard={guard:g}"] = replace(base, guard=guard)
    for target in (0.005, 0.015, 0.05):
        sweeps[f"gap_target={target:g}"] = replace(base, gap_target=target)
    methods: dict[str, Method] = {name: with_config(config) for name, config in sweeps.items()}
    for epsilon in (1.0, 2.0, 4.0, 8.0):
        methods[f"epsilon={epsilon:g}"] = with_config(base, SpendingPlan(epsilon=epsilon))
    return methods


def methods_of(experiment: Experiment) -> Mapping[str, Method]:
    """Which methods an experiment runs."""
    if experiment == "ablation":
        return dict(ABLATIONS.items())
    if experiment == "sensitivity":
        return _sweep()
    if experiment == "attacks":
        return {name: METHODS.get(name) for name in ATTACKED}
    if experiment == "folktables":
        return {name: METHODS.get(name) for name in LARGE}
    return dict(METHODS.items())


def views_of(ready: Prepared, fitted: Fitted, brief: bool) -> dict[str, dict[str, Any]]:
    """What adversaries may hold of a method: by what attacks take, then by name. `brief`: logits and one radius."""
    split, codes, inputs = ready.split, ready.data.protected[0].codes, ready.inputs
    shown: dict[str, Predictor] = {"logits": fitted.predict}
    if not brief and fitted.fused is not None:
        shown["z"] = fitted.fused
    views: dict[str, dict[str, Any]] = {"view": {}}
    for name, show in shown.items():
        parts = [(logits_of(show, inputs[rows], codes[rows]), codes[rows]) for rows in (split.train, split.test)]
        views["view"][name] = View(name, parts[0], parts[1])
    if ready.data.task != "regression":
        columns, radii = ready.columns(ready.roles.named("M")), RADII[-1:] if brief else RADII
        views["white box"] = {"model": WhiteBox("white box", fitted.white_box, inputs[split.test], columns, radii)}
    if not brief and ready.data.task == "binary" and isinstance(fitted.predict, TrainedNetwork):
        rows, largest = split.train[:LABEL_ROWS], int(np.argmax(ready.widths))
        label = ready.data.label.values[rows]
        found = returned_gradients(fitted.predict, inputs[rows], label, largest, noise=1.0, seed=ready.seed)
        views["gradients"] = {"largest party": found}
    return views


def attack_scores(ready: Prepared, fitted: Fitted, experiment: Experiment) -> list[Scored]:
    """Every attack on every view that it takes; more views in `attacks` than in `main`."""
    seed = torch_seed(ready.seed, "attack")
    views = views_of(ready, fitted, brief=experiment != "attacks")
    scored: dict[str, float] = {}
    for _, attack in ATTACKS.items():
        for name, view in views.get(attack.takes, {}).items():
            rates = attack.run(view, seed)
            for rate in rates:
                scored[attack.metric.format(view=name, way=rate.attack.replace("-", "_"))] = rate.rate
            if attack.takes == "white box":
                scored[attack.main] = rates[-1].rate
            if rates[0].chance > 0:
                scored[f"{attack.stem}_chance"] = rates[0].chance
    return [Scored(None, metric, value) for metric, value in scored.items()]


def run_seed(run: SeedRun) -> dict[str, Any]:
    """Everything about one seed, as plain data. One thread: the seeds run in parallel."""
    torch.set_num_threads(1)
    with threadpool_limits(1):
        return _run(run)


@dataclass(frozen=True)
class FittedJudges:
    """What judges all methods of a seed: held-out rows, judges, and the first judge for other s.

    `nulls` are edits of the same judges under shuffled s: the null control.
    """

    inputs: np.ndarray
    label: np.ndarray
    codes: np.ndarray
    edits: Mapping[str, EditedRecords]
    nulls: Mapping[str, EditedRecords]
    proxies: EditedRecords | None
    others: Mapping[str, EditedRecords]

    def score(self, ready: Prepared, fitted: Fitted) -> list[Scored]:
        edits = dict(self.edits)
        if fitted.own is not None and OWN in edits:
            edits[OWN] = replace(edits[OWN], inputs=fitted.own(ready.split.test))
        task = ready.data.task
        scored = evaluate(fitted.predict, self.inputs, self.label, self.codes, task, edits, self.proxies)
        for name, edited in edits.items():
            net = net_flips(fitted.predict, self.inputs, self.codes, edited, task)
            scored += [] if net is None else [Scored(name, "net", net)]
        for name in self.nulls:
            scored.append(
                Scored(name, f"{self.measure(task)}_null", self.unrest(fitted.predict, name, task, null=True))
            )
        for name, edited in self.others.items():
            alone = s_held(edited, self.codes)  # these groups are another attribute's
            for s in stability(fitted.predict, self.inputs, alone, task, edited.judge, self.codes):
                scored.append(replace(s, metric=f"{s.metric}_{name}"))
        return scored

    @staticmethod
    def measure(task: Task) -> str:
        """What the null control compares: flips, or the shift of a regression."""
        return "scg" if task == "regression" else "fr"

    def unrest(self, predict: Predictor, name: str, task: Task, null: bool) -> float:
        """That measure of a predictor under a judge, for true or for shuffled s."""
        edited = s_held(self.nulls[name], self.codes) if null else self.edits[name]
        found = {s.metric: s.value for s in stability(predict, self.inputs, edited, task, name, self.codes)}
        return found[self.measure(task)]


def fit_judges(ready: Prepared) -> FittedJudges:
    """Fit the judges of one seed, and fit them again under shuffled s."""
    data, split, seed = ready.data, ready.split, ready.seed
    held_out, used = data.take(split.test), data.ids[np.concatenate([split.train, split.validation])]
    mediators, proxies = ready.roles.named("M"), ready.roles.named("P")
    edits: dict[str, EditedRecords] = {}
    nulls: dict[str, EditedRecords] = {}
    others: dict[str, EditedRecords] = {}
    if mediators:
        fixed = ready.roles.named("N")
        for found, all_rows in ((edits, data), (nulls, shuffled(data, seed))):
            test = all_rows.take(split.test)
            for kind in JUDGES:
                found[kind] = judge(kind, test, used, mediators, seed, everyone=all_rows, fixed=fixed)
        inputs, target = own_rows(ready)
        edits[OWN] = EditedRecords(OWN, np.arange(len(inputs)), inputs, np.ones(len(inputs)), target)
        for at, attribute in enumerate(data.protected[1:], start=1):
            others[attribute.name] = judge(FIRST, held_out, used, mediators, seed, at)
    proxy = judge(FIRST, held_out, used, proxies, seed) if proxies else None
    codes = held_out.protected[0].codes
    return FittedJudges(ready.inputs[split.test], held_out.label.values, codes, edits, nulls, proxy, others)


def _edit_scores(ready: Prepared, judges: FittedJudges) -> list[dict[str, Any]]:
    rows, columns = ready.split.train, ready.columns(ready.roles.named("M"))
    known, task = ready.data.protected[0].codes[rows], ready.data.task
    plain = erm(ready).predict
    scores = []
    for name, edited in judges.edits.items():
        quality = edit_quality(ready.inputs[rows], known, judges.inputs, judges.codes, edited, columns)
        if name == OWN:
            quality["edit_cycle_error"] = cycle_error(ready)
        if name in judges.nulls:
            quality["edit_erm"] = judges.unrest(plain, name, task, null=False)
            quality["edit_erm_null"] = judges.unrest(plain, name, task, null=True)
        scores += [{"method": "(edits)", "judge": name, "metric": k, "value": v} for k, v in quality.items()]
    return scores


def _run(run: SeedRun) -> dict[str, Any]:
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        data = load(run.dataset)
        report = examine(data)
    clock = time.perf_counter()
    ready = prepare(data, make_split(data, run.split, run.seed), run.seed)
    default_seconds = time.perf_counter() - clock
    judges = fit_judges(ready)
    scores = _edit_scores(ready, judges)
    groups: dict[str, Any] = {}
    for name, method in methods_of(run.experiment).items():
        clock = time.perf_counter()
        fitted = method(ready)
        seconds = default_seconds if name == "scc" else time.perf_counter() - clock
        scored = judges.score(ready, fitted)
        if run.experiment in ("main", "attacks"):
            scored += attack_scores(ready, fitted, run.experiment)
        scored.append(Scored(None, "seconds", seconds))
        scored += [Scored(None, k, v) for k, v in (fitted.notes or {}).items()]
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


def interval(values: np.ndarray, bounded: bool) -> tuple[float, float, float]:
    """Mean and 95 % t-interval over seeds. Nothing reported is negative, and rates stay below 1."""
    mean = float(values.mean())
    if len(values) < 2:
        return mean, mean, mean
    half = float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
    high = mean + half
    return mean, max(mean - half, 0.0), min(high, 1.0) if bounded else high


RATES = ("acc", "fr", "net", "positive_rate", "dp_gap", "eo_gap", *(attack.stem for _, attack in ATTACKS.items()))


def short_name(dataset: str) -> str:
    """A data set without its path: `acs-income:dir/file.csv` is acs-income, `dir/loans.toml` is loans."""
    for mark in (":", "@"):
        if dataset.startswith("acs-") and mark in dataset:
            return dataset.split(mark)[0]
    return Path(dataset).stem


def summarise(finished: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows over seeds. `aia_logits` and `aia_z` are the attacker that is strongest on average."""
    values: dict[tuple[str, str, str, str | None, str], dict[int, float]] = defaultdict(dict)
    for result in finished:
        job = result["job"]
        for s in result["scores"]:
            if s["value"] is not None and np.isfinite(s["value"]):
                key = (short_name(job["dataset"]), job["split"], s["method"], s["judge"], s["metric"])
                values[key][job["seed"]] = s["value"]
    rows: list[dict[str, Any]] = []
    for (dataset, split, method, by, metric), seeds in values.items():
        mean, low, high = interval(np.array(list(seeds.values())), metric.startswith(RATES))
        rows.append(
            {
                "dataset": dataset,
                "split": split,
                "method": method,
                "judge": by,
                "metric": metric,
                "mean": mean,
                "low": low,
                "high": high,
                "seeds": len(seeds),
            }
        )
    best: dict[tuple[str, str, str, str], dict[str, Any]] = {}
    strongest = [name for _, attack in ATTACKS.items() if attack.takes == "view" for name in attack.columns]
    for row in rows:
        for view in strongest:
            if row["metric"].startswith(view + "_"):
                where = (row["dataset"], row["split"], row["method"], view)
                if where not in best or row["mean"] > best[where]["mean"]:
                    best[where] = {**row, "metric": view, "attacker": row["metric"].removeprefix(view + "_")}
    return rows + list(best.values())
