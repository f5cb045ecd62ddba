"""The sensitivity bound of the private HSIC, hunted by search; its grid; the moments of mediators."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_sccvfl.discovery.residuals import Grid, dependence


def change(phi, groups, count, removed, grid):
    """How much H moves when one record is taken away; the public number of records stays."""
    whole, one_hot = grid.features(phi), np.eye(count)[groups]
    keep = np.arange(len(phi)) != removed
    with_all = dependence(whole, one_hot, grid)
    less = whole[keep]
    centred = grid.rows * less - less.sum(axis=0)
    # The removed record's rows are zero; so is its part in the sums, and N stays.
    cross = centred.astype(float).T @ one_hot[keep] / (grid.rows**2 * 2.0**grid.fraction)
    return abs(with_all - float((cross**2).sum()))


def climb(rows, count, width, rng, steps=150):
    """Random search with local moves for the data on which one record matters most."""
    grid = Grid(rows)
    best, data = 0.0, None
    for step in range(steps):
        if data is None or step % 30 == 0:
            phi = rng.normal(size=(rows, width))
            if rng.random() < 0.5:
                phi[:, 1:] *= 0.01
            groups = rng.integers(0, count, rows) if rng.random() < 0.5 else (phi[:, 0] > rng.normal()) * 1
        else:
            phi, groups = data[0].copy(), data[1].copy()
            moved = rng.random(rows) < 0.1
            phi[moved] = rng.normal(size=(moved.sum(), width)) if rng.random() < 0.5 else -phi[moved]
            groups[rng.random(rows) < 0.05] = rng.integers(count)
        phi = phi / np.linalg.norm(phi, axis=1, keepdims=True)
        found = max(change(phi, groups, count, i, grid) for i in rng.integers(0, rows, 6))
        if data is None or found > best:
            best, data = found, (phi, groups)
    return best / grid.sensitivity(width, count)


@pytest.mark.parametrize(("rows", "count", "width"), [(6, 2, 1), (20, 2, 1), (20, 3, 2), (40, 9, 4), (150, 2, 2)])
def test_no_record_moves_hsic_by_more_than_the_bound(rows, count, width):
    ratio = max(climb(rows, count, width, np.random.default_rng(seed)) for seed in range(3))
    assert ratio <= 1.0


def test_the_bound_is_not_far_from_what_a_record_can_do():
    """A worst case by hand: features and groups agree, and the record is on the wrong side of a third."""
    rows = 600
    groups = (np.arange(rows) < rows // 3) * 1
    phi = np.where(groups == 1, 1.0, -1.0)[:, None]
    moves = [change(phi, groups, 2, i, Grid(rows)) for i in (0, rows - 1)]
    assert 0.4 < max(moves) / Grid(rows).sensitivity(1, 2) <= 1.0


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_small_data_set_breaks_the_bound(data):
    rows = data.draw(st.integers(2, 12))
    count = data.draw(st.integers(2, 4))
    angles = np.array(data.draw(st.lists(st.floats(-4, 4), min_size=rows, max_size=rows)))
    lengths = np.array(data.draw(st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=rows, max_size=rows)))
    groups = np.array(data.draw(st.lists(st.integers(0, count - 1), min_size=rows, max_size=rows)))
    phi = lengths[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    removed = data.draw(st.integers(0, rows - 1))
    assert change(phi, groups, count, removed, Grid(rows)) <= Grid(rows).sensitivity(2, count)


def test_a_smaller_bound_would_be_caught():
    rows = 40
    grid = Grid(rows)
    groups = (np.arange(rows) < rows // 2) * 1
    phi = np.where(groups == 1, 1.0, -1.0)[:, None]
    assert max(change(phi, groups, 2, i, grid) for i in range(rows)) > grid.sensitivity(1, 2) / 4


def test_one_record_moves_every_feature_and_attribute_at_once():
    """Features that are copies of one another move together: the joint bound is no smaller than their norm."""
    grid, counts = Grid(560), (2, 3)
    each = [grid.sensitivity(8, count) for _ in range(19) for count in counts]
    assert grid.joint_sensitivity(8, counts, 19) == pytest.approx(np.linalg.norm(each))


@pytest.mark.parametrize("rows", [560, 10**6])
def test_rounding_towards_zero_keeps_the_norm(rows):
    angle = np.random.default_rng(0).normal(size=(1000, 4))
    phi = np.hstack([np.cos(angle), np.sin(angle)]) / 2
    grid = Grid(rows)
    assert (np.linalg.norm(grid.features(phi), axis=1) <= 2.0**grid.fraction * (1 + 1e-12)).all()
    assert np.abs(grid.features(phi) / 2.0**grid.fraction - phi).max() < 2.0**-grid.fraction


def test_hsic_of_independent_and_of_identical_variables():
    groups = np.arange(400) % 2
    phi = np.where(groups == 1, 1.0, -1.0)[:, None]
    grid = Grid(400)
    assert dependence(grid.features(phi), np.eye(2)[groups], grid) == pytest.approx(0.5)
    other = np.arange(400) // 2 % 2
    assert dependence(grid.features(phi), np.eye(2)[other], grid) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("rows", [0, 1, 1 << 26])
def test_a_number_of_records_beyond_the_grid_is_refused(rows):
    with pytest.raises(ValueError, match="between 2 and"):
        Grid(rows)
