"""What the paper's method does when it is run to the letter."""

import numpy as np
import pytest

from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.evaluation.counterfactual_models import Counterfactuals, make_counterfactuals
from secure_sccvfl.evaluation.methods import METHODS
from secure_sccvfl.evaluation.metrics import stability
from secure_sccvfl.evaluation.prepared import prepare
from secure_sccvfl.research.paper.methods import paper_with
from secure_sccvfl.research.paper.settings import settings_of

SEEDS = range(4)


@pytest.fixture(scope="module")
def runs():
    data = load("german")
    out = []
    for seed in SEEDS:
        split = make_split(data, "iid", seed)
        ready = prepare(data, split, seed)
        fitted = METHODS.get("paper")(ready)
        held_out = data.take(split.test)
        used = data.ids[np.concatenate([split.train, split.validation])]
        common = make_counterfactuals("ot", held_out, used, ready.roles.named("M"), seed)
        edited = fitted.own(split.test)
        rows = np.arange(len(edited))
        own = Counterfactuals("own", rows, edited, np.ones(len(rows)), 1 - held_out.protected[0].codes)
        inputs = ready.inputs[split.test]
        score = {
            name: {s.metric: s.value for s in stability(fitted.predict, inputs, v, "binary", name)}
            for name, v in (("own", own), ("ot", common))
        }
        best = [paper_with(kept="best", columns=columns)(ready) for columns in ("codes", "one_hot")]
        out.append((fitted, score, best))
    return out


def test_the_best_epoch_is_inside_the_warm_up_and_training_ends_soon_after_it(runs):
    """So no consistency loss touched the model of the best epoch, and few steps that of the last one.

    With one-hot columns in every run; with one number for each feature in three of four.
    """
    warmup = settings_of("german").warmup
    found = np.array([[best.notes["best_epoch"] for best in both] for *_, both in runs])
    assert (found[:, 1] < warmup).all() and (found[:, 0] < warmup).sum() >= 3
    for last, _, (best, _) in runs:
        assert last.notes["best_epoch"] + 1 == last.notes["epochs_run"] == best.notes["epochs_run"]
    assert np.median([last.notes["epochs_run"] for last, *_ in runs]) < warmup + 10


def test_its_own_generator_flatters_it(runs):
    own = np.mean([score["own"]["fr"] for _, score, _ in runs])
    common = np.mean([score["ot"]["fr"] for _, score, _ in runs])
    assert common > 2.5 * own
    gap_own = np.mean([score["own"]["scg_norm"] for _, score, _ in runs])
    gap_common = np.mean([score["ot"]["scg_norm"] for _, score, _ in runs])
    assert gap_common > 2.5 * gap_own
