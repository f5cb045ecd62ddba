"""Events, prices compared with the analytic value and the paper's, calibration, and replay by dp_accounting alone."""

import json
import math
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from secure_sccvfl import accounting
from secure_sccvfl.accounting.accountant import epsilon_added, epsilon_of, epsilons
from secure_sccvfl.accounting.budget import Budget, BudgetError, Terms
from secure_sccvfl.accounting.calibration import check_target, noise_multiplier, releases_left
from secure_sccvfl.accounting.events import Event, Sensitivity
from secure_sccvfl.accounting.paper import claim, paper_event, proposition_1, scaled_sensitivity
from secure_sccvfl.accounting.records import RecordSet
from secure_sccvfl.protocols.steps.clipping import scaled
from secure_sccvfl.releases import noise
from secure_sccvfl.releases.mechanisms import NoiseLevel, noised_event
from tests.contract.test_accountants import analytic_epsilon, replayed

DELTA = 1e-5
ONE = Event("x", 1.0, 1.0, "records")
RECORDS = RecordSet(np.arange(10, dtype=np.uint64))
COUNTED = Sensitivity.of_counts


@pytest.mark.parametrize(
    ("sigma", "stated", "too_small"), [(0.2, 24.2, 1), (0.5, 9.69, 1), (1, 4.84, 0), (2, 2.42, 0)]
)
def test_the_papers_formula_is_marked_where_it_is_too_small(sigma, stated, too_small):
    figures = claim(sigma, DELTA, tables=1, releases=1)
    assert figures.stated == pytest.approx(stated, rel=0.01)
    assert figures.too_small == bool(too_small) == (stated < analytic_epsilon(sigma, DELTA))


def test_nineteen_features_and_five_refreshes_cost_88_not_5():
    """For an added record; for a replaced one, 151."""
    events = [paper_event("sketch", 19, 1.0, "records", refresh=i) for i in range(5)]
    assert claim(1.0, DELTA, tables=19, releases=5).everything == pytest.approx(88, rel=0.02)
    assert epsilon_added(events, DELTA) == pytest.approx(92, rel=0.02)
    spent = epsilons(events, DELTA)
    assert spent.opacus == pytest.approx(spent.renyi, rel=1e-6)
    assert spent.pld == pytest.approx(analytic_epsilon(1 / math.sqrt(2 * 19 * 5), DELTA), rel=1e-3)
    assert proposition_1(1.0, DELTA) < 5


BAD_EVENTS = (
    *({"sensitivity": 0.0}, {"sensitivity": math.inf}, {"sensitivity": 2.1, "added": 1.0}, {"added": -1.0}),
    *({"copies": 0}, {"dealer_copies": -1}, {"sigma": 0.0}, {"sigma": -1.0}, {"sigma": math.nan}, {"sampling": 0.0}),
    *({"sampling": 1.5}, {"count": 0}, {"refresh": -1}, {"name": ""}, {"records": ""}, {"mechanism": "laplace"}),
)


@pytest.mark.parametrize("bad", BAD_EVENTS)
def test_an_event_that_means_nothing_cannot_be_built(bad):
    with pytest.raises(ValueError, match=r"must|need|unknown|at most twice"):
        replace(ONE, **bad)


def test_an_event_is_the_same_after_a_journey_as_json():
    event = Event("x", np.float64(2), 3, "r", refresh=1, count=np.int64(4), sampling=0.5, mechanism="paper")
    assert Event.from_dict(json.loads(json.dumps(event.to_dict()))) == event
    with pytest.raises(ValueError, match="not an event"):
        Event.from_dict({**event.to_dict(), "discount": 1})
    for name in ("sigma", "sampling", "added", "copies", "dealer_copies"):
        with pytest.raises(ValueError, match="not an event"):
            Event.from_dict({k: v for k, v in event.to_dict().items() if k != name})


@pytest.mark.parametrize("bad", [(0, 1e-5), (-1, 1e-5), (math.nan, 1e-5), (math.inf, 1e-5), (1, 0), (1, 1), (1, 1.5)])
def test_a_cap_that_promises_nothing_is_refused(bad):
    with pytest.raises(ValueError, match="must"):
        Terms(*bad)
    with pytest.raises(ValueError, match="must"):
        noise_multiplier(*bad, 1)


def test_a_delta_above_one_in_n_is_refused(tmp_path):
    check_target(8, 1e-3, 1000)
    with pytest.raises(ValueError, match=r"at most 1/n = 0\.001"):
        Budget.open(tmp_path / "ledger.jsonl", 8, 1.1e-3, n=1000)
    assert not list(tmp_path.iterdir()), "nothing is written"


@settings(max_examples=30, deadline=None)
@given(
    epsilon=st.floats(0.05, 50),
    delta=st.floats(1e-9, 1e-3),
    releases=st.integers(1, 40),
    sensitivity=st.floats(1e-3, 1e3),
)
def test_planned_releases_fit_exactly_and_no_other(epsilon, delta, releases, sensitivity):
    multiplier = noise_multiplier(epsilon, delta, releases)
    event = Event("x", sensitivity, multiplier * sensitivity, "records")
    assert releases_left([], event, epsilon, delta) == releases
    assert releases_left([event] * (releases - 1), event, epsilon, delta) == 1
    cheaper = replace(event, sigma=event.sigma * (1 - 1e-3))
    assert releases_left([], cheaper, epsilon, delta) < releases, "a thousandth less noise does not fit"


@settings(max_examples=4, deadline=None)
@given(
    epsilon=st.floats(0.5, 20),
    releases=st.integers(0, 6),
    steps=st.integers(1, 60),
    chance=st.integers(1, 2**15),
)
def test_tables_and_sampled_steps_share_one_budget(epsilon, releases, steps, chance):
    sampling = chance / 2**16
    multiplier = noise_multiplier(epsilon, DELTA, releases, ((sampling, steps),))
    planned = [Event(f"sketch-{i}", 4.0, multiplier * 4.0, "records") for i in range(releases)]
    planned += [
        Event(f"step-{i}", 1.5, multiplier * 1.5, "records", sampling=sampling, added=0.75) for i in range(steps)
    ]
    assert epsilon_of(planned, DELTA) <= epsilon
    less = [replace(event, sigma=event.sigma * (1 - 1e-2)) for event in planned]
    assert epsilon_of(less, DELTA) > epsilon, "a hundredth less noise does not fit"
    assert multiplier < noise_multiplier(epsilon, DELTA, releases + steps), "sampling is worth something"


def test_a_full_batch_is_planned_as_ever():
    assert noise_multiplier(8, DELTA, 5, ((1.0, 10),)) == noise_multiplier(8, DELTA, 15) == 2.469687
    assert noise_multiplier(8, DELTA, 0, ((1.0, 5),)) == noise_multiplier(8, DELTA, 5) == 1.425874


def test_a_coarse_release_costs_the_square_of_its_noise_less():
    """One release with five times the noise is a twenty-fifth of one: the others have hardly more noise for it."""
    plain, few = noise_multiplier(8, DELTA, 5), noise_multiplier(8, DELTA, 5, coarse=(5.0,))
    assert few / plain == pytest.approx((5.04 / 5) ** 0.5, rel=1e-3)
    assert noise_multiplier(8, DELTA, 5, coarse=(1.0,)) == noise_multiplier(8, DELTA, 6)
    for bad in (0.5, 0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="coarse"):
            noise_multiplier(8, DELTA, 5, coarse=(bad,))


@pytest.mark.parametrize("bad", [(0, ()), (0, ((0.5, 0),)), (1, ((0.0, 1),)), (1, ((1.5, 1),)), (5, ((0.5, -1),))])
def test_a_plan_that_means_nothing_is_refused(bad):
    with pytest.raises(ValueError, match="must"):
        noise_multiplier(8, DELTA, *bad)


COUNTS = st.lists(st.integers(0, 40), min_size=2, max_size=12)


@settings(max_examples=150, deadline=None)
@given(counts=COUNTS, scale=st.floats(0.01, 60), data=st.data())
@example(counts=[0, 0], scale=0.5, data=None)
@example(counts=[0, 0], scale=3.0, data=None)
def test_no_record_moves_a_scaled_table_further_than_the_bound(counts, scale, data):
    table = np.array(counts, float)
    cell = 0 if data is None else data.draw(st.integers(0, len(counts) - 1))
    more = table.copy()
    more[cell] += 1
    moved = np.linalg.norm(scaled(more, scale) - scaled(table, scale))
    bound = scaled_sensitivity(1.0, scale)
    assert moved <= bound * (1 + 1e-9)
    if not any(counts):
        assert moved == pytest.approx(bound), "and from an empty table it is reached"


@settings(max_examples=100, deadline=None)
@given(records=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=12), scale=st.floats(0.05, 20))
def test_the_bound_holds_for_tables_with_two_protected_attributes(records, scale):
    def table(rows):
        return np.concatenate([np.bincount([r[k] for r in rows], minlength=n) for k, n in ((0, 3), (1, 4))]).astype(
            float
        )

    rows = [*records, (0, 0)]
    moved = np.linalg.norm(scaled(table(rows), scale) - scaled(table(records), scale))
    assert moved <= scaled_sensitivity(math.sqrt(2), scale) * (1 + 1e-9)
    assert moved <= min(math.sqrt(2), scale) * (1 + 1e-9)


def test_the_plaintext_engine_pays_for_a_name_that_comes_twice():
    gaussian = noise.GaussianNoise(noise.SpendingPlan(releases=2), 0)
    for _ in range(2):
        gaussian.release({"a": np.zeros(2)}, "same", COUNTED(1.0))
    assert len(gaussian.account.events) == 2
    with pytest.raises(BudgetError, match="the cap is 8"):
        gaussian.release({"a": np.zeros(2)}, "same", COUNTED(1.0))
    assert [asdict(c)["name"] for c in gaussian.charges] == ["same", "same"]


def test_the_package_needs_no_torch():
    modules = sorted(path.stem for path in Path(accounting.__file__).parent.glob("[a-z]*.py"))
    loaded = "; ".join(f"import secure_sccvfl.accounting.{name}" for name in modules)
    check = f"import sys; {loaded}; sys.exit(bool({{'torch', 'crypten', 'opacus'}} & set(sys.modules)))"
    assert len(modules) >= 8
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def replay(text):
    """A ledger whose lines are about the same records, priced by dp_accounting alone; to three digits with heads.

    The curve of a private head is another implementation of the bound, by integration.
    """
    first, *rest = [json.loads(line) for line in text.splitlines()]
    assert first["delta"] == DELTA and len({line["event"]["records"] for line in rest}) == 1
    events = [SimpleNamespace(**line["event"]) for line in rest]
    heads = [event for event in events if event.mechanism.startswith("objective")]
    return replayed(events) if not heads else replayed_with_heads(heads, [e for e in events if e not in heads])


def replayed_with_heads(heads, others):
    from tests.unit.accounting.test_objective import ORDERS, curve_of_head, listed_delta, to_epsilon

    assert all(event.sampling == 1 for event in others)
    other = math.fsum(e.count * (e.sensitivity / e.sigma) ** 2 / e.copies for e in others)
    parameters = [(h.mechanism, h.sensitivity / h.sigma / math.sqrt(h.copies), h.curvature) for h in heads]
    curve = ORDERS * other / 2
    for (kind, mu, kappa), head in zip(parameters, heads, strict=True):
        curve = curve + head.count * curve_of_head(mu, kappa, kind)
    listed = [one for one, head in zip(parameters, heads, strict=True) for _ in range(head.count)]
    closed = brentq(lambda epsilon: listed_delta(epsilon, listed, math.sqrt(other)) - DELTA, 0.05, 60, xtol=1e-5)
    return to_epsilon(ORDERS, curve, DELTA), closed


def test_a_ledger_replayed_by_dp_accounting_alone_costs_the_same(tmp_path):
    path = tmp_path / "ledger.jsonl"
    budget = Budget.open(path, 8, DELTA)
    multiplier = noise_multiplier(6, DELTA, 5)
    level = NoiseLevel(multiplier, "dealer+holder", 3)
    for i in range(5):
        event = noised_event(f"sketch-{i}", COUNTED(19**0.5), level, RECORDS.digest, i)
        assert event.copies == 2 and event.sigma == pytest.approx(multiplier * 19**0.5), "as one copy was before"
        budget.charge(event, f"run/{i}", RECORDS)
    steps = Event("training", 1.0, 4.0, RECORDS.digest, count=30, sampling=0.05, added=0.5)
    budget.charge(steps, "run/training", RECORDS)
    renyi, pld = replay(path.read_text())
    assert budget.spent.renyi == pytest.approx(renyi, rel=1e-9)
    assert budget.spent.pld == pytest.approx(pld, rel=1e-3)
    assert epsilon_of(budget.events, DELTA) == budget.spent.renyi <= 8


def test_planned_noise_counts_what_was_spent_before():
    """Earlier and planned releases together just fit the cap."""
    before = Event("earlier", 1.0, 3.0, "records", count=2)
    multiplier = noise_multiplier(8, DELTA, 3, spent=(before,))
    planned = Event("planned", 1.0, multiplier, "records", count=3)
    assert 7.999 < epsilon_of([before, planned], DELTA) <= 8
    assert multiplier > 1.01 * noise_multiplier(8, DELTA, 3)
