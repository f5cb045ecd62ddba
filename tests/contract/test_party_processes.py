"""The driver as a secure run will use it: one process per party, each with its own columns only.

Threads stand in for processes. Their engine brings together what each of them passes, as a secure engine
does with shares, and gives each only what is declared for it. The label is with one party, s with another.
"""

import threading
from dataclasses import dataclass, replace

import numpy as np

from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.party import Part, make_parties
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.discovery.statistics import PlainStatistics, Released
from secure_sccvfl.releases.noise import GaussianNoise, SpendingPlan
from secure_sccvfl.training.config import TrainConfig
from secure_sccvfl.training.grid import Bounds
from secure_sccvfl.training.plain import PlainEngine
from secure_sccvfl.training.trainer import Problem, Trainer, train
from tests.support.harness import LONG

DATA = load("german")
SPLIT = make_split(DATA, "iid", 0)
NAMES = [p.name for p in DATA.parties]


def merged(parts):
    return {k: v for part in parts for k, v in part.items()}


def held(values):
    (only,) = [v for v in values if v is not None]
    return only


class Meeting:
    """Runs one shared call per round, once every party has come with its part."""

    def __init__(self, parties):
        self.engine, self.statistics = PlainEngine(), PlainStatistics(GaussianNoise(SpendingPlan(), 0))
        self.barrier = threading.Barrier(parties, timeout=LONG)
        self.parts, self.result = {}, None

    def call(self, rank, part, joint):
        self.parts[rank] = part
        if self.barrier.wait() == 0:
            self.result = joint([self.parts[r] for r in sorted(self.parts)])
        self.barrier.wait()
        result = self.result
        self.barrier.wait()
        return result


@dataclass
class Side:
    """One party's end of a meeting."""

    rank: int
    meeting: Meeting

    def _call(self, part, joint):
        return self.meeting.call(self.rank, part, joint)

    def publish(self, name, values):
        return self._call(values, lambda parts: self.meeting.engine.publish(name, merged(parts)))


class PartyStatistics(Side):
    def release(self, statistic, columns, groups, counts):
        def joint(parts):
            codes = [held(v) for v in zip(*(p[1] for p in parts), strict=True)]
            whole = merged([p[0] for p in parts])
            return self.meeting.statistics.release(statistic, whole, codes, counts)

        whole = self._call((columns, groups), joint)
        return Released(tuple({k: v for k, v in part.items() if k in columns} for part in whole.tables))

    def projected(self, tables, releases, counts, tabled=()):
        def joint(parts):
            whole = tuple(merged(by_party) for by_party in zip(*parts, strict=True))
            return self.meeting.statistics.projected(whole, releases, counts)

        return self._call(tables, joint)

    def bins(self, tables, tabled=()):
        return self._call(tables[0], lambda parts: self.meeting.statistics.bins((merged(parts),)))

    def deviation(self, sensitivity):
        return self.meeting.statistics.deviation(sensitivity)


class PartyEngine(Side):
    @property
    def engine(self):
        return self.meeting.engine

    def total(self, name, values, present=True):
        return self._call(values, lambda parts: tuple(np.sum(parts, axis=0)))

    def bind(self, encodings, label, ridge, outputs=1, membership=None, classes=False):
        def joint(parts):
            encoded, weights = (merged([p[k] for p in parts]) for k in (0, 2))
            return self.engine.bind(encoded, held([p[1] for p in parts]), weights)

        return self._call((encodings, label, ridge), joint)

    def counterfactuals(self, deltas, groups, attribute=0, moving=None, membership=None):
        made = [list(draw) for draw in deltas]

        def joint(parts):
            draws = [
                [merged(blocks) for blocks in zip(*by_party, strict=True)]
                for by_party in zip(*(p[0] for p in parts), strict=True)
            ]
            return self.engine.counterfactuals(draws, held([p[1] for p in parts]))

        return self._call((made, groups), joint)

    def join(self, edits, guards):
        return self._call(
            guards, lambda parts: self.engine.join(edits, [merged(g) for g in zip(*parts, strict=True)])
        )

    def table_penalty(self, grams, guards):
        def joint(parts):
            whole = [merged(by_party) for by_party in zip(*(p[0] for p in parts), strict=True)]
            return self.engine.table_penalty(whole, [merged(g) for g in zip(*(p[1] for p in parts), strict=True)])

        return self._call((grams, guards), joint)

    def head(self, batch, outputs, task):
        return self.engine.head(batch, outputs, task)

    def width(self, head):
        return self.engine.width(head)

    def copied(self, head, copies):
        return self.engine.copied(head, copies)

    def first_order(self, batch, penalty, step, curvature):
        return self._call(curvature, lambda parts: self.engine.first_order(batch, penalty, step, merged(parts)))

    def second_order(self, batch, penalty, grid, bounds):
        def joint(parts):
            whole = Bounds(*(merged(blocks) for blocks in zip(*parts, strict=True)))
            return self.engine.second_order(batch, penalty, grid, whole)

        return self._call(bounds, joint)

    def steps(self, head, descent, count, *, fine=False):
        return self.engine.steps(head, descent, count, fine=fine)

    def sharpen(self, head, descent):
        return self._call(None, lambda _: self.engine.sharpen(head, descent))

    def apart(self, head, outputs=1):
        return self.engine.apart(head, outputs)

    def check_range(self, heads, batch):
        self.engine.check_range(heads, batch)

    def measure(self, heads, batch, penalty):
        return self.engine.measure(heads, batch, penalty)

    def best_temperature(self, head, batch, temperatures):
        return self.engine.best_temperature(head, batch, temperatures)

    def logits(self, head, encodings):
        return self._call(encodings, lambda parts: self.engine.logits(head, merged(parts)))


@dataclass(frozen=True)
class Seen:
    """A protected attribute where it is held, and its name elsewhere."""

    name: str
    groups: tuple[str, ...]
    codes: np.ndarray | None


def part_for(party, rows):
    chosen = DATA.take(rows)
    label = chosen.label.values if DATA.label.holder == party.name else None
    protected = tuple(Seen(a.name, a.groups, a.codes if a.holder == party.name else None) for a in chosen.protected)
    return Part((party.take(rows),), label, protected)


def test_one_process_per_party_gives_the_model_of_the_plaintext_run():
    config = replace(TrainConfig(), steps=40, lambdas=(4.0,))
    parties = make_parties(DATA)
    plain = train(PlainEngine(), PlainStatistics(GaussianNoise(SpendingPlan(), 0)), DATA, SPLIT, config, 0)
    expected = plain.logits([p.take(SPLIT.test) for p in parties])
    meeting, found, errors = Meeting(len(parties)), {}, []

    def run(party):
        try:
            engine, statistics = PartyEngine(party.rank, meeting), PartyStatistics(party.rank, meeting)
            parts = [part_for(party, rows) for rows in (SPLIT.train, SPLIT.validation)]
            problem = Problem(DATA.task, DATA.outputs, *parts)
            model = Trainer(engine, statistics, problem, config, 0).run()
            found[party.rank] = (
                model.roles.of,
                model.logits([party.take(SPLIT.test)]),
                set(model.sketches[0].tables),
            )
        except BaseException as error:
            errors.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=run, args=(p,), daemon=True) for p in parties]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=LONG)
    assert not errors and len(found) == len(parties)
    for party in parties:
        roles, logits, tables = found[party.rank]
        assert roles == plain.roles.of
        assert np.allclose(logits, expected, atol=1e-8)
        assert tables == set(party.layout.names), "a party sees the tables of its own features only"
