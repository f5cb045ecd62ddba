"""report.json: a versioned tree that old runs fit too, that refuses what does not fit, and that is light to read."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from secure_sccvfl.reports.collect import notes_of, sealed_facts
from secure_sccvfl.reports.results import Change, Outcome, Report, ResultsError, decode, parse, read, to_json, write
from tests.unit.reports import literal

CHANGE = {"feature": "edu", "from": "a", "to": "b"}


def test_a_report_is_the_same_after_writing_and_reading(tmp_path: Path) -> None:
    report = literal.report(frontier=literal.frontier())
    path = write(tmp_path, report)
    assert read(tmp_path) == report
    assert json.loads(path.read_text()) == to_json(report) and to_json(report)["version"] == 2


def test_reports_of_version_1_are_read() -> None:
    """They have no version or 1, an empty evaluation, and keys that are gone; figures of points were not nested."""
    points = [{"method": "scc", "lambda": 4.0, "chosen": True, "acc": {"mean": 0.7, "low": 0.6, "high": 0.8}}]
    information = {"edu": {"mi": 0.1, "null": 0.0, "null_high": 0.01}}
    old = literal.data(
        evaluation={},
        frontier={"seeds": [0], "rule": "r", "points": points},
        qualitative={"information": information, "cases": []},
        gone=1,
    )
    for version in ({}, {"version": 1}):
        report = parse(json.dumps({**old, **version}))
        assert report.evaluation is None and report.information["edu"]["mi"] == 0.1
        assert report.frontier is not None and report.frontier.points[0].figures["acc"].low == 0.6
        assert report.frontier.points[0].lam == 4.0 and parse(json.dumps(to_json(report))) == report


def test_a_report_names_its_level_of_security_and_older_ones_are_semi_honest() -> None:
    older = literal.data(version=2)
    assert "security" not in older and parse(json.dumps(older)).security == "semi-honest"
    active = parse(json.dumps(literal.data(version=2, security="active")))
    assert "the others abort" in active.security_words and notes_of(active).security == active.security_words
    assert sealed_facts(active)["security"] == "active"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"security": "none"}, "security is not of the expected type"),
        ({"gone": 1}, "unknown field gone"),
        ({"evaluation": {"kind": "exact", "gone": 1}}, "unknown field evaluation.gone"),
        ({"version": 3}, "version 3; this program reads 1 and 2"),
        ({"privacy": {}}, "no field privacy.epsilon_pld"),
        ({"rows": {"train": 1, "validation": 2, "test": "3"}}, "rows.test is not of the expected type"),
        ({"pooled": 1}, "pooled is not of the expected type"),
        ({"seed": True}, "seed is not of the expected type"),
        ({"roles": {"edu": "X"}}, "roles.edu is not of the expected type"),
        ({"releases": [[]]}, "releases[0]. is not an object"),
        ({"metrics": {"acc": None}}, "metrics.acc is not of the expected type"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    (tmp_path / "report.json").write_text(json.dumps(literal.data(**{"version": 2, **changes})))
    with pytest.raises(ResultsError) as error:
        read(tmp_path)
    assert problem in str(error.value) and "`audit verify` tells more" in str(error.value)


def test_a_missing_and_a_torn_report(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=r"not the folder of a finished run: it has no report\.json"):
        read(tmp_path)
    for text in ("{", "[]"):
        (tmp_path / "report.json").write_text(text)
        with pytest.raises(ResultsError, match="torn or was changed"):
            read(tmp_path)


def test_values_and_decisions_in_words() -> None:
    words = literal.report().data
    assert words.value("edu", "a") == "school" and words.value("pay", "652") == "652 $"
    assert words.value("pay", "") == "not known" and words.value("pay", "2.3456") == "2.35 $"
    assert words.name("edu") == "edu" and words.score == "probability of “high”"
    assert words.decision(Outcome("1", 0.7)) == "high" and words.groups["0"] == "young"
    assert words.change(decode(Change, CHANGE)) == ("edu", "school", "college")
    part = decode(Change, {**CHANGE, "to": "a", "size": 0.12})
    assert words.change(part)[2] == "12 % of the way to another value"
    regression = replace(words, task="regression", label=replace(words.label, low=10.0, high=20.0))
    assert regression.decision(Outcome(0.5, 0.5)) == "15"


LIGHT = """
import sys
from pathlib import Path
import secure_sccvfl.reports.collect, secure_sccvfl.reports.results as results
import secure_sccvfl.launch.cli, secure_sccvfl.launch.privacy_report, secure_sccvfl.launch.finished
import secure_sccvfl.reports.page, secure_sccvfl.reports.run_log
results.read(Path(sys.argv[1]))
heavy = [name for name in ("torch", "crypten", "sklearn", "scipy", "matplotlib") if name in sys.modules]
assert not heavy, heavy
"""


def test_reading_a_report_imports_neither_torch_nor_crypten(tmp_path: Path) -> None:
    write(tmp_path, literal.report())
    subprocess.run([sys.executable, "-c", LIGHT, str(tmp_path)], check=True, timeout=120)
    assert isinstance(read(tmp_path), Report)
