"""Features that stay in their CSV file until workers encode them: the same rows as of the whole table."""

import os
import pickle
from functools import partial

import numpy as np
import pytest

from secure_sccvfl.data import sources, table_rows
from secure_sccvfl.data.dataset import DataWarning
from secure_sccvfl.data.features import DataError
from secure_sccvfl.data.party_data import own_part
from secure_sccvfl.data.table_rows import TableRows
from secure_sccvfl.discovery.statistics import check_columns
from secure_sccvfl.models.encoders import public_encoder
from secure_sccvfl.protocols import ring
from secure_sccvfl.protocols.session.rows import applied, encoded
from tests.support import two_parties as two

COUNT = 500


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "BATCH", 300)
    monkeypatch.setattr(table_rows, "_TOGETHER", 200)
    monkeypatch.setattr(table_rows, "_KEPT", {})
    two.write_data(tmp_path, two.people(COUNT, 3))
    return tmp_path


def both(home, rank):
    """What a party reads at once, and with its features left in their file."""
    return [own_part(home / "own.toml", rank, 0, in_parts) for in_parts in (False, True)]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_party_holds_the_same_with_features_left_in_their_file(home, rank):
    whole, thin = both(home, rank)
    assert isinstance(thin.party.inputs, TableRows)
    assert np.array_equal(np.asarray(thin.party.inputs), whole.party.inputs)
    assert np.array_equal(thin.ids, whole.ids) and thin.schema == whole.schema
    for one, other in zip(thin.split, whole.split, strict=True) if isinstance(thin.split, tuple) else ():
        assert np.array_equal(one, other)
    for one, other in ((thin.label, whole.label), (thin.protected[0].codes, whole.protected[0].codes)):
        assert (one is None) == (other is None) and (one is None or np.array_equal(one, other))


@pytest.mark.parametrize("rank", [0, 1])
def test_encodings_and_bins_of_any_rows_are_those_of_the_whole_table(home, rank):
    whole, thin = both(home, rank)
    rows = np.random.default_rng(1).permutation(COUNT)[:300]
    one, other = whole.part(rows).parties[0], thin.part(rows).parties[0]
    encoder = public_encoder(one.layout)
    expected = {**one.bins(), "": encoder(one.inputs)}
    for name, made in {**other.bins(), "": applied(encoder, other.inputs, encoder.columns)}.items():
        assert made.shape == expected[name].shape
        for start, end in ((0, 120), (120, 300)):
            part = pickle.loads(pickle.dumps(made.part(start, end)))
            for bits in (0, 16) if name else (16,):
                elements = encoded(part, bits, ring.INPUT_LIMIT)
                assert np.array_equal(elements, ring.encode(expected[name][start:end], bits))
                assert elements.dtype == (np.int32 if bits else np.int8)
    counts = other.bin_counts()
    assert all(np.array_equal(counts[name], block.sum(axis=0)) for name, block in one.bins().items())


def test_a_worker_checks_the_rows_of_a_statistic(home):
    _, thin = both(home, 1)
    bins = thin.party.bins()
    for block in check_columns(bins, COUNT, 1.0).values():
        encoded(block.part(0, 100), 0, 2.0**20)
    for block in check_columns(bins, COUNT, 0.5).values():
        with pytest.raises(DataError, match="a record adds 1 where the charged sensitivity allows"):
            encoded(pickle.loads(pickle.dumps(block.part(0, 100))), 0, 2.0**20)
    with pytest.raises(DataError, match="records are needed"):
        check_columns(bins, COUNT + 1, 1.0)


def test_a_worker_reads_its_rows_once_for_several_orders(home, monkeypatch):
    _, thin = both(home, 1)
    read, honest = [], TableRows._read
    monkeypatch.setattr(TableRows, "_read", lambda self: read.append(len(self)) or honest(self))
    for made in (thin.party.inputs, *thin.party.bins().values()):
        encoded(made.part(0, 100), 0, 2.0**20) if made is not thin.party.inputs else [*made.part(0, 100).pieces()]
    assert read == [100]
    for start in (100, 200):
        [*thin.party.inputs.part(start, start + 100).pieces()]
    assert len(table_rows._KEPT) == 2


def test_a_process_that_is_no_worker_keeps_no_cells(home):
    _, thin = both(home, 1)
    [*thin.party.inputs.pieces()]
    thin.party.bin_counts()
    assert not table_rows._KEPT


@pytest.mark.parametrize("how", ["longer", "shorter", "touched"])
def test_a_file_that_changes_is_refused(home, how):
    _, thin = both(home, 1)
    path = home / "clinic.csv"
    lines = path.read_text().splitlines(keepends=True)
    if how == "touched":
        os.utime(path, ns=(1, 1))
    else:
        path.write_text("".join([*lines, lines[-1]] if how == "longer" else lines[:-1]))
    with pytest.raises(DataError, match=r"clinic\.csv' has changed since the run began"):
        [*thin.party.inputs.part(0, 10).pieces()]


@pytest.mark.parametrize(
    ("old", "new"), [(",a\n", ",z\n"), ("hours", "hour"), (",0.", ",7.")], ids=["category", "column", "range"]
)
def test_what_is_wrong_is_told_as_of_the_whole_table(home, old, new):
    path = home / "clinic.csv"
    path.write_text(path.read_text().replace(old, new, 1).replace("\r", ""))
    said = []
    for in_parts in (False, True):
        with pytest.raises(DataError) as caught:
            own_part(home / "own.toml", 1, 0, in_parts)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_a_constant_column_is_warned_about(home):
    rows = two.people(COUNT, 3)
    two.write(home / "bank.csv", {**rows, "age": np.full(COUNT, 0.5)}, ("y", *two.BANK))
    for read in (partial(own_part, home / "own.toml", 0, 0), partial(own_part, home / "own.toml", 0, 0, True)):
        with pytest.warns(DataWarning, match="'age' is constant"):
            read()


def test_a_table_of_another_kind_is_read_at_once(home):
    (home / "clinic.csv").rename(home / "clinic.sql")
    text = (home / "own.toml").read_text().replace("clinic.csv", "clinic.sql")
    (home / "own.toml").write_text(text)
    with pytest.raises(DataError, match=r"clinic\.sql"):  # as SQL, which it is not
        own_part(home / "own.toml", 1, 0, True)
