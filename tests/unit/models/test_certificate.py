"""The certificate: levels of features, ends of contributions, and how ties are decided."""

from itertools import product

import numpy as np
import pytest

from secure_sccvfl.data.features import Feature
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.models.certificate import (
    CertificateError,
    at_first_level,
    certified_binary,
    certified_class,
    ends,
    level_encodings,
    levels,
    range_gram,
    shifts,
)
from secure_sccvfl.models.encoders import FeatureEncoder, fit_encoder, public_encoder, without

LAYOUT = Layout.of(
    (
        Feature("age", "number", low=0, high=100, edges=(0, 20, 50, 100), missing=True),
        Feature("job", "category", categories=("a", "b"), missing=True),
        Feature("pay", "number", low=0, high=10, edges=(0, 5, 10)),
        Feature("note", "category", missing=True),
    )
)


def test_levels_are_categories_cuts_and_missing_where_allowed():
    age, job, pay, note = (levels(block) for block in LAYOUT.blocks)
    assert age.tolist() == [[0, 0], [0.2, 0], [0.5, 0], [1, 0], [0, 1]]
    assert job.tolist() == np.eye(3).tolist() and pay.tolist() == [[0], [0.5], [1]]
    assert note.tolist() == [[1]]


def test_extremes_of_a_contribution_are_at_levels():
    rng, encoder = np.random.default_rng(0), public_encoder(LAYOUT)
    cells = np.column_stack(
        [rng.uniform(0, 100, 5000), rng.integers(0, 2, 5000), rng.uniform(0, 10, 5000), [np.nan] * 5000]
    )
    cells[rng.random(5000) < 0.2, 0] = np.nan
    cells[rng.random(5000) < 0.2, 1] = np.nan
    inputs = LAYOUT.encode(cells)
    first = at_first_level(LAYOUT, inputs, LAYOUT.names)
    for _ in range(20):
        weight = rng.normal(size=(encoder.columns, 2))
        sums = (encoder(inputs) - encoder(first)) @ weight
        low, high = ends([rows @ weight for rows in level_encodings(encoder, LAYOUT.names)], 2)
        assert (sums >= low - 1e-12).all() and (sums <= high + 1e-12).all()
        assert sums.min(axis=0) == pytest.approx(low, abs=0.5) and sums.max(axis=0) == pytest.approx(high, abs=0.5)


def test_only_these_features_move_to_their_first_level():
    inputs = LAYOUT.encode(np.array([[np.nan, 1, 7, np.nan]]))
    assert at_first_level(LAYOUT, inputs, {"age"}).tolist() == [[0, 0, 0, 1, 0, 0.7, 1]]
    assert inputs[0, 1] == 1, "the records themselves stay"


def test_a_mediator_with_a_single_value_changes_nothing():
    weight = np.random.default_rng(1).normal(size=(public_encoder(LAYOUT).columns, 1))
    contributions = [rows @ weight for rows in level_encodings(public_encoder(LAYOUT), {"note"})]
    assert [rows.tolist() for rows in contributions] == [[[0.0]]]
    assert certified_binary(np.array([[1e-9], [0.0], [-1e-9]]), contributions).all()


def test_without_mediators_everything_is_certified():
    base = np.random.default_rng(2).normal(size=(50, 3))
    base[:10, 1] = base[:10, 0]
    assert certified_binary(base[:, :1], []).all() and certified_class(base, []).all()
    assert not np.any(shifts(base[:, :1], base[:, :1], []))


def test_a_logit_of_zero_is_a_negative_decision():
    contributions = [np.array([[0.0], [-1.0], [2.0]])]
    base = np.array([[1.0], [1.001], [-2.0], [-1.999]])
    assert certified_binary(base, contributions).tolist() == [False, True, True, False]


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_classes_are_certified_as_argmax_decides_with_ties(classes):
    """Whole numbers, so that ties are frequent and sums are exact."""
    rng, seen = np.random.default_rng(classes), set()
    for _ in range(300):
        contributions = [rng.integers(-1, 2, (count, classes)).astype(float) for count in (2, 3)]
        for of_levels in contributions:
            of_levels -= of_levels[0]
        base = rng.integers(-4, 5, (20, classes)).astype(float)
        combined = [base + sum(choice) for choice in product(*contributions)]
        decided = np.array([logits.argmax(axis=1) for logits in combined])
        expected = (decided == decided[0]).all(axis=0)
        assert (certified_class(base, contributions) == expected).all()
        seen |= set(expected.tolist())
    assert seen == {True, False}


def test_shifts_reach_both_ends():
    contributions = [np.array([[0.0], [0.3]]), np.array([[0.0], [-0.1], [0.2]])]
    base = np.array([[0.5], [0.5]])
    down, up = shifts(base + np.array([[0.0], [0.5]]), base, contributions)
    assert down == pytest.approx([0.1, 0.6]) and up == pytest.approx([0.5, 0.0])


def test_an_encoder_that_mixes_columns_is_refused():
    plain = public_encoder(LAYOUT)
    mixed = FeatureEncoder(plain, np.ones((plain.columns, 2)), np.zeros(2), np.zeros(2))
    with pytest.raises(CertificateError, match="FeatureEncoder mixes columns"):
        level_encodings(mixed, LAYOUT.names)


def test_the_range_penalty_is_the_mean_squared_difference_of_two_levels():
    encoder, rng = public_encoder(LAYOUT), np.random.default_rng(4)
    weight = rng.normal(size=encoder.columns)
    expected = 0.0
    for rows in level_encodings(encoder, {"age", "job"}):
        of_levels = rows @ weight
        expected += ((of_levels[:, None] - of_levels[None]) ** 2).mean()
    gram = range_gram(encoder, {"age", "job"})
    assert weight @ gram @ weight == pytest.approx(expected)
    assert np.linalg.eigvalsh(gram).min() > -1e-12, "the proof of a private head needs this"
    assert np.array_equal(gram, range_gram(encoder, {"age", "job", "note"})), "a single level has no range"
    assert not range_gram(encoder, set()).any()


def test_the_range_penalty_uses_no_record():
    """Encoders of a model without noise are centred on records, and the penalty is the same."""
    inputs = LAYOUT.encode(np.array([[30.0, 1, 7, np.nan], [70.0, 0, 2, np.nan]]))
    fitted = range_gram(fit_encoder(LAYOUT, inputs), {"age", "job"})
    assert fitted == pytest.approx(range_gram(public_encoder(LAYOUT), {"age", "job"}))


def test_a_dropped_feature_has_no_range():
    encoder = without(public_encoder(LAYOUT), ["job"], np.zeros((1, LAYOUT.width)))
    assert np.array_equal(range_gram(encoder, {"age", "job"}), range_gram(public_encoder(LAYOUT), {"age"}))
