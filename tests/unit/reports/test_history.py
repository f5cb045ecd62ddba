"""The list of runs, and runs side by side, from their reports alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from secure_sccvfl.launch.cli import main
from secure_sccvfl.reports.history import differing, listed, runs_in, shown
from secure_sccvfl.reports.results import write
from tests.unit.reports import literal


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two finished runs, one folder that is none, and a damaged one, which `broken` finishes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["sccvfl"])
    for name, accuracy, time in (("a", 0.75, "2026-01-01T10:00:00"), ("b", 0.5, "2026-02-01T10:00:00")):
        run = tmp_path / "runs" / name
        run.mkdir(parents=True)
        metrics = {"acc": accuracy, "fr_kr_all": 0.014, "fr_all": 0.01, "certified": 0.4}
        write(run, literal.report(metrics=metrics, seed=7))
        (run / "audit.jsonl").write_text(json.dumps({"event": "finished", "time": time}) + "\n")
    (tmp_path / "runs" / "empty").mkdir()
    return tmp_path / "runs"


def test_runs_are_listed_with_the_newest_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if "2026-" in line]
    assert [line[3] for line in lines] == ["2026-02-01T10:00", "2026-01-01T10:00"]
    assert all({"40.0", "1.4"} <= set(line) for line in lines) and "0.500" in lines[0] and "0.750" in lines[1]
    rows, lost = listed(runs_in([folder]))
    assert [row["accuracy"] for row in rows] == [0.5, 0.75] and rows[0]["flips"] == 0.014 and not lost
    assert shown("accuracy", None) == "-"


def test_two_runs_stand_side_by_side_with_what_differs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, _ = listed(runs_in([folder / "a", folder / "b"]))
    assert {"accuracy", "epsilon"} <= set(differing(rows)) and "seed" not in differing(rows)
    assert main(["runs", "runs/a", "runs/b"]) == 0
    text = capsys.readouterr().out
    assert "accuracy" in text and "0.500" in text and "0.750" in text and "seed" not in text


def test_a_report_that_is_torn_is_named_and_the_others_are_shown(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "b" / "report.json").write_text("{")
    assert main(["runs"]) == 3
    shown_ = capsys.readouterr()
    assert "0.750" in shown_.out and "b/report.json cannot be read" in shown_.err
    assert main(["runs", "runs/empty"]) == 2
    assert "no finished run in runs/empty: name the folder of a run" in capsys.readouterr().err


def test_it_imports_no_torch(folder: Path) -> None:
    code = "import sys; from secure_sccvfl.launch.cli import main; main(['runs']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
