"""Kinds of a protected attribute: lists, ordered groups, cells of a number, crossings, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import secure_sccvfl as scc
from secure_sccvfl.api.estimator import SCCClassifier
from secure_sccvfl.data.checks import check
from secure_sccvfl.data.drafts import draft_of
from secure_sccvfl.data.features import DataError
from secure_sccvfl.data.files import load_toml
from secure_sccvfl.data.party_data import own_schema
from secure_sccvfl.launch.cli import main

DESCRIPTION = """
name = "loans"
task = "binary"
id = "id"
label = {{ party = "bank", column = "late", classes = ["0", "1"] }}
protected = [ {{ party = "office", {entry} }} ]
[parties.bank]
file = "bank.csv"
features = [ {{ name = "amount", kind = "number", low = 0, high = 100 }} ]
[parties.office]
file = "office.csv"
features = [ {{ name = "job", kind = "category", categories = ["a", "b"] }} ]
"""
AGES = [18, 29.5, 30, 44, 45, 59, 60, 80] * 10
SEX = ["f", "m"] * 40
CELLS = 'column = "age", cells = [18, 30, 45, 60, 80]'
CROSS = (
    'column = "sex x age", '
    'cross = [ { column = "sex", groups = ["f", "m"] }, { column = "age", cells = [18, 45, 80] } ]'
)
CARD = """
dataset = "loans"
version = "1"
owners = ["board"]
[decisions.job]
role = "M"
reason = "permitted"
evidence = "policy: yes"
"""


def frames() -> dict[str, pd.DataFrame]:
    rows = range(80)
    bank = pd.DataFrame({"id": rows, "amount": rows, "late": [0, 1, 1, 0] * 20})
    return {"bank": bank, "office": pd.DataFrame({"id": rows, "job": ["a", "b"] * 40, "sex": SEX, "age": AGES})}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, frame in frames().items():
        frame.to_csv(f"{name}.csv", index=False)
    return tmp_path


def described(entry: str, **tables: pd.DataFrame) -> Path:
    for name, table in tables.items():
        table.to_csv(f"{name}.csv", index=False)
    Path("loans.toml").write_text(DESCRIPTION.format(entry=entry))
    return Path("loans.toml")


def test_cells_of_a_number_include_their_lower_edge_and_the_last_both(here: Path) -> None:
    attribute = load_toml(described(CELLS)).protected[0]
    assert attribute.groups == ("18 to 30", "30 to 45", "45 to 60", "60 to 80")
    assert sorted(attribute.codes) == sorted([0, 0, 1, 1, 2, 2, 3, 3] * 10)
    assert [factor.ordered for factor in attribute.factors] == [True]


def test_a_crossing_has_all_combinations_and_is_written_back(here: Path) -> None:
    data = scc.load(described(CROSS))
    attribute = data.dataset.protected[0]
    assert attribute.groups == ("f, 18 to 45", "f, 45 to 80", "m, 18 to 45", "m, 45 to 80")
    by_id = dict(zip(data.dataset.ids.astype(int), attribute.codes, strict=True))
    expected = [2 * (sex == "m") + (age >= 45) for sex, age in zip(SEX, AGES, strict=True)]
    assert [by_id[row] for row in range(80)] == expected
    again = scc.load(data.write(here / "again")).dataset.protected[0]
    assert again.groups == attribute.groups and again.codes.tolist() == attribute.codes.tolist()
    assert [(f.column, f.groups, f.ordered) for f in again.factors] == [
        (f.column, f.groups, f.ordered) for f in attribute.factors
    ]


def test_the_digest_covers_what_groups_follow_from_and_that_of_a_list_is_unchanged(here: Path) -> None:
    plain = own_schema(described('column = "sex", groups = ["f", "m"]'))
    assert not plain.protected[0].factors and "factors" not in repr(plain.digest())
    ordered = own_schema(described('column = "sex", groups = ["f", "m"], ordered = true'))
    assert ordered.protected[0].factors and ordered.digest() != plain.digest()


REFUSED = [
    ('column = "age"', "'age' needs groups = [...]; for a number, public cells = [...], their edges"),
    (CELLS + ', groups = ["a", "b"]', "has groups and cells: give one of them"),
    ('column = "age", cells = [60, 18, 30]', "cells are three public edges or more, which rise"),
    (f'column = "age", groups = {[str(n) for n in range(21)]}', "21 groups without an order, and at most 20"),
    ('column = "x", cross = [ { column = "sex", groups = ["f", "m"] } ]', "cross needs two columns or more"),
    ('column = "x", cross = [ { column = "sex" }, { column = "age", cells = [18, 45, 80] } ]', "two groups"),
]


@pytest.mark.parametrize(("entry", "message"), REFUSED)
def test_a_description_is_refused_in_one_line_before_a_file_is_read(here: Path, entry: str, message: str) -> None:
    path = described(entry)
    for name in ("bank.csv", "office.csv"):
        Path(name).unlink()
    with pytest.raises(DataError, match=re.escape(message)) as refused:
        own_schema(path)
    assert len(str(refused.value).splitlines()) == 1


def test_the_label_cannot_be_protected_too(here: Path) -> None:
    path = described('column = "late", groups = ["0", "1"]')
    path.write_text(path.read_text().replace('protected = [ { party = "office"', 'protected = [ { party = "bank"'))
    message = "column 'late' is the label and cannot be protected too"
    with pytest.raises(DataError, match=message):
        own_schema(path)
    with pytest.raises(DataError, match=message):
        draft_of(Path("bank.csv"), "bank", label="late", protected=["late"])
    with pytest.raises(DataError, match=message):
        scc.load(frames=frames(), label=("bank", "late"), protected=("bank", "late"))
    X = np.random.default_rng(0).random((40, 3))
    with pytest.raises(ValueError, match="the label cannot be protected too"):
        SCCClassifier().fit(X, [0, 1] * 20, sensitive=["a", "b"] * 20)


def test_a_continuous_s_needs_cells_in_python_too() -> None:
    parts = frames()
    parts["office"]["age"] = np.arange(80) + 0.5
    with pytest.raises(DataError, match=r"80 groups without an order.*public cells"):
        scc.load(frames=parts, label=("bank", "late"), protected=("office", "age"))
    entry: dict[str, Any] = {"party": "office", "column": "age", "cells": [0, 40, 100]}
    assert scc.load(frames=parts, label=("bank", "late"), protected=entry).dataset.protected[0].factors
    with pytest.raises(ValueError, match="80 groups, at most 20"):
        SCCClassifier().fit(np.random.default_rng(0).random((80, 3)), [0, 1] * 40, sensitive=np.arange(80) + 0.5)


def test_cells_that_do_not_cover_s_are_a_problem_with_its_rows(here: Path) -> None:
    path = described('column = "age", cells = [18, 30, 45, 60, 79]')
    problem = check(path, "office").problems[0]
    assert problem.column == "age" and problem.count == 10 and problem.rows == (8, 16, 24)
    assert problem.what == "10 values outside the cells 18 to 79 of the protected attribute: '80.0'"
    with pytest.raises(DataError, match="widen the cells so that they cover it"):
        load_toml(path)


def test_check_with_a_card_reports_a_mediator_with_one_value(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    office = frames()["office"].assign(job="a")
    described('column = "sex", groups = ["f", "m"]', office=office)
    Path("card.toml").write_text(CARD)
    assert main(["check", "loans.toml", "--party", "office", "--card", "card.toml"]) == 2
    shown = capsys.readouterr().out
    assert "job: the policy card lets it follow from s, but all records have one value" in shown
    assert main(["check", "loans.toml", "--party", "office"]) == 0
