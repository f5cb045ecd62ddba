"""DataFrames to a data set and back: the same meaning as files, and clear refusals."""

import stat
import tomllib

import numpy as np
import pandas as pd
import pytest

from secure_sccvfl.api.frames import describe_dataset, infer_feature
from secure_sccvfl.api.functions import Data, load
from secure_sccvfl.data.features import DataError
from secure_sccvfl.data.files import load_toml

BANK = {"id": range(40), "amount": [10.5 * k for k in range(40)], "late": [0, 1] * 20}
FIRM = {"id": range(40), "job": ["a", "b", "c", "d"] * 10, "old": ["no", "no", "yes", "yes"] * 10}
FEATURES = {
    "amount": {"kind": "number", "low": 0, "high": 500},
    "job": {"kind": "category", "categories": ["a", "b", "c", "d"]},
}
LABEL, PROTECTED = ("bank", "late", [0, 1]), ("firm", "old", ["no", "yes"])


def make_data(bank: dict = BANK, firm: dict = FIRM, **changes: object) -> Data:
    frames = {"bank": pd.DataFrame(bank), "firm": pd.DataFrame(firm)}
    given = {"label": LABEL, "protected": PROTECTED, "features": FEATURES, **changes}
    return load(frames=frames, **given)


def same(a: Data, b: Data) -> None:
    assert (a.dataset.ids == b.dataset.ids).all()
    assert np.array_equal(a.dataset.values, b.dataset.values, equal_nan=True)
    assert np.array_equal(a.dataset.label.values, b.dataset.label.values)
    assert a.dataset.features == b.dataset.features
    assert [p.name for p in a.dataset.parties] == [p.name for p in b.dataset.parties]
    for one, other in zip(a.dataset.protected, b.dataset.protected, strict=True):
        assert (one.name, one.holder, one.groups) == (other.name, other.holder, other.groups)
        assert np.array_equal(one.codes, other.codes)


@pytest.mark.parametrize("name", ["german", "heart", "acs12"])
def test_a_written_data_set_reads_as_it_was(name, tmp_path):
    data = load(name)
    path = data.write(tmp_path / "written")
    same(load(path), data)
    assert stat.S_IMODE((tmp_path / "written").stat().st_mode) == 0o700
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in (tmp_path / "written").iterdir())


def test_a_regression_reads_as_it_was(tmp_path):
    data = make_data({**BANK, "late": [0.25 * k for k in range(40)]}, label=("bank", "late"), features=None)
    assert data.dataset.task == "regression" and data.dataset.label.values.max() == 1.0
    read = load_toml(data.write(tmp_path))
    assert np.array_equal(read.label.values, data.dataset.label.values)


def test_rows_are_aligned_by_id_and_not_by_row_number():
    shuffled = pd.DataFrame(FIRM).sample(frac=1, random_state=1)
    frames = {"bank": pd.DataFrame(BANK), "firm": shuffled}
    same(load(frames=frames, label=LABEL, protected=PROTECTED, features=FEATURES), make_data())


def test_names_may_be_numbers():
    frames = {1: pd.DataFrame(BANK).rename(columns={"amount": 7}), 2: pd.DataFrame(FIRM)}
    features = {7: FEATURES["amount"], "job": FEATURES["job"]}
    data = load(frames=frames, label=(1, *LABEL[1:]), protected=(2, *PROTECTED[1:]), features=features)
    assert data.dataset.owners == {"7": "1", "job": "2"}


def test_an_index_named_as_the_id_serves():
    frames = {"bank": pd.DataFrame(BANK).set_index("id"), "firm": pd.DataFrame(FIRM)}
    same(load(frames=frames, label=LABEL, protected=PROTECTED, features=FEATURES), make_data())


def test_what_is_read_off_the_records_is_named():
    data = make_data(label=("bank", "late"), protected=("firm", "old"), features=None)
    assert data.read_off == ("late", "old", "amount", "job")
    assert data.dataset.features[0].edges[0] == 0 and data.dataset.features[0].edges[-1] == 409.5
    assert data.dataset.features[1].categories == ("a", "b", "c", "d")
    assert make_data().read_off == ()


def test_a_column_that_the_dictionary_does_not_name_is_left_out():
    data = make_data({**BANK, "note": ["free text"] * 40})
    assert [f.name for f in data.dataset.features] == ["amount", "job"]


def test_gaps_are_declared_or_refused():
    gap = {**FIRM, "job": [None, *FIRM["job"][1:]]}
    with pytest.raises(DataError, match="1 value missing"):
        make_data(firm=gap)
    data = make_data(firm=gap, features=None)
    assert data.dataset.features[1].missing and np.isnan(data.dataset.values[:, 1]).sum() == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bank": {k: v for k, v in BANK.items() if k != "id"}}, "no id column"),
        ({"bank": {**BANK, "id": [0, *range(39)]}}, "1 value repeated"),
        ({"bank": {**BANK, "id": range(1, 41)}}, "do not match"),
        ({"label": ("bank", "early")}, "no column 'early'"),
        ({"label": ("shop", "late")}, "'shop' holds 'late' but has no frame"),
        ({"label": ("bank",)}, r"name the holder as \(party, column\)"),
        ({"label": ("bank", "late", [0, 2])}, "values"),
        ({"features": {**FEATURES, "age": {"kind": "number", "low": 0, "high": 9}}}, "in no frame"),
        ({"features": {**FEATURES, "amount": {"kind": "number", "low": 0, "high": 9}}}, "outside the public range"),
        ({"features": {"amount": FEATURES["amount"]}}, "party 'firm' has no feature"),
        ({"firm": {**FIRM, "amount": [1] * 40}}, "is named by"),
        ({"label": None}, "frames need label"),
    ],
)
def test_what_cannot_work_is_refused_with_its_reason(changes, message):
    with pytest.raises(DataError, match=message):
        make_data(**changes)


def test_free_text_is_no_category():
    with pytest.raises(DataError, match="60 different values"):
        infer_feature("note", pd.Series([f"text {k}" for k in range(60)]))


@pytest.mark.parametrize("name", ['a "b"', "dött\\ed", "new\nline", "del\x7f", "emoji \U0001f600"])
def test_names_from_outside_stay_what_they_are(name):
    data = load(
        frames={name: pd.DataFrame(BANK), "firm": pd.DataFrame(FIRM)},
        label=(name, "late", [0, 1]),
        protected=PROTECTED,
        features=FEATURES,
    )
    text = describe_dataset(data.dataset, {name: "a.csv", "firm": "b.csv"}, label="late")
    assert list(tomllib.loads(text)["parties"]) == [name, "firm"]


def test_what_is_shown_of_data_holds_no_record():
    assert repr(make_data()) == "<Data frames: 40 records, binary; bank (1 columns), firm (1 columns)>"
