"""No flip rate without its null control, no claim on a judge that fails a gate, and the frontier as a picture."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from secure_sccvfl.reports.charts import Line, curves
from secure_sccvfl.reports.figures import METRIC_WORDS, metric_panels, metric_table
from secure_sccvfl.reports.frontier import frontier, gain
from secure_sccvfl.reports.frontier_chart import Mark, frontier_chart
from secure_sccvfl.reports.judged import gate_table, judge_warnings, trusted
from secure_sccvfl.reports.sections import learned, other_group
from secure_sccvfl.runs.local.screens import show_report
from tests.unit.reports import literal


@pytest.fixture
def report() -> dict[str, Any]:
    return literal.report()


def test_every_chart_of_flips_shows_its_null(report: dict[str, Any]) -> None:
    panels = {p["title"]: p for p in metric_panels(report)}
    chart = panels["Decisions that flip, first judge"]["svg"]
    for name, null in (("this model", "0.1 %"), ("plain training, no protection", "0.4 %")):
        assert f"{name} (null {null})" in chart
    assert chart.count('class="control"') == 4 and "null" in panels["Decisions that flip, first judge"]["hint"]
    assert 'class="control"' not in panels["Right decisions"]["svg"]
    assert "own generator" not in str(panels), "it has no control, so it is not drawn beside judges that have one"


def test_the_table_of_all_numbers_has_a_null_for_every_flip_rate(report: dict[str, Any]) -> None:
    rows = dict(metric_table(report)["rows"])
    for place in ("first judge", "second judge"):
        assert len(rows[f"flips ({place})"]) == len(rows[f"flips, groups shuffled ({place})"]) == 4
    assert METRIC_WORDS["net_all"] == "net flips (first judge)"


def test_a_judge_that_fails_is_marked_everywhere_and_carries_no_claim(report: dict[str, Any]) -> None:
    assert trusted(report) == "kr_all", "the strictest of two that pass"
    assert judge_warnings(report) == []
    report["judges"]["kr_all"] = literal.judged(null=0.03)
    assert trusted(report) == "all"
    assert "the second judge (kr_all) fails null" in judge_warnings(report)[0]
    assert any("second judge, fails its gate (null)" in p["title"] for p in metric_panels(report))
    assert "flips (second judge), fails its gate (null)" in dict(metric_table(report)["rows"])
    table = gate_table(report)
    assert table is not None and [cells[-1] for _, cells in table["rows"]] == ["passes", "fails: null"]
    report["judges"]["all"] = literal.judged(auc=0.6, null=0.03)
    assert trusted(report) is None
    assert judge_warnings(report)[0].startswith("No judge passes its gates on these data")
    assert "nothing is said of flips" in gain(report) and "fewer" not in gain(report)


def test_gates_over_the_seeds_of_the_frontier_count_more_than_those_of_one_run(report: dict[str, Any]) -> None:
    report["judges"] = {"all": literal.judged(auc=0.6), "kr_all": literal.judged(auc=0.6)}
    assert trusted(report) is None
    report["frontier"] = literal.frontier() | {"failed": {"all": [], "kr_all": ["AUC"]}}
    assert trusted(report) == "all"
    table = gate_table(report)
    assert table is not None and table["heads"][-1] == "gates, over 8 seeds"
    assert [cells[-1] for _, cells in table["rows"]] == ["passes", "fails: AUC"]


def test_without_a_judge_the_own_generator_is_told_and_has_no_control(report: dict[str, Any]) -> None:
    report["metrics"], report["judges"], report["baselines"] = {"acc": 0.7, "fr_own": 0.01}, {}, {}
    assert trusted(report) == "own" and gate_table(report) is None
    (panel,) = [p for p in metric_panels(report) if "flip" in p["title"]]
    assert "no null control" in panel["hint"] and "null" not in panel["svg"]
    assert "(judge own; no null control)" in gain(report)


def test_what_was_gained_in_one_run(report: dict[str, Any]) -> None:
    told = gain(report)
    assert told.startswith("77.0 % (71.9 to 81.4 %) right: +3.0 points on the majority, +3.5 points on dropping the")
    assert "mediators and -2.0 points on plain training. 1.4 % (0.6 to 3.5 %) of decisions flip, 82 % fewer" in told
    assert told.endswith("than the 8.0 % of plain training (judge kr_all; 0.6 % with groups shuffled). One run.")
    report["metrics"] = {"rmse": 0.2}
    assert gain(report) == ""


def test_what_was_gained_over_seeds(report: dict[str, Any]) -> None:
    report["frontier"] = literal.frontier()
    assert gain(report) == (
        "77.6 % (76.8 to 78.4 %) right: +3.6 points (+2.6 to +4.6) on the majority, +4.1 points (+3.1 to +5.1) on "
        "dropping the mediators and -1.3 points (-2.3 to -0.3) on plain training. 0.8 % (0.6 to 1.0 %) of decisions "
        "flip, 86 % fewer than the 5.7 % of plain training (judge all; 0.3 % with groups shuffled). Means over 8 "
        "seeds, not in secret."
    )
    plain = next(p for p in report["frontier"]["points"] if p["method"] == "erm")
    plain["fr_all"] = literal.span(0.004, 0.001)
    assert "100 % more than the 0.4 % of plain training" in gain(report)


def test_the_frontier_is_a_picture_and_a_table(report: dict[str, Any]) -> None:
    assert frontier(report) is None
    report["frontier"] = literal.frontier()
    made = frontier(report)
    assert made is not None and made["seeds"] == 8 and made["judge"] == "first judge" and made["taken"] == 4.0
    assert made["nulls"] == [("first judge", "0.3 %"), ("second judge", "0.9 %")]
    heads = ("right", "AUC", "flips, first judge", "net flips, first judge", "flips, second judge", "changed by PGD")
    assert set(heads) <= set(made["heads"])
    rows = dict(made["rows"])
    assert rows["this method, λ = 4 (this run)"][:2] == ["77.5 % (76.7 to 78.3 %)", "0.825 (0.815 to 0.835)"]
    assert set(rows) >= {"this method, λ by the rule", "plain training, no protection", "the paper's method"}
    svg = made["svg"]
    for name in ("this method", "plain training, no protection", "this run, in secret (one seed)", "majority"):
        assert f">{name}</text>" in svg
    assert svg.count('class="ring"') == 1 and 'class="ours">λ 4</text>' in svg
    line = re.search(r'<polyline points="([^"]*)"', svg)
    assert line is not None and len(line[1].split()) == 4, "the rule's choice is no point of the line"
    assert not re.search(r"#[0-9a-f]{3,6}\b", svg), "colours are the page's own, for light and dark"


def test_the_picture_uses_the_first_judge_that_passes(report: dict[str, Any]) -> None:
    report["frontier"] = literal.frontier()
    report["frontier"]["failed"] = {"all": ["AUC"], "kr_all": []}
    made = frontier(report)
    assert made is not None and made["judge"] == "second judge" and "judge kr_all" in gain(report)
    report["frontier"]["failed"] = {"all": ["AUC"], "kr_all": ["AUC"]}
    made = frontier(report)
    assert made is not None and made["judge"] == "first judge, fails its gate (AUC)"
    assert "nothing is said of flips" in gain(report)


def test_everything_drawn_lies_inside_the_picture() -> None:
    """Also for extremes: no flips at all, one point, and a hostile name."""
    flat = [Mark("<ours>&", (0.0, 0.0, 0.0), (0.7, 0.7, 0.7), "4", True)]
    wide = [
        *flat,
        Mark("x" * 40, (0.5, 0.1, 0.9), (0.99, 0.9, 1.0)),
        Mark("<ours>&", (0.9, 0.5, 1.0), (0.5, 0.4, 0.6)),
    ]
    for marks in (flat, wide):
        root = ElementTree.fromstring(frontier_chart("a <title>", marks, "<ours>&", 0.7))
        width, height = map(float, root.attrib["viewBox"].split()[2:])
        for circle in root.iter("circle"):
            assert 0 <= float(circle.attrib["cx"]) <= width and 0 <= float(circle.attrib["cy"]) <= height
        for text in root.iter("text"):
            assert "transform" in text.attrib or 0 <= float(text.attrib["x"]) <= width
        for path in root.iter("path"):
            for place in re.findall(r"translate\(([\d.]+) ([\d.]+)\)", path.attrib.get("transform", "")):
                assert 0 <= float(place[0]) <= width and 0 <= float(place[1]) <= height


def test_the_first_screen_says_what_was_gained_and_shows_nulls(
    report: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    report["judges"]["kr_all"] = literal.judged(null=0.03)
    show_report(report, tmp_path)
    shown = capsys.readouterr().out
    assert shown.startswith("in short: 77.0 % (71.9 to 81.4 %) right: +3.0 points on the majority")
    table = [line for line in shown.splitlines() if line.startswith(("┃", "│", "┏"))]
    assert max(map(len, table)) <= 80
    assert [word.strip() for word in table[1].split("┃")[3:8]] == ["flips", "null", "flips", "null", "net"]
    assert [word.strip() for word in table[2].split("┃")[3:8]] == ["all", "all", "kr_all", "kr_all", "all"]
    assert "│ erm        │ 0.790 │ 0.060 │ 0.004 │  0.080 │  0.006 │" in shown
    assert "gates of the judges: all passes; kr_all fails null" in shown
    report["frontier"] = literal.frontier()
    show_report(report, tmp_path)
    assert "Means over 8 seeds" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("sizes", "words"), [((2,), "the other group"), ((3,), "another group"), ((2, 3), "another group")]
)
def test_with_three_groups_there_is_no_such_thing_as_the_other_group(sizes: tuple[int, ...], words: str) -> None:
    attributes = [{"labels": [f"group {k}" for k in range(size)]} for size in sizes]
    assert other_group({"data": {"protected": attributes}}) == words


def test_a_purpose_names_the_decisions_that_a_figure_counts(report: dict[str, Any]) -> None:
    release = {"name": "odd", "purpose": "positive_rate and dp_gap", "receivers": [0], "shape": [2], "times": 1}
    report["releases"] = [{**release, "event": None}]
    purpose = learned(report)[0]["purpose"]
    positive = report["data"]["label"]["labels"][-1]
    assert "{" not in purpose and purpose.count(f"“{positive}”") == 2


def test_nothing_is_minus_zero(report: dict[str, Any]) -> None:
    report["metrics"]["net_all"] = -0.0001
    assert "-0.000" not in str(metric_table(report)["rows"])


@pytest.mark.parametrize("most", [0.9, 0.04, 0.0004, 0.00013, 3e-7])
def test_labels_beside_an_axis_are_not_clipped(most: float) -> None:
    drawn = ElementTree.fromstring(curves("Gap", [Line("Gap", [(0.0, most), (1.0, most / 3)])], "weight"))
    labels = [node for node in drawn.iter("text") if node.get("text-anchor") == "end"]
    assert len(labels) >= 4
    for label in labels:
        assert float(label.get("x", "0")) >= 6.5 * len(label.text or ""), label.text
