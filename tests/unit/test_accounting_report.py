"""The privacy report: figures, words, pages, and what it refuses."""

import json
import math
import re
import shutil
from html.parser import HTMLParser

import pytest

from accounting.accountant import OpacusAccountant
from accounting.budget import Budget
from accounting.calibration import noise_multiplier
from accounting.events import Event
from accounting.plots import cost_plot, left_plot, running_plot
from accounting.report import Notes, build_report, to_html, to_markdown
from launch.privacy_report import main

CAP, DELTA = 8.0, 1e-5
MULTIPLIER = noise_multiplier(CAP, DELTA, 5)
SKETCH = math.sqrt(19)


def fill(path, releases=4):
    budget = Budget.open(path, "records", CAP, DELTA)
    for i in range(releases):
        budget.charge(Event(f"sketch-{i}", SKETCH, SKETCH * MULTIPLIER, "records", refresh=i), f"run/{i}")
    return budget


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of three parties with notes, and its report."""
    run = tmp_path_factory.mktemp("runs") / "run"
    for k in range(3):
        fill(run / f"party-{k}" / "ledger.jsonl")
    uncharged = [{"name": "accuracy", "purpose": "to <judge> the model"}]
    (run / "report.json").write_text(json.dumps({"privacy": {"noise": "dealer+holder", "uncharged": uncharged}}))
    assert main([str(run), "--quiet"]) == 0
    return run


@pytest.fixture
def run(made, tmp_path):
    """A copy to damage."""
    shutil.copytree(made, tmp_path / "run")
    return tmp_path / "run"


def test_the_figures_are_those_of_the_ledger(made):
    report = json.loads((made / "privacy_budget.json").read_text())
    spent = Budget.open(made / "party-0" / "ledger.jsonl", "records", CAP, DELTA).spent
    assert (report["epsilon_rdp"], report["epsilon_pld"]) == (spent.renyi, spent.pld)
    assert (report["cap"], report["delta"]) == (CAP, DELTA)
    assert report["remaining"] == pytest.approx(CAP - spent.renyi)
    assert [r["name"] for r in report["releases"]] == [f"sketch-{i}" for i in range(4)]
    last = report["releases"][-1]
    assert {"name", "refresh", "sensitivity", "sigma", "epsilon_after"} <= set(last)
    assert last["epsilon_after"] == spent.renyi and last["epsilon_pld_after"] == spent.pld < spent.renyi
    assert sum(r["cost"] for r in report["releases"]) == pytest.approx(spent.renyi)


def test_what_if_says_what_fits(made):
    what_if = json.loads((made / "privacy_budget.json").read_text())["what_if"]
    assert what_if["more_at_this_noise"] == 1
    assert [c["releases_at_this_noise"] for c in what_if["caps"]] == [0, 1, 5]
    assert [c["noise_for_as_many"] > 1 for c in what_if["caps"]] == [True, True, False]


def test_the_papers_formula_is_marked_where_it_is_too_small(made):
    paper = json.loads((made / "privacy_budget.json").read_text())["paper"]
    assert (paper["tables"], paper["releases"]) == (19, 4)
    assert {c["sigma"]: c["too_small"] for c in paper["claims"]} == {
        0.2: True,
        0.5: True,
        1: False,
        2: False,
        5: False,
    }
    text = (made / "privacy_budget.md").read_text()
    assert re.search(r"\| 0\.5 \| 9\.69 \| 10\.00 \| [\d.]+ \| too small \|", text)
    assert re.search(r"\| 1 \| 4\.84 \| 4\.38 \| [\d.]+ \|  \|", text)


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


def test_the_page_stands_alone_and_says_what_is_covered_and_what_not(made):
    page = (made / "privacy_budget.html").read_text()
    reader = Balance()
    reader.feed(page)
    assert not reader.open and not reader.links and "<script" not in page and "@import" not in page
    assert page.count("<svg") == 3 and "prefers-color-scheme: dark" in page and "width=device-width" in page
    for words in (page, (made / "privacy_budget.md").read_text()):
        for said in (
            "What it does not cover",
            "its predictions",
            "lack the dealer",
            "adding or removing any one record",
        ):
            assert said in words
    assert "to &lt;judge&gt; the model" in page and "<judge>" not in page


def test_a_report_of_nothing_and_one_of_other_releases():
    empty = Budget.in_memory("records", CAP, DELTA)
    report = build_report(empty.terms, empty.charges)
    assert report["epsilon_rdp"] == report["epsilon_pld"] == 0 and report["remaining"] == CAP
    assert "Nothing was released" in to_markdown(report) and "Nothing was released" in to_html(report)
    empty.charge(Event("<script>a name</script>", 0.3, 3.0, "records", count=10, sampling=0.1), "k")
    report = build_report(empty.terms, empty.charges, Notes("dealer"))
    assert report["paper"] is None and "must be kept from the dealer" in to_html(report)
    assert "<script" not in to_html(report) and to_html(report).count("&lt;script&gt;a name") >= 2
    assert "10 at sampling 0.1" in to_markdown(report)


@pytest.mark.parametrize("count", [0, 1, 60])
def test_plots_hold_any_number_of_releases(count):
    releases = [
        {"name": f"r{i}", "cost": 0.1, "epsilon_after": i / 10, "epsilon_pld_after": i / 11} for i in range(count)
    ]
    report = {"releases": releases, "cap": 8.0, "epsilon_rdp": count / 10, "remaining": 8 - count / 10}
    assert cost_plot(report).count("<rect") == count
    assert running_plot(report).count("<circle") == 2 * count
    numbers = [float(x) for x in re.findall(r'(?:\bc?[xy])="(-?[\d.]+)"', cost_plot(report) + running_plot(report))]
    assert all(0 <= x <= 360 for x in numbers)
    assert f"spent {count / 10:.3f}" in left_plot(report)


def test_one_ledger_can_be_read_alone_and_a_missing_head_is_said(run, tmp_path, capsys):
    copy = tmp_path / "copy.jsonl"
    shutil.copy(run / "party-1" / "ledger.jsonl", copy)
    assert main([str(copy), "--out", str(tmp_path / "out"), "--quiet"]) == 0
    assert "no .head beside the ledger" in capsys.readouterr().err
    assert {p.suffix for p in (tmp_path / "out").iterdir()} == {".json", ".md", ".html"}


def test_ledgers_that_differ_between_parties_stop_the_report(run, capsys):
    fill(run / "party-2" / "ledger.jsonl", releases=5)
    (run / "privacy_budget.json").unlink()
    assert main([str(run)]) == 3
    assert "party-0 (5 lines) and party-2 (6 lines) differ from line 6 on" in capsys.readouterr().err
    assert not (run / "privacy_budget.json").exists()


def test_a_damaged_ledger_stops_the_report(run, capsys):
    path = run / "party-1" / "ledger.jsonl"
    path.write_text(path.read_text().replace('"sketch-2"', '"sketch-9"'))
    assert main([str(run)]) == 3
    assert "line 4 does not continue the chain" in capsys.readouterr().err


def test_accountants_that_disagree_fail_the_report(run, monkeypatch, capsys):
    """Opacus' code made wrong on purpose: half the price."""
    right = OpacusAccountant.epsilon
    monkeypatch.setattr(OpacusAccountant, "epsilon", lambda self, delta: right(self, delta) / 2)
    assert main([str(run), "--quiet"]) == 3
    assert "the accountants disagree" in capsys.readouterr().err


def test_wrong_use_is_said_in_one_line(run, tmp_path, capsys):
    assert main([str(tmp_path / "nowhere")]) == 2
    (run / "report.json").write_text('{"privacy": {"uncharged": [{"name": "x"}]}}')
    assert main([str(run)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_sampled_steps_are_one_line_and_what_the_dealer_knows_is_said(tmp_path):
    path = tmp_path / "ledger.jsonl"
    budget = Budget.open(path, "records", CAP, DELTA)
    for i in range(6):
        budget.charge(Event(f"dp gradient-{i}", 1.7, 4.0, "records", refresh=i, sampling=0.25), f"run/{i}")
    budget.charge(Event("sketch-0", SKETCH, SKETCH * 3, "records"), "run/sketch")
    report = build_report(budget.terms, budget.charges, Notes("dealer+holder"))
    assert [(r["name"], r["count"]) for r in report["releases"]] == [("dp gradient", 6), ("sketch-0", 1)]
    assert report["epsilon_rdp"] == budget.spent.renyi < report["epsilon_batches_known"]
    assert report["accountants_agree"]
    for text in (to_markdown(report), to_html(report)):
        assert f"epsilon {report['epsilon_batches_known']:.3f} holds against it" in text
    plain = build_report(budget.terms, budget.charges[-1:], Notes("dealer+holder"))
    assert plain["sampled"] is None and plain["epsilon_batches_known"] == plain["epsilon_rdp"]
    assert "sample" not in to_markdown(plain)
