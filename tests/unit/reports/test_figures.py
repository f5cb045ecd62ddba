"""No flip rate without its permutation baseline, no claim on a model that fails a check, and the frontier drawn."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from accounting.charts import Line, Mark, before_after, curves, frontier_chart, number, percent
from secure_sccvfl.reports.figures import (
    certificate_words,
    check_table,
    check_warnings,
    frontier,
    gain,
    group_table,
    metric_panels,
    metric_table,
    trusted,
)
from secure_sccvfl.reports.results import Attribute, Group, Rate, Release, Report
from secure_sccvfl.reports.sections import headline, learned, other_group
from secure_sccvfl.runs.local.screens import show_report
from tests.unit.reports import literal

FIRST, SECOND = "first counterfactual model", "second counterfactual model"


@pytest.fixture
def report() -> Report:
    return literal.report()


def test_flip_rates_stand_next_to_their_permutation_baseline(report: Report) -> None:
    panels = {p["title"]: p for p in metric_panels(report)}
    panel = panels[f"Flip rate, {FIRST}"]
    for name, permuted in (("this model", "0.1 %"), ("plain training, no protection", "0.4 %")):
        assert f"{name} (permuted {permuted})" in panel["svg"]
    assert panel["svg"].count('class="control"') == 4 and "permuted" in panel["hint"]
    assert 'class="control"' not in panels["Right decisions"]["svg"]
    assert "own generator" not in str(panels), "it has no control, so it is not drawn next to models that have one"
    rows = {row[0]: row for row in metric_table(replace(report, metrics={**report.metrics, "net_all": -1e-4})).rows}
    for name in (FIRST, SECOND):
        assert len(rows[f"flip rate ({name})"]) == len(rows[f"flip rate, groups permuted ({name})"]) == 5
    assert "-0.000" not in str(rows)


def test_a_model_that_fails_a_check_is_marked_everywhere_and_carries_no_claim(report: Report) -> None:
    assert trusted(report) == "kr_all", "the strictest of two that pass"
    assert check_warnings(report) == []
    one = replace(report, judges={**report.judges, "kr_all": literal.checks(null=0.03)})
    assert trusted(one) == "all"
    assert f"the {SECOND} (kr_all) fails null" in check_warnings(one)[0]
    note = ", fails its validity check (null)"
    assert any(p["title"] == f"Flip rate, {SECOND}{note}" for p in metric_panels(one))
    assert f"flip rate ({SECOND}){note}" in {row[0] for row in metric_table(one).rows}
    table = check_table(one)
    assert table is not None and [row[-1] for row in table.rows] == ["passes", "fails: null"]
    none = replace(one, judges={**one.judges, "all": literal.checks(auc=0.6, null=0.03)})
    assert trusted(none) is None
    assert check_warnings(none)[0].startswith("No counterfactual model passes its validity checks here")
    assert "no flip rate is claimed" in gain(none) and "fewer" not in gain(none)


def test_checks_over_the_seeds_of_the_frontier_count_more_than_those_of_one_run(report: Report) -> None:
    failing = replace(report, judges=dict.fromkeys(report.judges, literal.checks(auc=0.6)))
    assert trusted(failing) is None
    over_seeds = replace(failing, frontier=literal.frontier(kr_all=("AUC",)))
    assert trusted(over_seeds) == "all"
    table = check_table(over_seeds)
    assert table is not None and table.titles[-1] == "checks, over 8 seeds"
    assert [row[-1] for row in table.rows] == ["passes", "fails: AUC"]


def test_without_a_counterfactual_model_the_own_generator_has_no_control(report: Report) -> None:
    without_models = replace(report, metrics={"acc": 0.7, "fr_own": 0.01}, judges={}, baselines={})
    assert trusted(without_models) == "own" and check_table(without_models) is None
    (panel,) = [p for p in metric_panels(without_models) if "Flip" in p["title"]]
    assert "no permutation baseline" in panel["hint"] and "permuted" not in panel["svg"]
    assert "(counterfactual model own; no permutation baseline)" in gain(without_models)


def test_what_was_gained_in_one_run_and_over_seeds(report: Report) -> None:
    assert gain(report) == (
        "77.0 % (71.9 to 81.4 %) right: +3.0 points on the majority, +3.5 points on dropping the mediators and -2.0 "
        "points on plain training. 1.4 % (0.6 to 3.5 %) of decisions flip, 82 % fewer than the 8.0 % of plain "
        "training (counterfactual model kr_all; 0.6 % with groups permuted). One run."
    )
    assert gain(replace(report, metrics={"rmse": 0.2})) == ""
    assert gain(replace(report, frontier=literal.frontier())) == (
        "77.6 % (76.8 to 78.4 %) right: +3.6 points (+2.6 to +4.6) on the majority, +4.1 points (+3.1 to +5.1) on "
        "dropping the mediators and -1.3 points (-2.3 to -0.3) on plain training. 0.8 % (0.6 to 1.0 %) of decisions "
        "flip, 86 % fewer than the 5.7 % of plain training (counterfactual model all; 0.3 % with groups permuted). "
        "Means over 8 seeds, in plaintext."
    )
    tree = literal.frontier()
    points = [replace(p, figures={**p.figures, "fr_all": literal.span(0.004, 0.001)}) for p in tree.points[1:2]]
    worse = replace(tree, points=(*points, *(p for p in tree.points if p.method != "erm")))
    assert "100 % more than the 0.4 % of plain training" in gain(replace(report, frontier=worse))


def test_the_frontier_is_a_chart_and_a_table(report: Report) -> None:
    assert frontier(report) is None
    chart = frontier(replace(report, frontier=literal.frontier()))
    assert chart is not None and chart["seeds"] == 8 and chart["model"] == FIRST and chart["taken"] == 4.0
    assert chart["permuted"] == [(FIRST, "0.3 %"), (SECOND, "0.9 %")]
    titles = {"right", "AUC", f"flip rate, {FIRST}", f"net flip rate, {FIRST}", f"flip rate, {SECOND}"}
    assert titles | {"changed by PGD"} <= set(chart["table"].titles)
    rows = {row[0]: row[1:] for row in chart["table"].rows}
    assert rows["this method, λ = 4 (this run)"][:2] == ("77.5 % (76.7 to 78.3 %)", "0.825 (0.815 to 0.835)")
    assert set(rows) >= {"this method, λ by the rule", "plain training, no protection", "the paper's method"}
    svg = chart["svg"]
    for name in ("this method", "plain training, no protection", "this run, under MPC (one seed)", "majority"):
        assert f">{name}</text>" in svg
    assert svg.count('class="ring"') == 1 and 'class="ours">λ 4</text>' in svg
    line = re.search(r'<polyline points="([^"]*)"', svg)
    assert line is not None and len(line[1].split()) == 4, "the rule's choice is no point of the line"
    assert not re.search(r"#[0-9a-f]{3,6}\b", svg), "colours are the page's own, for light and dark"


def test_the_frontier_uses_the_first_model_that_passes(report: Report) -> None:
    second = replace(report, frontier=literal.frontier(all=("AUC",)))
    chart = frontier(second)
    assert chart is not None and chart["model"] == SECOND and "counterfactual model kr_all" in gain(second)
    neither = replace(report, frontier=literal.frontier(all=("AUC",), kr_all=("AUC",)))
    chart = frontier(neither)
    assert chart is not None and chart["model"] == f"{FIRST}, fails its validity check (AUC)"
    assert "no flip rate is claimed" in gain(neither)


def test_everything_drawn_lies_inside_the_picture() -> None:
    """Also for extremes: no flips at all, one point, and a hostile name."""
    flat = [Mark("<ours>&", (0.0, 0.0, 0.0), (0.7, 0.7, 0.7), "4", True)]
    far = Mark("x" * 40, (0.5, 0.1, 0.9), (0.99, 0.9, 1.0))
    wide = [*flat, far, Mark("<ours>&", (0.9, 0.5, 1.0), (0.5, 0.4, 0.6))]
    charts = [frontier_chart("a <title>", marks, "<ours>&", 0.7) for marks in (flat, wide)]
    charts.append(before_after("a <title>", [(0.0, 1.0), (0.4, 0.6)], "<what>"))
    for chart in charts:
        root = ElementTree.fromstring(chart)
        width, height = map(float, root.attrib["viewBox"].split()[2:])
        shapes = [(s.attrib["cx"], s.attrib["cy"]) for s in root.iter("circle")]
        texts = [(t.attrib["x"], t.attrib["y"]) for t in root.iter("text") if "transform" not in t.attrib]
        moved = re.findall(r"translate\(([-\d.]+) ([-\d.]+)\)", chart)
        assert len(shapes) + len(moved) > 1 and texts
        for x, y in [*shapes, *texts, *moved]:
            assert 0 <= float(x) <= width and 0 <= float(y) <= height


def test_the_first_screen_says_what_was_gained_and_shows_controls(
    report: Report, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    show_report(replace(report, judges={**report.judges, "kr_all": literal.checks(null=0.03)}), tmp_path)
    shown = capsys.readouterr().out
    assert shown.startswith("in short: 77.0 % (71.9 to 81.4 %) right: +3.0 points on the majority")
    table = [line for line in shown.splitlines() if line.startswith(("┃", "│", "┏"))]
    assert max(map(len, table)) <= 80
    assert [word.strip() for word in table[1].split("┃")[3:8]] == ["flips", "perm.", "flips", "perm.", "net"]
    assert [word.strip() for word in table[2].split("┃")[3:8]] == ["all", "all", "kr_all", "kr_all", "all"]
    assert "│ erm        │ 0.790 │ 0.060 │ 0.004 │  0.080 │  0.006 │" in shown
    assert "validity checks of the counterfactual models: all passes; kr_all fails null" in shown
    show_report(replace(report, frontier=literal.frontier()), tmp_path)
    assert "Means over 8 seeds" in " ".join(capsys.readouterr().out.split())


def test_with_three_groups_there_is_no_such_thing_as_the_other_group(report: Report) -> None:
    for counts, words in (((2,), "the other group"), ((3,), "another group"), ((2, 3), "another group")):
        attributes = tuple(Attribute(labels=tuple(map(str, range(count)))) for count in counts)
        assert other_group(replace(report, data=replace(report.data, protected=attributes))) == words


def test_a_purpose_names_the_decisions_that_a_figure_counts(report: Report) -> None:
    release = Release("odd", (0,), (2,), "positive_rate and dp_gap", None, 1)
    purpose = learned(replace(report, releases=(release,)))[0]["purpose"]
    assert "{" not in purpose and purpose.count("“high”") == 2


def test_labels_of_an_axis_are_not_clipped_and_nothing_is_minus_zero() -> None:
    for most in (0.9, 0.04, 0.0004, 0.00013, 3e-7):
        drawn = ElementTree.fromstring(curves("Gap", [Line("Gap", [(0.0, most), (1.0, most / 3)])], "weight"))
        labels = [node for node in drawn.iter("text") if node.get("text-anchor") == "end"]
        assert len(labels) >= 4
        for label in labels:
            assert float(label.get("x", "0")) >= 6.5 * len(label.text or ""), label.text
    for value in (-0.0, -0.0004):
        assert number(value) == "0.000" and percent(value / 10) == "0.0 %"


def test_the_certified_share_stands_next_to_the_flip_rate_in_plain_words(
    report: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert certificate_words(report) == "" and "certified" not in str(metric_panels(report))
    roles = {"edu": "M", "work_hours": "M", "age": "N"}
    rates = [Group((), {"certified": Rate(share, share - 0.1, share + 0.1, 90)}) for share in (0.25, 0.5)]
    one = replace(report, metrics={**report.metrics, "certified": 0.4}, roles=roles, groups=tuple(rates))
    words = certificate_words(one)
    assert words.startswith("40.0 % of decisions are certified (95 % interval ")
    assert "they cannot change through edu, work hours, whatever their values." in words
    assert words.endswith(" By group: “young” 25.0 % and “old” 50.0 %.")
    figures = {name: (value, below) for name, value, below, _ in headline(one)["figures"]}
    assert figures["certified decisions"][0] == "40.0 %" and "95 % interval" in figures["certified decisions"][1]
    assert list(figures).index("certified decisions") == list(figures).index("flip rate") + 1
    assert words in headline(one)["story"]
    table = group_table(one)
    assert "certified decisions" in str(table) and "25.0 % (15.0 to 35.0 %" in str(table)
    show_report(one, tmp_path)
    assert "40.0 % of decisions are certified" in " ".join(capsys.readouterr().out.split())
    none = replace(one, roles={"edu": "N"})
    assert certificate_words(none) == "Every decision is certified: no column is a mediator."
