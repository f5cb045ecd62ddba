"""A head and a temperature chosen under MPC are those that the rule picks in the clear, and nothing is opened."""

import shutil
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from protocols import ring
from protocols.config import ConfigError
from protocols.errors import ProtocolError
from protocols.records.chain import read_chain
from protocols.records.releases import ReleasePlan
from protocols.session.runtime import crypten, share_of
from protocols.steps import choice
from protocols.steps.head import HEAD_BITS
from secure_sccvfl.data.party import make_parties
from secure_sccvfl.data.party_data import pooled
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.discovery.statistics import PlainStatistics
from secure_sccvfl.runs import checkpoints
from secure_sccvfl.runs.train import TrainJob
from secure_sccvfl.training.engine import Target
from secure_sccvfl.training.modes.base import mode_plan
from secure_sccvfl.training.modes.options import RunOptions
from secure_sccvfl.training.plain import Head, PlainEngine
from secure_sccvfl.training.secure import SecureEngine
from secure_sccvfl.training.trainer import train
from tests.contract.engines import Problem, releases
from tests.contract.test_secure_run import PARTIES, head_of, run_jobs
from tests.support.harness import Recorded, results, run_session

UNIT = 2.0**-32
OF_VALIDATION = {"validation check", "validation summary", "temperature choice"}


def shared(session, values, bits=0):
    """A tensor of public ring elements."""
    words = np.asarray(values, np.int64)
    return session.wrap(session.party.zero_share(words.shape) + words * (session.rank == 0), bits)


def opened(session, tensor):
    return session.open(tensor, results(session.parties)[tensor.dim()]).numpy()


# the steps


@pytest.mark.parametrize("target", [0.003, 0.02, 0.3, 1.0])
def test_the_rule_is_decided_right_up_to_its_stated_tolerance(target):
    rng = np.random.default_rng(0)
    variance = 10.0 ** rng.uniform(-3, 4, 300)
    bound = target**2 * variance
    slack = 2.0**-15 * bound + 2 * UNIT
    square = np.where(rng.random(300) < 0.5, np.maximum(bound - slack, 0), bound + slack + UNIT)
    square[:100] = bound[:100] * rng.uniform(0, 3, 100)
    words = [ring.encode(v, 32) for v in (square, variance)]
    exact = words[0] * UNIT - target**2 * words[1] * UNIT
    clear = np.abs(exact) > slack

    def job(session):
        return opened(session, choice.meets(*(shared(session, w, 32) for w in words), target))

    for found in run_session(job, 2):
        assert clear.sum() > 150
        assert np.array_equal(found[clear], exact[clear] <= 0)


def test_without_a_spread_no_gap_meets_and_no_gap_does():
    def job(session):
        return opened(session, choice.meets(shared(session, [0, 5], 32), shared(session, [0, 0], 32), 0.02))

    assert run_session(job, 2)[0].tolist() == [1, 0]


@pytest.mark.parametrize("target", [0.0, -1.0, 1.5, float("nan")])
def test_a_target_that_is_none_is_refused(target):
    with pytest.raises(ProtocolError, match="target"):
        choice.meets(None, None, target)


CASES = {"none": [0, 0, 0], "first": [1, 0, 1], "middle": [0, 1, 0], "last": [0, 0, 1], "all": [1, 1, 1]}


@pytest.mark.parametrize("met", CASES.values(), ids=CASES.keys())
def test_the_first_that_meets_is_kept_or_the_last(met):
    values = np.array([[10, -11], [20, -21], [30, -31]])
    expected = values[met.index(1)] if 1 in met else values[-1]

    def job(session):
        found, kept = shared(session, [met[0]]), shared(session, values[0])
        for value, bit in zip(values[1:], met[1:], strict=True):
            found, kept = choice.first_kept(found, kept, shared(session, value), shared(session, [bit]))
        return opened(session, crypten.cat([found, kept])).tolist()

    for seen in run_session(job, 3):
        assert seen == [int(any(met)), *expected]


def test_some_is_one_bit_however_many_there_are():
    cases = [[0, 0, 0], [0, 1, 0], [1] * 50]

    def job(session):
        return [int(opened(session, choice.some(shared(session, bits)))[0]) for bits in cases]

    assert run_session(job, 2) == [[0, 1, 1]] * 2


@pytest.mark.parametrize("rises", range(5))
def test_the_temperature_is_that_from_which_the_loss_rises(rises):
    grid = (0.5, 0.8, 1.0, 1.7, 3.0)
    bits = [int(i >= rises) for i in range(4)]

    def job(session):
        return opened(session, choice.inverse_temperature(shared(session, bits), grid, 20)) * 2**20

    assert run_session(job, 2)[0][0] == round(2**20 / grid[rises])


# the engines


def heads_of(problem):
    """Three, each leaning less on the columns that edits move."""
    rng = np.random.default_rng(3)
    weights = [rng.normal(size=(width, 1)) for width in problem.widths]
    return [(np.vstack([*weights[:-1], size * weights[-1]]), rng.normal(size=1)) for size in (1.0, 0.5, 0.2)]


def small_edits():
    """A problem whose edits move the columns of the last party alone, by a tenth of what records differ by."""
    problem = Problem((3, 2, 4))
    problem.deltas = [
        [{k: 0.1 * v * (k == 2) for k, v in blocks.items()} for blocks in draw] for draw in problem.deltas
    ]
    return problem


def of_engine(engine, problem):
    batch = engine.bind(problem.x, problem.y, problem.ridge)
    return batch, engine.join([engine.counterfactuals(problem.deltas, problem.s)], [problem.guard])


def chosen_by(engine, problem, make, target):
    """Logits of the head chosen among three, and of the same over its temperature."""
    batch, penalty = of_engine(engine, problem)
    kept = engine.choose([make(*made) for made in heads_of(problem)], batch, penalty, Target("gap", target))
    tempered = engine.with_best_temperature(kept, batch, (0.5, 1.0, 2.0, 4.0))
    return engine.logits(kept, problem.x), engine.logits(tempered, problem.x)


@pytest.mark.parametrize("place", ["none", "first", "middle"])
def test_both_engines_choose_the_head_that_the_rule_picks(place):
    """Targets lie between the gaps of the heads, far from each; logits agree within the rounding of the head."""
    problem, engine = small_edits(), PlainEngine()

    def plain_head(weight, bias):
        return Head(weight, bias, 0 * weight, 0 * bias, "binary")

    seen = of_engine(engine, problem)
    gaps = [one.relative_gap for one in engine.measure([plain_head(*made) for made in heads_of(problem)], *seen)]
    assert gaps[2] < 0.9 * gaps[1] < 0.8 * gaps[0], "the handmade heads must differ"
    target, expected = {
        "none": (min(gaps) / 2, 2),
        "first": (max(gaps) * 1.5, 0),
        "middle": ((gaps[0] + gaps[1]) / 2, 1),
    }[place]
    plain = chosen_by(engine, problem, plain_head, target)
    weight, bias = heads_of(problem)[expected]
    rows = np.hstack([problem.x[rank] for rank in sorted(problem.x)])
    assert np.allclose(plain[0], rows @ weight + bias)

    def job(session):
        secret = SecureEngine(session, 0, [PARTIES - 1])

        def secret_head(weight, bias):
            words = [session.public(v, HEAD_BITS) for v in (weight, bias)]
            return secret.restored(*words, "binary", problem.widths)

        return chosen_by(secret, problem.of(session.rank, PARTIES), secret_head, target)

    declared = [release for name, release in releases(PARTIES).items() if name in ("columns", "predictions")]
    # Encodings of magnitude 1 are rounded to 2^-17, a logit is cut to 2^-16; over a temperature of at least .5.
    bound = (np.abs(weight).sum() + 4) * 2.0**-16
    for kept, tempered in run_session(job, PARTIES, ReleasePlan(declared)):
        assert np.abs(kept - plain[0]).max() < bound
        assert np.abs(tempered - plain[1]).max() < 2 * bound


# whole runs: with this epsilon the noise is so small that gaps repeat to 1e-5, and .02 is far from all of them

OPTIONS = {
    **{"private_model": False, "gap_target": 0.02, "rule": "fractions", "score": "paper", "rho_p": 0.5},
    "evaluation": "noisy",
    "epsilon": 2000.0,
    "refreshes": 0,
    "lambdas": [0.25, 1.0, 64.0, 128.0],
}


class Following(PlainEngine):
    """Sees that the secure run judged each head as this does."""

    def __init__(self, found):
        super().__init__()
        self.found = found

    def choose(self, heads, batch, penalty, target):
        assert [one.meets(target) for one in self.measure(heads, batch, penalty)] == self.found
        return super().choose(heads, batch, penalty, target)


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    """A run in which the third of four lambdas meets the rule, with all its checkpoints, tables and secret bits."""
    folder, bits, meets = tmp_path_factory.mktemp("noisy"), {}, SecureEngine._meets

    def judges(self, *arguments):
        found = meets(self, *arguments)
        bits[self.session.rank] = share_of(found)
        return found

    with pytest.MonkeyPatch.context() as patch:
        released = Recorded.watch(patch)
        patch.setattr(SecureEngine, "_meets", judges)
        patch.setattr(checkpoints, "KEPT", 10**6)
        told = run_jobs(TrainJob, folder, OPTIONS)
    return folder, told, released, sum(bits.values()).tolist()


def logits_in(folder):
    data = pooled("german", PARTIES)
    return head_of(folder, data)(np.hstack([p.inputs for p in make_parties(data)]))


def test_a_noisy_run_opens_nothing_about_validation_records(noisy):
    folder, told, *_ = noisy
    plan = mode_plan(RunOptions().schema(PARTIES), RunOptions.of(OPTIONS))
    made = [entry["release"] for entry in read_chain(folder / "party-0" / "releases.jsonl")]
    assert made.count("range check") == 1 and not OF_VALIDATION & {*made, *plan.releases}
    for result in told:
        assert result["lambda"] is None and result["temperature"] == 1.0
        assert [t["validation"] for t in result["trials"]] == [None] * 4
        assert [t["steps"] for t in result["trials"]] == [9] * 4
    exact = RunOptions.of({**OPTIONS, "evaluation": "exact"})
    assert {"validation summary", "temperature choice"} <= set(
        mode_plan(RunOptions().schema(PARTIES), exact).releases
    )


def test_the_head_chosen_in_secret_is_that_of_the_plaintext_engine(noisy):
    folder, _, released, found = noisy
    assert found == [0, 0, 1, 1], "the third of the grid is the first to meet the rule"
    data, config = pooled("german", PARTIES), RunOptions.of(OPTIONS).train_config()
    split = make_split(data, "iid", 0)
    statistics = PlainStatistics(released)
    model = train(Following(found), statistics, data, split, config, 0)
    assert model.lam is None and model.temperature == 1.0
    expected = model.logits(make_parties(data))
    assert np.abs(logits_in(folder) - expected).max() <= 0.02
    exact = train(PlainEngine(), statistics, data, split, replace(config, evaluation="exact"), 0)
    assert exact.lam == 64.0
    assert np.allclose(exact.logits(make_parties(data)), expected, atol=1e-9), "the same rule in the clear"


@pytest.mark.parametrize("taken", [4, 9, 0], ids=["within training", "before the choice", "after it"])
def test_a_run_that_is_resumed_makes_the_same_choice(noisy, tmp_path, taken):
    folder = tmp_path / "run"
    shutil.copytree(noisy[0], folder, ignore=shutil.ignore_patterns("releases*"))
    for place in folder.glob("party-*/checkpoints"):
        facts = {path: checkpoints.Checkpoints(place, "00" * 32)._facts(int(path.stem)) for path in place.glob("*")}
        for path, fact in facts.items():
            if taken and (fact["trials"] or fact["taken"] > taken):
                path.unlink()
    (told, *_) = run_jobs(TrainJob, folder, {**OPTIONS, "resume": True})
    assert told["lambda"] is None and len(told["trials"]) == 4
    apart = np.abs(logits_in(folder) - logits_in(noisy[0])).max()
    assert apart < 1e-3 if taken else apart < 1e-4, "the chosen head itself was kept"


def test_a_run_is_not_resumed_with_another_kind_of_evaluation(noisy, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(noisy[0], folder, ignore=shutil.ignore_patterns("releases*"))
    with pytest.raises(ExceptionGroup) as stopped:
        run_jobs(TrainJob, folder, {**OPTIONS, "evaluation": "exact", "resume": True})
    assert "the run began with evaluation noisy, not exact" in str(stopped.value.exceptions)


# settings


@pytest.mark.parametrize("mode", ["sealed", "dp", "split"])
def test_no_mode_declares_a_release_about_validation_records_unless_exact_and_not_private(mode):
    for evaluation, private in product(("noisy", "exact"), {False, mode != "split"}):
        options = RunOptions.of({"mode": mode, "evaluation": evaluation, "private_model": private})
        declared = set(mode_plan(options.schema(PARTIES), options).releases)
        assert "range check" in declared
        assert bool(OF_VALIDATION & declared) == (evaluation == "exact" and not private)


def test_exact_is_the_default_for_public_data_alone():
    assert {RunOptions.of(given).evaluation.kind for given in ({}, {"dataset": "heart"})} == {"exact"}
    assert RunOptions.of({"dataset": "loans.toml"}).evaluation.kind == "noisy"
    assert RunOptions.of({"dataset": "loans.toml", "evaluation": "exact"}).train_config().evaluation == "exact"


@pytest.mark.parametrize(
    "bad",
    [{"evaluation": "loud"}, {"evaluation_epsilon": 0.0}, {"evaluation_delta": 0.0}, {"min_group": 0}],
    ids=lambda bad: next(iter(bad)),
)
def test_impossible_settings_of_an_evaluation_are_refused(bad):
    with pytest.raises(ConfigError):
        RunOptions.of(bad)
