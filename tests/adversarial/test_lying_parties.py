"""Sessions with active security in which one party lies: an honest party stops it, or nothing that is opened changes."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.accounting.budget import Budget
from secure_sccvfl.discovery.secure_statistics import SecureStatistics
from secure_sccvfl.metrics import certified as certificates
from secure_sccvfl.metrics.certified import AtEnds, certified
from secure_sccvfl.metrics.exact import SecureEvaluation, exact_release
from secure_sccvfl.metrics.rates import Copies
from secure_sccvfl.metrics.what_if import DRAWS, majorities, strongest
from secure_sccvfl.protocols.alignment.pre_aligned import PreAligned
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session, crypten
from secure_sccvfl.protocols.steps.aggregation import aggregate
from secure_sccvfl.protocols.steps.choice import withheld
from secure_sccvfl.releases.catalogue import ALIGNMENT, PlanFacts
from secure_sccvfl.releases.charging import Charger
from secure_sccvfl.releases.mechanisms import HeadNoise
from secure_sccvfl.training.engine import Step
from secure_sccvfl.training.grid import Bounds, Grid
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


def training(parties: int) -> Job:
    """Selection of counterfactuals, second-order steps, validation and the check of the range."""
    problem = engines.Problem((1,) * parties, rows=ROWS)
    grid = Grid((0.5,), (0.3,), 0.25)

    def job(session: Session) -> Any:
        engine = SecureEngine(session, 0, [parties - 1])
        local = problem.of(session.rank, parties)
        batch = engine.bind(local.x, local.y, local.ridge)
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
    problem = engines.Problem((1,) * parties, rows=ROWS, size=0.5)
    grid = Grid((0.5,), (0.3,), 0.28125, 1.0, 0.0, sharpens=True, separate=True)
    noise = HeadNoise(0.5, 8.0, 1e-4, 1.5, tolerance=4.0)

    def job(session: Session) -> Any:
        engine = SecureEngine(session, 0, [parties - 1])
        local = problem.of(session.rank, parties)
        batch = engine.bind(local.x, local.y, local.ridge, classes=True)
        some = {rank: np.full(len(ridge), 0.2) for rank, ridge in local.ridge.items()}
        descent = engine.second_order(batch, None, grid, Bounds(some, some, some), noise)
        head = engine.steps(engine.head(batch, 1, "binary"), descent, 4)
        descent = engine.sharpen(head, descent)
        head = engine.finish(engine.steps(engine.steps(head, descent, 2), descent, 1, fine=True), descent)
        session.open(head.weights.whole, session.declared("predictions"))

    return job, ReleasePlan(engines.releases(parties).values())


def first_order(parties: int) -> Job:
    """Steps of the first order and the choice of a temperature."""
    problem = engines.Problem((1,) * parties, rows=ROWS)

    def job(session: Session) -> Any:
        engine = SecureEngine(session, 0, [parties - 1])
        local = problem.of(session.rank, parties)
        batch, penalty = local.inputs(engine)
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


JOBS = {job.__name__: job for job in (tables, training, private, first_order, evaluation, prediction, sums, alignment)}
PARTIES = (2, 3, 5)

STEPS = {
    "begin": {"release plan", "key agreement", "mac key", "check anchors"},
    "to the dealer": {"request for tuples (dealer)", "forget a mask (dealer)", "end (dealer)"},
    "own inputs": {"shared value", "inputs of owners", "masked block", "selection", "own noise", "own bits"},
    "proven inputs": {"group table"},
    "statements": {
        *("statistic input", "budget", "columns", "roster of result #", "result #"),
        *("commitment to the name of the run", "name of the run"),
    },
    "openings": {
        *("compare", "doubling", "grid gradient", "head gradient", "head product", "log_cosh", "masked matrix"),
        *("matmul", "mul", "sigmoid", "square", "truncate"),
    },
    "end": {"compare release logs", "end"},
}
"""Every step in which a party sends something in an honest run, but for those of releases: a new one goes here, and
whoever adds it says what a party can do by lying in it.

own inputs: another block, the same to all, is another input of its owner. proven inputs: a block that is not in its
form is refused. statements: public words of a party about itself; the same to all, they are its own to choose."""
RELEASES = {
    *("alignment", "evaluation", "for one", "group sizes", "hsic", "predictions", "range check", "result #"),
    *("sketch-# for party #", "temperature choice", "validation summary"),
}
CHECKS = ("coin", "sums", "commitment", "sums of tags")
OWN = STEPS["own inputs"] | STEPS["statements"]
LATE = {"key agreement", "mac key", "check anchors"}
"""A lie here spoils the liar's own tags, coins or shares: the next release is opened to nobody."""


def of_release(step: str) -> bool:
    """Whether a step is a release of the table, or a check before or after one."""
    name, _, check = step.partition(": ")
    when, _, release = name.partition("release ")
    return release in RELEASES and when in ("", "before ", "after ") and (not check or check in CHECKS and when != "")


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
    said = verdict(honest(name, parties), traces, lie, step in OWN, step in LATE)
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
