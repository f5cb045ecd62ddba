"""Judges see held-out records only and edit mediators only; metrics on examples worked by hand."""

import numpy as np
import pytest

from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.party import make_parties
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.evaluation.judges import EditedRecords, JudgeError, judge
from secure_sccvfl.evaluation.metrics import edit_quality, evaluate, group_gaps, group_table, stability

GERMAN = load("german")
SPLIT = make_split(GERMAN, "iid", 0)
USED = GERMAN.ids[np.concatenate([SPLIT.train, SPLIT.validation])]
HELD_OUT = GERMAN.take(SPLIT.test)
EDITED = ("housing", "duration", "savings")


@pytest.mark.parametrize("kind", ["ot", "cvae"])
def test_a_judge_refuses_training_records(kind):
    with pytest.raises(JudgeError, match="would see 1 training records"):
        judge(kind, GERMAN.take(np.append(SPLIT.test, SPLIT.train[0])), USED, EDITED, 0)
    with pytest.raises(JudgeError, match="no feature"):
        judge(kind, HELD_OUT, USED, (), 0)


@pytest.mark.parametrize("kind", ["ot", "cvae"])
def test_a_judge_edits_only_what_it_should_inside_the_public_range(kind):
    verdict = judge(kind, HELD_OUT, USED, EDITED, 0)
    inputs = np.hstack([p.inputs for p in make_parties(HELD_OUT)])
    layout = Layout.of(GERMAN.features)
    rest = np.setdiff1d(np.arange(layout.width), layout.columns(EDITED))
    assert (verdict.inputs[:, rest] == inputs[verdict.source][:, rest]).all()
    assert verdict.inputs.min() >= 0 and verdict.inputs.max() <= 1
    assert (verdict.target != HELD_OUT.protected[0].codes[verdict.source]).all()
    weight = np.bincount(verdict.source, weights=verdict.weight, minlength=HELD_OUT.n)
    assert np.allclose(weight, 1.0), "every record counts once"


def test_transport_gives_each_group_the_other_groups_mediators():
    verdict = judge("ot", HELD_OUT, USED, EDITED, 0)
    inputs = np.hstack([p.inputs for p in make_parties(HELD_OUT)])
    columns = Layout.of(GERMAN.features).columns(EDITED)
    codes = HELD_OUT.protected[0].codes
    for group in (0, 1):
        rows = codes[verdict.source] == group
        moved = np.average(verdict.inputs[rows][:, columns], axis=0, weights=verdict.weight[rows])
        assert np.allclose(moved, inputs[codes == 1 - group][:, columns].mean(axis=0))
    quality = edit_quality(inputs, codes, inputs, codes, verdict, columns)
    assert quality["edit_auc"] > 0.65 > 0.35 > quality["edit_auc_unedited"]
    assert quality["edit_mmd_ratio"] < 0.05 < quality["edit_size"]


def test_several_groups_and_a_group_too_small_to_transport_to():
    data = load("acs12")
    split = make_split(data, "iid", 0)
    used = data.ids[np.concatenate([split.train, split.validation])]
    held_out = data.take(split.test)
    verdict = judge("ot", held_out, used, ("age", "edu"), 0)
    assert len(np.unique(verdict.target)) == 4
    few = np.flatnonzero(held_out.protected[0].codes == 2)[4:]
    small = held_out.take(np.setdiff1d(np.arange(held_out.n), few))
    assert 2 not in judge("ot", small, used, ("age", "edu"), 0).target


def test_the_judge_does_not_depend_on_the_order_of_the_parties():
    from dataclasses import replace

    turned = replace(HELD_OUT, parties=tuple(reversed(HELD_OUT.parties)))
    a, b = judge("ot", HELD_OUT, USED, EDITED, 0), judge("ot", turned, USED, EDITED, 0)
    assert (a.source == b.source).all()
    names = [f.name for f in GERMAN.features]
    layout, other = Layout.of(GERMAN.features), Layout.of(turned.features)
    for name in names:
        assert (a.inputs[:, layout.columns([name])] == b.inputs[:, other.columns([name])]).all()


def test_stability_counts_flips_by_weight():
    inputs = np.array([[0.0], [1.0], [2.0]])
    verdict = EditedRecords(
        "x", np.array([0, 1, 2]), np.array([[1.5], [1.0], [-1.0]]), np.array([2.0, 1.0, 1.0]), np.zeros(3)
    )
    scored = {s.metric: s.value for s in stability(lambda u: u - 0.5, inputs, verdict, "binary", "x")}
    assert scored["fr"] == pytest.approx(0.75)
    assert scored["scg"] == pytest.approx((2 * 1.5 + 0 + 3) / 4)
    assert scored["scg_norm"] == pytest.approx(1.5 / np.std([0, 1, 2]))


def test_group_gaps_are_the_largest_pairwise_ones():
    logits = np.array([1, 1, -1, -1, 1, -1.0])[:, None]
    label, codes = np.array([1, 0, 1, 0, 1, 0]), np.array([0, 0, 1, 1, 2, 2])
    gaps = {s.metric: s.value for s in group_gaps(logits, label, codes, "binary", 1)}
    assert [s.metric for s in group_gaps(logits, label, codes, "binary")] == ["positive_rate"], "two records a group"
    assert gaps == {"positive_rate": 0.5, "dp_gap": 1.0, "eo_gap": 1.0}
    assert [row["acc"] for row in group_table(logits, label, codes, "binary")] == [0.5, 0.5, 1.0]


def test_a_predictor_that_ignores_the_mediators_never_flips():
    verdicts = {k: judge(k, HELD_OUT, USED, EDITED, 0) for k in ("ot", "cvae")}
    inputs = np.hstack([p.inputs for p in make_parties(HELD_OUT)])
    column = Layout.of(GERMAN.features).columns(["checking_status"])[:1]
    scored = evaluate(
        lambda u: u[:, column] - 0.5,
        inputs,
        HELD_OUT.label.values,
        HELD_OUT.protected[0].codes,
        "binary",
        verdicts,
    )
    assert all(s.value == 0.0 for s in scored if s.metric in ("fr", "scg"))
