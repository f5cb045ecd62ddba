"""What a counterfactual edit may and may not do."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.features import Feature
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.party import make_parties
from secure_sccvfl.discovery.noisy_tables import release_tables
from secure_sccvfl.discovery.statistics import PlainStatistics
from secure_sccvfl.models.counterfactuals import public_targets
from secure_sccvfl.models.encoders import fit_encoder
from secure_sccvfl.models.generators import GeneratorConfig, make_generator
from secure_sccvfl.models.table_generator import maximal_coupling, shift_direction
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.releases.noise import NoNoise
from secure_sccvfl.research.paper.generators import pseudo_groups

DATA = load("acs12")
PARTIES = make_parties(DATA)
TABLES = release_tables(PlainStatistics(NoNoise()), PARTIES, DATA.protected, "s", 11)[0].tables
GROUPS = len(DATA.protected[0].groups)


def roles_from(letters):
    return Roles({f.name: r for f, r in zip(DATA.features, letters, strict=True)})


@given(
    letters=st.lists(st.sampled_from("NMP"), min_size=11, max_size=11),
    kind=st.sampled_from(["moments", "minimal"]),
    scale=st.sampled_from([0.25, 1.0]),
    source=st.integers(0, GROUPS - 1),
    noise=st.floats(0, 60),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40, deadline=None)
def test_n_and_p_are_bit_equal_and_counterfactuals_stay_in_the_public_range(
    letters, kind, scale, source, noise, seed
):
    roles = roles_from(letters)
    rng = np.random.default_rng(seed)
    noisy = {k: v + rng.normal(0, noise, v.shape) for k, v in TABLES.items()}
    targets = public_targets(DATA.n, GROUPS, seed, 0)
    for party in PARTIES:
        config = GeneratorConfig(kind, 2, scale)
        make = make_generator(party.layout, noisy, noise, roles, config, seed, party.inputs)
        edited = make(party.inputs, source, targets[:, source], 1)
        assert edited.min() >= 0.0 and edited.max() <= 1.0 and np.isfinite(edited).all()
        for block in party.layout.blocks:
            if roles.of[block.feature.name] != "M":
                assert (edited[:, block.columns] == party.inputs[:, block.columns]).all()
            elif kind != "moments" and scale == 1.0 and block.one_hot:
                assert set(np.unique(edited[:, block.columns])) <= {0.0, 1.0}


def test_a_target_is_never_the_source():
    targets = public_targets(500, GROUPS, 3, 2)
    assert all((targets[:, g] != g).all() for g in range(GROUPS))
    assert set(np.unique(targets)) == set(range(GROUPS))


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=8), st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_the_coupling_turns_one_distribution_into_the_other_moving_as_little_as_possible(weights, seed):
    p = np.array(weights) / sum(weights)
    q = np.random.default_rng(seed).dirichlet(np.ones(len(p)))
    coupling = maximal_coupling(p, q)
    assert np.allclose(coupling.sum(axis=1), 1) and (coupling >= 0).all()
    assert np.allclose(p @ coupling, q)
    assert 1 - p @ np.diag(coupling) == pytest.approx(0.5 * np.abs(p - q).sum())


def test_the_proxy_direction_is_the_difference_of_mean_encodings():
    data = load("german")
    party = make_parties(data)[2]
    tables = release_tables(PlainStatistics(NoNoise()), make_parties(data), data.protected, "s", 19)[0].tables
    direction = shift_direction(party.layout, tables, ("property",))
    encoded = fit_encoder(party.layout, party.inputs)(party.inputs)
    codes = data.protected[0].codes
    change = encoded[codes == 1].mean(axis=0) - encoded[codes == 0].mean(axis=0)
    where = np.flatnonzero(direction)
    assert len(where) == 4
    assert min(np.abs(direction - change)[where].max(), np.abs(direction + change)[where].max()) < 1e-9


def test_numbers_and_gaps_in_input_space():
    layout = Layout.of([Feature("x", "number", 0, 10, missing=True), Feature("c", "code", 0, 9, (0, 3, 9))])
    inputs = layout.encode(np.array([[5.0, 2.0], [np.nan, 8.0]]))
    assert inputs.tolist() == [[0.5, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0]]
    make = make_generator(
        layout,
        {"x": np.array([[9, 1], [1, 1], [1, 1], [1, 1], [1, 9.0], [5, 5]]), "c": np.ones((2, 2))},
        0.0,
        Roles({"x": "M", "c": "N"}),
        GeneratorConfig(),
        0,
        inputs,
    )
    edited = make(inputs, 0, np.ones(2, int), 0)
    assert edited[0, 0] > 0.5 and (edited[1] == inputs[1]).all(), "a gap is not filled in"


def test_bad_generator_settings_are_refused():
    for bad in ({"kind": "x"}, {"draws": 0}, {"scale": 0}):
        with pytest.raises(ValueError, match=r"available: minimal|bad"):
            GeneratorConfig(**bad)


def test_a_saved_model_that_names_removed_settings_is_refused_unless_they_change_nothing():
    earlier = {"kind": "minimal", "draws": 4, "thinning": 0.5, "scale": 1.0, "source": "tables", "latent": 8}
    assert GeneratorConfig.of_record(earlier) == GeneratorConfig()
    for change in ({"source": "moments"}, {"kind": "moments"}, {"kind": "quantile"}):
        with pytest.raises(ValueError, match="removed"):
            GeneratorConfig.of_record({**earlier, **change})


def test_pseudo_groups_follow_the_tables():
    data = load("german")
    parties = make_parties(data)
    tables = release_tables(PlainStatistics(NoNoise()), parties, data.protected, "s", 19)[0].tables
    codes = data.protected[0].codes
    drawn = pseudo_groups(parties[1].layout, parties[1].inputs, tables, np.random.default_rng(0))
    assert drawn[codes == 1].mean() > drawn[codes == 0].mean() + 0.15
    assert abs(drawn.mean() - codes.mean()) < 0.1
