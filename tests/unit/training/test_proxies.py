"""What a card may do with proxies: penalised, edited with the mediators, or dropped; and no mediator at all."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.party import make_parties, part_of
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.discovery.decisions import RoleAssignment, interventional_check
from secure_sccvfl.discovery.statistics import PlainStatistics
from secure_sccvfl.evaluation.methods import sealed_white_box
from secure_sccvfl.models.encoders import FeatureEncoder, fit_encoder, without
from secure_sccvfl.models.generators import GeneratorConfig
from secure_sccvfl.policy.card import shipped_card
from secure_sccvfl.policy.roles import PolicyError, Roles
from secure_sccvfl.protocols.session.saving import restore_share
from secure_sccvfl.protocols.steps.head import HEAD_BITS
from secure_sccvfl.releases.noise import GaussianNoise, SpendingPlan
from secure_sccvfl.research.paper.networks import MlpEncoder, code_columns, make_mlp
from secure_sccvfl.runs.model_files import HeldOut, PartyModel, load_model, save_model
from secure_sccvfl.training.config import TrainConfig
from secure_sccvfl.training.modes.options import RunOptions
from secure_sccvfl.training.plain import PlainEngine
from secure_sccvfl.training.trainer import Hooks, Problem, Trainer

DATA = load("german")
PARTIES = make_parties(DATA)
SPLIT = make_split(DATA, "iid", 0)
TEST = tuple(p.take(SPLIT.test) for p in PARTIES)
CARD = shipped_card("german-full")
QUICK = TrainConfig(refreshes=0, lambdas=(16.0,), generator=GeneratorConfig(kind="minimal", draws=2))


def trained(proxies="guard", config=QUICK, data=DATA, card=CARD):
    """The model of a run on the plaintext engine, its trainer, and what was logged."""
    seen = {}
    statistics = PlainStatistics(GaussianNoise(SpendingPlan(releases=1), 0))
    problem = Problem(data.task, data.outputs, *(part_of(data, rows) for rows in (SPLIT.train, SPLIT.validation)))
    decided = None if card is None else replace(card, proxies=proxies)
    hooks = Hooks(audit=lambda event, numbers: seen.update({event: dict(numbers)}))
    trainer = Trainer(PlainEngine(), statistics, problem, config, 0, decided, hooks)
    return trainer.run(), trainer, seen


def shuffled(names):
    """The test records with these features of other records."""
    order = np.random.default_rng(0).permutation(len(SPLIT.test))
    parties = []
    for party in TEST:
        inputs, columns = party.inputs.copy(), party.layout.columns(names)
        inputs[:, columns] = inputs[order][:, columns]
        parties.append(replace(party, inputs=inputs))
    return tuple(parties)


def test_a_dropped_proxy_cannot_move_a_score_and_a_penalised_one_does():
    dropped, _, seen = trained("drop")
    proxies = dropped.roles.named("P")
    assert dropped.roles.dropped == proxies == CARD.roles.named("P")
    assert seen["interventional check"]["proxies"] == "drop"
    assert np.array_equal(dropped.logits(TEST), dropped.logits(shuffled(proxies)))
    assert not np.allclose(dropped.logits(TEST), dropped.logits(shuffled(dropped.roles.named("M"))))
    guarded, _, _ = trained("guard")
    assert not np.allclose(guarded.logits(TEST), guarded.logits(shuffled(proxies)))


def test_the_columns_of_dropped_features_are_zero_and_the_white_box_knows():
    model, trainer, _ = trained("drop")
    for party in TEST:
        encoder = model.encoders[party.rank]
        hidden = encoder.shown == 0
        assert hidden.any() == (not set(party.layout.names).isdisjoint(model.roles.dropped))
        assert not encoder(party.inputs)[:, hidden].any() and not trainer.encodings[party.rank][:, hidden].any()
    white = sealed_white_box(model, TEST)(torch.tensor(np.hstack([p.inputs for p in TEST]))).numpy()
    assert white == pytest.approx(model.logits(TEST), abs=1e-6)


def test_a_kept_model_remembers_what_was_dropped(tmp_path):
    model, _, _ = trained("drop")
    for party in TEST:
        shares = restore_share(np.zeros((1, 1), np.int64), HEAD_BITS)
        kept = PartyModel(
            "r", party.rank, 3, "s", "binary", 1.0, 1.0, dict(model.roles.of), QUICK.generator, 0,
            HeldOut("iid", True, "exact", {}),
            model.encoders[party.rank], model.noisy_tables, shares, shares[0], proxies=model.roles.proxies,
        )  # fmt: skip
        save_model(kept, tmp_path / str(party.rank))
        again = load_model(tmp_path / str(party.rank), party.layout)
        assert again.proxies == "drop" and again.public() != replace(again, proxies="guard").public()
        assert np.array_equal(again.encoder(party.inputs), model.encoders[party.rank](party.inputs))


@pytest.mark.parametrize("codes", [False, True])
def test_a_network_does_not_see_dropped_columns_and_remembers_it(codes):
    """Whether it reads one-hot columns or one number for each feature."""
    party = TEST[0]
    read = code_columns(party.layout) if codes else None
    columns = party.layout.columns(party.layout.names[:2])
    encoder = make_mlp(party.inputs, 8, 0, read).without(columns)
    changed = party.inputs.copy()
    changed[:, columns] = 9.0
    for seen in (encoder, MlpEncoder.of(encoder.arrays())):
        assert np.array_equal(seen(party.inputs), seen(changed))
    plain = make_mlp(party.inputs, 8, 0, read)
    assert not np.array_equal(plain(party.inputs), plain(changed))
    if not codes:
        before = {name: value for name, value in plain.arrays().items() if name != "shown"}
        assert np.array_equal(MlpEncoder.of(before)(changed), plain(changed)), "a model of an earlier version"
    with pytest.raises(TypeError, match="MlpEncoder cannot drop"):
        without(encoder, ["a"], party.inputs)


def test_units_are_centred_without_the_dropped_columns():
    party = PARTIES[0]
    plain, rng = fit_encoder(party.layout, party.inputs), np.random.default_rng(0)
    units = FeatureEncoder(plain, rng.normal(size=(plain.columns, 4)), np.zeros(4), np.zeros(4))
    encoder = without(units, party.layout.names[:2], party.inputs)
    assert encoder(party.inputs).mean(axis=0) == pytest.approx(np.zeros(encoder.columns), abs=1e-9)


def moved(model, names):
    """Root-mean-square change of the logit when a record's features of these names are edited to the other group."""
    codes, edited = DATA.protected[0].codes[SPLIT.test], []
    for party in TEST:
        inputs, columns = party.inputs.copy(), party.layout.columns(names)
        for group in (0, 1):
            make = model.generators[DATA.protected[0].name]
            rows = np.flatnonzero(codes == group)
            there = make[party.rank](party.inputs, group, np.full(len(codes), 1 - group), 0)
            inputs[np.ix_(rows, columns)] = there[np.ix_(rows, columns)]
        edited.append(replace(party, inputs=inputs))
    change = model.logits(tuple(edited)) - model.logits(TEST)
    return float(np.sqrt((change**2).mean())) / float(model.logits(TEST).std())


def test_edited_proxies_move_with_the_mediators_and_become_consistent():
    model, trainer, seen = trained("edit")
    proxies = model.roles.named("P")
    assert set(proxies) < set(model.roles.edited) == set(model.roles.descendants)
    validity = seen["validity of edits, summed over parties"]
    assert validity["identity"] == 0 and validity["size"] > 0
    weak, _, _ = trained("edit", replace(QUICK, lambdas=(0.0,)))
    assert 0 < moved(model, proxies) < 0.5 * moved(weak, proxies)
    assert not any(
        block.any() for directions in trainer.proxy_directions(model.roles) for block in directions.values()
    )
    guarded, other, _ = trained("guard")
    assert moved(guarded, proxies) == 0
    assert any(block.any() for directions in other.proxy_directions(guarded.roles) for block in directions.values())


def test_an_edited_proxy_that_does_not_respond_stays_a_proxy():
    assignment = RoleAssignment(Roles({"a": "M", "b": "P", "c": "N"}, "edit"), {}, {})
    checked = interventional_check(assignment, {"c": 0.0}, {"a": 0.0, "b": 0.0})
    assert checked.roles == Roles({"a": "N", "b": "P", "c": "N"}, "edit")


def test_without_a_mediator_training_is_plain_and_says_so():
    codes = np.random.default_rng(3).permutation(DATA.protected[0].codes)
    nothing = replace(DATA, protected=(replace(DATA.protected[0], codes=codes),))
    model, _, seen = trained(data=nothing, card=None)
    assert model.roles.edited == () and "plain training" in seen["no mediator"]["so"]
    plain, _, _ = trained(config=replace(QUICK, lambdas=(0.0,)), data=nothing, card=None)
    assert model.logits(TEST) == pytest.approx(plain.logits(TEST), abs=0.05)
    assert "no mediator" not in trained()[2]


def test_a_role_that_no_record_supports_is_refused_before_anything_is_released():
    values = DATA.parties[0].values.copy()
    names = [f.name for f in DATA.parties[0].features]
    values[:, names.index("credit_history")] = 0
    same = replace(DATA, parties=(replace(DATA.parties[0], values=values), *DATA.parties[1:]))
    with pytest.raises(PolicyError, match=r"gives 'credit_history' role M, but no record of bank supports that"):
        trained(data=same)
    decisions = {**CARD.decisions, "credit_history": replace(CARD.decisions["credit_history"], role="N")}
    assert trained(data=same, card=replace(CARD, decisions=decisions))[0].roles.of["credit_history"] == "N"


def test_the_treatment_of_proxies_is_part_of_what_parties_compare_and_of_a_mask(tmp_path):
    rules = {how: replace(CARD, proxies=how).rules() for how in ("guard", "edit", "drop")}
    assert len(set(rules.values())) == 3
    masks = {Roles(CARD.roles.of, how).digest() for how in ("guard", "edit", "drop")}
    assert len(masks) == 3
    path = tmp_path / "card.toml"
    for how in ("guard", "drop"):
        path.write_text(
            f'dataset = "german"\nversion = "1"\nowners = ["x"]\nproxies = "{how}"\n'
            '[decisions]\nhousing = { role = "P", reason = "r", evidence = "e" }\n'
        )
        rules[how] = RunOptions.of_flat(card=str(path)).settings("d", "r")["card"]
    assert rules["guard"] != rules["drop"] and len(rules["guard"]) == hashlib.sha256().digest_size * 2
