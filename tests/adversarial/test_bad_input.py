"""What cannot be paid for, or was not, is refused in one line: nothing is opened, and nothing is charged.

More predictions than approved, and a person asked about twice with other columns, are in
`tests/contract/test_prediction_log.py`.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from secure_sccvfl.data.party_data import own_schema
from secure_sccvfl.protocols.config import ConfigError, SessionConfig
from secure_sccvfl.releases.ledgers import EVALUATIONS, LEDGER
from secure_sccvfl.runs.evaluate import EvaluateJob
from secure_sccvfl.runs.model_files import load_model, save_model
from secure_sccvfl.runs.predict import PredictJob
from secure_sccvfl.runs.train import TrainJob
from secure_sccvfl.training.modes.options import RunOptions
from tests.support.two_parties import (
    ADDRESSES,
    AWARE,
    BANK,
    CARD,
    CLINIC,
    OPTIONS,
    error_text,
    ledger_lines,
    opened,
    people,
    run_two,
    write,
    write_two,
)

MANY = {"lambdas": [float(number) for number in range(1, 65)]}
TOO_SMALL = "the budget is too small for tables and head together: epsilon 0.003 at delta 1e-05"
TOO_MANY = r"64 lambdas do not fit epsilon 8: every head is charged.*; give fewer lambdas"


@pytest.mark.parametrize("mode", ["sealed", "aware", "dp"])
@pytest.mark.parametrize(("given", "line"), [({"epsilon": 0.003}, TOO_SMALL), (MANY, TOO_MANY)])
def test_tables_and_heads_that_do_not_fit_are_refused_before_a_session(
    tmp_path: Path, mode: str, given: dict[str, Any], line: str
) -> None:
    """So no ledger is begun with such a cap, either."""
    base = write_two(tmp_path, people(400, 8), CARD + (AWARE if mode == "aware" else ""))
    options = {**base, **OPTIONS, "mode": mode, **given}
    with pytest.raises(ConfigError, match=line) as refused:
        TrainJob(SessionConfig(parties=ADDRESSES, options=options), 0)
    assert "\n" not in str(refused.value)
    with pytest.raises(ConfigError, match=line):  # what programs ask before they start a process
        RunOptions.of(options).check(2)
    assert not list(tmp_path.rglob("ledger.jsonl"))
    for passes in ({}, {"epsilon": 0.01}, {"lambdas": MANY["lambdas"][:16]}):
        RunOptions.of({**base, **OPTIONS, "mode": mode, **passes}).check(2)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("charged")
    run_two(TrainJob, home / "run", {**write_two(home, people(400, 8)), **OPTIONS})
    return home


def edited(home: Path, charged: str, *parties: int) -> None:
    """These parties' parts of the model name this charge, with digests made anew."""
    layouts = own_schema(home / "own.toml").layouts
    for rank in parties:
        folder = home / "run" / f"party-{rank}" / "model"
        save_model(replace(load_model(folder, layouts[rank]), charged=charged), folder)


def used(home: Path, kind: Any) -> list[Any]:
    """A prediction, or an evaluation, with the model of a consortium."""
    new = people(5, 9, "n")
    files = [write(home / "new-bank.csv", new, BANK), write(home / "new-clinic.csv", new, CLINIC)]
    options = {"dataset": str(home / "own.toml"), "model": str(home / "run"), "align": "exact"}
    each = [{"records": str(path)} for path in files] if kind is PredictJob else [{}, {}]
    return run_two(kind, home / "used", options, each)


def ledgers(home: Path) -> list[Any]:
    return [ledger_lines(home, rank, name) for rank in range(2) for name in (LEDGER, EVALUATIONS)]


@pytest.mark.parametrize(
    ("kind", "how"),
    [(PredictJob, how) for how in ("as it is", "no ledger", "no charge", "the charge of a table", "one party's part")]
    + [(EvaluateJob, how) for how in ("as it is", "no charge")],
)
def test_a_model_without_its_charge_is_refused(trained: Path, tmp_path: Path, kind: Any, how: str) -> None:
    home = shutil.copytree(trained, tmp_path / "own")
    (table,) = [line["key"] for line in ledger_lines(home, 0) if line.get("key", "").endswith("sketch-0")]
    line = "has no charge of this model: use the ledger that it was trained with, or train again"
    if how == "as it is":
        assert all(result["ok"] for result in used(home, kind)) and len(opened(home / "used")) > 1
        return
    if how == "no ledger":
        (home / "sccvfl-ledgers" / "party-1" / LEDGER).unlink()
    elif how == "one party's part":
        edited(home, table, 0)
        line = "the parts of the model differ: they are of different runs, or one was changed"
    else:
        edited(home, "" if how == "no charge" else table, 0, 1)
    before = ledgers(home)
    with pytest.raises(ExceptionGroup) as stopped:
        used(home, kind)
    said = [str(error) for error in stopped.value.exceptions if line in str(error)]
    assert said and all("\n" not in one for one in said), error_text(stopped.value)
    assert opened(home / "used") == [] and not list(home.rglob("predictions-*"))
    assert ledgers(home) == before
