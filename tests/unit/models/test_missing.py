"""Missing values follow s: moves between missing and present in generators and in the expected Gram matrix."""

import numpy as np
import pytest

from secure_sccvfl.data.features import Feature
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.models.encoders import edit_radius, public_encoder
from secure_sccvfl.models.generators import GeneratorConfig, make_generator
from secure_sccvfl.models.missing import move_chances, moved_missing
from secure_sccvfl.models.table_gram import table_gram, table_movement
from secure_sccvfl.policy.roles import Roles

SCORE = Feature("score", "number", 0.0, 1.0, (0.0, 0.3, 1.0), missing=True)
GRADE = Feature("grade", "category", categories=("a", "b"), missing=True)
CODE = Feature("code", "code", 0, 9, (0, 3, 9), missing=True)
LAYOUT = Layout.of((SCORE, GRADE, CODE))
ROLES = Roles({"score": "M", "grade": "M", "code": "M"})
ONLY_MISSING = np.array([[308.0, 168.0], [462.0, 252.0], [230.0, 580.0]])
"""Present values have the same distribution in both groups; 23 and 58 % are missing."""
BOTH = np.array([[500.0, 60.0], [270.0, 360.0], [230.0, 580.0]])
"""Present values differ too."""
ROWS = 20_000


def generator(table, kind="minimal", scale=1.0):
    tables = {"score": table, "grade": table, "code": table}
    config = GeneratorConfig(kind, scale=scale)
    return make_generator(LAYOUT, tables, 0.0, ROLES, config, 0, np.zeros((1, LAYOUT.width)))


def records(table, group, rows=ROWS, seed=0):
    """Records that follow the table of one group; values are spread evenly inside a bin."""
    rng, shares = np.random.default_rng(seed), table[:, group] / table[:, group].sum()
    bins = rng.choice(3, (3, rows), p=shares)
    cuts = np.array([0.0, 0.3, 1.0])
    inside = np.minimum(bins[0], 1)
    value = cuts[inside] + rng.random(rows) * np.diff(cuts)[inside]
    cells = [np.where(bins[0] == 2, np.nan, value), np.where(bins[1] == 2, np.nan, bins[1])]
    return LAYOUT.encode(np.column_stack([*cells, np.choose(bins[2], (1.0, 5.0, np.nan))]))


@pytest.mark.parametrize("table", [ONLY_MISSING, BOTH])
@pytest.mark.parametrize(("source", "target"), [(0, 1), (1, 0)])
def test_every_level_takes_the_shares_of_the_target_group_and_missing_is_one(table, source, target):
    made, rows = generator(table), records(table, source)
    edited = made(rows, source, np.full(ROWS, target), 0)
    for block in LAYOUT.blocks:
        wanted = made.shares(block)[:, target]
        shares = LAYOUT.bin_one_hot(block, edited).mean(axis=0)
        # Four deviations of the mean of 20,000 indicators.
        assert np.abs(shares - wanted).max() < 4 * 0.5 / ROWS**0.5, block.feature.name
        assert np.abs(LAYOUT.bin_one_hot(block, rows).mean(axis=0) - wanted).max() > 0.2


@pytest.mark.parametrize(("source", "target"), [(0, 1), (1, 0)])
def test_as_few_records_as_possible_change_between_missing_and_present(source, target):
    made, rows = generator(ONLY_MISSING), records(ONLY_MISSING, source)
    edited = made(rows, source, np.full(ROWS, target), 0)
    was, now = rows[:, 1] > 0.5, edited[:, 1] > 0.5
    shares = made.shares(LAYOUT.blocks[0])[-1]
    assert (was != now).mean() == pytest.approx(abs(shares[1] - shares[0]), abs=0.015)
    assert (now & ~was).any() == (source == 0) and (was & ~now).any() == (source == 1), "nobody moves the other way"
    assert (edited[was == now, :2] == rows[was == now, :2]).all(), "present values do not differ between groups"
    assert (edited[now, 0] == 0).all() and set(np.unique(edited[:, 1])) <= {0.0, 1.0}
    arrived = np.sort(edited[was & ~now, 0])
    if len(arrived):
        assert arrived.mean() == pytest.approx(0.4 * 0.15 + 0.6 * 0.65, abs=0.02), "spread as present values are"
        assert (arrived < 0.3).mean() == pytest.approx(0.4, abs=0.03) and 0 < arrived[0] < arrived[-1] <= 1


def test_equal_missing_shares_leave_missing_numbers_and_uniform_numbers_alone():
    uniform = np.random.default_rng(0).random(1000)
    missing = np.arange(1000) % 3 == 0
    then, left = moved_missing(missing, 0.3, 0.3, uniform)
    assert (then == missing).all() and (left == uniform).all()


def test_the_uniform_number_that_is_left_is_uniform_given_the_move():
    uniform = (np.arange(100_000) + 0.5) / 100_000
    for missing in (False, True):
        flags = np.full(len(uniform), missing)
        old, new = (0.6, 0.15) if missing else (0.15, 0.6)
        then, left = moved_missing(flags, old, new, uniform)
        assert (then != flags).mean() == pytest.approx(move_chances(flags[:1], old, new)[0], abs=1e-4)
        for part in (left[then == flags], left[then != flags]):
            assert np.abs(np.sort(part) - (np.arange(len(part)) + 0.5) / len(part)).max() < 1e-3
    assert moved_missing(np.array([True, False]), 1.0, 0.0, np.array([0.5, 0.5]))[0].tolist() == [False, False]
    assert moved_missing(np.array([True, False]), 0.0, 1.0, np.array([0.5, 0.5]))[0].tolist() == [True, True]


@pytest.mark.parametrize("kind", ["minimal", "moments"])
@pytest.mark.parametrize("table", [ONLY_MISSING, BOTH])
def test_the_gram_is_exact_for_moves_between_missing_and_present(kind, table):
    made, encoder, names = generator(table, kind), public_encoder(LAYOUT), ("score",)
    gram = table_gram(LAYOUT, made, encoder, names, 2)
    whole = gram.vectors.T @ gram.vectors + gram.within
    shares = made.shares(LAYOUT.blocks[0])[-1]
    moves = abs(shares[1] - shares[0])
    assert whole[2, 2] == pytest.approx(moves, abs=1e-12), "the square of a change of the flag is its chance"
    expected, count = np.zeros_like(whole), 60_000
    for source in (0, 1):
        rows = records(made.shares(LAYOUT.blocks[0]), source, count, seed=source)
        changed = rows.copy()
        changed[:, :2] = made(rows, source, np.full(count, 1 - source), 0)[:, :2]
        shift = encoder(changed) - encoder(rows)
        expected += shift.T @ shift / count / 2
    assert np.abs(whole - expected).max() < 0.01
    assert np.linalg.eigvalsh(whole).min() > -1e-12
    assert table_movement(LAYOUT, made, names, 2)["score"] >= moves


@pytest.mark.parametrize("kind", ["minimal", "moments"])
def test_nothing_lies_between_a_missing_and_a_present_number(kind):
    made, rows = generator(BOTH, kind, scale=0.5), records(BOTH, 0, 2000)
    edited = made(rows, 0, np.ones(2000, int), 0)
    assert set(np.unique(edited[:, 1])) == {0.0, 1.0} and (edited[edited[:, 1] == 1, 0] == 0).all()
    gram = table_gram(LAYOUT, made, public_encoder(LAYOUT), ("score",), 2)
    assert gram.energy[2] == pytest.approx(0.35, abs=0.01), "a scale does not shorten these moves"


@pytest.mark.parametrize(("edges", "square"), [((0.0, 1.0), 1.25), ((0.0, 0.5, 1.0), 2.0)])
def test_the_radius_of_changes_covers_a_number_that_becomes_missing(edges, square):
    layout = Layout.of((Feature("x", "number", 0.0, 1.0, edges, missing=True),))
    rows = public_encoder(layout)(layout.encode(np.array([[0.0], [1.0], [0.4], [np.nan]])))
    longest = max(((a - b) ** 2).sum() for a in rows for b in rows)
    assert edit_radius(layout, ("x",)) ** 2 == pytest.approx(square) == pytest.approx(longest)
    whole = Layout.of((Feature("x", "number", 0.0, 1.0, edges),))
    assert edit_radius(whole, ("x",)) ** 2 == pytest.approx(len(edges) - 1), "without missing values as before"
