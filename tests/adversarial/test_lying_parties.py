"""One party of a session with active security lies: the others stop it, or nothing that is opened changes."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.accounting.budget import Budget
from secure_sccvfl.data.features import Feature
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.discovery.secure_statistics import SecureStatistics
from secure_sccvfl.discovery.statistics import GroupSums
from secure_sccvfl.metrics import certified as certificates
from secure_sccvfl.metrics.certified import AtEnds
from secure_sccvfl.metrics.exact import SecureEvaluation, exact_release
from secure_sccvfl.metrics.rates import Copies
from secure_sccvfl.metrics.what_if import DRAWS, majorities, strongest
from secure_sccvfl.protocols.alignment.pre_aligned import PreAligned
from secure_sccvfl.protocols.dealing import verification
from secure_sccvfl.protocols.dealing.randomness import Draw
from secure_sccvfl.protocols.dealing.verification import MacKey
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session, crypten
from secure_sccvfl.protocols.session.saving import restore_share, save_share, saved_mac_key
from secure_sccvfl.protocols.steps.aggregation import aggregate
from secure_sccvfl.protocols.steps.choice import withheld
from secure_sccvfl.releases.catalogue import ALIGNMENT, PlanFacts
from secure_sccvfl.releases.charging import Charger
from secure_sccvfl.releases.mechanisms import HeadNoise
from secure_sccvfl.training.engine import Step
from secure_sccvfl.training.grid import Bounds, Grid
from secure_sccvfl.training.proven import TRAINING, Records, forms_of
from secure_sccvfl.training.secure import SecureEngine
from tests.contract import engines
from tests.support.discovery import MULTIPLIER, Consortium
from tests.support.lying import KINDS, Lie, Trace, attempt, verdict
from tests.support.sessions import results

Job = tuple[Callable[[Session], Any], ReleasePlan]
ROWS = 8


def tables(parties: int) -> Job:
    """Discovery: noisy tables, paid for, and HSIC."""
    columns = {rank: {f"x{rank}": 2} for rank in range(parties)}
    group = Consortium(ROWS, columns, (1,), (2,))

    def job(session: Session) -> Any:
        budget = Budget.in_memory(100.0, 1e-5)
        charger = Charger(session, budget, MULTIPLIER, session.agree_on_name(), group.records, "dealer+holder")
        statistics = SecureStatistics(session, group.columns, group.holders, group.rows, charger, None)
        released = group.release_counts(session, statistics)
        statistics.projected(released, 1, group.counts)

    return job, group.plan(1)


LAYOUT = Layout.of([Feature("kind", "category", categories=("x", "y"))])


def encoded(parties: int) -> tuple[engines.Problem, Records]:
    """A problem whose rows are centred categories, and the records that their owners commit to."""
    problem = engines.Problem((2,) * parties, rows=ROWS)
    rng = np.random.default_rng(1)
    codes = {rank: rng.integers(0, 2, ROWS) for rank in range(parties)}
    problem.x = {rank: np.eye(2)[of] - 0.5 for rank, of in codes.items()}
    inputs = {rank: LAYOUT.encode(of[:, None].astype(float)) for rank, of in codes.items()}
    return problem, Records(TRAINING, forms_of([LAYOUT] * parties), inputs)


def training(parties: int) -> Job:
    """Selection of counterfactuals, second-order steps, validation and the check of the range."""
    problem, records = encoded(parties)
    grid = Grid((0.5,), (0.3,), 0.25)

    def job(session: Session) -> Any:
        engine = SecureEngine(session, 0, [parties - 1])
        local = problem.of(session.rank, parties)
        batch = engine.bind(local.x, local.y, local.ridge, records=records)
        penalty = engine.join([engine.counterfactuals(local.deltas, local.s)], [local.guard])
        curved = {rank: 1.0 + ridge for rank, ridge in local.ridge.items()}
        some = {rank: np.full(len(ridge), 9.0) for rank, ridge in local.ridge.items()}
        descent = engine.second_order(batch, penalty, grid, Bounds(curved, some, some))
        head = engine.steps(engine.head(batch, 1, "binary"), descent, 8)
        head = engine.steps(head, engine.sharpen(head, descent), 3)
        engine.check_range([head], batch)
        engine.measure([head], batch, penalty)

    return job, ReleasePlan(engines.releases(parties).values())


def private(parties: int) -> Job:
    """A private head with its noise, opened."""
    problem, records = encoded(parties)
    grid = Grid((0.5,), (0.3,), 0.28125, 1.0, 0.0, sharpens=True, separate=True)
    noise = HeadNoise(0.5, 8.0, 1e-4, 1.5, tolerance=4.0)

    def job(session: Session) -> Any:
        engine = SecureEngine(session, 0, [parties - 1])
        local = problem.of(session.rank, parties)
        batch = engine.bind(local.x, local.y, local.ridge, classes=True, records=records)
        some = {rank: np.full(len(ridge), 0.2) for rank, ridge in local.ridge.items()}
        descent = engine.second_order(batch, None, grid, Bounds(some, some, some), noise)
        head = engine.steps(engine.head(batch, 1, "binary"), descent, 4)
        descent = engine.sharpen(head, descent)
        head = engine.finish(engine.steps(engine.steps(head, descent, 2), descent, 1, fine=True), descent)
        session.open(head.weights.whole, session.declared("predictions"))

    return job, ReleasePlan(engines.releases(parties).values())


def first_order(parties: int) -> Job:
    """Steps of the first order and the choice of a temperature."""
    problem, records = encoded(parties)

    def job(session: Session) -> Any:
        engine = SecureEngine(session, 0, [parties - 1])
        local = problem.of(session.rank, parties)
        batch = engine.bind(local.x, local.y, local.ridge, records=records)
        penalty = engine.join([engine.counterfactuals(local.deltas, local.s)], [local.guard])
        trained = local.trained(engine, batch, penalty, Step(0.05, 0.5, 0.7, 0.3), 2)
        engine.best_temperature(trained, batch, engines.TEMPERATURES)

    return job, ReleasePlan(engines.releases(parties).values())


def evaluation(parties: int) -> Job:
    """Comparisons of logits, rates of groups, flips and the certificate."""
    rng, rows = np.random.default_rng(4), np.arange(ROWS)
    codes, label = rows % 2, rng.integers(0, 2, ROWS)
    logits, levels = rng.normal(0, 1, (ROWS, 1)), rng.normal(0, 0.5, (3, 1))

    def job(session: Session) -> Any:
        shares = [session.share(one, owner=0, shape=one.shape) for one in (logits, logits + 0.3, levels)]
        held = label if session.rank == 0 else None, codes if session.rank == 1 else None
        target = 1 - codes if session.rank == 1 else None
        secret = SecureEvaluation(session, "binary", 0, 1, 2)
        at_ends = AtEnds.of(shares[0], *certificates.ends(session, shares[2], [3]))
        copies = {"own": (shares[1], Copies(rows, np.ones(ROWS), target))}
        secret.metrics(shares[0], *held, 2, copies, at_ends)

    return job, ReleasePlan([exact_release(parties, "binary", ["own"], 2, certificate=True)])


def prediction(parties: int) -> Job:
    """Decisions, certificates, what-if answers and reasons of records; for the first party alone."""
    widths, opened = (1,) * parties, results(parties)
    alone = replace(opened[2], name="for one", receivers=(0,))

    def job(session: Session) -> Any:
        engine, rank, rows = SecureEngine(session, 0, [parties - 1]), session.rank, 2
        weight = session.share(np.ones((parties, 1)), owner=0, shape=(parties, 1))
        head = engine.restored(weight, session.share(np.zeros(1), owner=0, shape=(1,)), "binary", widths)
        logits = engine.shared_logits(head, {rank: np.full((rows, 1), 0.3)})
        edits = [{rank: np.full((DRAWS * rows, 1), sign * 0.2)} for sign in (-1, 1)]
        codes = np.arange(DRAWS * rows) % 2 if rank == parties - 1 else None
        shift = engine.shared_shift(engine.selected([edits], codes), {}, head)
        secret = SecureEvaluation(session, "binary", 0, parties - 1)
        copies = logits[np.tile(np.arange(rows), DRAWS)] + shift
        answers = majorities(secret, secret.decisions(copies), rows)[0]
        reasons = strongest(session, crypten.cat([logits, 2 * logits], dim=1))
        shown, marks = withheld(session, answers, np.ones(rows, bool), np.arange(rows) != session.rank)
        session.open_each([(shown, alone), (reasons, alone)])
        session.open(marks, opened[1])

    return job, ReleasePlan([*opened.values(), alone])


def sums(parties: int) -> Job:
    """Secure aggregation, and values opened to one party alone."""
    everyone = results(parties)[1]
    alone = replace(everyone, name="for one", receivers=(parties - 1,))

    def job(session: Session) -> Any:
        aggregate(session, np.arange(3.0) + session.rank, 9.0, everyone)
        session.open(session.share(np.ones(2), owner=0, shape=(2,)) * 3, alone)
        session.announce({f"of {session.rank}": 1.5}, everyone)

    return job, ReleasePlan([everyone, alone])


def alignment(parties: int) -> Job:
    """Pre-aligned lists."""

    def job(session: Session) -> Any:
        PreAligned(session).align(["a", "b", "c"])

    return job, ReleasePlan(ALIGNMENT.releases(PlanFacts({rank: {} for rank in range(parties)})))


JOBS = {
    job.__name__: job for job in (tables, training, private, first_order, evaluation, prediction, sums, alignment)
}
PARTIES = (2, 3, 5)

STEPS = {
    "begin": {"release plan", "key agreement", "mac key", "check anchors"},
    "to the dealer": {"request for tuples (dealer)", "forget a mask (dealer)", "end (dealer)"},
    "own inputs": {"shared value", "inputs of owners", "masked block", "selection", "own noise", "proven bits"},
    "statements": {
        *("statistic input", "budget", "columns", "roster of result #", "result #"),
        *("commitment to the name of the run", "name of the run"),
    },
    "openings": {
        *("compare", "doubling", "grid gradient", "head gradient", "head product", "log_cosh", "masked matrix"),
        *("matmul", "mul", "sigmoid", "square", "truncate"),
    },
    "end": {"compare release logs", "check at the end", "end"},
}
"""Every step in which a party sends something in an honest run, but for those of releases: a new one goes here, and
whoever adds it says what a party can do by lying in it.

own inputs: another block, the same to all, is another input of its owner, or refused if it is not in its form.
statements: public words of a party about itself; the same to all, they are its own to choose."""
RELEASES = {
    *("alignment", "evaluation", "for one", "group sizes", "hsic", "predictions", "range check", "result #"),
    *("sketch-# for party #", "temperature choice", "validation summary"),
}
CHECKS = ("sums", "commitment", "sums of tags")
OWN = STEPS["own inputs"] | STEPS["statements"]
LATE = {"key agreement", "mac key", "check anchors"}
"""A lie here spoils the liar's own tags, coins or shares: the next release is opened to nobody."""


def of_release(step: str) -> bool:
    """Whether a step is a release of the table, or a check before or after one."""
    name, _, check = step.partition(": ")
    when, _, release = name.partition("release ")
    return (
        release in RELEASES and when in ("", "before ", "after ") and (not check or (check in CHECKS and when != ""))
    )


HONEST: dict[tuple[str, int], list[Trace]] = {}


def honest(name: str, parties: int) -> list[Trace]:
    """What an honest run does; each once."""
    if (name, parties) not in HONEST:
        HONEST[name, parties] = traces = attempt(*JOBS[name](parties), parties)
        assert not any(trace.error for trace in traces), [trace.error for trace in traces]
    return HONEST[name, parties]


def tried(name: str, parties: int, rank: int, step: str, number: int) -> str:
    """The verdict on one lie. What it changes, and when, follows from the names and the number."""
    count = honest(name, parties)[rank].sent.count(step)
    drawn = int.from_bytes(hashlib.sha256(f"{name} {parties} {rank} {step} {number}".encode()).digest()[:6])
    kind, alone = KINDS[drawn % len(KINDS)], parties > 2 and drawn >> 8 & 1 == 1
    lie = Lie(rank, step, (drawn >> 16) % count, kind, drawn >> 20, alone)
    traces = attempt(*JOBS[name](parties), parties, lie)
    late = step in LATE or step.endswith(": sums")  # bits of P above 2^112 change no sum of tags
    said = verdict(honest(name, parties), traces, lie, step in OWN, late)
    return said if not said.startswith("FINDING") else f"{said} {name}, {parties} parties: {lie}"


def test_the_table_names_every_step_of_honest_runs() -> None:
    seen = {step for name in JOBS for trace in honest(name, 3)[:-1] for step in trace.sent}
    named = {step for steps in STEPS.values() for step in steps}
    unknown = {step for step in seen - named if not of_release(step)}
    assert not unknown, f"say in STEPS what a party can do by lying in {sorted(unknown)}"
    assert not named - seen, "these steps no longer occur"
    assert {f"release {name}" for name in RELEASES} <= seen


@pytest.mark.parametrize("name", JOBS)
def test_a_lie_in_any_step_is_noticed_or_changes_nothing(name: str) -> None:
    """One lie for every step; ranks, numbers of parties and kinds of lies follow from the names."""
    verdicts = Counter[str]()
    for number, step in enumerate(sorted({step for trace in honest(name, 3)[:-1] for step in trace.sent})):
        parties = (2, 3, 2, 3, 3, 2, 3, 5)[number % 8]
        liars = [rank for rank in range(parties) if step in honest(name, parties)[rank].sent]
        if liars:
            verdicts[tried(name, parties, liars[number % len(liars)], step, 0)] += 1
    assert not [said for said in verdicts if said.startswith("FINDING")], verdicts
    assert verdicts["detected"] >= 0.8 * verdicts.total(), verdicts


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize(("parties", "times"), [(2, 4), (3, 2), (5, 1)])
def test_many_lies_of_every_party_in_every_step(name: str, parties: int, times: int) -> None:
    """About 5,000 attempts in all."""
    verdicts = Counter[str]()
    for rank in range(parties):
        for step in sorted(set(honest(name, parties)[rank].sent)):
            for number in range(1, times + 1):
                verdicts[tried(name, parties, rank, step, number)] += 1
    print(f"{name}, {parties} parties: {dict(verdicts)}")
    assert not [said for said in verdicts if said.startswith("FINDING")], verdicts


CHECKED = "after release result #"


@pytest.mark.parametrize("step", ["check anchors", CHECKED, *(f"{CHECKED}: {check}" for check in CHECKS)])
@pytest.mark.parametrize("rank", range(3))
def test_other_words_of_a_check_are_noticed_also_if_only_one_party_gets_them(step: str, rank: int) -> None:
    for kind, alone in (("low bit", False), ("to each another", False), ("low bit", True), ("top bit", True)):
        lie = Lie(rank, step, 0, kind, 12, alone)
        traces = attempt(*JOBS["sums"](3), 3, lie)
        assert verdict(honest("sums", 3), traces, lie, False, True) == "detected"


# malformed blocks

FORM = "gave an input that is not in the form that the step requires"


@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize("row", [[1, 1], [0, 0]], ids=["two ones", "no one"])
@pytest.mark.parametrize(("name", "first"), [("tables", "release s"), ("private", "release r")])
def test_a_row_that_is_not_one_hot_names_its_owner_and_nothing_is_released(
    name: str, first: str, row: list[int], rank: int
) -> None:
    job, plan = JOBS[name](3)

    def lying(session: Session) -> None:
        honest_bits = session.proven_bits

        def changed(own: np.ndarray, *given: Any) -> Any:
            if session.rank == rank and own.shape[1] >= 2 and len(own) == ROWS:
                own = own.copy()
                own[3, :2] = row
            return honest_bits(own, *given)

        vars(session)["proven_bits"] = changed
        job(session)

    traces = attempt(lying, plan, 3)
    assert all(f"party {rank}: {FORM}" in str(trace.error) for trace in traces[:-1]), [t.error for t in traces]
    assert not any(step.startswith(first) for trace in traces for step in trace.sent)


@pytest.mark.parametrize("kind", ["other array", "zeros", "top bit", "swapped", "a word"])
def test_whatever_an_owner_sends_its_bits_are_bits(kind: str) -> None:
    """No weight of a million, no half, nothing in the top bit: such blocks cannot be said."""
    opened = results(3)

    def job(session: Session) -> Any:
        bits = session.proven_bits(np.ones((ROWS, 3), np.int64), [3, 3, 3])
        return [np.asarray(session.open(one, opened[2])) for one in bits]

    traces = attempt(job, ReleasePlan(opened.values()), 3, Lie(1, "proven bits", 0, kind, 3))
    # The liar computes with what it did not send, so checks may fail; it looks away from its own.
    given = [value for rank in (0, 2) for value in traces[rank].given]
    assert all(np.isin(value, (0, 1)).all() for value in given) and traces[1].lied


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("alignment", ("mul", "release alignment")),
        ("first_order", ("head product", "sigmoid", "head gradient", "truncate", "compare")),
        ("sums", ("release for one", "release result #")),
    ],
)
@pytest.mark.parametrize("kind", ["low bit", "top bit"])
def test_a_shift_of_an_opened_word_that_is_the_same_to_all_stops_the_session(
    name: str, steps: tuple[str, ...], kind: str
) -> None:
    job, plan = JOBS[name](2)
    for step in steps:
        traces = attempt(job, plan, 2, Lie(1, step, 0, kind, 7))
        assert "did not follow the protocol: the MACs of opened values do not verify" in str(traces[0].error), step


# the MAC key

WEIGHTS = np.array([0.25, -1.5, 3.0, 0.75, -0.125])


def saved_model(parties: int) -> tuple[list[Any], list[MacKey]]:
    """Saved shares of five weights, and the key of each party."""
    saved: dict[int, Any] = {}

    def job(session: Session) -> None:
        saved[session.rank] = save_share(session.share(WEIGHTS, owner=0, shape=WEIGHTS.shape))

    assert not any(trace.error for trace in attempt(job, ReleasePlan(), parties, name="training"))
    keys = [saved_mac_key([saved[rank]]) for rank in range(parties)]
    return [saved[rank] for rank in range(parties)], [key for key in keys if key is not None]


def using(saved: Sequence[Any]) -> tuple[Callable[[Session], Any], ReleasePlan]:
    """A session that uses the weights."""
    opened = results(len(saved))

    def job(session: Session) -> None:
        weights = restore_share(saved[session.rank], 16)
        x = session.share(np.ones(5), owner=1, shape=(5,))
        session.open(weights * x, opened[1])

    return job, ReleasePlan(opened.values())


@pytest.mark.parametrize("parties", PARTIES)
def test_only_the_mac_key_of_the_model_is_accepted(parties: int) -> None:
    """A party with another part would read sums of the weights off the check that fails."""
    saved, keys = saved_model(parties)
    right = attempt(*using(saved), parties, mac_keys=keys)
    assert all(np.array_equal(trace.given[0], WEIGHTS * 2**16) for trace in right[:-1])
    last = keys[-1]
    for other in (
        *(last._replace(part=(last.part + shift) % (1 << 64)) for shift in (1, 1 << 47, 1 << 63)),
        *(last._replace(value=last.value ^ 1), last._replace(tag=last.tag ^ (1 << 111)), MacKey(last.part)),
    ):
        traces = attempt(*using(saved), parties, mac_keys=[*keys[:-1], other])
        assert "uses another part of the MAC key than the one of its model" in str(traces[-1].error)
        assert all(trace.error and not trace.given and "end" not in trace.sent for trace in traces[:-1])


@pytest.mark.parametrize("parties", PARTIES)
def test_tags_under_another_key_stop_the_session(parties: int) -> None:
    job, plan = JOBS["sums"](parties)

    def lying(session: Session) -> None:
        if session.rank == parties - 1:
            key = session.party.mac_key
            session.party.mac_key = key._replace(part=key.part ^ 1)
        job(session)

    traces = attempt(lying, plan, parties)
    assert all("the MACs of opened values do not verify" in str(trace.error) for trace in traces[:-1])


def test_without_the_element_of_the_key_a_party_reads_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: the dealer hears key + 1, and the check that fails shows sums of other masks."""
    saved, keys = saved_model(3)
    job, plan = using(saved)
    view: dict[str, Any] = {}
    monkeypatch.setattr(verification, "fits_elements", lambda keys: True)

    def lying(session: Session) -> None:
        party = session.party
        if session.rank == 2:
            party.mac_key, coin, broadcast = keys[2], party._coin, party.broadcast

            def listening(step: str, arrays: Any, theirs: Any) -> Any:
                received = broadcast(step, arrays, theirs)
                if arrays and step.endswith(("sums", "sums of tags")):
                    whole = [*received.values(), arrays]
                    view[step.partition(": ")[2]] = [
                        sum(int(one[0][row]) + (int(one[1][row]) << 64) for one in whole) for row in range(48)
                    ]
                return received

            vars(party).update(broadcast=listening, _coin=lambda step: view.setdefault("coin", coin(step)))
        job(session)

    told = [*keys[:2], keys[2]._replace(part=keys[2].part ^ 1)]
    traces = attempt(lying, plan, 3, mac_keys=told)
    assert all(trace.error and not trace.given for trace in traces[:-1]), "the session ends, too late"
    chosen = Draw(hashlib.sha256(b"part 0 " + view["coin"]).digest(), 0).elements((15, 6), np.uint8)[:5]
    rows = np.unpackbits(chosen, axis=1, bitorder="little").T.astype(int).tolist()
    sums = [one - other for one, other in zip(view["sums"], view["sums of tags"], strict=True)]
    read = np.array([word % (1 << 64) for word in solved([[*r, s] for r, s in zip(rows, sums, strict=True)])], object)
    words = ((read + saved[2][4].astype(object)) % (1 << 64)).astype(np.uint64).view(np.int64)
    assert np.array_equal(words / 2**16, WEIGHTS)


def solved(rows: list[list[int]]) -> list[int]:
    """The solution of linear equations modulo 2^64; the last number of a row is its right side."""
    for column in range(len(rows[0]) - 1):
        at = next(row for row in range(column, len(rows)) if rows[row][column] % 2)
        rows[column], rows[at] = rows[at], rows[column]
        inverse = pow(rows[column][column], -1, 1 << 64)
        rows[column] = [value * inverse % (1 << 64) for value in rows[column]]
        for row in range(len(rows)):
            factor = rows[row][column] if row != column else 0
            rows[row] = [(one - factor * two) % (1 << 64) for one, two in zip(rows[row], rows[column], strict=True)]
    return [rows[column][-1] for column in range(len(rows[0]) - 1)]


def test_the_mac_key_reaches_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """Neither a party's part nor the sum is in what parties send each other, in logs, reprs or messages."""
    caplog.set_level(0)
    job, plan = JOBS["sums"](3)
    keys: list[int] = []
    shown: list[str] = []

    def watched(session: Session) -> None:
        keys.extend([session.party.mac_key.part, session.party.mac_key.value])
        shown.extend(map(repr, (session, session.party, session.party.mac_key, session.party.pending)))
        shown.append(str(session.party.mac_key))
        job(session)
        shown.append(json.dumps(session.released))

    for lie in (None, Lie(1, "release result #", 0, "low bit", 5)):
        keys.clear()
        traces = attempt(watched, plan, 3, lie)
        secret = [*keys, sum(keys[::2]) % (1 << 64)]
        shown += [f"{trace.error!r} {trace.error}" for trace in traces]
        sent = b"".join(trace.to_parties for trace in traces)
        assert len(secret) == 7 and len(sent) > 4000 and (lie is None or traces[0].error)
        assert not any(
            key.to_bytes(8, order).strip(bytes(1)) in sent for key in secret for order in ("little", "big")
        )
        text = " ".join([*shown, caplog.text])
        assert not any(str(key) in text or f"{key:x}" in text for key in secret)


def test_a_public_key_of_small_order_names_its_sender() -> None:
    traces = attempt(*JOBS["sums"](3), 3, Lie(1, "key agreement", 0, "zeros", 0))
    assert "party 1: sent a public key that gives no key" in str(traces[0].error)


@pytest.mark.parametrize("holder", [0, 1])
def test_a_holder_of_s_alone_refuses_noise_for_fewer_features_than_there_are(holder: int) -> None:
    """The number of features is what parties announce; the owner of all of them may skip its own checks."""
    columns: dict[int, dict[str, int]] = {1 - holder: {name: 2 for name in "abcd"}, holder: {}}
    group = Consortium(ROWS, columns, (holder,), (2,))
    for announced, refused in ((4, False), (3, True), (0.25, True)):
        norm = float(np.sqrt(announced))

        def job(session: Session, norm: float = norm) -> None:
            budget = Budget.in_memory(100.0, 1e-5)
            charger = Charger(session, budget, MULTIPLIER, session.agree_on_name(), group.records, "dealer+holder")
            statistics = SecureStatistics(session, group.columns, group.holders, group.rows, charger, None)
            statistic = GroupSums("sketch-0", norm)
            if session.rank != holder:
                vars(statistic)["whole"] = lambda columns, shape: dict(columns)
            group.release(session, statistics, statistic)

        trace = attempt(job, group.plan(1), 2)[holder]
        assert ("announced a wrong number" in str(trace.error)) == refused
        assert refused != any(step.startswith("release") and step != "release plan" for step in trace.sent)
