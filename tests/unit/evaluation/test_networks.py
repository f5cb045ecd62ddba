"""What the paper's method does when it is run to the letter."""

import numpy as np
import pytest

from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.evaluation.judges import EditedRecords, judge
from secure_sccvfl.evaluation.methods import METHODS
from secure_sccvfl.evaluation.metrics import stability
from secure_sccvfl.evaluation.prepared import prepare
from secure_sccvfl.training.paper_settings import settings_of

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
        common = judge("ot", held_out, used, ready.roles.named("M"), seed)
        edited = fitted.own(split.test)
        rows = np.arange(len(edited))
        own = EditedRecords("own", rows, edited, np.ones(len(rows)), 1 - held_out.protected[0].codes)
        inputs = ready.inputs[split.test]
        score = {
            name: {s.metric: s.value for s in stability(fitted.predict, inputs, v, "binary", name)}
            for name, v in (("own", own), ("ot", common))
        }
        out.append((fitted, score))
    return out


def test_the_model_that_is_kept_comes_from_inside_the_warm_up(runs):
    # So no consistency loss ever touched it.
    warmup = settings_of("german").warmup
    assert all(fitted.notes["best_epoch"] < warmup for fitted, _ in runs), "no consistency loss ever touched it"
    assert np.mean([fitted.notes["epochs_run"] for fitted, _ in runs]) < warmup + 10


def test_its_own_generator_flatters_it(runs):
    own = np.mean([score["own"]["fr"] for _, score in runs])
    common = np.mean([score["ot"]["fr"] for _, score in runs])
    assert common > 2.5 * own
    gap_own = np.mean([score["own"]["scg_norm"] for _, score in runs])
    gap_common = np.mean([score["ot"]["scg_norm"] for _, score in runs])
    assert gap_common > 2.5 * gap_own
