"""One active party writes made-up figures beside its model. Parties that have none on record do not take them over.

Before, an honest party reported the attacker's accuracy of .99 as the model's: nothing was computed or charged.
"""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from secure_sccvfl.runs import evaluate as er
from secure_sccvfl.runs.evaluate import EvaluateJob
from secure_sccvfl.runs.train import TrainJob
from tests.support.sessions import LONG, stopping
from tests.support.two_parties import OPTIONS, ledger_lines, people, run_two, write_data

LEDGER = "evaluation.jsonl"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[Any]]:
    """Two models of one consortium; the first is evaluated."""
    home = tmp_path_factory.mktemp("figures")
    options = {"dataset": str(write_data(home, people(600))), "card": str(home / "card.toml"), **OPTIONS}
    run_two(TrainJob, home / "one", {**options, "reserve": 0.4})
    run_two(EvaluateJob, home / "evaluation-one", {**options, "model": str(home / "one")})
    return home, options, run_two(TrainJob, home / "two", {**options, "tables": "kept"})


@pytest.fixture
def consortium(trained: Any, tmp_path: Path) -> tuple[Path, dict[str, Any], str]:
    """A copy of its own for each test; its options, and the run of the second model."""
    home, options, second = trained
    copy = tmp_path / "copy"
    shutil.copytree(home, copy)
    moved = {"dataset": str(copy / "own.toml"), "card": str(copy / "card.toml")}
    return copy, {**options, **moved}, second[0]["run"]


def records(home: Path, model: str, rank: int) -> Path:
    return home / model / f"party-{rank}" / "model" / er.FILE


def forge(home: Path, run: str) -> None:
    """The figures of the first model, made better, as those of the second. They name a charge that all know."""
    ((about, figures),) = json.loads(records(home, "one", 0).read_text()).items()
    figures["metrics"] |= {"acc": 0.99, "dp_gap": 0.0, "eo_gap": 0.0}
    records(home, "two", 0).write_text(json.dumps({about.replace(about.split()[0], run): figures}))


def evaluate(home: Path, options: dict[str, Any], model: str, folder: str) -> list[Any]:
    return run_two(EvaluateJob, home / folder, {**options, "model": str(home / model)})


def test_made_up_figures_are_refused_by_all(consortium: Any) -> None:
    home, options, run = consortium
    forge(home, run)
    before = ledger_lines(home, 1, LEDGER)
    with stopping("party 1 has no charge, or no line in its release log, for the figures"):
        evaluate(home, options, "two", "evaluation-two")
    assert ledger_lines(home, 1, LEDGER) == before
    assert not records(home, "two", 1).exists()
    assert all(not log.read_text() for log in (home / "evaluation-two").rglob("releases.jsonl"))


def test_without_the_check_an_honest_party_reports_them(consortium: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    home, options, run = consortium
    forge(home, run)
    monkeypatch.setattr(er, "_fits", lambda *given: True)
    assert evaluate(home, options, "two", "evaluation-two")[1]["metrics"]["acc"] == 0.99


def test_figures_that_a_fault_kept_from_being_written_are_taken_over(
    consortium: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Party 1 paid for them and released them; it died before they were on its record."""
    home, options, _ = consortium
    honest, written = er.record, threading.Event()

    def faulty(folder: Path, about: str, figures: dict[str, Any]) -> None:
        if "party-1" in folder.parts:
            assert written.wait(LONG), "party 0 has its figures before party 1 dies"
            raise ZeroDivisionError
        honest(folder, about, figures)
        written.set()

    monkeypatch.setattr(er, "record", faulty)
    with pytest.raises(ExceptionGroup):
        evaluate(home, options, "two", "stopped")
    monkeypatch.setattr(er, "record", honest)
    assert [key.startswith(er.BEGUN) for key in json.loads(records(home, "two", 1).read_text())] == [True]
    before = ledger_lines(home, 1, LEDGER)
    results = evaluate(home, options, "two", "again")
    assert results[0]["metrics"] == results[1]["metrics"] and ledger_lines(home, 1, LEDGER) == before
    assert records(home, "two", 0).read_text() == records(home, "two", 1).read_text()


@pytest.mark.parametrize("lost", ["begun", "charge", "release", "other records"])
def test_each_proof_is_needed(consortium: Any, lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same fault, and the own note, the charge or the line of the release log is not there."""
    home, options, _ = consortium
    evaluate(home, options, "two", "first")
    ((about, figures),) = json.loads(records(home, "two", 1).read_text()).items()
    records(home, "two", 1).write_text(json.dumps({er.BEGUN + about: figures["evaluation"]["charged"]}))
    if lost == "begun":
        records(home, "two", 1).unlink()
    elif lost == "release":
        shutil.rmtree(home / "first" / "party-1")
    else:
        honest = er.read_ledger

        def changed(path: Path) -> Any:
            lines, rest = honest(path)
            if "party-1" not in path.parts:
                return lines, rest
            if lost == "charge":
                return lines[:-1], rest
            event = {**lines[-1]["event"], "records": "0" * 64}
            return [*lines[:-1], {**lines[-1], "event": event}], rest

        monkeypatch.setattr(er, "read_ledger", changed)
    with stopping("party 1 has no charge, or no line in its release log"):
        evaluate(home, options, "two", "again")


def test_figures_that_differ_between_parties_are_refused(consortium: Any) -> None:
    home, options, _ = consortium
    evaluate(home, options, "two", "first")
    ((about, figures),) = json.loads(records(home, "two", 1).read_text()).items()
    figures["metrics"]["acc"] = 0.99
    records(home, "two", 1).write_text(json.dumps({about: figures}))
    with stopping("the parties have different figures of one evaluation on record"):
        evaluate(home, options, "two", "again")


@pytest.mark.parametrize("text", ["[]", '"figures"', '{"evaluation": 3}', '{"evaluation": {"charged": 5}}'])
def test_what_is_no_record_of_figures_is_refused(tmp_path: Path, text: str) -> None:
    assert not er._fits(tmp_path, "about", text.encode(), lambda name: True)
