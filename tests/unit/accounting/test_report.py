"""The privacy report: figures, words, pages, and what it refuses."""

import json
import math
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from secure_sccvfl.accounting import accountant
from secure_sccvfl.accounting.accountant import epsilon_of
from secure_sccvfl.accounting.budget import Budget
from secure_sccvfl.accounting.calibration import HeadShape, noise_multiplier, split_budget
from secure_sccvfl.accounting.charts import running_chart
from secure_sccvfl.accounting.events import Event, Sensitivity
from secure_sccvfl.accounting.records import RecordSet
from secure_sccvfl.accounting.report import Notes, build_report, to_html, to_markdown
from secure_sccvfl.launch.privacy_report import main
from secure_sccvfl.releases.ledgers import EVALUATIONS, spent_figures, spent_in
from secure_sccvfl.releases.mechanisms import NoiseLevel, noised_event
from secure_sccvfl.reports.collect import budget_reports
from secure_sccvfl.reports.results import Release, write
from tests.unit.reports import literal

CAP, DELTA = 8.0, 1e-5
MULTIPLIER = noise_multiplier(CAP, DELTA, 5)
RECORDS, OTHERS = (RecordSet(np.arange(low, low + 8, dtype=np.uint64)) for low in (0, 100))


def table_event(i, kind="dealer+holder", records=RECORDS):
    level = NoiseLevel(MULTIPLIER, kind, 3)
    return noised_event(f"sketch-{i}", Sensitivity.of_counts(math.sqrt(19)), level, records.digest, refresh=i)


def fill(path, releases=4):
    budget = Budget.open(path, CAP, DELTA)
    for i in range(releases):
        budget.charge(table_event(i), f"run/{i}", RECORDS)
    return budget


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """A run of three parties with notes, and its report."""
    run = tmp_path_factory.mktemp("runs") / "run"
    for k in range(3):
        fill(run / f"party-{k}" / "ledger.jsonl")
    write(run, literal.report(releases=(Release("accuracy", (0,), (1,), "to <judge> the model", None, 1),)))
    assert main([str(run), "--quiet", "--out", str(run)]) == 0
    return run


@pytest.fixture
def run(finished_run, tmp_path):
    """A copy to damage."""
    shutil.copytree(finished_run, tmp_path / "run")
    return tmp_path / "run"


def test_the_figures_are_those_of_the_ledger(finished_run):
    report = json.loads((finished_run / "privacy_budget.json").read_text())
    spent = Budget.open(finished_run / "party-0" / "ledger.jsonl", CAP, DELTA).spent
    assert (report["epsilon_rdp"], report["epsilon_pld"]) == (spent.renyi, spent.pld)
    assert (report["cap"], report["delta"]) == (CAP, DELTA)
    assert report["remaining"] == pytest.approx(CAP - spent.renyi)
    assert [r["name"] for r in report["releases"]] == [f"sketch-{i}" for i in range(4)]
    last = report["releases"][-1]
    assert {"name", "refresh", "sensitivity", "sigma", "epsilon_after"} <= set(last)
    assert last["epsilon_after"] == spent.renyi and last["epsilon_pld_after"] == spent.pld < spent.renyi
    assert sum(r["cost"] for r in report["releases"]) == pytest.approx(spent.renyi)
    assert [(p["part"], p["releases"], p["epsilon_rdp"]) for p in report["parts"]] == [("tables", 4, spent.renyi)]
    assert report["head"] is None and any(
        "trained model and its predictions" in line for line in report["covers_not"]
    )
    assert (report["paper"]["tables"], report["paper"]["releases"]) == (19, 4)
    assert re.search(r"\| 0\.5 \| 9\.69 \| 10\.00 \| [\d.]+ \| too small \|", to_markdown(report))


class Balance(HTMLParser):
    """Every tag that is opened is closed, and nothing is loaded from elsewhere."""

    def __init__(self):
        super().__init__()
        self.open, self.links = [], []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_stands_alone_and_says_what_is_covered_and_what_not(finished_run):
    page = (finished_run / "privacy_budget.html").read_text()
    reader = Balance()
    reader.feed(page)
    assert not reader.open and not reader.links and "<script" not in page and "@import" not in page
    assert page.count("<svg") == 1 and "prefers-color-scheme: dark" in page and "width=device-width" in page
    for words in (page, (finished_run / "privacy_budget.md").read_text()):
        for said in (
            "What it does not cover",
            "its predictions",
            "they lack both",
            "replacing any one record by any other",
            "For one record added or removed",
            "Against a dealer who later reads what was released",
        ):
            assert said in words
    assert "to &lt;judge&gt; the model" in page and "<judge>" not in page


def test_a_report_of_nothing_and_one_of_other_releases():
    empty = Budget.in_memory(CAP, DELTA)
    report = build_report(empty.account)
    assert report["epsilon_rdp"] == report["epsilon_pld"] == 0 and report["remaining"] == CAP
    assert "Nothing was released" in to_markdown(report) and "Nothing was released" in to_html(report)
    named = Event("<script>a name</script>", 0.3, 3.0, RECORDS.digest, count=10, sampling=0.1)
    empty.charge(named, "k", RECORDS)
    report = build_report(empty.account, Notes("dealer"))
    assert report["paper"] is None and "must be kept from the dealer" in to_html(report)
    assert "<script" not in to_html(report) and to_html(report).count("&lt;script&gt;a name") >= 2
    assert "10 at sampling 0.1" in to_markdown(report)


@pytest.mark.parametrize("count", [0, 1, 60])
def test_plots_hold_any_number_of_releases(count):
    releases = [{"epsilon_after": i / 10, "epsilon_pld_after": i / 11} for i in range(count)]
    chart = running_chart({"releases": releases, "cap": 8.0})
    assert chart.count("<circle") == 2 * count
    assert all(0 <= float(x) <= 360 for x in re.findall(r'(?:\bc?[xy])="(-?[\d.]+)"', chart))


def test_one_ledger_can_be_read_by_itself_and_a_missing_head_is_reported(run, tmp_path, capsys):
    copy = tmp_path / "copy.jsonl"
    shutil.copy(run / "party-1" / "ledger.jsonl", copy)
    assert main([str(copy), "--out", str(tmp_path / "out"), "--quiet"]) == 3
    assert f"sets/{RECORDS.digest[:12]}: is missing" in capsys.readouterr().err
    shutil.copytree(run / "party-1" / "sets", tmp_path / "sets")
    assert main([str(copy), "--out", str(tmp_path / "out"), "--quiet"]) == 0
    assert "no .head next to the ledger" in capsys.readouterr().err
    assert {p.suffix for p in (tmp_path / "out").iterdir()} == {".json", ".md", ".html"}


def test_ledgers_that_differ_or_are_damaged_stop_the_report(run, capsys):
    fill(run / "party-2" / "ledger.jsonl", releases=5)
    (run / "privacy_budget.json").unlink()
    assert main([str(run), "--out", str(run)]) == 3
    assert "party-0 (5 lines) and party-2 (6 lines) differ from line 6 on" in capsys.readouterr().err
    assert not (run / "privacy_budget.json").exists()
    path = run / "party-1" / "ledger.jsonl"
    path.write_text(path.read_text().replace('"sketch-2"', '"sketch-9"'))
    assert main([str(run)]) == 3
    assert "line 4 does not continue the chain" in capsys.readouterr().err


def test_accountants_that_disagree_fail_the_report(run, monkeypatch, capsys):
    """Opacus' code made wrong on purpose: half the price."""
    right = accountant.opacus
    monkeypatch.setattr(accountant, "opacus", lambda lines, delta: right(lines, delta) / 2)
    assert main([str(run), "--quiet", "--out", str(run)]) == 3
    assert "the accountants disagree" in capsys.readouterr().err


def test_reading_writes_nothing(run, capsys):
    """Neither into a run nor next to a ledger: a check of the run would then fail."""
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert main([str(run)]) == 0 and main([str(run / "party-0" / "ledger.jsonl"), "--json"]) == 0
    assert "wrote" not in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    assert main([str(run), "--quiet"]) == 2 and "needs --out" in capsys.readouterr().err


def test_wrong_use_is_reported_in_one_line(run, tmp_path, capsys):
    assert main([str(tmp_path / "nowhere")]) == 2
    (run / "report.json").write_text('{"privacy": {"uncharged": [{"name": "x"}]}}')
    assert main([str(run)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_sampled_steps_are_one_line_and_state_what_the_dealer_knows(tmp_path):
    budget = Budget.open(tmp_path / "ledger.jsonl", CAP, DELTA)
    moved, level = Sensitivity.of_any(1.7, 2.0**-44), NoiseLevel(2.4, "dealer+holder", 3)
    for i in range(6):
        step = noised_event(f"dp gradient-{i}", moved, level, RECORDS.digest, i, 0.25)
        budget.charge(step, f"run/{i}", RECORDS)
    budget.charge(replace(table_event(0), sigma=15.0), "run/sketch", RECORDS)
    report = build_report(budget.account, Notes("dealer+holder"))
    assert [(r["name"], r["count"]) for r in report["releases"]] == [("dp gradient", 6), ("sketch-0", 1)]
    assert report["epsilon_rdp"] == budget.spent.renyi < report["epsilon_batches_known"] < report["epsilon_dealer"]
    assert report["accountants_agree"]
    for text in (to_markdown(report), to_html(report)):
        assert f"Against one who knows, epsilon {report['epsilon_batches_known']:.3f} holds" in text
        assert f"who reads what was released, epsilon {report['epsilon_dealer']:.3f} holds" in text
    plain = build_report(replace(budget.account, charges=budget.charges[-1:]), Notes("dealer+holder"))
    assert plain["sampled"] is None and plain["epsilon_batches_known"] == plain["epsilon_rdp"]
    assert "sample" not in to_markdown(plain)


def test_other_epsilons_are_reported_next_to_the_deciding_one(finished_run):
    """The cap of 8 is for a replaced record against parties without s. One copy alone would be 12.18."""
    report = json.loads((finished_run / "privacy_budget.json").read_text())
    whole = build_report(fill(finished_run.parent / "whole" / "ledger.jsonl", 5).account)
    assert report["neighbours"] == "one record replaced by another"
    assert report["epsilon_added"] < report["epsilon_rdp"] < report["epsilon_dealer"]
    assert whole["epsilon_rdp"] == pytest.approx(8, abs=1e-4)
    assert whole["epsilon_dealer"] == pytest.approx(12.18, abs=0.01)
    assert whole["epsilon_added"] == pytest.approx(5.33, abs=0.01)
    first = report["releases"][0]
    assert first["copies"] == 2 and first["dealer_copies"] == 1 and first["records"] == RECORDS.digest
    assert first["sensitivity"] == pytest.approx(math.sqrt(38)) and first["added"] == pytest.approx(math.sqrt(19))
    assert report["sets"] == [{"records": RECORDS.digest, "size": 8}]
    budget = Budget.in_memory(CAP, DELTA)
    budget.charge(table_event(0, "dealer"), "k", RECORDS)
    alone = build_report(budget.account, Notes("dealer"))
    assert alone["epsilon_dealer"] is None
    for text in (to_markdown(alone), to_html(alone)):
        assert "reads what was released, nothing holds" in text and re.search(r"what was released:\s+none", text)


def test_releases_about_other_records_add_nothing_to_those_who_were_in_none():
    budget = Budget.in_memory(CAP, DELTA)
    for i, records in enumerate((RECORDS, OTHERS, RecordSet.union([RECORDS, OTHERS]))):
        budget.charge(table_event(i, records=records), f"run/{i}", records)
    report = build_report(budget.account)
    costs = [r["cost"] for r in report["releases"]]
    assert costs[0] > 0 and costs[1] == 0 and costs[2] > 0
    assert report["epsilon_rdp"] == budget.spent.renyi and report["room"]["count"] == 3


def charged_with_heads(budget):
    """Two tables and two heads, as `split_budget` plans them, each head with its output noise."""
    plan = split_budget(CAP, DELTA, HeadShape(3.0, 40, 2), releases=2)
    moved = 6.0
    for i in range(2):
        table = replace(table_event(i), sigma=plan.table_multiplier * math.sqrt(38 / 2))
        budget.charge(table, f"run/sketch-{i}", RECORDS)
    for name in ("head", "head-1"):
        given = {"mechanism": "objective", "curvature": plan.curvature}
        head = Event(name, moved, moved * plan.head_multiplier, RECORDS.digest, **given)
        budget.charge(head, f"run/{name}", RECORDS)
        budget.charge(Event(f"{name} output", 1.0, plan.output_multiplier, RECORDS.digest), f"run/{name} o", RECORDS)
    return budget


def test_one_total_is_split_into_tables_and_heads():
    budget = charged_with_heads(Budget.in_memory(CAP, DELTA))
    report = json.loads(json.dumps(build_report(budget.account, Notes("dealer+holder"))))
    tables, head = report["parts"]
    assert (tables["part"], tables["releases"], head["part"], head["releases"]) == ("tables", 2, "head", 4)
    events = budget.events
    assert tables["epsilon_rdp"] == epsilon_of(events[:2], DELTA) and head["epsilon_rdp"] == epsilon_of(
        events[2:], DELTA
    )
    assert tables["epsilon_rdp"] < head["epsilon_rdp"] < report["epsilon_rdp"] == epsilon_of(events, DELTA)
    assert CAP - 1e-3 < report["epsilon_rdp"] <= CAP
    assert report["epsilon_rdp"] < tables["epsilon_rdp"] + head["epsilon_rdp"]
    assert report["epsilon_pld"] < report["epsilon_rdp"] and report["accountants_agree"]
    assert tables["epsilon_dealer"] > tables["epsilon_rdp"] and head["epsilon_dealer"] is None
    assert report["epsilon_dealer"] is None, "the dealer made the only noise of the heads"
    for text in (to_markdown(report), to_html(report)):
        assert "training records" in text and "further evaluations reveal nothing more about training records" in text
        assert "not listed here as a head" in text and "could subtract its noise" in text
        assert "depend on the records through more than these statistics" not in text
        assert "objective perturbation, curvature" in text
    assert report["room"] == {"like": "sketch-1", "count": 0}
    assert report["paper"]["tables"] == 19 and report["paper"]["releases"] == 2, "heads are no tables"
    assert f"| head | 4 | {head['epsilon_rdp']:.3f} |" in to_markdown(report)
    assert f"| **total** | 6 | **{report['epsilon_rdp']:.3f}** |" in to_markdown(report)


def test_evaluations_are_the_part_of_held_out_records(tmp_path):
    path = tmp_path / EVALUATIONS
    budget = Budget.open(path, 4.0, DELTA)
    budget.charge(Event("heading", 1.0, 3.0, RECORDS.digest, copies=2, dealer_copies=1), "k", RECORDS)
    (budget_report,) = budget_reports(path)
    assert budget_report.name == "evaluation_budget" and budget_report.report["about"] == "held-out records"
    assert [p["part"] for p in budget_report.report["parts"]] == ["evaluation"]
    assert "held-out records" in to_markdown(budget_report.report) and budget_report.report["head"] is None


def test_a_jobs_result_has_the_parts_too(tmp_path):
    budget = charged_with_heads(Budget.in_memory(CAP, DELTA))
    figures = spent_figures(budget.account, "dealer+holder", ["run"])
    assert figures["parts"] == {
        "tables": epsilon_of(budget.events[:2], DELTA),
        "head": epsilon_of(budget.events[2:], DELTA),
    }
    evaluated = Budget.open(tmp_path / EVALUATIONS, 4.0, DELTA)
    evaluated.charge(Event("evaluation", 1.0, 3.0, RECORDS.digest), "k", RECORDS)
    assert list(spent_in(tmp_path / EVALUATIONS, "dealer", [])["parts"]) == ["evaluation"]
