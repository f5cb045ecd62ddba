"""Figures of a test part in secret against the plaintext evaluation: floors, and the noise that was paid for."""

import numpy as np
import pytest

from accounting.budget import Budget
from accounting.calibration import noise_multiplier
from accounting.records import RecordSet
from protocols import ring
from protocols.releases import ReleasePlan
from secure_sccvfl.charging import Charger
from secure_sccvfl.evaluation import group_gaps, utility
from secure_sccvfl.noisy_evaluation import NoisyEvaluation, Sums
from secure_sccvfl.secure_evaluation import Copies, SecureEvaluation, exact_figures, exact_release
from tests.harness import run_session

LABEL, GROUPS = 0, 1
"""Who holds what."""


def shares(session, values, owner=0):
    """Shares of plain logits: the owner's words and zero shares."""
    words = session.party.zero_share(values.shape)
    return words + ring.encode(values) if session.rank == owner else words


def people(sizes, seed=4):
    """Logits, labels, groups of these sizes, and logits of one edited copy of each."""
    rng = np.random.default_rng(seed)
    codes = np.repeat(np.arange(len(sizes)), sizes)
    label = rng.integers(0, 2, len(codes))
    logits = (label - 0.5 + 0.5 * codes + rng.normal(0, 0.7, len(codes)))[:, None]
    return logits, label, codes, logits + rng.normal(0, 0.4, logits.shape)


def exact(sizes, min_group, parties=2):
    logits, label, codes, edited = people(sizes)
    of = Copies(np.arange(len(codes)), np.ones(len(codes)))

    def job(session):
        judge = SecureEvaluation(session, "binary", LABEL, GROUPS, min_group)
        own = (label if session.rank == LABEL else None, codes if session.rank == GROUPS else None)
        copies = {"own": (shares(session, edited), of)}
        return judge.metrics(shares(session, logits), *own, len(sizes), copies)

    plan = ReleasePlan([exact_release(parties, "binary", ["own"], len(sizes))])
    found = run_session(job, parties, plan)[0]
    return exact_figures(found, ["own"], len(sizes)), (logits, label, codes)


@pytest.mark.parametrize(
    ("sizes", "too_few"),
    [
        ((120, 90, 60), [[], [], []]),
        ((120, 90, 5), [[], [], ["positive_rate", "tpr", "fpr"]]),
        ((120, 90, 1), [[], [], ["positive_rate", "tpr", "fpr"]]),
        ((120, 90, 0), [[], [], ["positive_rate", "tpr", "fpr"]]),
    ],
)
def test_small_groups_are_left_out_in_secret_as_in_plaintext(sizes, too_few):
    found, (logits, label, codes) = exact(sizes, 20)
    scored = utility(logits, label, "binary") + group_gaps(logits, label, codes, "binary", 20)
    for entry in scored:
        assert found["metrics"][entry.metric] == pytest.approx(entry.value, abs=0.01), entry.metric
    assert [g["too_few"] for g in found["groups"]] == too_few


def test_one_person_of_a_group_has_no_gap_that_tells_its_decision():
    """Two groups, one of them a single record: before, the gap was that record's decision and label."""
    found, _ = exact((150, 1), 20)
    assert "dp_gap" not in found["metrics"] and "eo_gap" not in found["metrics"]
    assert found["groups"][1]["too_few"] == ["positive_rate", "tpr", "fpr"]


def test_without_a_floor_the_gap_would_tell_it():
    """The test above can fail: with a floor of one record the decision of that person is there to read."""
    found, (logits, _, codes) = exact((150, 1), 1)
    alone, others = (logits[codes == 1] > 0).mean(), (logits[codes == 0] > 0).mean()
    assert found["metrics"]["dp_gap"] == pytest.approx(abs(alone - others), abs=0.01)
