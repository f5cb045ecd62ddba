"""No flip rate without its permutation baseline, no claim on a model that fails a check, and the frontier drawn."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from secure_sccvfl.accounting.charts import Line, Mark, curves, frontier_chart, number, percent, scores_before_after
from secure_sccvfl.reports.collect import find_warnings
from secure_sccvfl.reports.figures import (
    Tile,
    check_table,
    check_warnings,
    frontier,
    group_table,
    group_warnings,
    metric_panels,
    rate_ratio,
    tiles,
    trusted,
)
from secure_sccvfl.reports.results import Attribute, Examples, Frontier, Group, Rate, Report
from secure_sccvfl.reports.sections import examples, other_group
from secure_sccvfl.runs.local.screens import show_report
from tests.unit.reports import literal

FIRST, SECOND = "first counterfactual model", "second counterfactual model"


def tile(report: Report, name: str) -> Tile:
    (one,) = [one for one in tiles(report) if one.name.startswith(name)]
    return one


@pytest.fixture
def report() -> Report:
    return literal.report()


def test_flip_rates_stand_next_to_their_permutation_baseline(report: Report) -> None:
    panels = {p["title"]: p for p in metric_panels(report)}
    for name, permuted in (("this model", "0.2 %"), ("plain training", "0.6 %")):
        assert f"{name} (permuted {permuted})" in panels["Flip rate"]["svg"]
    assert panels["Flip rate"]["svg"].count('class="control"') == 4 and "permuted" in panels["Flip rate"]["hint"]
    assert 'class="control"' not in panels["Correct decisions"]["svg"]
    assert "groups permuted (chance) 0.2 %" in tile(report, "decisions that flip").below


def test_a_model_that_fails_a_check_carries_no_claim(report: Report) -> None:
    assert trusted(report) == "kr_all", "the strictest of two that pass"
    assert check_warnings(report) == [] and tile(report, "decisions that flip").value == "1.4 %"
    failing = {**report.judges, "kr_all": literal.checks(null=0.03)}
    one = replace(report, judges=failing, metrics={**report.metrics, "fr_kr_all": 0.123})
    assert trusted(one) == "all" and tile(one, "decisions that flip").value == "1.0 %"
    assert f"the {SECOND} (kr_all) fails null" in check_warnings(one)[0]
    assert "12.3 %" not in str([*metric_panels(one), *tiles(one)])
    table = check_table(one)
    assert table is not None and [row[-1] for row in table.rows] == ["passes", "fails: null"]
    none = replace(one, judges={**one.judges, "all": literal.checks(auc=0.6, null=0.03)})
    assert trusted(none) is None and "Flip" not in str(metric_panels(none))
    assert check_warnings(none)[0].startswith("No counterfactual model passes its validity checks here")
    assert tile(none, "decisions that flip").value == "not claimed" and "1.0 %" not in str(tiles(none))


def test_no_example_comes_from_a_model_that_fails_a_check(report: Report) -> None:
    given = replace(report, examples=Examples(3, 0, ((0.2, 0.3),), (), model="kr_all"))
    assert examples(given) is not None
    assert examples(replace(given, judges={**report.judges, "kr_all": literal.checks(auc=0.6)})) is None


def test_checks_over_the_seeds_of_the_frontier_count_more_than_those_of_one_run(report: Report) -> None:
    failing = replace(report, judges=dict.fromkeys(report.judges, literal.checks(auc=0.6)))
    assert trusted(failing) is None
    over_seeds = replace(failing, frontier=literal.frontier(kr_all=("AUC",)))
    assert trusted(over_seeds) == "all"
    table = check_table(over_seeds)
    assert table is not None and table.titles[-1] == "checks, over 8 seeds"
    assert [row[-1] for row in table.rows] == ["passes", "fails: AUC"]
    means = {"all": literal.checks(auc=0.68), "kr_all": literal.checks(auc=0.63)}
    table = check_table(replace(over_seeds, frontier=replace(literal.frontier(kr_all=("AUC",)), checks=means)))
    assert table is not None and [row[1] for row in table.rows] == ["0.68", "0.63"], "what the verdict is about"


def test_without_a_counterfactual_model_the_own_generator_has_no_control(report: Report) -> None:
    without_models = replace(report, metrics={"acc": 0.7, "fr_own": 0.01}, judges={}, baselines={})
    assert trusted(without_models) == "own" and check_table(without_models) is None
    (panel,) = [p for p in metric_panels(without_models) if "Flip" in p["title"]]
    assert "no permutation baseline" in panel["hint"] and "permuted" not in panel["svg"]
    assert "no permutation baseline" in tile(without_models, "decisions that flip").below


def test_one_headline_has_this_run_and_the_seeds_next_to_it(report: Report) -> None:
    without = "without the columns that follow from “s” 73.5 %"
    against = ("the most frequent answer 74.0 %", without, "plain training 79.0 %")
    assert tile(report, "correct") == Tile("correct decisions", "77.0 %", ("95 % interval 71.9 to 81.4 %", *against))
    both = replace(report, frontier=literal.frontier())
    seeds = "over 8 seeds 77.6 % (76.8 to 78.4 %)"
    assert tile(both, "correct").below == ("95 % interval 71.9 to 81.4 %", seeds, *against)
    assert "over 8 seeds 1.6 % (1.4 to 1.8 %)" in tile(both, "decisions that flip").below
    first, *others = [one.name for one in tiles(replace(report, metrics={"rmse": 0.2}))]
    assert first == "typical error" and others == ["privacy cost", "time under MPC"]


@pytest.mark.parametrize("task", ["regression", "multiclass"])
def test_there_is_no_rate_of_a_group_without_two_classes(
    report: Report, task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = {"rmse": 0.2, "scg_own": 0.01} if task == "regression" else {"acc": 0.6, "fr_own": 0.02}
    changes = {"data": replace(report.data, task=task), "metrics": metrics, "judges": {}, "groups": ()}
    noise = {"rmse": 0.05} if task == "regression" else {}
    one = replace(report, **changes, noise=noise, baselines={"majority": {name: 0.5 for name in metrics}})
    assert group_table(one) is None and rate_ratio(one) is None and list(group_warnings(one)) == []
    assert [p["title"] for p in metric_panels(one)] == (
        ["Typical error", "Shift of the answer, the run's own generator"]
        if task == "regression"
        else ["Correct decisions", "Flip rate"]
    )
    show_report(one, tmp_path)
    shown = capsys.readouterr().out
    error = "typical error: 0.200 (of the label's range; 95 % interval 0.150 to 0.250; always the mean 0.500)"
    assert (error in " ".join(shown.split())) == (task == "regression") and "share of each group" not in shown


def rates(*pairs: tuple[float, float, float]) -> tuple[Group, ...]:
    return tuple(Group((), {"positive_rate": Rate(*pair, 300)}) for pair in pairs)


def test_rates_of_groups_and_their_ratio_are_those_of_the_report(report: Report) -> None:
    metrics = {**report.metrics, "positive_rate": 0.35}
    one = replace(report, groups=rates((0.40, 0.35, 0.45), (0.30, 0.24, 0.36)), metrics=metrics)
    shown = tile(one, "share of each group decided “high”")
    assert shown.value == "“old” 30.0 %  ·  “young” 40.0 %" and "“old” 24.0 to 36.0 %" in shown.below[0]
    ratio = tile(one, "ratio")
    assert ratio.value == "0.75" and "interval 0.53 to 1.03" in ratio.below[0] and "below it" in ratio.below[1]
    assert rate_ratio(one) == pytest.approx((0.75, 0.24 / 0.45, 0.36 / 0.35))
    few = replace(one, groups=(Group(("positive_rate",)), one.groups[1]))
    assert tile(few, "share").below[-1] == "too few test records to say: young" and "ratio" not in str(tiles(few))
    nobody, some = rates((0.0, 0.0, 0.01), (0.0, 0.0, 0.02)), rates((0.1, 0.0, 0.2), (0.0, 0.0, 0.1))
    assert rate_ratio(replace(one, groups=nobody)) is None
    assert tile(replace(one, groups=some), "ratio").below[0].endswith("interval 0.00 or more")
    many = Attribute("s", "bank", "", tuple("abcdef"), tuple("abcdef"))
    groups = rates(*[(k / 10, 0.0, 1.0) for k in range(1, 7)])
    six = replace(one, data=replace(one.data, protected=(many,)), groups=groups)
    assert tile(six, "share").value == "“a” 10.0 %  ·  “f” 60.0 %" and "of 6 groups" in tile(six, "share").below[0]


def test_a_warning_where_groups_differ_though_few_decisions_flip(report: Report) -> None:
    """The case of the trial: 1.7 % flips, 21.8 % against 54.6 %. Each of the three controls lacks one condition."""
    far = rates((0.546, 0.50, 0.59), (0.218, 0.18, 0.26))
    flips = {"acc": 0.7, "positive_rate": 0.4, "fr_own": 0.017}
    one = replace(report, metrics=flips, judges={}, baselines={}, groups=far)
    (line,) = group_warnings(one)
    assert "(1.7 %)" in line and "21.8 % of “old” and 54.6 % of “young”, a ratio of 0.40 (0.31 to 0.52)" in line
    assert line in list(find_warnings(one)) and "chance" not in line
    for control in (
        replace(one, groups=rates((0.5, 0.4, 0.6), (0.41, 0.35, 0.47))),
        replace(one, metrics={**flips, "fr_own": 0.06}),
        replace(one, groups=(Group(("positive_rate",)), far[1])),
    ):
        assert list(group_warnings(control)) == []
    near = rates((0.40, 0.30, 0.50), (0.30, 0.20, 0.42))
    assert "on so few records that may be chance" in next(group_warnings(replace(one, groups=near)))


def test_a_warning_where_missing_values_depend_on_s(report: Report) -> None:
    assert list(group_warnings(report)) == []
    (line,) = group_warnings(replace(report, missing_depends=("edu", "pay"), roles={"edu": "M", "pay": "N"}))
    assert "depends on “s”: edu and pay" in line and "do not count that for pay, held fixed" in line


def test_the_frontier_is_a_chart_and_a_table(report: Report) -> None:
    assert frontier(report) is None
    chart = frontier(replace(report, frontier=literal.frontier()))
    assert chart is not None and chart["seeds"] == 8 and chart["permuted"] == "0.9 %"
    assert chart["gains"].startswith(
        "without the mediators +4.1 points (+3.1 to +5.1) and plain training -1.3 points"
    )
    assert chart["table"].titles == ("", "correct, %", "flips, %")
    rows = {row[0]: row[1:] for row in chart["table"].rows}
    assert rows["λ 4 (this run)"] == ("77.5 (76.7–78.3)", "1.5 (1.4–1.7)")
    assert set(rows) >= {"this method, λ by the rule", "plain training", "the paper's method"}
    svg = chart["svg"]
    for name in ("this method", "plain training", "this run, under MPC (one seed)", "majority"):
        assert f">{name}</text>" in svg
    assert svg.count('class="ring"') == 1 and 'class="ours">λ 4</text>' in svg
    line = re.search(r'<polyline points="([^"]*)"', svg)
    assert line is not None and len(line[1].split()) == 4, "the rule's choice is no point of the line"
    assert not re.search(r"#[0-9a-f]{3,6}\b", svg), "colours are the page's own, for light and dark"


def test_the_frontier_uses_the_model_that_claims_rest_on(report: Report) -> None:
    assert [row[2] for row in table_of(report, literal.frontier(kr_all=("AUC",))) if row[0] == "plain training"] == [
        "5.7 (4.6–6.8)"
    ]
    assert frontier(replace(report, frontier=literal.frontier(all=("AUC",), kr_all=("AUC",)))) is None


def table_of(report: Report, tree: Frontier) -> Sequence[Sequence[str]]:
    chart = frontier(replace(report, frontier=tree))
    assert chart is not None
    return [tuple(map(str, row)) for row in chart["table"].rows]


def test_no_label_of_lambda_covers_another_or_a_mark() -> None:
    """Seven models within half a percent: the chosen one has its label, others where there is room."""
    near = [(0.005 + 0.0007 * k, 0.76 + 0.0004 * k) for k in range(7)]
    marks = [Mark("ours", (a, a, a), (b, b, b), f"{k}.25", False, k == 3) for k, (a, b) in enumerate(near)]
    marks.append(Mark("far", (0.09, 0.08, 0.1), (0.79, 0.78, 0.8)))
    root = ElementTree.fromstring(frontier_chart("chart", marks, "ours", 0.74))
    labels = [node for node in root.iter("text") if (node.text or "").startswith("λ")]
    boxes = [(float(n.attrib["x"]), float(n.attrib["y"]) - 10, 6.8 * len(n.text or ""), 12.0) for n in labels]
    assert "λ 3.25" in [node.text for node in labels] and 1 <= len(labels) < 7
    for k, (x, y, wide, high) in enumerate(boxes):
        assert all(x >= a + c or a >= x + wide or y >= b + d or b >= y + high for a, b, c, d in boxes[:k])


def test_everything_drawn_lies_inside_the_picture() -> None:
    """Also for extremes: no flips at all, one point, and a hostile name."""
    flat = [Mark("<ours>&", (0.0, 0.0, 0.0), (0.7, 0.7, 0.7), "4", True)]
    far = Mark("x" * 40, (0.5, 0.1, 0.9), (0.99, 0.9, 1.0))
    wide = [*flat, far, Mark("<ours>&", (0.9, 0.5, 1.0), (0.5, 0.4, 0.6))]
    charts = [frontier_chart("a <title>", marks, "<ours>&", 0.7) for marks in (flat, wide)]
    charts.append(scores_before_after("a <title>", [(0.0, 1.0), (0.4, 0.6)], "<what>"))
    for chart in charts:
        root = ElementTree.fromstring(chart)
        width, height = map(float, root.attrib["viewBox"].split()[2:])
        shapes = [(s.attrib["cx"], s.attrib["cy"]) for s in root.iter("circle")]
        texts = [(t.attrib["x"], t.attrib["y"]) for t in root.iter("text") if "transform" not in t.attrib]
        moved = re.findall(r"translate\(([-\d.]+) ([-\d.]+)\)", chart)
        assert len(shapes) + len(moved) > 1 and texts
        for x, y in [*shapes, *texts, *moved]:
            assert 0 <= float(x) <= width and 0 <= float(y) <= height


def test_the_first_screen_has_the_headline_in_plain_words(
    report: Report, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    show_report(replace(report, frontier=literal.frontier(), proxies="guard"), tmp_path)
    shown = capsys.readouterr().out
    assert shown.startswith("the protected attribute s is “s” (“young” / “old”); figures are for 300 test records")
    for one in tiles(replace(report, frontier=literal.frontier())):
        assert f"{one.name}: {one.value} ({one.below[0]}" in " ".join(shown.split()), "the page says the same"
    table = [line for line in shown.splitlines() if line.startswith(("┃", "│", "┏"))]
    assert [word.strip() for word in table[1].split("┃")[1:-1]] == [
        "model",
        "correct",
        "flips",
        "by chance",
        "gap between groups",
    ]
    assert "│ plain training                           │  79.0 % │ 8.0 % │     0.6 % │" in shown
    for word in ("kr_all", "drop_m", "erm", "majority", "dp_gap", "perm.", "net"):
        assert not re.search(rf"\b{word}\b", shown), word


def test_with_three_groups_there_is_no_such_thing_as_the_other_group(report: Report) -> None:
    for counts, words in (((2,), "the other group"), ((3,), "another group"), ((2, 3), "another group")):
        attributes = tuple(Attribute(labels=tuple(map(str, range(count)))) for count in counts)
        assert other_group(replace(report, data=replace(report.data, protected=attributes))) == words


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
    assert "certified" not in str(tiles(report))
    roles = {"edu": "M", "work_hours": "M", "age": "N"}
    rates = [Group((), {"certified": Rate(share, share - 0.1, share + 0.1, 90)}) for share in (0.25, 0.5)]
    one = replace(report, metrics={**report.metrics, "certified": 0.4}, roles=roles, groups=tuple(rates))
    assert tile(one, "certified") == Tile(
        "certified decisions",
        "40.0 %",
        (
            "no values of the 2 columns that follow from s change them",
            "95 % interval 34.6 to 45.6 %",
            "“young” 25.0 %, “old” 50.0 %",
        ),
    )
    names = [one.name for one in tiles(one)]
    assert names.index("certified decisions") == names.index("decisions that flip") + 1
    table = group_table(one)
    assert table is not None and [tuple(row) for row in table.rows] == [
        ("young", "25.0 (15.0–35.0) of 90"),
        ("old", "50.0 (40.0–60.0) of 90"),
    ]
    show_report(one, tmp_path)
    assert "certified decisions: 40.0 %" in capsys.readouterr().out
    assert "no column is a mediator" in tile(replace(one, roles={"edu": "N"}), "certified").below


def test_private_baselines_have_rates_of_groups_and_say_that_they_carry_more_noise(report: Report) -> None:
    metrics = {**report.metrics, "positive_rate": 0.35}
    one = replace(report, groups=rates((0.40, 0.35, 0.45), (0.30, 0.24, 0.36)), metrics=metrics)
    groups = rates((0.62, 0.5, 0.7), (0.31, 0.2, 0.4))
    private = replace(one, baseline_noise={"erm": {"acc": 0.02}}, baseline_groups={"erm": groups})
    said = "plain training: “old” 31.0 %, “young” 62.0 %"
    assert said in tile(private, "share of each").below and said not in tile(one, "share of each").below
    (before, after) = ([one[0] for one in table.rows] for table in map(group_table, (one, private)) if table)
    assert after == [*before, *(f"{label}, plain training" for label in report.data.protected[0].labels)]
    assert any("1.9 times the noise" in line for line in find_warnings(private))
    assert not any("times the noise" in line for line in find_warnings(report))
