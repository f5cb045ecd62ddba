"""Rows that are made where they are used: the same ring elements as of one array, in few bytes."""

import pickle

import numpy as np
import pytest

from secure_sccvfl.protocols import ring
from secure_sccvfl.protocols.errors import ProtocolError, RangeError
from secure_sccvfl.protocols.operations.banded import BAND_ROWS
from secure_sccvfl.protocols.session import rows
from secure_sccvfl.protocols.session.rows import RowSource, Scaled, encoded, part_of, pieces_of
from secure_sccvfl.research.benchmarks.random_rows import RandomRows

VALUES = np.random.default_rng(1).normal(0, 3, (5000, 4))
MADE = RandomRows(1, 4, 0, 2 * BAND_ROWS + 100)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(rows, "_TOGETHER", 1000)


@pytest.mark.parametrize("values", [VALUES, VALUES.astype(np.float32), VALUES[:, 0], VALUES.reshape(50, 100, 4)])
def test_pieces_encode_as_the_whole_and_stay_short(values):
    assert sum(1 for _ in pieces_of(values)) > 1
    elements = encoded(values, 16, ring.INPUT_LIMIT)
    assert elements.dtype == np.int32
    assert np.array_equal(elements, ring.encode(values, 16))


def test_values_that_do_not_fit_are_kept_as_ring_elements():
    values = VALUES.copy()
    values[4000, 2] = -(2.0**20)
    elements = encoded(values, 16, ring.INPUT_LIMIT)
    assert elements.dtype == np.int64 and np.array_equal(elements, ring.encode(values, 16))
    with pytest.raises(RangeError, match="larger in magnitude"):
        encoded(values, 16, 2.0**10)


@pytest.mark.parametrize("given", [VALUES, MADE])
def test_parts_of_scaled_rows_are_those_of_the_whole(given):
    factor = np.array([1.0, 0.5, 2.0, 3.0])
    whole = encoded(Scaled(given, factor), 16, ring.INPUT_LIMIT)
    plain = given if isinstance(given, np.ndarray) else np.concatenate([*given.pieces()])
    assert np.array_equal(whole, ring.encode(plain * factor, 16))
    for start, end in ((0, BAND_ROWS), (BAND_ROWS, len(given))):
        part = pickle.loads(pickle.dumps(part_of(Scaled(given, factor), start, end)))
        assert part.shape == (end - start, 4) and part.at_worker == (given is MADE)
        assert np.array_equal(encoded(part, 16, ring.INPUT_LIMIT), whole[start:end])


@pytest.mark.parametrize("made", [np.zeros((3, 2)), np.zeros((5, 2)), np.zeros((4, 3))])
def test_a_source_that_makes_other_rows_than_it_told_is_refused(made):
    class Wrong(RowSource):
        shape = (4, 2)

        def pieces(self):
            yield made

    with pytest.raises(ProtocolError, match="a source of rows has made"):
        encoded(Wrong(), 16, ring.INPUT_LIMIT)
