"""Row shards: the same heads, tables, releases and charges as in one session, and nothing is opened in a shard."""

import shutil
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from secure_sccvfl.data.table_rows import TableRows
from secure_sccvfl.protocols.config import ConfigError, SessionConfig
from secure_sccvfl.protocols.dealing.randomness import KeyAgreement
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.protocols.operations.banded import BAND_ROWS
from secure_sccvfl.protocols.records.releases import Release, ReleasePlan
from secure_sccvfl.protocols.session import shards
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.protocols.session.saving import combined
from secure_sccvfl.protocols.session.shards import cuts, shard_config
from secure_sccvfl.protocols.steps import second_order
from secure_sccvfl.releases.mechanisms import HeadNoise
from secure_sccvfl.research.benchmarks.shards import ShardsBenchmark
from secure_sccvfl.runs.discover import DiscoveryJob
from secure_sccvfl.runs.evaluate import EvaluateJob
from secure_sccvfl.runs.member.outlook import outlook, plan_lines
from secure_sccvfl.runs.member.plan import make_plan
from secure_sccvfl.runs.model_files import load_model
from secure_sccvfl.runs.predict import PredictJob
from secure_sccvfl.runs.train import TrainJob
from secure_sccvfl.training.secure import SecureEngine
from tests.adversarial.test_equivocation import SAYS_SO, TwoFaced
from tests.contract import test_private_head as heads
from tests.contract.engines import releases
from tests.support import two_parties as two
from tests.support.randomness import drawn_from
from tests.support.sessions import results, run_session
from tests.support.shards import run_sharded

ADDRESSES = [["a:1", "b:1"], ["a:2", "b:2"]]
ROWS = 3 * BAND_ROWS - 500
UNIT = 2.0**-26
"""Of a mean gradient. Each part of a sum over rows, and the penalty, is truncated to it with an error of one unit."""


@pytest.mark.parametrize(("task", "outputs"), heads.TASKS)
def test_heads_are_those_of_one_session_within_the_truncation_bound(task, outputs, monkeypatch):
    """More shards make more parts. An error of the gradient moves the minimum by at most n / ridge times as much."""
    monkeypatch.setattr(heads, "ROWS", ROWS)
    drawn = np.random.default_rng(5).normal(0, 8.0, (heads.COLUMNS, len(heads.LAMBDAS) * outputs))

    def fixed_noise(session, kind, sigma, shape, bits):
        return session.public(drawn / ROWS if bits == second_order.NOISE_BITS else np.zeros(shape), bits)

    monkeypatch.setattr(second_order, "noise_of_heads", fixed_noise)
    problem, noise = heads.problem_of(task, outputs), HeadNoise(8.0, heads.RIDGE, 1e-9, heads.RADIUS)

    def job(session):
        engine = SecureEngine(session, 0, [2])
        head, _ = heads.trained(engine, problem.of(session.rank, 3), task, outputs, noise)
        return heads.weights_of(engine, head), session.released

    plan = ReleasePlan(releases(3).values())
    expected, log = run_session(job, 3, plan)[0]
    for count in (1, 3):
        bound = (count + 3) * UNIT * np.sqrt(heads.COLUMNS) * ROWS / heads.RIDGE
        for weights, released in run_sharded(job, count, 3, plan):
            assert np.abs(weights - expected).max() < bound
            assert released == log


@pytest.fixture
def noiseless(monkeypatch):
    """Noise is 0, so that two runs can be compared. Charges and releases are as they are."""

    def nothing(session, kind, sigma, shape, bits):
        return session.public(np.zeros(shape), bits)

    def zeros(self, kind, sigma, rows, holders, bits):
        return self.zeros((rows, len(holders)), bits)

    monkeypatch.setattr(second_order, "noise_of_heads", nothing)
    monkeypatch.setattr(Session, "noise_table", zeros)
    monkeypatch.setattr(Session, "noise", lambda self, kind, sigma, count, holders, bits: self.zeros((count,), bits))


IN_PARTS = {"count": 2, "addresses": ADDRESSES}
"""With these, jobs leave features in their files; the sessions of these tests have addresses of their own."""


def train(home, rows, run, shards_of=None, **options):
    """A whole training of two parties; `run` gets the job. Its models, logs of releases, and ledgers."""
    settings = {**two.write_two(home, rows), "align": "exact", "ledger": str(home / "ledgers"), **options}
    if settings["align"] != "exact":  # the clinic does not hold all of them
        two.write(home / "clinic.csv", {name: column[500:] for name, column in rows.items()}, two.CLINIC)
    config = SessionConfig(parties=two.ADDRESSES, options=settings, shards=shards_of or {})
    jobs = [TrainJob(config, rank) for rank in range(2)]
    run(lambda session: jobs[session.rank].run(session, lambda *_: None), parties=2, plan=jobs[0].plan(), folder=home)
    folders = [home / f"party-{rank}" for rank in range(2)]
    models = [load_model(f / "model", jobs[0].data.schema.layouts[rank]) for rank, f in enumerate(folders)]
    text = [(f / name).read_bytes() for f in folders for name in ("releases.jsonl", "ledger.jsonl")]
    return models, text, settings


HIDDEN = {"align": "hidden", "consistency_from": "records"}


PUBLIC = {"private_model": False, "pooled": True, "evaluation": "exact", "lambdas": [1.0, 3.0]}


@pytest.fixture
def readers(monkeypatch):
    """Who has held cells of rows of features that were left in their file: for each time, whether it was a worker."""
    who, honest = [], TableRows._cells
    monkeypatch.setattr(TableRows, "_cells", lambda self: (who.append(self.keeps), honest(self))[1])
    return who


def check_readers(readers, options):
    """Workers alone, unless the options ask for what the head process makes of features."""
    in_head = options.get("align") == "hidden" or options.keys() & {
        "consistency_from",
        "private_model",
        "conditional",
    }
    assert set(readers) == (set() if in_head else {True})


@pytest.mark.parametrize("options", [{}, {"consistency_from": "records"}, HIDDEN, PUBLIC, {"align": "revealed"}])
def test_releases_and_charges_of_a_whole_run_are_equal_byte_for_byte(tmp_path, noiseless, readers, options):
    rows, runs = two.people(3 * BAND_ROWS + 500, 1), []
    options = {"pooled": False, "evaluation": "noisy", **options}
    for name, run, of in (("one", run_session, None), ("sharded", partial(run_sharded, count=2), IN_PARTS)):
        with drawn_from("the same"):
            runs.append(train(tmp_path / name, rows, run, of, **options))
    check_readers(readers, options)
    (models, text, _), (of_shards, sharded_text, _) = runs
    assert sharded_text == text and len(text) == 4
    for mine, theirs in zip(models, of_shards, strict=True):
        for one, other in zip(mine.noisy_tables, theirs.noisy_tables, strict=True):
            assert one.tables.keys() == other.tables.keys()
            assert all((other.tables[k] == one.tables[k]).all() for k in one.tables)
    for part in ("weight", "bias"):
        one, other = (combined([getattr(model, part) for model in each]) for each in (models, of_shards))
        assert np.abs(one - other).max() < 1e-4


@pytest.mark.parametrize("options", [{}, PUBLIC])
def test_an_evaluation_opens_the_same_figures(tmp_path, noiseless, readers, options):
    rows, runs = two.people(3 * BAND_ROWS), []
    for name, run, of in (("one", run_session, {}), ("sharded", partial(run_sharded, count=2), IN_PARTS)):
        home = tmp_path / name
        with drawn_from("the same"):
            _, _, settings = train(home, rows, run_session, **{"pooled": False, "evaluation": "noisy", **options})
            given = [{**settings, "model": str(home / f"party-{rank}")} for rank in range(2)]
            configs = [SessionConfig(two.ADDRESSES, options=one, shards=of) for one in given]
            jobs = [EvaluateJob(config, rank) for rank, config in enumerate(configs)]
            work = partial(lambda jobs, session: jobs[session.rank].run(session, lambda *_: None), jobs)
            found = run(work, parties=2, plan=jobs[0].plan(), folder=home / "figures")
        log = (home / "figures" / "party-0" / "releases.jsonl").read_bytes()
        runs.append((log, *(one["metrics"] for one in found)))
    assert readers == ([] if options else [False, False])  # the head processes, test records alone
    (log, *figures), (log_of_shards, *figures_of_shards) = runs
    assert log == log_of_shards and log
    for one, other in zip(figures, figures_of_shards, strict=True):
        assert other == pytest.approx(one, abs=2e-4)  # means of logits that are rounded to 2^-16


@pytest.mark.parametrize("options", [{}, {"conditional": True}, {"align": "hidden"}, {"align": "revealed"}])
def test_a_discovery_opens_the_same_tables(tmp_path, noiseless, readers, options):
    rows, runs = two.people(2 * BAND_ROWS + 500, 1), []
    for name, run, of in (("one", run_session, {}), ("sharded", partial(run_sharded, count=2), IN_PARTS)):
        home = tmp_path / name
        settings = {**two.write_two(home, rows), "pooled": False, "align": "exact", **options}
        if settings["align"] != "exact":
            two.write(home / "clinic.csv", {key: column[500:] for key, column in rows.items()}, two.CLINIC)
        config = SessionConfig(two.ADDRESSES, options={**settings, "ledger": str(home / "ledgers")}, shards=of)
        jobs = [DiscoveryJob(config, rank) for rank in range(2)]
        work = partial(lambda jobs, session: jobs[session.rank].run(session, lambda *_: None), jobs)
        with drawn_from("the same"):
            found = run(work, parties=2, plan=jobs[0].plan(), folder=home / "found")
        text = [(home / "found" / f"party-{rank}" / "releases.jsonl").read_bytes() for rank in range(2)]
        runs.append((text, found))
    check_readers(readers, options)
    (text, found), (of_shards, found_in_shards) = runs
    assert of_shards == text and all(text)
    for one, other in zip(found, found_in_shards, strict=True):
        assert one["own_tables"]["s"] and all(one[k] == other[k] for k in ("own_tables", "roles", "records"))
        assert other["scores"] == pytest.approx(one["scores"], rel=1e-4)  # squares of shares are truncated


@pytest.mark.parametrize("more", [{}, {"scores": True}, {"what_if": True, "certificate": True}, {"align": "hidden"}])
def test_predictions_are_the_same(tmp_path, noiseless, more):
    rows, home = two.people(3 * BAND_ROWS), tmp_path
    with drawn_from("the same"):
        _, _, settings = train(home, rows, run_session, pooled=False, evaluation="noisy", predictions=9000)
    new, answers = two.people(BAND_ROWS + 300, 7, "new"), []
    for columns, name in ((two.BANK, "bank"), (two.CLINIC, "clinic")):
        two.write(home / f"new-{name}.csv", new, columns)
    for name, run in (("one", run_session), ("sharded", partial(run_sharded, count=2))):
        each = [{"model": str(home), "records": str(home / f"new-{party}.csv")} for party in ("bank", "clinic")]
        given = [{**settings, "ledger": str(home / name), **more, **one} for one in each]
        for rank in range(2):
            shutil.copytree(home / "ledgers" / f"party-{rank}", home / name / f"party-{rank}")
        jobs = [PredictJob(SessionConfig(two.ADDRESSES, options=one), rank) for rank, one in enumerate(given)]
        work = partial(lambda jobs, session: jobs[session.rank].run(session, lambda *_: None), jobs)
        with drawn_from("the same"):
            run(work, parties=2, plan=jobs[0].plan(), folder=home / name / "out")
        log = (home / name / "out" / "party-0" / "releases.jsonl").read_bytes()
        answers.append((log, two.table(home / name / "out" / "party-0" / "predictions.csv")))
    (log, one), (sharded_log, sharded) = answers
    assert log == sharded_log and one.keys() == sharded.keys() and len(one) == len(new["id"])
    differ = [key for key in one if one[key]["decision"] != sharded[key]["decision"]]
    assert len(differ) < 3  # a logit within 2^-16 of 0


def test_a_shard_cannot_open_anything(monkeypatch):
    """A worker whose program was changed to open what it holds is refused by its own session."""
    tried, honest = [], shards._obeyed

    def greedy(session, tensors, order):
        if order.name == "used":
            value = session.zeros((2,))
            for attempt in (
                partial(session.open, value, results(3)[1]),
                partial(session.announce, {"0": 1.0}, Release("all", (0, 1, 2), (3,), "a test")),
            ):
                with pytest.raises(ProtocolError) as refused:
                    attempt()
                tried.append(str(refused.value))
        return honest(session, tensors, order)

    monkeypatch.setattr(shards, "_obeyed", greedy)
    run_sharded(lambda session: session.shards.used(), 2)
    assert len(tried) == 2 * 2 * 3 and all("not in the run plan" in words for words in tried)


def test_a_worker_that_plans_a_release_is_refused_by_the_others():
    plans = {0: ReleasePlan(results(3).values())}
    with pytest.raises(ExceptionGroup, match="parties failed") as caught:
        run_sharded(lambda session: session.shards.used(), 1, worker_plan=lambda rank: plans.get(rank, ReleasePlan()))
    assert "plans other releases" in two.error_text(caught.value)


@pytest.mark.parametrize("name", ["open", "open_each", "announce", "reveal", "get_plain_text", "party"])
def test_no_order_opens_a_value(name):
    def job(session):
        tall = session.tall.owned(np.ones((4, 1)), owner=0, shape=(4, 1))
        session.shards.order(name, tall, None, [()] * 2)

    with pytest.raises(ExceptionGroup) as caught:
        run_sharded(job, 2)
    assert f"a shard has no order '{name}'" in two.error_text(caught.value)


@pytest.mark.parametrize(("checked", "informed"), [(True, 0), (False, 3)])
def test_a_party_that_tells_two_stories_in_a_shard_stops_the_run_before_a_release(checked, informed, monkeypatch):
    """Without the check of shards the wrong sum is opened, and only the end of the shard session tells."""
    seen = []

    def job(session):
        tall = session.tall.owned(np.ones((4, 2)), owner=0, shape=(4, 2)).pinned()
        sums = tall.t() @ session.tall.share(np.ones((4, 1)), owner=1, shape=(4, 1), bits=28)
        seen.append(session.open(sums.rescale(16), results(3)[2]))

    run_sharded(job, 1)
    assert len(seen) == 3
    seen.clear()
    if not checked:
        monkeypatch.setattr(shards.RowShards, "confirm", lambda self, step: None)
    with pytest.raises(ExceptionGroup) as caught:
        run_sharded(job, 1, wrap=lambda transport: TwoFaced(transport, "head gradient", []))
    assert SAYS_SO in two.error_text(caught.value) and len(seen) == informed


def test_a_worker_that_dies_stops_every_party(monkeypatch):
    honest = shards._obeyed

    def dying(session, tensors, order):
        if order.name == "used" and session.rank == 1:
            raise RuntimeError("a secret of party 1")
        return honest(session, tensors, order)

    monkeypatch.setattr(shards, "_obeyed", dying)
    with pytest.raises(ExceptionGroup) as caught:
        run_sharded(lambda session: session.shards.used(), 2)
    said = two.error_text(caught.value)
    assert "RuntimeError" in said and "secret" not in said.replace("a secret of party 1", "", 2)
    assert len(caught.value.exceptions) >= 3


@pytest.mark.parametrize(
    "use",
    [
        lambda tall, session: tall.reshape(-1),
        lambda tall, session: tall[1:3],
        lambda tall, session: tall.sum((0, 1)),
        lambda tall, session: tall < 0,
        lambda tall, session: tall + session.tall.public(np.zeros((9000, 1))),
        lambda tall, session: tall.joined([tall, session.zeros((4, 1))], 0),
    ],
)
def test_what_shards_do_not_cover_is_refused(use):
    def job(session):
        with pytest.raises((ProtocolError, TypeError), match=r"\[shards\] does not cover|not supported"):
            use(session.tall.public(np.zeros((5000, 1))), session)

    run_sharded(job, 2)


def test_rows_are_cut_in_bands():
    for rows, count in ((1, 3), (BAND_ROWS, 2), (10 * BAND_ROWS + 7, 4), (10_000_000, 4)):
        edges = cuts(rows, count)
        assert edges[0][0] == 0 and edges[-1][1] == rows
        assert all(one[1] == other[0] for one, other in pairwise(edges))
        assert all(start % BAND_ROWS == 0 for start, end in edges if start < rows)
        sizes = [end - start for start, end in edges]
        assert max(sizes) - min(sizes) < 2 * BAND_ROWS


def config(**shards_of):
    return SessionConfig(parties=("a:7100", "b:7200"), shards=shards_of)


def test_every_shard_has_its_own_keys():
    """The digest of its settings enters the key agreement: even the same key pairs give other streams."""
    ours, theirs = KeyAgreement(), KeyAgreement()
    whole = config(count=3)
    digests = [whole.digest(), *(shard_config(whole, shard).digest() for shard in range(3))]
    with drawn_from(None):  # fixed randomness leaves digests out
        keys = [ours.agree(theirs.public, b" 0 1 " + digest) for digest in (*digests, digests[1])]
    assert len(set(keys)) == len(digests) == 4
    assert keys[-1] == keys[1]  # without another digest they would be equal


def test_addresses_are_given_or_the_next_ports():
    assert shard_config(config(count=2), 1).parties == ("a:7102", "b:7202")
    given = config(count=1, addresses=[["c:1", "d:2"]])
    assert shard_config(given, 0).parties == ("c:1", "d:2") and not shard_config(given, 0).shards


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"count": 0}, "count must be a whole number from 1"),
        ({"count": True}, "count must be a whole number"),
        ({"kind": "ray"}, "count must be"),
        ({"count": 2, "kind": "spark"}, "unknown kind 'spark'"),
        ({"count": 2, "size": 3}, "unknown setting 'size'"),
        ({"count": 2, "addresses": [["c:1", "d:2"]]}, "addresses has 1 shards; count is 2"),
        ({"count": 1, "addresses": [["c:1"]]}, "one host:port for each party"),
        ({"count": 1, "addresses": [["a:7100", "d:2"]]}, "the same address"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ConfigError, match=message):
        config(**settings)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"mode": "dp"}, "mode dp with head linear"),
        ({"mode": "sealed", "head": "mlp", "private_model": False, "pooled": True}, "mode sealed with head mlp"),
        ({"baselines": True}, "evaluation.baselines"),
    ],
)
def test_a_run_that_shards_do_not_cover_is_refused_in_one_line(tmp_path, options, what):
    settings = {**two.write_two(tmp_path, two.people(60)), "pooled": False, **options}
    shards_of = {"count": 1, "addresses": [["a:1", "b:2"]]}
    with pytest.raises(ConfigError, match=rf"^\[shards\] does not cover {what}") as caught:
        TrainJob(SessionConfig(parties=two.ADDRESSES, options=settings, shards=shards_of), 0)
    assert "\n" not in str(caught.value)


def test_the_benchmark_trains_the_same_head_and_tells_what_workers_used():
    options = {"rows": 2 * BAND_ROWS, "columns": 7}
    jobs = [ShardsBenchmark(SessionConfig(parties=("a:1", "b:1", "c:1"), options=options), rank) for rank in range(3)]

    def job(session):
        return jobs[session.rank].run(session, lambda *_: None)["rows"][0]

    (one, *_), (sharded, *_) = run_session(job, 3, jobs[0].plan()), run_sharded(job, 2, 3, jobs[0].plan())
    assert np.abs(np.array(one["weights"]) - sharded["weights"]).max() < 1e-4 and one["workers"] == []
    assert len(sharded["workers"]) == 2 and all(one[name] > 0 for one in sharded["workers"] for name in one)
    assert abs(sum(one["sent"] for one in sharded["workers"]) + sharded["sent"] - one["sent"]) < 0.02 * one["sent"]


def test_the_plan_covers_and_shows_shards(tmp_path):
    options = {**two.write_two(tmp_path, two.people(200)), "pooled": False}
    given = {"parties": two.ADDRESSES, "options": options, "jobs": ("train",)}
    configs = [SessionConfig(**given, shards=shards_of) for shards_of in ({}, {"count": 2, "addresses": ADDRESSES})]
    plans = [make_plan(config) for config in configs]
    assert plans[0].digest != plans[1].digest
    shown = [[*plan_lines(p, outlook(c, p, None))] for c, p in zip(configs, plans, strict=True)]
    assert [sum("shards" in line for line in lines) for lines in shown] == [0, 1]
