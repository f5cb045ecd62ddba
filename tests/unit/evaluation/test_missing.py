"""s acts only through the missingness of a mediator: training reacts to it and counterfactual models detect it."""

from __future__ import annotations

import numpy as np
import pytest

from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.evaluation.counterfactual_models import make_counterfactuals, shuffled
from secure_sccvfl.evaluation.methods import erm, prepare, scc
from secure_sccvfl.evaluation.scoring import fit_counterfactuals, flat
from secure_sccvfl.training.config import TrainConfig
from tests.support.missing import GRADE, SCORE, SHARES, missing_card, missing_world

ROWS, SEED = 3000, 0
KINDS = ("all", "kr_all", "marg")
STRONG = TrainConfig(lambdas=(16.0,), private=False)


@pytest.fixture(scope="module", params=[SCORE, GRADE], ids=["number", "category"])
def figures(request):
    """The world, its split, and the figures of plain training and of lambda 16, with true and estimated flips."""
    world = missing_world(ROWS, SEED, request.param)
    data, split = world.data, make_split(world.data, "iid", SEED)
    ready = prepare(data, split, SEED, STRONG, card=missing_card(data, request.param))
    scoring = fit_counterfactuals(data, split, ready.roles, SEED, KINDS)
    layouts, columns = [Layout.of(p.features) for p in data.parties], np.split(world.other, [2], axis=1)
    other = np.hstack([layout.encode(values) for layout, values in zip(layouts, columns, strict=True)])
    scores = {}
    for name, method in (("erm", erm), ("scc", scc)):
        predict = method(ready).predict
        flips = ((predict(ready.inputs[split.test]) > 0) != (predict(other[split.test]) > 0)).mean()
        scores[name] = {**flat(scoring.score(predict)), "true": float(flips)}
    return scores


def test_a_strong_penalty_closes_the_gap_that_missing_values_open(figures):
    assert figures["erm"]["dp_gap"] > 0.2, "plain training uses the missing flag"
    assert figures["scc"]["dp_gap"] <= figures["erm"]["dp_gap"] / 3
    assert figures["scc"]["true"] < figures["erm"]["true"] / 10


@pytest.mark.parametrize("kind", KINDS)
def test_counterfactual_models_detect_flips_through_missing_values(figures, kind):
    plain = figures["erm"]
    assert plain["true"] > 0.2
    assert plain[f"fr_{kind}"] == pytest.approx(plain["true"], abs=0.06)
    assert plain[f"fr_null_{kind}"] < 0.25 * plain[f"fr_{kind}"], "permuted s moves next to nobody"
    assert figures["scc"][f"fr_{kind}"] < 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_missing_shares_are_those_of_the_target_group_and_values_stay_possible(kind):
    data = missing_world(ROWS, SEED).data
    split = make_split(data, "iid", SEED)
    used = data.ids[np.concatenate([split.train, split.validation])]

    def moved(everyone):
        test = everyone.take(split.test)
        fixed = ("age", "amount", "own")
        return make_counterfactuals(kind, test, used, ("score",), SEED, everyone=everyone, fixed=fixed)

    changed, at = moved(data), Layout.of(data.features).columns(["score"])
    value, flag = changed.inputs[:, at].T
    assert set(np.unique(flag)) == {0.0, 1.0} and (value[flag == 1] == 0).all()
    for group, share in enumerate(SHARES):
        rows = changed.target == group
        assert flag[rows].mean() == pytest.approx(share, abs=0.06)
        assert value[rows & (flag == 0)].mean() == pytest.approx(0.5, abs=0.05), "values do not depend on s"
    null, inputs = moved(shuffled(data, SEED)), Layout.of(data.features).encode(data.values)[split.test]
    kept = null.inputs[:, at[1]] == inputs[null.source][:, at[1]]
    assert kept.mean() > 0.9, "permuted s moves few between missing and present"
