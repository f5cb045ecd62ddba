"""The `minimal` generator: noise changes no record, and a real difference moves as few records as it must."""

import numpy as np

from secure_sccvfl.data.features import Feature
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.discovery.scores import shrunken
from secure_sccvfl.models.generators import GeneratorConfig, make_generator
from secure_sccvfl.policy.roles import Roles

LAYOUT = Layout.of(
    (
        Feature("hours", "number", low=0.0, high=80.0, edges=(0.0, 20.0, 35.0, 45.0, 80.0), missing=True),
        Feature("job", "category", categories=("a", "b", "c")),
    )
)
ROLES = Roles({"hours": "M", "job": "M"})
ROWS = 4000


def records(rng, shift):
    """Hours and jobs of two groups; `shift` makes the second work longer and have other jobs."""
    codes = np.arange(ROWS) % 2
    hours = np.clip(rng.normal(38 + shift * 8 * codes, 10), 0, 80)
    hours[rng.random(ROWS) < 0.05] = np.nan
    job = np.where(rng.random(ROWS) < 0.3 + 0.2 * shift * codes, 0, rng.integers(1, 3, ROWS)).astype(float)
    return LAYOUT.encode(np.column_stack([hours, job])), codes


def tables_of(inputs, codes):
    member = np.eye(2)[codes]
    return {b.feature.name: LAYOUT.bin_one_hot(b, inputs).T @ member for b in LAYOUT.blocks}


def generator(inputs, codes, deviation=0.0, rng=None):
    tables = tables_of(inputs, codes)
    if rng is not None:
        tables = {name: table + rng.normal(0, deviation, table.shape) for name, table in tables.items()}
    return make_generator(LAYOUT, tables, deviation, ROLES, GeneratorConfig(), 0, inputs)


def test_the_shrunken_distribution_is_that_of_the_formula():
    table, sizes, sigma = np.array([[30.0, 90.0], [70.0, 110.0]]), np.array([100.0, 200.0]), 5.0
    shares, pi = table / sizes, sizes / sizes.sum()
    q = shares @ pi
    expected = []
    for g in range(2):
        noise = sigma**2 * ((1 - pi[g]) ** 2 / sizes[g] ** 2 + 1 / sizes.sum() ** 2)
        v = q * (1 - q) * (1 - pi[g]) / sizes[g] + noise
        chi = 0.5 * ((shares[:, g] - q) ** 2 / v).sum()
        expected.append(q + max(0.0, 1 - 1 / chi) * (shares[:, g] - q))
    assert np.allclose(shrunken(table, sizes, sigma), np.array(expected).T)


def test_groups_that_do_not_differ_hardly_change():
    rng = np.random.default_rng(0)
    inputs, codes = records(rng, shift=0.0)
    target = 1 - codes
    make = generator(inputs, codes, 20.0, np.random.default_rng(1))
    edited = np.where(codes[:, None] == 0, make(inputs, 0, target, 0), make(inputs, 1, target, 0))
    assert (edited != inputs).any(axis=1).mean() < 0.02


def test_a_real_difference_is_carried_over():
    rng = np.random.default_rng(2)
    inputs, codes = records(rng, shift=1.0)
    make = generator(inputs, codes)
    first = inputs[codes == 0]
    edited = make(first, 0, np.ones(len(first), int), 0)
    tables = tables_of(inputs, codes)
    for block in LAYOUT.blocks:
        wanted = tables[block.feature.name][:, 1] / (codes == 1).sum()
        shares = LAYOUT.bin_one_hot(block, edited).mean(axis=0)
        assert np.abs(shares - wanted).max() < 0.03, block.feature.name
        before = LAYOUT.bin_one_hot(block, first).mean(axis=0)
        assert np.abs(before - wanted).max() > 0.1, "the groups do differ"


def test_who_stays_in_a_bin_is_unchanged_and_who_moves_keeps_its_rank_in_it():
    inputs, codes = records(np.random.default_rng(3), shift=1.0)
    hours, first = LAYOUT.blocks[0], inputs[codes == 0]
    edited = generator(inputs, codes)(first, 0, np.ones(len(first), int), 0)
    present = (first[:, 1] < 0.5) & (edited[:, 1] < 0.5)
    bins = [LAYOUT.bin_one_hot(hours, part[present]).argmax(axis=1) for part in (first, edited)]
    stayed = bins[0] == bins[1]
    assert 0.2 < stayed.mean() < 1.0
    assert (first[present][stayed, 0] == edited[present][stayed, 0]).all()
    cuts = np.array([0.0, 20.0, 35.0, 45.0, 80.0]) / 80
    position = [
        (part[present, 0] - cuts[b]) / (cuts[b + 1] - cuts[b]) for part, b in zip((first, edited), bins, strict=True)
    ]
    assert np.allclose(position[0], position[1])
    assert (edited[:, 1] != first[:, 1]).mean() < 0.02, "missing shares differ by chance alone"


def test_every_draw_moves_others_from_the_same_tables():
    inputs, codes = records(np.random.default_rng(4), shift=1.0)
    make = generator(inputs, codes)
    one, other = (make(inputs, 0, np.ones(ROWS, int), draw) for draw in (0, 1))
    assert (one != other).any()
    assert np.array_equal(one, make(inputs, 0, np.ones(ROWS, int), 0))
