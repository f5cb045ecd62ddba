"""Cells by declaration: gaps, decimal and thousands marks, dates, other categories; all problems at once."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_sccvfl.api.frames import read_frames, to_frames, write_files
from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.checks import check
from secure_sccvfl.data.features import DataError, Feature
from secure_sccvfl.data.files import load_toml
from secure_sccvfl.data.party_data import benchmark_schema, own_part, own_schema

NUMBER = {"name": "x", "kind": "number", "low": -1e9, "high": 1e9}
DATE = {"name": "x", "kind": "date", "low": datetime.date(1950, 1, 1), "high": "2030-01-01"}
ARTS: dict[str, dict[str, Any]] = {
    "number": NUMBER,
    "category": {"name": "x", "kind": "category", "categories": ["a", "b", "rest"]},
    "date": DATE,
}


def read(entry: dict[str, Any], *cells: str | None) -> list[float | None]:
    values = Feature.of(entry).read(pd.Series(cells, dtype="string"))
    return [None if np.isnan(v) else float(v) for v in values]


@pytest.mark.parametrize(
    ("more", "cell", "number"),
    [
        ({}, "1.5", 1.5),
        ({}, " 12 ", 12),
        ({}, "1e3", 1000),
        ({"decimal": ","}, "1,5", 1.5),
        ({"decimal": ",", "thousands": "."}, "1.234.567,8", 1234567.8),
        ({"decimal": ",", "thousands": "."}, "-1.234", -1234),
        ({"decimal": ",", "thousands": "."}, "1234,5", 1234.5),
        ({"thousands": ","}, "12,345.6", 12345.6),
        ({"thousands": "'"}, "12'345", 12345),
        ({"decimal": ",", "thousands": " "}, "12\u202f345,5", 12345.5),
        ({"decimal": ",", "thousands": " "}, "12\u00a0345", 12345),
    ],
)
def test_numbers_read_as_they_are_written(more: dict[str, Any], cell: str, number: float) -> None:
    assert read({**NUMBER, **more}, cell) == [number]


@pytest.mark.parametrize(
    ("more", "cell"),
    [
        ({}, "1,5"),
        ({}, "1.234,5"),
        ({"decimal": ","}, "1.5"),
        ({"decimal": ",", "thousands": "."}, "1.5"),
        ({"decimal": ",", "thousands": "."}, "1.23.456"),
        ({"decimal": ",", "thousands": "."}, "1,234.5"),
        ({"thousands": ","}, "1,23"),
        ({"thousands": ","}, ",123"),
        ({"thousands": ","}, "12,"),
        ({"thousands": " "}, "1  234"),
        ({}, "12 EUR"),
        ({}, "0x10"),
        ({}, "١٢ x"),
        ({"decimal": ","}, "inf"),
    ],
)
def test_a_cell_in_another_writing_is_refused_and_never_another_number(more: dict[str, Any], cell: str) -> None:
    with pytest.raises(DataError, match="the table: x: 1 value not a number"):
        read({**NUMBER, **more}, cell)


@given(
    number=st.floats(-1e8, 1e8).map(lambda x: float(f"{x:.11g}")),
    decimal=st.sampled_from([".", ","]),
    thousands=st.sampled_from(["", ".", ",", " ", "'"]),
)
@settings(max_examples=150, deadline=None)
def test_what_is_written_reads_as_the_same(number: float, decimal: str, thousands: str) -> None:
    if thousands == decimal:
        thousands = ""
    feature = Feature.of({**NUMBER, "decimal": decimal, "thousands": thousands})
    grouped = f"{number:,.2f}".translate(str.maketrans({",": thousands, ".": decimal}))
    values = feature.read(pd.Series([feature.text(number), grouped], dtype="string"))
    assert values[0] == number and values[1] == pytest.approx(number, abs=0.006)


@given(day=st.dates(datetime.date(1950, 1, 1), datetime.date(2030, 1, 1)), unit=st.sampled_from(["days", "months"]))
@settings(max_examples=60, deadline=None)
def test_dates_are_numbers_since_the_public_low_and_come_back(day: datetime.date, unit: str) -> None:
    feature = Feature.of({**DATE, "unit": unit, "format": "%d.%m.%Y"})
    (value,) = feature.read(pd.Series([f"{day:%d.%m.%Y}"], dtype="string"))
    assert feature.text(value) == f"{day:%d.%m.%Y}"
    assert value == pytest.approx((day - DATE["low"]).days / {"days": 1, "months": 30.436875}[unit])


def test_a_date_is_a_number_for_every_other_package() -> None:
    feature = Feature.of({**DATE, "unit": "years", "edges": ["1950-01-01", "1980-01-01", "2030-01-01"]})
    assert (feature.kind, feature.low, feature.bins, feature.unit) == ("number", 0, 2, "years since 1950-01-01")
    assert feature.high == pytest.approx(80, abs=0.01) and feature.edges[1] == pytest.approx(30, abs=0.01)
    assert Feature.of(feature.entry()) == feature


@pytest.mark.parametrize("cell", ["2020-13-01", "31.12.2020", "1949-12-31", "2031-01-01", "9999-12-31", "soon", "7"])
def test_a_date_that_is_none_or_out_of_range_is_refused(cell: str) -> None:
    with pytest.raises(DataError, match=r"x: 1 value (not a date|outside the public range 1950-01-01..2030-01-01)"):
        read(DATE, cell)


def test_declared_gaps() -> None:
    number = {**NUMBER, "na": ["-9", "?"], "missing": True}
    assert read(number, "-9", "?", "-9.0", " ? ", "", None, "9") == [None] * 6 + [9.0]
    with pytest.raises(DataError, match=r"x: 2 values missing \(at '0', '1'\); declare `missing = true`"):
        read({**number, "missing": False}, "-9", "?", "9")
    category = {**ARTS["category"], "na": ["?"], "missing": True}
    assert read(category, "a", "?", "rest") == [0.0, None, 2.0]
    assert read({**DATE, "na": ["9999-12-31"], "missing": True}, "9999-12-31", "1950-01-02") == [None, 1.0]


def test_values_that_are_not_listed_can_be_one_category_by_declaration() -> None:
    assert read({**ARTS["category"], "other": "rest"}, "a", "zebra", "b", "3") == [0.0, 2.0, 1.0, 2.0]
    with pytest.raises(DataError, match="2 values not in the public dictionary: '3', 'zebra'"):
        read(ARTS["category"], "a", "zebra", "b", "3")


@pytest.mark.parametrize(
    ("art", "more", "message"),
    [
        ("number", {"decimal": ";"}, "feature 'x': decimal must be one of"),
        ("number", {"thousands": "."}, "and not the decimal mark"),
        ("number", {"format": "%Y"}, "format does not go with kind 'number'"),
        ("number", {"na": "-9"}, "feature 'x': na must be a list"),
        ("number", {"na": "9" * 10_000_000}, "feature 'x': na must be a list"),
        ("category", {"decimal": ","}, "decimal does not go with kind 'category'"),
        ("category", {"other": "none"}, "other = 'none' must be one of its categories"),
        ("category", {"na": ["a"]}, "'a' cannot be a gap and a category"),
        ("date", {"low": 1950}, "feature 'x': low must be a date such as 1950-01-31, not '1950'"),
        ("date", {"high": "soon"}, "feature 'x': high must be a date"),
        ("date", {"unit": "EUR"}, "the unit of a date must be days, months, years, not 'EUR'"),
        ("date", {"format": "day"}, "format must be one of dates"),
        ("date", {"format": "%H:%M"}, "format must be one of dates"),
        ("date", {"format": "%Y-%m-%d %z"}, "without a time zone"),
        ("date", {"high": "1940-01-01"}, "needs a public range low < high"),
    ],
)
def test_declarations_that_cannot_work(art: str, more: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as error:
        Feature.of({**ARTS[art], **more})
    assert message in str(error.value) and len(str(error.value)) < 300


DESCRIPTION = """
name = "loans"
task = "binary"
id = "id"
label = { party = "bank", column = "late", classes = ["0", "1"] }
protected = [ { party = "office", column = "old", groups = ["no", "yes"] } ]
[parties.bank]
file = "bank.csv"
decimal = ","
features = [
  { name = "amount", kind = "number", low = 0, high = 100 },
  { name = "rate", kind = "number", low = 0, high = 1, decimal = "." },
  { name = "since", kind = "date", low = 2000-01-01, high = 2030-01-01, unit = "years" },
]
[parties.office]
file = "office.csv"
features = [ { name = "job", kind = "category", categories = ["a", "b"], na = ["?"], missing = true } ]
"""


def write(folder: Path, **columns: list[str]) -> Path:
    rows = range(200)
    bank = {
        "id": [f"p{i:03d}" for i in rows],
        "amount": [f"{i // 2},5" for i in rows],
        "rate": [f"0.{i}" for i in rows],
        "since": [f"20{i % 20:02d}-05-01" for i in rows],
        "late": [str(i % 2) for i in rows],
    }
    office = {
        "id": bank["id"],
        "job": ["ab?"[i % 3] for i in rows],
        "old": ["yes" if i % 4 else "no" for i in rows],
    }
    for name, table in (("bank", bank), ("office", office)):
        data = {key: columns.get(key, cells) for key, cells in table.items()}
        pd.DataFrame(data).to_csv(folder / f"{name}.csv", index=False, sep=";" if name == "bank" else ",")
    path = folder / "loans.toml"
    path.write_text(DESCRIPTION)
    return path


def test_a_party_declares_for_all_its_columns_and_a_feature_for_itself(tmp_path: Path) -> None:
    path = write(tmp_path)
    data, part = load_toml(path), own_part(path, 0, 0)
    assert data.values[3, :3].tolist() == pytest.approx([1.5, 0.3, 3.33], abs=0.01)
    assert np.isnan(data.parties[1].values).sum() == 66
    assert np.array_equal(part.party.inputs, part.party.layout.encode(data.parties[0].values))


def test_every_problem_of_a_party_is_reported_in_one_line(tmp_path: Path) -> None:
    amount = ["5"] * 197 + ["2.5", "x" * 10_000_000, "101"]
    late = ["0", "1"] * 99 + ["2", ""]
    since = ["2001-01-01"] * 198 + ["1999-01-01", "soon"]
    path = write(tmp_path, amount=amount, late=late, since=since)
    path.write_text(path.read_text().replace('"rate"', '"rates"'))
    for refused in (lambda: own_part(path, 0, 0), lambda: load_toml(path)):
        with pytest.raises(DataError) as error:
            refused()
        line = str(error.value)
        assert "\n" not in line and len(line) < 2000
        for message in (
            "bank: 6 problems: (1) amount: 2 values not a number: '2.5', 'xxx",
            "... (10000000 characters) (at 'p197', 'p198')",
            "amount: 1 value outside the public range 0..100: 101 (at 'p199')",
            "rates: 'bank.csv' has no column 'rates'; did you mean 'rate'?",
            "since: 1 value not a date in the format %Y-%m-%d: 'soon'",
            "since: 1 value outside the public range 2000-01-01..2030-01-01: 1999-01-01",
            "late: 2 values not among ['0', '1'] of the label: '', '2'",
        ):
            assert message in line, line
    assert own_part(path, 1, 0).ids[0] == "p000", "another party is not stopped by it when it reads its own file"


def test_a_long_id_gives_a_short_line_and_no_large_array(tmp_path: Path) -> None:
    """An array of texts reserves space for the longest in every element."""
    path = write(tmp_path, id=["p" * 10_000_000] * 2 + [f"p{i}" for i in range(198)])
    pattern = (
        r"bank: 2 problems: \(1\) id: 2 values longer than 1000 characters .* \(2\) id: 1 value repeated .* 'ppp"
    )
    for read_it in (lambda: own_part(path, 0, 0), lambda: refused(path)):
        with pytest.raises(DataError, match=pattern) as error:
            read_it()
        assert len(str(error.value)) < 700


def refused(path: Path) -> None:
    """The problems that `check` lists, as one error."""
    problems = [f"({k}) {p.column}: {p.what} {p.ids}" for k, p in enumerate(check(path, "bank").problems, 1)]
    raise DataError(f"bank: {len(problems)} problems: {'; '.join(problems)}")


def test_the_digest_covers_how_cells_are_written_and_is_unchanged_where_nothing_is_declared(tmp_path: Path) -> None:
    expected = {
        "german": "83d3ed2ba115db4e29811a48c66257ee9a3583d5228a0171dca2c6bd7a679e76",
        "heart": "dbf3fe6ee5b518471e081bc6465b621e7abaf0c489010c8adcec06bcc5155c0a",
    }
    assert {name: benchmark_schema(load(name)).digest() for name in expected} == expected, (
        "old models would be refused"
    )
    path = write(tmp_path)
    digests = {own_schema(path).digest()}
    for old, new in (('["?"]', '["?", "-"]'), ('decimal = ","\n', ""), ('"years"', '"days"'), ('["?"]', "[]")):
        path.write_text(DESCRIPTION.replace(old, new))
        digests.add(own_schema(path).digest())
    assert len(digests) == 5


def test_frames_and_files_of_a_data_set_read_as_the_same_values(tmp_path: Path) -> None:
    data = load_toml(write(tmp_path))
    again = load_toml(write_files(data, tmp_path / "copy", label="late"))
    assert np.array_equal(data.values, again.values, equal_nan=True)
    assert to_frames(data)["bank"]["since"][3] == "2003-05-01" and to_frames(data)["bank"]["amount"][3] == "1,5"
    entries = {f.name: {k: v for k, v in f.entry().items() if k != "name"} for f in data.features}
    frames, _ = read_frames(to_frames(data, label="late"), ("bank", "late"), ("office", "old"), entries)
    assert np.array_equal(data.values, frames.values, equal_nan=True)
