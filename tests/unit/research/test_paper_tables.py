"""The plan of the paper's tables: all of them, each one command, resumable, with progress."""

import json
import shlex
from dataclasses import replace

import pytest

from launch import reproduce as program
from secure_sccvfl.evaluation.methods import METHODS
from secure_sccvfl.reports.tables import paper_figure, paper_figures
from secure_sccvfl.research import experiments, secure_runs, tables
from secure_sccvfl.research.experiments import EXPERIMENTS, methods_of
from secure_sccvfl.research.tables import FIVE, SEEDS, THREE, TWO, Part, index, plan, run_plan

INCOME = "acs-income:some/folder/acsincome_co2018.csv.gz"
TINY = (
    Part("one", "main", ("heart",), "a table", seeds=range(2), card="shipped"),
    Part("two", "folktables", ("heart",), "another", ("iid", "shift"), range(1), "shipped", "One seed."),
)


def test_the_plan_answers_every_table_of_the_paper_with_figures():
    told = " ".join(part.shows for part in plan(INCOME))
    qualitative = {"tab:mask_interpret", "fig:mi_roles"}  # `reproduce.py qualitative`
    assert {f["where"] for f in paper_figures()} - qualitative == {
        f["where"] for f in paper_figures() if f["where"] in told
    }
    ours = {"main", "sensitivity", "letter", "private", "heads"}
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


def test_the_main_table_has_every_method_of_the_papers_and_stands_beside_its_figures():
    figures = {f["method"] for f in paper_figures() if f["where"] == "tab:vfl_tabular_results"}
    assert figures <= set(methods_of("tabular")) <= set(methods_of("main"))
    for part in plan(INCOME):
        if part.folder.startswith("main-"):
            (data,) = part.datasets
            assert part.experiment == "tabular" and paper_figure("tabular", data, "iid", "paper", "acc") is not None


@pytest.mark.parametrize("part", plan(INCOME), ids=lambda part: part.folder)
def test_each_part_is_one_command(part, monkeypatch):
    """The program makes of it what the plan makes; the folder of a file is of one machine and left out."""
    assert "some/folder" not in part.command
    asked = {}
    monkeypatch.setattr(program, "check_data", lambda datasets, card: None)
    monkeypatch.setattr(program, "reproduce", lambda *given: asked.update(given=given) or [])
    monkeypatch.setattr(program.Path, "read_text", lambda self, encoding=None: "")
    assert program.main(shlex.split(part.command)[2:]) == 0
    made, out, *_ = asked["given"]
    assert replace(made, datasets=part.datasets) == replace(part, shows="", note="")
    assert out.as_posix() == f"results/paper/{part.folder}" and len(made.datasets) == len(part.datasets)


@pytest.fixture
def fast(monkeypatch):
    few = {name: METHODS.get(name) for name in ("erm", "scc")}
    monkeypatch.setattr(experiments, "methods_of", lambda experiment: few)


def test_a_stopped_plan_continues_and_tells_how_far_it_is(fast, tmp_path, monkeypatch):
    told = []
    run_plan(TINY, tmp_path, 1, lambda *at: told.append(at))
    assert told == [("one", 0, 4), ("one", 1, 4), ("one", 2, 4), ("two", 2, 4), ("two", 3, 4), ("two", 4, 4)]
    made = json.loads((tmp_path / "two" / "results.json").read_text())
    assert made["note"] == "One seed." and made["seeds"] == [0] and made["date"] and "folktables" in made["command"]
    assert "One seed." in (tmp_path / "two" / "results.md").read_text()
    assert "[one](one/results.md)" in (tmp_path / "README.md").read_text()
    (next((tmp_path / "two" / "seeds").glob("*-shift-*"))).unlink()
    again = []
    run_plan(TINY, tmp_path, 1, lambda *at: again.append(at))
    assert again == [("one", 2, 4), ("two", 3, 4), ("two", 4, 4)], "only what is missing is run"


def test_the_page_of_the_plan_names_data_and_seeds():
    text = index(plan(INCOME))
    assert "| [main-german](main-german/results.md) | tab:vfl_tabular_results, German Credit |" in text
    assert "Colorado 2018 (the paper: California 2018)" in text and "| 700-729 |" in text and "| 700-704 |" in text
    assert "some/folder" not in text


@pytest.mark.filterwarnings("ignore::secure_sccvfl.data.dataset.DataWarning")
@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("paper --dataset german --out out", "takes one --dataset, the records of ACS Income"),
        ("paper --split shift --out out", "leave out --split"),
        ("paper --first-seed 3 --out out", "leave out --split, --card and --first-seed"),
        ("paper --dataset acs-income:absent.csv --out out", "absent.csv"),
    ],
)
def test_a_wrong_use_is_told_before_any_work(line, told, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tables, "reproduce", lambda *given, **more: pytest.fail("it ran"))
    assert program.main(shlex.split(line)) != 0
    assert told in capsys.readouterr().err


def test_a_training_in_secret_is_told_by_step(monkeypatch, tmp_path):
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
    found = {(r["way"], r["metric"]): r["mean"] for r in rows}
    way = next(iter(secure_runs.WAYS))
    assert found[way, "ms_per_step"] == 200.0 and found[way, "rounds_per_step"] == 5.0
    assert (
        found[way, "kb_per_step"] == 3 * 400.0 and found[way, "mb"] == 3 * 8.0 and found[way, "dealer_mb"] == 3 * 2.0
    )
    assert len(ran) == len(lines) == 4
    secure_runs.secure_runtime("german", range(2), tmp_path, "the command", lines.append)
    assert len(ran) == 4, "finished seeds are kept"
    made = json.loads((tmp_path / "results.json").read_text())
    assert made["command"] == "the command" and made["date"] and made["seeds"] == [0, 1]
    assert "| 5.00 ± 0.00 |" in (tmp_path / "results.md").read_text()
