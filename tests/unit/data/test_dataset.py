"""Data sets by name, their description files, duplicates, leaks and splits."""

from __future__ import annotations

import os
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_sccvfl.data import catalogue
from secure_sccvfl.data.catalogue import EMBEDDED, LOADERS, dataset_help, forget, is_benchmark, load, loader_of
from secure_sccvfl.data.census import from_pums
from secure_sccvfl.data.checks import examine
from secure_sccvfl.data.dataset import DataWarning
from secure_sccvfl.data.features import DataError, Feature
from secure_sccvfl.data.files import load_toml
from secure_sccvfl.data.party_data import public_split
from secure_sccvfl.data.splits import make_split, record_groups
from tests.support.own_data import heart_rows, write_own
from tests.support.reference import reference

ROWS = {"german": 1000, "heart": 303, "compas": 6172, "mobility": 23397, "acs12": 888, "acs12-gender": 888}


def quiet_load(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        return load(name)


TOML = """
name = "loans"
task = "{task}"
id = "id"
[label]
party = "bank"
column = "late"
{label}
[[protected]]
party = "office"
column = "old"
groups = ["no", "yes"]
[parties.bank]
file = "bank.csv"
features = [ {{ name = "amount", kind = "number", low = 0, high = 100 }} ]
[parties.office]
file = "office.csv"
features = [ {{ name = "job", kind = "category", categories = ["a", "b", "c"]{missing} }} ]
"""


def write(folder, bank=None, office=None, task="binary", label='classes = ["0", "1"]', missing="", n=60):
    rng = np.random.default_rng(3)
    tables = {
        "bank": {"id": [f"p{i:03d}" for i in range(n)], "amount": rng.uniform(0, 100, n).round(1)},
        "office": {"id": [f"p{i:03d}" for i in range(n)], "job": rng.choice(list("abc"), n)},
    }
    tables["bank"]["late"] = (np.arange(n) % 3 == 0).astype(int)
    tables["office"]["old"] = np.where(np.arange(n) % 2 == 0, "yes", "no")
    tables["bank"].update(bank or {})
    tables["office"].update(office or {})
    for name, table in tables.items():
        pd.DataFrame(table).to_csv(folder / f"{name}.csv", index=False)
    path = folder / "loans.toml"
    path.write_text(TOML.format(task=task, label=label, missing=missing))
    return path


@pytest.mark.parametrize("name", EMBEDDED)
def test_embedded_sets_load_with_the_rows_they_should_have(name):
    data = quiet_load(name)
    assert data.n == ROWS[name]
    assert len(data.parties) == 3
    assert data.label.holder != data.protected[0].holder


def test_acs12_can_be_read_with_gender_as_the_protected_attribute():
    gender, race = quiet_load("acs12-gender"), quiet_load("acs12")
    names = [f.name for f in race.features]
    assert [f.name for f in gender.features] == [name for name in names if name != "gender"]
    assert [(a.name, a.groups) for a in gender.protected] == [("gender", ("female", "male"))]
    assert np.array_equal(gender.protected[0].codes, race.values[:, names.index("gender")])
    assert np.array_equal(gender.ids, race.ids) and np.array_equal(gender.label.values, race.label.values)


def test_order_of_rows_in_a_file_means_nothing(tmp_path):
    plain = load_toml(write(tmp_path))
    table = pd.read_csv(tmp_path / "office.csv")
    table.iloc[::-1].to_csv(tmp_path / "office.csv", index=False)
    again = load_toml(tmp_path / "loans.toml")
    assert (plain.values == again.values).all() and (plain.protected[0].codes == again.protected[0].codes).all()


def test_files_that_overlap_in_part_are_joined_and_the_rest_is_left_out(tmp_path):
    path = write_own(tmp_path, heart_rows())
    clinic = pd.read_csv(tmp_path / "clinic.csv", dtype=str)
    clinic.iloc[::-1].iloc[:200].to_csv(tmp_path / "clinic.csv", index=False)
    with pytest.warns(DataWarning, match=r"^200 records are in all files and are kept; there are 303 in 'hospital"):
        data = load_toml(path)
    assert data.ids.tolist() == sorted(clinic["id"][103:])
    age = {row["id"]: float(row["age"]) for row in clinic.to_dict("records")}
    at = [party.name for party in data.parties].index("clinic")
    assert data.parties[at].values[:, 0].tolist() == [age[name] for name in data.ids]
    clinic.assign(id=clinic["id"] + "x").to_csv(tmp_path / "clinic.csv", index=False)
    with pytest.raises(DataError, match="no id is in all files"):
        load_toml(path)


def test_a_party_may_bring_parquet(tmp_path):
    plain = load_toml(write(tmp_path))
    pd.read_csv(tmp_path / "bank.csv").to_parquet(tmp_path / "bank.parquet")
    path = tmp_path / "loans.toml"
    path.write_text(path.read_text().replace("bank.csv", "bank.parquet"))
    assert (load_toml(path).values == plain.values).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"office": {"job": ["a"] * 59 + [""]}}, "office: job: 1 value missing"),
        ({"bank": {"late": [0] * 60}}, "only '0' occurs"),
        ({"office": {"old": ["yes"] * 60}}, "only 'yes' occurs"),
        ({"office": {"old": ["maybe"] * 60}}, "not among"),
        ({"office": {"id": [f"q{i:03d}" for i in range(60)]}}, "no id is in all files"),
        ({"bank": {"id": ["p000"] * 60}}, "bank: id: 59 values repeated in 'bank.csv'"),
    ],
)
def test_bad_tables_are_refused_with_a_clear_error(tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        load_toml(write(tmp_path, **changes))


def test_a_constant_column_is_warned_about(tmp_path):
    with pytest.warns(DataWarning, match="'amount' is constant"):
        load_toml(write(tmp_path, bank={"amount": [5.0] * 60}))


def test_a_column_named_by_two_parties_or_used_as_label_is_refused(tmp_path):
    path = write(tmp_path)
    twice = path.read_text().replace(
        'name = "job", kind = "category", categories = ["a", "b", "c"]',
        'name = "amount", kind = "number", low = 0, high = 1',
    )
    path.write_text(twice)
    table = pd.read_csv(tmp_path / "office.csv").assign(amount=0.5)
    table.to_csv(tmp_path / "office.csv", index=False)
    with pytest.raises(DataError, match="'amount' is named by 'bank' and 'office'"):
        load_toml(path)
    path = write(tmp_path)
    path.write_text(path.read_text().replace('name = "amount"', 'name = "late"'))
    with pytest.raises(DataError, match="also listed as a feature"):
        load_toml(path)


@pytest.mark.parametrize(
    "bad",
    [
        {"name": "x", "kind": "number"},
        {"name": "x", "kind": "number", "low": 1, "high": 0},
        {"name": "x", "kind": "category", "categories": ["a"]},
        {"name": "x", "kind": "category", "categories": ["a", "a"]},
        {"name": "x", "kind": "number", "low": 0, "high": 2, "edges": [0, 3, 2]},
        {"name": "x", "kind": "word"},
        {"name": "x", "kind": "number", "low": 0, "high": 1, "colour": "red"},
    ],
)
def test_a_bad_feature_dictionary_is_refused(bad):
    with pytest.raises(DataError):
        Feature.of(bad)


def test_a_column_that_contains_the_label_is_warned_about(tmp_path):
    late = (np.arange(60) % 3 == 0).astype(int)
    amount = late * 50.0 + np.linspace(0, 40, 60)
    data = load_toml(write(tmp_path, bank={"amount": amount.round(1)}))
    with pytest.warns(DataWarning, match="'amount' alone has AUC 1.000"):
        report = examine(data)
    assert report.leaks[0][0] == "amount"


def test_the_duplicated_heart_table_is_seen_through(tmp_path):
    table = pd.read_csv(reference("heart_kaggle1025.csv"))
    columns = [c for c in table if c not in ("id", "s", "y")]
    text = 'name = "trap"\ntask = "binary"\nid = "id"\n'
    text += '[label]\nparty = "a"\ncolumn = "y"\nclasses = ["0", "1"]\n'
    text += '[[protected]]\nparty = "a"\ncolumn = "s"\ngroups = ["0", "1"]\n'
    for party, part in (("a", columns[:6]), ("b", columns[6:])):
        text += f'[parties.{party}]\nfile = "t.csv"\nfeatures = [\n'
        for c in part:
            text += f'{{ name = "{c}", kind = "number", low = {table[c].min()}, high = {table[c].max()} }},\n'
        text += "]\n"
    table.to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "t.toml").write_text(text)
    data = load_toml(tmp_path / "t.toml")
    with pytest.warns(DataWarning, match="723 of 1025 records repeat"):
        assert examine(data).distinct == 302
    split = make_split(data, "iid", 0)
    group = record_groups(data)
    assert not set(group[split.train]) & set(group[split.test])


@given(seed=st.integers(0, 10**6), kind=st.sampled_from(["iid", "shift"]))
@settings(max_examples=20, deadline=None)
def test_copies_of_a_record_never_straddle_the_split(seed, kind):
    data = quiet_load("heart")
    rng = np.random.default_rng(seed)
    doubled = data.take(np.concatenate([np.arange(data.n), rng.integers(0, data.n, 200)]))
    split = make_split(doubled, kind, seed)
    group = record_groups(doubled)
    parts = [set(group[p]) for p in (split.train, split.validation, split.test)]
    assert not parts[0] & parts[1] and not parts[0] & parts[2] and not parts[1] & parts[2]
    assert sum(len(p) for p in (split.train, split.validation, split.test)) == doubled.n


def test_splits_are_stratified_and_come_from_the_seed_alone():
    data = quiet_load("german")
    split, again = make_split(data, "iid", 4), make_split(data, "iid", 4)
    assert (split.train == again.train).all() and not np.array_equal(split.train, make_split(data, "iid", 5).train)
    assert abs(len(split.test) - 300) <= 3 and abs(len(split.validation) - 140) <= 3
    assert abs(data.label.values[split.test].mean() - 0.3) < 0.01
    shifted = make_split(data, "shift", 4)
    codes = data.protected[0].codes
    assert codes[shifted.train].mean() - codes[shifted.test].mean() > 0.1


def pums(n=400):
    rng = np.random.default_rng(0)
    cells = {
        "COW": rng.integers(1, 9, n), "OCCP": rng.integers(10, 9800, n), "WKHP": rng.integers(1, 80, n),
        "SCHL": rng.integers(1, 25, n), "POBP": rng.integers(1, 550, n), "AGEP": rng.integers(17, 90, n),
        "SEX": rng.integers(1, 3, n), "MAR": rng.integers(1, 6, n), "RELP": rng.integers(0, 18, n),
        "RAC1P": rng.integers(1, 10, n), "PINCP": rng.integers(200, 100000, n), "PWGTP": np.ones(n, int),
        "ESR": rng.integers(1, 7, n), "ESP": rng.integers(1, 9, n), "JWMNP": rng.integers(1, 150, n),
        "CIT": rng.integers(1, 6, n),
        "NATIVITY": rng.integers(1, 3, n), "ANC": rng.integers(1, 5, n), "DIS": rng.integers(1, 3, n),
        "MIL": rng.integers(1, 5, n), "DREM": rng.integers(1, 3, n), "DEAR": rng.integers(1, 3, n),
        "DEYE": rng.integers(1, 3, n), "GCL": rng.integers(1, 3, n), "MIG": rng.integers(1, 4, n),
    }  # fmt: skip
    return pd.DataFrame(cells)


@pytest.mark.parametrize("task", ["acs-income", "acs-mobility"])
def test_a_pums_file_by_path_loads_as_the_published_task(tmp_path, task):
    path = tmp_path / "psam_p06.csv"
    frame = pums()
    frame.loc[3, "JWMNP"] = np.nan
    frame.to_csv(path, index=False)
    data = load(f"{task}:{path}")
    assert len(data.protected[0].groups) == 9
    kept = frame[frame.AGEP > 16] if task == "acs-income" else frame[(frame.AGEP > 18) & (frame.AGEP < 35)]
    assert data.n == len(kept)
    folktables = pytest.importorskip("folktables")
    published = {"acs-income": folktables.ACSIncome, "acs-mobility": folktables.ACSMobility}[task]
    _, label, _ = published.df_to_numpy(frame)
    assert data.n == len(label) and data.label.values.sum() == label.sum()


def test_a_pums_file_can_have_sex_as_the_protected_attribute(tmp_path):
    path = tmp_path / "psam_p06.csv"
    frame = pums()
    frame.to_csv(path, index=False)
    data, race = load(f"acs-income-sex:{path}"), load(f"acs-income:{path}")
    assert (
        data.name == "acs-income-sex" and data.protected[0].name == "SEX" and data.protected[0].groups == ("1", "2")
    )
    assert np.array_equal(data.protected[0].codes + 1, frame.SEX) and data.n == race.n == len(frame)
    assert {f.name for f in race.features} - {f.name for f in data.features} == {"SEX"}
    assert np.array_equal(data.label.values, race.label.values)
    ready = from_pums("acs-income-sex", frame.assign(s=7, y=(frame.PINCP > 50000).astype(int)))
    assert np.array_equal(ready.protected[0].codes, data.protected[0].codes), "a ready file has another s"
    with pytest.raises(DataError, match=r"no column \['SEX'\]"):
        from_pums("acs-income-sex", frame.drop(columns=["SEX"]))


def test_a_pums_file_without_the_columns_is_refused():
    with pytest.raises(DataError, match="no column"):
        from_pums("acs-income", pums().drop(columns=["OCCP"]))


def test_colorado_loads_by_path():
    data = load(f"acs-income:{reference('acsincome_co2018.csv.gz')}")
    assert data.n == 31306 and len(data.protected[0].groups) == 9


@pytest.mark.parametrize("n", [95, 100, 104])
def test_one_more_record_moves_no_other_between_the_parts_of_a_public_split(n):
    """Releases about the training part are charged for one record added or removed, not for one put for another."""
    few, more = (np.array([f"p{k}" for k in range(count)]) for count in (n, n + 1))
    before, after = public_split(few, 3), public_split(more, 3)
    for part in ("train", "validation", "test"):
        old, new = (set(ids[getattr(split, part)]) for ids, split in ((few, before), (more, after)))
        assert old == new - {more[-1]}


def test_a_public_split_has_the_wanted_shares():
    split = public_split(np.arange(20_000).astype(str), 0)
    shares = [len(part) / 20_000 for part in (split.train, split.validation, split.test)]
    assert shares == pytest.approx([0.56, 0.14, 0.30], abs=0.01)


@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_takes_its_example_and_no_other_does(name: str) -> None:
    loader = LOADERS.get(name)
    assert [other for other, each in LOADERS.items() if each.takes(loader.example)] == [name]
    assert loader_of(loader.example) is loader and loader.example in dataset_help() and loader.help in dataset_help()


def test_only_a_description_of_ones_own_may_not_be_pooled() -> None:
    assert [name for name, loader in LOADERS.items() if not is_benchmark(loader.example)] == ["own"]


def test_an_unknown_data_set_is_reported_with_the_available_ones() -> None:
    for use in (load, is_benchmark):
        with pytest.raises(DataError, match="no data set 'moon': use one of german, heart"):
            use("moon")


def test_a_data_set_is_read_once_and_again_when_its_files_change(tmp_path, monkeypatch) -> None:
    path = write(tmp_path)
    forget()
    first = load(str(path))
    assert load(str(path)) is first
    table = next(path.parent.glob("*.csv"))
    os.utime(table, ns=(1, 1))
    second = load(str(path))
    assert second is not first and np.array_equal(second.values, first.values, equal_nan=True)
    forget()
    assert load(str(path)) is not second
    monkeypatch.setattr(catalogue.Loader, "read", lambda loader, name: pytest.fail("read again"))
    load(str(path))
    with pytest.raises(pytest.fail.Exception, match="read again"):
        load("german")
