"""Encodings that use s: group means are gone from the mediators, and s moves along with an edit."""

import numpy as np
import pytest

from secure_sccvfl.data.party import Party
from secure_sccvfl.discovery.noisy_tables import NoisyTables
from secure_sccvfl.models.aware import AwareCounterfactuals, AwareEncoder, hypotheses, make_aware
from secure_sccvfl.models.encoders import FeatureEncoder, fit_encoder
from secure_sccvfl.policy.roles import Roles
from tests.unit.models.test_minimal_generator import LAYOUT, ROLES, generator, records, tables_of

WIDTH = 8
"""Plain columns: four steps and a flag of a gap for hours, three for jobs."""


def aware(inputs, codes, roles=ROLES):
    encoder = fit_encoder(LAYOUT, inputs)
    return make_aware(LAYOUT, encoder, NoisyTables("s", tables_of(inputs, codes), 0.0, 1), roles)


def test_mediators_have_the_same_mean_in_every_group():
    inputs, codes = records(np.random.default_rng(0), shift=1)
    encoder = aware(inputs, codes)
    plain = encoder.plain(inputs)
    before = np.abs(plain[codes == 0].mean(axis=0) - plain[codes == 1].mean(axis=0))
    after = encoder(inputs, codes)[:, :WIDTH]
    gap = np.abs(after[codes == 0].mean(axis=0) - after[codes == 1].mean(axis=0))
    assert before.max() > 0.2
    assert gap.max() < 0.05, "bins are taken by their middle, and a little is shrunken"


def test_weights_may_differ_by_group():
    """The further columns are the mediators times the centred one-hot of s."""
    inputs, codes = records(np.random.default_rng(0), shift=1)
    encoder = aware(inputs, codes)
    encodings = encoder(inputs, codes)
    assert encodings.shape[1] == encoder.columns == 2 * WIDTH
    assert np.allclose(encodings[:, WIDTH:], encodings[:, :WIDTH] * (codes - encoder.shares[1])[:, None])
    assert np.allclose(encodings, np.where((codes == 1)[:, None], encoder(inputs, 1), encoder(inputs, 0)))


def test_a_party_without_mediators_encodes_every_group_equally():
    inputs, codes = records(np.random.default_rng(0), shift=1)
    encoder = aware(inputs, codes, Roles({"hours": "N", "job": "P"}))
    assert encoder.columns == WIDTH and len(encoder.mediators) == 0
    assert np.array_equal(encoder(inputs, 0), encoder(inputs, 1)) and np.array_equal(
        encoder(inputs, 0), encoder.plain(inputs)
    )


def test_a_counterfactual_changes_s_too():
    inputs, codes = records(np.random.default_rng(0), shift=1)
    encoder, edit = aware(inputs, codes), generator(inputs, codes)
    party = Party(0, "a", LAYOUT, inputs)
    counterfactuals = AwareCounterfactuals((party,), 2, {0: edit}, {0: encoder}, 1, 0)
    for draw in counterfactuals:
        for source, blocks in enumerate(draw):
            target = np.full(len(inputs), 1 - source)
            expected = encoder(edit(inputs, source, target, 0), 1 - source) - encoder(inputs, source)
            assert np.allclose(blocks[0], expected)
            in_source = codes == source
            plain = encoder.plain(edit(inputs, source, target, 0)) - encoder.plain(inputs)
            shifts = [np.abs(moved[in_source, :WIDTH].mean(axis=0)).sum() for moved in (blocks[0], plain)]
            assert shifts[0] < shifts[1] / 3, "on average the edit and the change of s cancel"
    assert (
        counterfactuals.energy[0].shape == (2 * WIDTH,)
        and counterfactuals.energy[0].min() >= 0 < counterfactuals.energy[0].max()
    )


def test_hypotheses_are_made_for_every_group():
    inputs, codes = records(np.random.default_rng(0), shift=1)
    encoder = aware(inputs, codes)
    encodings = list(hypotheses({0: encoder}, (Party(0, "a", LAYOUT, inputs),)))
    assert len(encodings) == 2 and all(np.array_equal(encodings[g][0], encoder(inputs, g)) for g in range(2))


def test_only_the_plain_encoder_can_be_centred():
    inputs, _ = records(np.random.default_rng(0), shift=1)
    units = FeatureEncoder(fit_encoder(LAYOUT, inputs), np.zeros((WIDTH, 1)), np.zeros(1), np.zeros(1))
    with pytest.raises(TypeError, match="plain encoder, not FeatureEncoder"):
        make_aware(LAYOUT, units, NoisyTables("s", {}, 0.0, 1), ROLES)
    with pytest.raises(ValueError, match="do not fit 2 groups"):
        AwareEncoder(fit_encoder(LAYOUT, inputs), np.zeros((3, WIDTH)), np.ones(2) / 2, np.arange(1))
