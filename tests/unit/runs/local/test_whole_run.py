"""A run that was stopped in its evaluation: the second attempt can run, and the first stays on record."""

from pathlib import Path

from secure_sccvfl.protocols.records.chain import HashChain
from secure_sccvfl.reports.collect import release_table
from secure_sccvfl.reports.folders import EVALUATE, RunFolder, attempts, logs_in, set_aside


def session(run: Path, name: str) -> None:
    """A later session that opened its metrics, as party 0 logs it."""
    facts = {"release": "evaluation", "receivers": [0, 1], "shape": [3], "purpose": "metrics", "event": None}
    HashChain(run / name / "party-0" / "releases.jsonl").append(facts)


def test_what_a_stopped_attempt_released_is_counted(tmp_path: Path) -> None:
    set_aside(tmp_path, "evaluation")  # nothing there: nothing to do
    assert attempts(tmp_path, "evaluation") == []
    for _ in range(3):
        set_aside(tmp_path, "evaluation")
        session(tmp_path, "evaluation")
    (tmp_path / "evaluations").mkdir()
    folders = attempts(tmp_path, "evaluation")
    assert [folder.name for folder in folders] == ["evaluation", "evaluation-1", "evaluation-2"]
    (row,) = release_table(logs_in(RunFolder(tmp_path).attempts(EVALUATE), "releases"))
    assert row.times == 3
