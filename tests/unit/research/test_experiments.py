"""Experiments over seeds, rows over seeds, and the plan of the paper's tables."""

from __future__ import annotations

import functools
import json
import shlex
from dataclasses import replace

import numpy as np
import pytest

from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.evaluation.counterfactual_models import COUNTERFACTUAL_MODELS
from secure_sccvfl.evaluation.methods import METHODS, default_run, prepare, without_noise
from secure_sccvfl.launch import reproduce as program
from secure_sccvfl.launch.reproduce import main
from secure_sccvfl.reports.tables import cell, markdown, paper_figure, paper_figures
from secure_sccvfl.research import experiments, secure_runs, tables
from secure_sccvfl.research.experiments import (
    CONTROL,
    EXPERIMENTS,
    SeedRun,
    methods_of,
    run_seed,
)
from secure_sccvfl.research.paper.roles import Masks
from secure_sccvfl.research.paper.settings import settings_of
from secure_sccvfl.research.tables import (
    FIVE,
    SEEDS,
    THREE,
    TWO,
    Part,
    index,
    own_plan,
    plan,
    reproduce,
    run_plan,
    summarise,
)
from tests.multiprocess.named_files import help_of, unnamed
from tests.support.counterfactuals import shorten_autoencoder

DATA = load("heart")
FAST = {name: METHODS.get(name) for name in ("majority", "logreg", "erm", "scc")}
ran_once = functools.cache(run_seed)
"""For tests of what is made of seeds: each seed is computed once for all of them."""


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr(experiments, "methods_of", lambda experiment: FAST)
    monkeypatch.setattr(tables, "run_seed", ran_once)
    shorten_autoencoder(monkeypatch)


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
    metrics_of_scc = {(r["judge"], r["metric"]) for r in results["rows"] if r["method"] == "scc"}
    assert metrics_of_scc >= {
        (model, fr) for model in COUNTERFACTUAL_MODELS for fr in ("fr", "fr_null", "net", "fr_base")
    }
    assert metrics_of_scc >= {(None, metric) for metric in ("auc", "bacc", "acc_base")}
    assert (tmp_path / "trade_off.png").stat().st_size > 0
    assert "| scc |" in capsys.readouterr().out
    assert unnamed(help_of("reproduce"), tmp_path.rglob("*")) == []
    ran = []
    real = tables.run_seed
    monkeypatch.setattr(tables, "run_seed", lambda seed: ran.append(seed) or real(seed))
    reproduce(Part("", "main", ("heart",), seeds=range(3), card="shipped"), tmp_path)
    assert [run.seed for run in ran] == [2], "only the new seed is run"


def test_main_tables_are_of_a_default_run_and_of_the_same_without_noise(fast):
    """Tables and head share one epsilon. Baselines and the control have no noise on their models."""
    outcome = run_seed(SeedRun("folktables", "heart", "iid", 0))
    assert [charge["name"] for charge in outcome["budget"]] == ["sketch-0", "sketch-1", "head", "head output"]
    assert 7.9 < outcome["budget"][-1]["epsilon_after"] <= 8.0
    loss = {s["method"]: s["value"] for s in outcome["scores"] if s["metric"] == "logloss"}
    assert loss["scc"] == loss["scc at 3"] != loss[CONTROL]
    other = run_seed(SeedRun("tabular", "heart", "iid", 0))
    assert [charge["name"] for charge in other["budget"]] == ["sketch-0", "sketch-1"]
    assert CONTROL not in {s["method"] for s in other["scores"]}


def test_what_is_compared_with_a_default_run_has_no_noise_on_its_model():
    ready = prepare(DATA, make_split(DATA, "iid", 0), 0, *default_run(DATA))
    exact = without_noise(ready)
    assert ready.config.private and not exact.config.private and exact.model.roles == ready.model.roles
    assert exact.budget.head is None and exact.budget.epsilon == ready.budget.epsilon
    paper, private = (Masks(one, settings_of("heart")).noise.plan.multiplier for one in (exact, ready))
    assert paper == private < ready.budget.multiplier, (
        "the paper's method has no private head: its tables get the whole budget"
    )


def test_a_torn_write_is_not_taken_for_a_result(fast, tmp_path):
    torn = SeedRun("main", "heart", "iid", 0, "shipped")
    (tmp_path / "seeds").mkdir()
    (tmp_path / "seeds" / f"{torn.key}.part").write_text("{")
    assert reproduce(Part("", "main", ("heart",), seeds=range(1), card="shipped"), tmp_path)


@pytest.mark.parametrize("experiment", [e for e in EXPERIMENTS if e != "main"])
def test_every_experiment_runs(fast, tmp_path, experiment):
    rows = reproduce(Part("", experiment, ("heart",), splits=("shift",), seeds=range(1)), tmp_path)
    names = {r["metric"] for r in rows}
    assert {"acc", "seconds"} <= names
    if experiment == "attacks":
        assert {"aia_z", "pgd_sr_0.02", "aia_logits_boosting"} <= names
        assert {"features_own", "features_z", "features_logits", "features_chance"} <= names
        assert (tmp_path / "attacks.png").exists()
    assert unnamed(help_of("reproduce"), tmp_path.rglob("*")) == []


@pytest.mark.slow
def test_seeds_run_in_processes_and_give_the_same_rows(tmp_path):
    part = Part("", "folktables", ("heart",), seeds=range(2))
    serial, parallel = reproduce(part, tmp_path / "a", 1), reproduce(part, tmp_path / "b", 2)

    def stable(rows):
        return {(r["method"], r["judge"], r["metric"]): round(r["mean"], 9) for r in rows if r["metric"] != "seconds"}

    assert stable(serial) == stable(parallel)


def test_a_method_that_decides_nothing_is_named():
    def row(method, mean):
        return {
            "dataset": "d", "split": "iid", "method": method, "judge": None, "metric": "acc",
            "mean": mean, "low": mean, "high": mean, "seeds": 3,
        }  # fmt: skip

    text = markdown("main", [row("majority", 0.7), row("scc", 0.703), row("erm", 0.75)])
    assert "flip rates say nothing: scc\n" in text
    assert "flip rates say nothing" not in markdown("main", [row("majority", 0.7), row("erm", 0.75)])


ACC = {"drop_m": [0.70, 0.72, 0.68], "scc": [0.72, 0.73, 0.71], "erm": [0.69, 0.71, 0.70]}
FLIPS = {"erm": [0.10, 0.06, 0.08], "scc": [0.01, 0.02, 0.03]}


def seed(number):
    scores = [{"method": m, "judge": None, "metric": "acc", "value": v[number]} for m, v in ACC.items()]
    scores += [{"method": m, "judge": "all", "metric": "fr", "value": v[number]} for m, v in FLIPS.items()]
    return {"job": {"dataset": "german", "split": "iid", "seed": number}, "scores": scores}


def rows_of(seeds):
    rows = summarise(map(seed, seeds))
    return rows, {(r["method"], r["metric"]): r for r in rows}


def test_a_difference_is_paired_by_seed_and_may_be_negative():
    _, by_metric = rows_of(range(3))
    ours, plain = by_metric["scc", "acc_vs_drop_m"], by_metric["erm", "acc_vs_drop_m"]
    apart = np.subtract(ACC["scc"], ACC["drop_m"])
    half = 4.302653 * apart.std(ddof=1) / np.sqrt(3)  # t of two degrees of freedom
    assert (ours["mean"], ours["low"], ours["high"]) == pytest.approx((0.02, 0.02 - half, 0.02 + half))
    assert ours["high"] - ours["low"] < by_metric["scc", "acc"]["high"] - by_metric["scc", "acc"]["low"], (
        "pairing helps"
    )
    assert plain["low"] < 0 < plain["high"] and ("drop_m", "acc_vs_drop_m") not in by_metric
    wider = np.sqrt(1 + 3 * 0.30 / 0.56)  # Nadeau and Bengio: 1 / seeds + n_test / n_train instead of 1 / seeds
    assert (ours["new_low"], ours["new_high"]) == pytest.approx((0.02 - wider * half, 0.02 + wider * half))
    assert cell(ours).endswith(f"; new people {ours['new_low']:+.3f} to {ours['new_high']:+.3f})")


def test_flips_are_reported_as_a_share_of_plain_training():
    _, by_metric = rows_of(range(3))
    cut = by_metric["scc", "fr_cut"]
    assert cut["mean"] == pytest.approx(0.75) and cut["low"] < 0.75 < cut["high"] <= 1.0
    assert ("erm", "fr_cut") not in by_metric
    half = 4.302653 * np.std(np.subtract(FLIPS["scc"], 0.25 * np.array(FLIPS["erm"])), ddof=1) / np.sqrt(3) / 0.08
    assert cut["low"] == pytest.approx(0.75 - half)


def test_the_table_shows_both():
    rows, _ = rows_of(range(3))
    text = markdown("main", rows)
    head = next(line for line in text.splitlines() if line.startswith("| method"))
    assert head.startswith("| method | acc | acc_vs_drop_m | fr [all] | fr_cut [all] |")
    line = [line for line in text.splitlines() if line.startswith("| scc")][-1]
    assert "| +0.020 (-0.005 to +0.045; new people -0.020 to +0.060) |" in line and "| 75 % (" in line


INCOME = "acs-income:some/folder/acsincome_co2018.csv.gz"
TINY = (
    Part("one", "main", ("heart",), "a table", seeds=range(2), card="shipped"),
    Part("two", "folktables", ("heart",), "another", ("iid", "shift"), range(1), "shipped", "One seed."),
)


def test_the_plan_answers_every_table_of_the_paper_with_figures():
    shown = " ".join(part.shows for part in plan(INCOME))
    qualitative = {"tab:mask_interpret", "fig:mi_roles"}  # `reproduce.py qualitative`
    assert {f["where"] for f in paper_figures()} - qualitative == {
        f["where"] for f in paper_figures() if f["where"] in shown
    }
    ours = {"main", "sensitivity", "letter", "private", "epsilon", "heads", "range", "net"}
    assert {part.experiment for part in plan(INCOME)} == set(EXPERIMENTS) - ours
    assert len({part.folder for part in plan(INCOME)}) == len(plan(INCOME))
    assert {p.folder for p in plan(INCOME)} - {p.folder for p in plan()} == {"folktables-income"}
    assert {len(part.seeds) for part in plan(most=2)} == {2}


def test_seeds_are_as_many_as_the_papers_or_the_reason_is_stated():
    assert len(SEEDS) == 30
    for part in plan(INCOME):
        fewer = {FIVE: "Five", THREE: "Three", TWO: "Two"}
        assert part.seeds == SEEDS or part.note.startswith(f"{fewer[part.seeds]} seeds, the paper has 30: ")
    assert [part.folder for part in plan(INCOME) if part.seeds == FIVE] == ["main-compas"]


def test_the_main_table_has_every_method_and_figure_of_the_papers():
    figures = {f["method"] for f in paper_figures() if f["where"] == "tab:vfl_tabular_results"}
    assert figures <= set(methods_of("tabular")) <= set(methods_of("main"))
    for part in plan(INCOME):
        if part.folder.startswith("main-"):
            (data,) = part.datasets
            assert part.experiment == "tabular" and paper_figure("tabular", data, "iid", "paper", "acc") is not None


def test_each_part_is_one_command(monkeypatch):
    """The program makes of it what the plan makes; the folder of a file is of one machine and left out."""
    asked = {}
    monkeypatch.setattr(program, "check_data", lambda datasets, card: None)
    monkeypatch.setattr(program, "reproduce", lambda *given: asked.update(given=given) or [])
    monkeypatch.setattr(program.Path, "read_text", lambda self, encoding=None: "")
    for part in (*plan(INCOME), *own_plan(INCOME)):
        assert "some/folder" not in part.command
        assert program.main(shlex.split(part.command)[2:]) == 0
        parsed, out, *_ = asked["given"]
        assert replace(parsed, datasets=part.datasets, root=part.root) == replace(part, shows="", note="")
        assert out.as_posix() == f"{part.root}/{part.folder}" and len(parsed.datasets) == len(part.datasets)
        again = program.part_of(part.command, INCOME, len(part.seeds))
        assert again == replace(part, folder="", shows="", note="", root="results/paper")
        assert (program.part_of(part.command, "", 1) is None) == (part.datasets[0].startswith("acs-"))


def test_committed_rows_are_compared_with_a_new_run(fast, tmp_path, monkeypatch, capsys):
    """Every figure of the first seeds; a changed, a missing and a surplus row are reported; nothing is written."""
    part = Part("", "main", ("heart",), splits=("iid", "shift"), seeds=range(2), card="shipped")
    command = "python launch/reproduce.py main --dataset heart --split iid --split shift --card shipped --seeds 2"
    reproduce(part, tmp_path / "table", command=command)
    check = f"check --out {tmp_path} --seeds 1 --jobs 1".split()
    with monkeypatch.context() as patch:
        patch.setattr(tables, "run_seed", run_seed)  # not the figures that were compared with
        assert main(check) == 0 and "of 2 runs, 0 differ" in capsys.readouterr().out
    file = tmp_path / "table" / "results.json"
    committed = json.loads(file.read_text())
    assert set(committed["per_seed"]) == {"heart 0", "heart 1", "heart shift 0", "heart shift 1"}
    committed["per_seed"]["heart shift 0"]["erm"]["acc"] += 0.001
    del committed["per_seed"]["heart 0"]["scc"]["acc"]
    committed["per_seed"]["heart 0"]["gone"] = {"acc": 0.5}
    file.write_text(json.dumps(committed))
    before = {path: path.read_bytes() for path in tmp_path.glob("**/*") if path.is_file()}
    assert main(check) == 3
    said = capsys.readouterr().out
    assert "3 differ" in said and "heart shift 0, erm, acc" in said and "heart 0, scc, acc: None committed" in said
    assert before == {path: path.read_bytes() for path in tmp_path.glob("**/*") if path.is_file()}


def test_a_stopped_plan_continues_and_reports_its_progress(fast, tmp_path, monkeypatch):
    progress = []
    run_plan(TINY, tmp_path, 1, lambda *at: progress.append(at))
    assert progress == [("one", 0, 4), ("one", 1, 4), ("one", 2, 4), ("two", 2, 4), ("two", 3, 4), ("two", 4, 4)]
    results = json.loads((tmp_path / "two" / "results.json").read_text())
    assert (
        results["note"] == "One seed."
        and results["seeds"] == [0]
        and results["date"]
        and "folktables" in results["command"]
    )
    assert "One seed." in (tmp_path / "two" / "results.md").read_text()
    (next((tmp_path / "two" / "seeds").glob("*-shift-*"))).unlink()
    again = []
    run_plan(TINY, tmp_path, 1, lambda *at: again.append(at))
    assert again == [("one", 2, 4), ("two", 3, 4), ("two", 4, 4)], "only what is missing is run"


def test_the_page_of_the_plan_names_data_and_seeds():
    text = index(plan(INCOME), "# Tables")
    assert "| [main-german](main-german/results.md) | tab:vfl_tabular_results, German Credit |" in text
    assert "Colorado 2018 (the paper: California 2018)" in text and "| 700-729 |" in text and "| 700-704 |" in text
    assert "some/folder" not in text


@pytest.mark.filterwarnings("ignore::secure_sccvfl.data.dataset.DataWarning")
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("paper --dataset german --out out", "takes one --dataset, the records of ACS Income"),
        ("paper --split shift --out out", "leave out --split"),
        ("paper --first-seed 3 --out out", "leave out --split, --card and --first-seed"),
        ("paper --dataset acs-income:absent.csv --out out", "absent.csv"),
    ],
)
def test_a_wrong_use_is_reported_before_any_work(line, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tables, "reproduce", lambda *given, **more: pytest.fail("it ran"))
    assert program.main(shlex.split(line)) != 0
    assert message in capsys.readouterr().err


def test_training_under_mpc_is_reported_by_step(monkeypatch, tmp_path):
    ran = []
    phase = {"seconds": 2.0, "rounds": 50, "bytes": 4_000_000, "dealer_bytes": 1_000_000}
    result = {"cost": {"inputs": phase, "training": phase}, "steps": 10}

    class Ended:
        def check(self):
            ran.append(1)

    monkeypatch.setattr(secure_runs, "run_job", lambda config, folder: Ended())
    monkeypatch.setattr(secure_runs, "result_of", lambda folder, rank: result)
    lines = []
    rows = secure_runs.secure_runtime("german", range(2), tmp_path, "the command", lines.append)
    means = {(r["way"], r["metric"]): r["mean"] for r in rows}
    way = next(iter(secure_runs.WAYS))
    assert means[way, "ms_per_step"] == 200.0 and means[way, "rounds_per_step"] == 5.0
    assert (
        means[way, "kb_per_step"] == 3 * 400.0 and means[way, "mb"] == 3 * 8.0 and means[way, "dealer_mb"] == 3 * 2.0
    )
    assert len(ran) == len(lines) == 4
    secure_runs.secure_runtime("german", range(2), tmp_path, "the command", lines.append)
    assert len(ran) == 4, "finished seeds are kept"
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["command"] == "the command" and results["date"] and results["seeds"] == [0, 1]
    assert "| 5.00 ± 0.00 |" in (tmp_path / "results.md").read_text()
    assert unnamed(help_of("reproduce"), tmp_path.rglob("*")) == []
