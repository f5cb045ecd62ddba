"""All kinds of tables read alike, by batches of the wanted columns."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pytest

from secure_sccvfl.data import sources
from secure_sccvfl.data.checks import check
from secure_sccvfl.data.drafts import draft_of
from secure_sccvfl.data.features import DataError
from secure_sccvfl.data.files import Reader, load_toml
from tests.unit.data.test_dataset import write


def described(folder: Path, file: str) -> Path:
    path = folder / "loans.toml"
    path.write_text(path.read_text().replace("bank.csv", file))
    return path


def script(folder: Path, sql: str) -> Path:
    (folder / "bank.sql").write_text(sql)
    return described(folder, "bank.sql")


def as_parquet(folder: Path, table: pd.DataFrame) -> Path:
    table.to_parquet(folder / "bank.parquet", row_group_size=11)
    return described(folder, "bank.parquet")


def as_csv(folder: Path, table: pd.DataFrame) -> Path:
    table.to_csv(folder / "again.csv.gz", index=False)
    return described(folder, "again.csv.gz")


def as_csv_by_sql(folder: Path, table: pd.DataFrame) -> Path:
    return script(folder, "SELECT * FROM 'bank.csv'")


def as_joined_parquet(folder: Path, table: pd.DataFrame) -> Path:
    table[["id", "late"]].to_parquet(folder / "labels.parquet")
    table.drop(columns="late").to_parquet(folder / "rest.parquet")
    return script(folder, "SELECT * FROM 'rest.parquet' JOIN 'labels.parquet' USING (id) WHERE amount >= 0 -- all")


def as_attached_database(folder: Path, table: pd.DataFrame) -> Path:
    with duckdb.connect(folder / "core.duckdb") as database:
        database.execute(f"CREATE TABLE loans AS SELECT * FROM '{folder / 'bank.csv'}'")
    return script(folder, f"ATTACH '{folder / 'core.duckdb'}' AS core (READ_ONLY); SELECT * FROM core.loans;")


@pytest.mark.parametrize("made", [as_parquet, as_csv, as_csv_by_sql, as_joined_parquet, as_attached_database])
def test_it_reads_as_csv_does(made, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "BATCH", 7)
    plain = load_toml(write(tmp_path))
    table = pd.read_csv(tmp_path / "bank.csv").assign(spare=[{"a": 1}] * 60, words=[f"word {i}" for i in range(60)])
    path = made(tmp_path, table)
    again = load_toml(path)
    assert (again.values == plain.values).all() and (again.label.values == plain.label.values).all()
    assert (again.ids == plain.ids).all()
    reader = Reader.of(path)
    (file,) = (party["file"] for name, party in reader.spec["parties"].items() if name == "bank")
    assert set(reader.tables.get(file, "bank")) == {"amount", "late"}, "only wanted columns are read"
    checked = check(path, "bank")
    assert not checked.problems and [line for line in checked.warnings if "not used: spare, words" in line] == (
        [] if made in (as_csv_by_sql, as_attached_database) else ["not used: spare, words"]
    )


@pytest.mark.parametrize("file", ["t.csv", "t.parquet", "t.sql"])
def test_batches_count_the_rows_of_the_table(file, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "BATCH", 6)
    table = pd.DataFrame({"id": [f"0{i}" for i in range(8)], "x": [f"{i},\n" for i in range(8)], "y": range(8)})
    table.to_csv(tmp_path / "t.csv", index=False)
    table.to_parquet(tmp_path / "t.parquet")
    (tmp_path / "t.sql").write_text("SELECT * FROM 't.parquet'")
    batches = [*sources.open_batches(tmp_path / file, "bank", ["id"], ["x"])]
    assert len(batches) > 1 and all(list(batch) == ["id", "x"] for batch in batches)
    assert all(sources.all_names(batch) == ["id", "x", "y"] for batch in batches)
    rows = pd.concat(batch.astype("string") for batch in batches)
    assert rows.equals(table[["id", "x"]].astype("string")), "in order, with their numbers"
    assert sources.open_table(tmp_path / file, "bank", ["id"], ["x"]).astype("string").equals(rows)
    table[:0].to_csv(tmp_path / "t.csv", index=False)
    table[:0].to_parquet(tmp_path / "t.parquet")
    assert list(sources.open_table(tmp_path / file, "bank", ["id"], ["x"])) == ["id", "x"]


@pytest.mark.parametrize("row", range(6))
@pytest.mark.parametrize("bad", ["1,2,3,4", "1,2,3,", '1,2,"3', "1,2,3,4,5"])
def test_a_bad_row_of_a_csv_file_is_refused_in_any_batch(row, bad, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "BATCH", 6)
    lines = ["id,a,b", *["5,6,7"] * 6]
    lines[1 + row] = bad
    (tmp_path / "t.csv").write_text("\n".join(lines))
    with pytest.raises(DataError, match="a row has more cells than the header, or a quote is not closed"):
        sources.open_table(tmp_path / "t.csv", "bank", ["id"], ["a"])


def test_types_stay_compact_and_ids_become_text(tmp_path):
    (tmp_path / "t.sql").write_text(
        "SELECT '00' || range AS id, range / 3::DECIMAL(9, 2) AS part, sum(range) OVER () AS total, "
        "['lo', 'hi'][1 + range % 2] AS grade, DATE '2020-01-31' AS day, 1 AS spare FROM range(100000)"
    )
    table = sources.open_table(tmp_path / "t.sql", "bank", ["id"], ["part", "total", "grade", "day"])
    assert {name: str(dtype) for name, dtype in table.dtypes.items()} == {
        "id": "string",
        "part": "float64",
        "total": "float64",
        "grade": "category",
        "day": "datetime64[ms]",
    }
    assert table["id"].iloc[7] == "007" and table["day"].astype("string").iloc[0] == "2020-01-31"
    assert sources.all_names(table)[-1] == "spare" and np.isclose(table["part"].iloc[1], 1 / 3, atol=0.01)
    draft = draft_of(tmp_path / "t.sql", "bank", id_column="id")
    assert {entry["name"] for entry in draft.features} >= {"grade", "part"}


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("", "'bank.sql' must end with a SELECT"),
        ("CREATE TABLE t (a INT)", "'bank.sql' must end with a SELECT"),
        ("SELECT nothing FROM 'bank.csv'", "'bank.sql' fails .*nothing"),
        ("SELEKT 1", "'bank.sql' fails .*SELEKT"),
        ("SELECT id, amount FROM 'bank.csv'", "no column 'late'"),
        ("SELECT amount FROM 'bank.csv'", "no id column 'id'; it has amount"),
        ("SELECT 1 AS other FROM 'bank.csv'", "no id column 'id'; it has other"),
        ("SELECT * FROM 'https://example.org/hush.parquet'", r"'bank.sql' fails \(Error\); try it in DuckDB$"),
        ("CREATE SECRET (TYPE s3, SECRET 'hush'); SELECT 1", r"'bank.sql' fails \(\w+\); try it in DuckDB$"),
        ("ATTACH 'password=hush' AS a (TYPE postgres); SELECT 1", r"'bank.sql' fails \(\w+\); try it in DuckDB$"),
        ("SELECT id, error('hush') AS amount FROM 'bank.csv'", r"'bank.sql' fails \(\w+\); try it in DuckDB$"),
    ],
)
def test_a_bad_script_is_refused_in_one_line_without_its_secrets(sql, message, tmp_path):
    write(tmp_path)
    with pytest.raises(DataError, match=message) as told:
        load_toml(script(tmp_path, sql))
    assert "hush" not in str(told.value) and "\n" not in str(told.value) and told.value.__cause__ is None


def test_a_file_that_is_no_parquet_is_refused(tmp_path):
    write(tmp_path)
    (tmp_path / "bank.parquet").write_text("id,amount\n")
    with pytest.raises(DataError, match="is not a parquet file"):
        load_toml(described(tmp_path, "bank.parquet"))
