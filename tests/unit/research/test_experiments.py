"""reproduce.py: results as data, finished seeds kept, every experiment runs."""

import json

import numpy as np
import pytest

from launch.reproduce import main
from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.evaluation.counterfactual_models import COUNTERFACTUAL_MODELS
from secure_sccvfl.evaluation.methods import METHODS, default_run, prepare, without_noise
from secure_sccvfl.evaluation.scoring import interval
from secure_sccvfl.reports.tables import markdown
from secure_sccvfl.research import experiments, tables
from secure_sccvfl.research.experiments import (
    CONTROL,
    EXPERIMENTS,
    SeedRun,
    run_seed,
)
from secure_sccvfl.research.paper.roles import Masks
from secure_sccvfl.research.paper.settings import settings_of
from secure_sccvfl.research.tables import Part, reproduce, summarise

DATA = load("heart")
FAST = {name: METHODS.get(name) for name in ("majority", "logreg", "erm", "scc")}


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr(experiments, "methods_of", lambda experiment: FAST)


def test_results_are_data_and_finished_seeds_are_kept(fast, tmp_path, monkeypatch, capsys):
    arguments = f"main --dataset heart --card shipped --split iid --seeds 2 --jobs 1 --out {tmp_path}".split()
    assert main(arguments) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    row = next(r for r in results["rows"] if (r["method"], r["judge"], r["metric"]) == ("scc", "all", "fr"))
    assert set(row) == {"dataset", "split", "method", "judge", "metric", "mean", "low", "high", "sd", "seeds"}
    assert row["low"] <= row["mean"] <= row["high"] and row["seeds"] == 2
    for r in results["rows"]:
        rates = ("acc", "auc", "bacc", "fr", "pgd", "aia", "dp_gap", "eo_gap", "positive_rate")
        if r["metric"].startswith(rates) and r["metric"] != "fr_cut":
            assert 0 <= r["low"] <= r["mean"] <= r["high"] <= 1
    metrics = {r["metric"] for r in results["rows"]}
    assert {"acc", "logloss", "scg", "scg_norm", "fr", "pgd_sr", "aia_logits", "dp_gap", "eo_gap"} <= metrics
    assert {r["judge"] for r in results["rows"]} == {*COUNTERFACTUAL_MODELS, "own", None}
    judged = {(r["judge"], r["metric"]) for r in results["rows"] if r["method"] == "scc"}
    assert judged >= {(judge, fr) for judge in COUNTERFACTUAL_MODELS for fr in ("fr", "fr_null", "net", "fr_base")}
    assert judged >= {(None, metric) for metric in ("auc", "bacc", "acc_base")}
    assert (tmp_path / "trade_off.png").stat().st_size > 0
    assert "| scc |" in capsys.readouterr().out
    ran = []
    real = tables.run_seed
    monkeypatch.setattr(tables, "run_seed", lambda seed: ran.append(seed) or real(seed))
    reproduce(Part("", "main", ("heart",), seeds=range(3), card="shipped"), tmp_path)
    assert [run.seed for run in ran] == [2], "only the new seed is run"


def test_main_tables_are_of_a_default_run_beside_the_same_without_noise(fast):
    """Tables and head share one epsilon. Baselines and the control have no noise on their models."""
    made = run_seed(SeedRun("folktables", "heart", "iid", 0))
    assert [charge["name"] for charge in made["budget"]] == ["sketch-0", "sketch-1", "head", "head output"]
    assert 7.9 < made["budget"][-1]["epsilon_after"] <= 8.0
    loss = {s["method"]: s["value"] for s in made["scores"] if s["metric"] == "logloss"}
    assert loss["scc"] == loss["scc at 3"] != loss[CONTROL]
    other = run_seed(SeedRun("tabular", "heart", "iid", 0))
    assert [charge["name"] for charge in other["budget"]] == ["sketch-0", "sketch-1"]
    assert CONTROL not in {s["method"] for s in other["scores"]}


def test_what_is_compared_with_a_default_run_has_no_noise_on_its_model():
    ready = prepare(DATA, make_split(DATA, "iid", 0), 0, *default_run(DATA))
    exact = without_noise(ready)
    assert ready.config.private and not exact.config.private and exact.model.roles == ready.model.roles
    assert exact.budget.head is None and exact.budget.epsilon == ready.budget.epsilon
    letter, private = (Masks(one, settings_of("heart")).noise.plan.multiplier for one in (exact, ready))
    assert letter == private < ready.budget.multiplier, "the letter has no private head: its tables have it all"


def test_a_torn_write_is_not_taken_for_a_result(fast, tmp_path):
    torn = SeedRun("main", "heart", "iid", 0)
    (tmp_path / "seeds").mkdir()
    (tmp_path / "seeds" / f"{torn.key}.part").write_text("{")
    assert reproduce(Part("", "main", ("heart",), seeds=range(1)), tmp_path)


@pytest.mark.parametrize("experiment", [e for e in EXPERIMENTS if e != "main"])
def test_every_experiment_runs(fast, tmp_path, experiment):
    rows = reproduce(Part("", experiment, ("heart",), splits=("shift",), seeds=range(1)), tmp_path)
    names = {r["metric"] for r in rows}
    assert {"acc", "seconds"} <= names
    if experiment == "attacks":
        assert {"aia_z", "pgd_sr_0.02", "aia_logits_boosting"} <= names
        assert {"features_own", "features_z", "features_logits", "features_chance"} <= names
        assert (tmp_path / "attacks.png").exists()


@pytest.mark.slow
def test_seeds_run_in_processes_and_give_the_same_rows(tmp_path):
    part = Part("", "folktables", ("heart",), seeds=range(2))
    serial, parallel = reproduce(part, tmp_path / "a", 1), reproduce(part, tmp_path / "b", 2)

    def stable(rows):
        return {(r["method"], r["judge"], r["metric"]): round(r["mean"], 9) for r in rows if r["metric"] != "seconds"}

    assert stable(serial) == stable(parallel)


def test_time_is_told_by_epoch_and_by_step():
    told = experiments.runtime(3.0, {"epochs_run": 60, "optimisation_steps": 120, "model_mb": 2.0})
    assert told["seconds_per_epoch"] == 0.05 and told["ms_per_step"] == 25.0 and told["model_mb"] == 2.0
    assert experiments.runtime(3.0, {"lambda": 4.0}) == {"seconds": 3.0, "lambda": 4.0}


def test_a_method_that_decides_nothing_is_named():
    def row(method, mean):
        return {
            "dataset": "d", "split": "iid", "method": method, "judge": None, "metric": "acc",
            "mean": mean, "low": mean, "high": mean, "seeds": 3,
        }  # fmt: skip

    text = markdown("main", [row("majority", 0.7), row("scc", 0.703), row("erm", 0.75)])
    assert "flip rates say nothing: scc\n" in text
    assert "flip rates say nothing" not in markdown("main", [row("majority", 0.7), row("erm", 0.75)])


def test_intervals():
    assert interval(np.array([0.5]), True) == (0.5, 0.5, 0.5)
    mean, low, high = interval(np.array([0.0, 0.01]), True)
    assert mean == 0.005 and low == 0.0 and high > 0.01
    assert summarise([]) == []


@pytest.mark.parametrize("bad", [("nope", "iid"), ("main", "nope")])
def test_a_bad_job_is_refused(bad):
    with pytest.raises(ValueError, match="unknown"):
        SeedRun(bad[0], "german", bad[1], 0)
