"""Tables: the paper's mean and deviation next to ours, in every row that it has a figure for, and what differs."""

import pytest

from secure_sccvfl.evaluation.counterfactual_models import RUN_MODELS
from secure_sccvfl.reports.tables import BESIDE, COLUMNS, markdown, paper_cell, paper_figure, paper_figures, spread
from secure_sccvfl.research.experiments import EXPERIMENTS, PAPER_METHODS, methods_of
from secure_sccvfl.research.tables import draw, title_of


def row(method, metric, mean, model=None, dataset="german", split="iid", seeds=30, sd=0.02):
    labels = {"dataset": dataset, "split": split, "method": method, "judge": model, "metric": metric}
    return {**labels, "mean": mean, "low": mean - 0.01, "high": mean + 0.01, "sd": sd, "seeds": seeds}


def lines(text, start):
    return [line for line in text.splitlines() if line.startswith(start)]


def test_the_papers_mean_and_deviation_are_next_to_ours():
    rows = [row("paper", "acc", 0.7195), row("paper", "logloss", 0.529), row("paper", "fr", 0.004, "own")]
    rows += [row("paper", "fr", 0.031, "all"), row("paper", "fr_null", 0.011, "all")]
    text = markdown("main", rows, {"german": "German Credit"})
    assert "## german (German Credit), iid, 30 seeds" in text
    head, line = lines(text, "| beside the paper")[0], lines(text, "| paper |")[0]
    assert head.startswith("| beside the paper | acc | paper acc | logloss | paper logloss | scg [own] | paper scg |")
    assert head.endswith("| fr [own] | paper fr | fr [all] | fr_null [all] |")
    assert "| 0.720 ± 0.020 (0.710-0.730) | 0.7224 ± 0.0244 ≈ |" in line, "within a deviation"
    assert "| 0.529 ± 0.020 (0.519-0.539) | 0.5676 ± 0.0277 ≠ |" in line, "further than a deviation"
    assert "| 0.40 ± 2.00 % (-0.60 to 1.40) | 0.09 ± 0.15 % ≠ |" in line
    assert line.endswith("| 3.10 ± 2.00 % (2.10-4.10) | 1.10 ± 2.00 % (0.10-2.10) |"), "the control is next to it"


@pytest.mark.parametrize(("mean", "mark"), [(0.7467, "≈"), (0.7469, "≠"), (0.6981, "≈"), (0.6979, "≠")])
def test_the_mark_changes_at_one_deviation(mean, mark):
    figure = paper_figure("main", "german", "iid", "paper", "acc")
    assert paper_cell(figure, row("paper", "acc", mean)) == f"0.7224 ± 0.0244 {mark}"
    assert paper_cell(figure, None) == "0.7224 ± 0.0244" and paper_cell(None, None) == ""


def test_a_range_and_a_bare_figure_of_the_paper():
    megabytes = paper_figure("runtime", "german", "iid", "paper", "feature_mb")
    assert paper_cell(megabytes, row("paper", "feature_mb", 130.0)) == "124.69 to 146.51 ≈"
    assert paper_cell(megabytes, row("paper", "feature_mb", 12.0)) == "124.69 to 146.51 ≠"
    assert paper_cell(paper_figure("runtime", "german", "iid", "paper", "model_mb"), None) == "2.8700"


def test_our_row_without_a_deviation_has_its_interval_alone():
    assert spread(row("scc", "acc", 0.72, sd=None)) == "0.720 (0.710-0.730)"
    assert spread(row("scc", "acc", 0.72, seeds=1)) == "0.720" and spread(None) == ""


def test_methods_without_a_figure_of_the_paper_are_in_the_table_of_all_methods_alone():
    text = markdown("main", [row("logreg", "acc", 0.75), row("scc", "acc", 0.74)])
    assert len(lines(text, "| logreg |")) == 1 and len(lines(text, "| scc |")) == 2
    assert "beside the paper" not in markdown("main", [row("scc", "acc", 0.74, dataset="loans")])


@pytest.mark.parametrize(
    ("experiment", "method", "dataset", "value"),
    [
        ("main", "scc", "german", 0.7224),
        ("main", "policy_blind_repaired", "german", 0.7322),
        ("ablation", "paper", "german", 0.7186),  # another figure for the same full method
        ("ablation", "no_masks", "german", 0.7220),
        ("ablation", "paper_no_consistency", "german", 0.7174),
        ("switches", "paper, frozen generators", "german", 0.7224),
        ("sensitivity-paper", "tau_m=0.15", "german", 0.7353),
        ("folktables", "erm", "acs-income", 0.7954),
        ("folktables", "paper", "mobility", 0.7237),  # the stand-in for ACSMobility
        ("folktables", "paper", "compas", 0.9697),
    ],
)
def test_which_figure_of_the_paper_answers_a_row(experiment, method, dataset, value):
    assert paper_figure(experiment, dataset, "iid", method, "acc")["value"] == value


def test_the_papers_figures_are_complete():
    """As many as its tables have cells; spot checks are of cells read by hand."""
    figures = paper_figures()
    cells = {"main": 3 * 2 * 5 * 4, "ablation": 16, "attacks": 2 * 5 * 4, "attack figure": 2 * 5 * 4, "runtime": 6}
    cells |= {"folktables": 2 * 2 * 5 * 6, "sensitivity-paper": 5 * 5 * 4, "qualitative": 19 + 10}
    assert {name: sum(f["experiment"] == name for f in figures) for name in cells} == cells
    assert len(figures) == sum(cells.values())
    with_deviation = ("main", "ablation", "attacks", "folktables", "sensitivity-paper")
    assert all(f["sd"] is not None for f in figures if f["experiment"] in with_deviation)
    assert all(f["where"].startswith(("tab:", "fig:", "app:")) for f in figures)
    spots = {
        ("main", "heart", "shift", "uniform_cf", "scg"): (0.0935, 0.0182),
        ("main", "compas", "iid", "adv_nomask", "fr"): (0.0066, 0.0046),
        ("attacks", "german", "iid", "server_consistency", "aia_z_mlp40"): (0.5979, 0.0542),
        ("attacks", "german", "iid", "paper", "pgd_sr_0.20"): (0.0930, 0.0229),
        ("folktables", "acs-mobility", "iid", "paper", "fr"): (0.00022, 0.008754),
        ("sensitivity-paper", "german", "iid", "lambda_gen=0", "scg"): (0.0294, 0.0084),
        ("runtime", "german", "iid", "paper", "ms_per_step"): (7.1015, 1.0378),
    }
    for cell, expected in spots.items():
        figure = paper_figure(*cell)
        assert (figure["value"], figure["sd"]) == pytest.approx(expected), cell


def test_every_experiment_has_a_table_and_every_sweep_a_figure():
    for experiment in EXPERIMENTS:
        assert COLUMNS.get(experiment, COLUMNS["main"]) and BESIDE.get(experiment, BESIDE["main"])
    for method in methods_of("sensitivity-paper"):
        for metric in ("acc", "logloss", "scg", "fr"):
            assert paper_figure("sensitivity-paper", "german", "iid", method, metric)["where"].startswith("tab:sens_")
    for method in PAPER_METHODS:
        for metric in BESIDE["attacks"]:
            assert paper_figure("attacks", "german", "iid", method, metric[1])


def test_attack_curves_show_representations_and_chance(tmp_path):
    rows = [row("paper", f"aia_{view}_mlp{k}", 0.6) for view in ("z", "logits") for k in (10, 20, 40, 80)]
    rows += [row("paper", f"pgd_sr_{radius}", 0.1) for radius in ("0.02", "0.05", "0.10", "0.20")]
    rows += [row("paper", "aia_chance", 0.5), row("paper", "aia_z", 0.61)]
    draw("attacks", rows, tmp_path)
    assert (tmp_path / "attacks.png").stat().st_size > 0
    head = lines(markdown("attacks", rows), "| beside the paper")[0]
    assert "aia_z_mlp10 | paper aia_z_mlp10" in head and head.endswith("| aia_z |")


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("acs-income:some/acsincome_co2018.csv.gz", "ACS Income, Colorado 2018 (the paper: California 2018)"),
        ("acs-income@CA-2018", "ACS Income, California 2018"),
        ("acs-income:psam.csv", "ACS Income, records of a file (the paper: California 2018)"),
        ("acs-mobility@TX-2018", "ACS Mobility, TX 2018 (the paper: California 2018)"),
        ("mobility", "CPS 1994-95, stand-in for ACSMobility"),
        ("compas", "COMPAS persons, other partition than the paper's"),
        ("some/loans.toml", "loans"),
        ("acs12", "acs12"),
    ],
)
def test_a_table_says_which_records_it_is_about(name, title):
    assert title_of(name) == title


def test_flip_rates_are_never_without_their_permutation_baseline():
    rows = [row("paper", metric, 0.01, model) for model in RUN_MODELS for metric in ("fr", "fr_null")]
    head = lines(markdown("main", rows), "| beside the paper")[0]
    for model in RUN_MODELS:
        assert f"fr [{model}] | fr_null [{model}]" in head
