"""Job "serve": the decisions of job "predict", one person at a time, while a session stays open.

Each party passes a file with its columns of all people who may be asked for. `runs.endpoint` has the endpoint of the
receiver and the turns that the parties take. A person who is asked for is decided, recorded and answered as by
`predict`, in rows of one record: put on record at all parties before a share is sent, and at the receiver before the
reply. A party that does not hold the person, or cannot read a cell, takes part with any other record, and the result
is withheld. Records are not aligned: the parties are told whom to decide.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from secure_sccvfl.protocols.config import SessionConfig
from secure_sccvfl.protocols.dealing.matching import Aligned
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.releases.catalogue import PREDICTIONS
from secure_sccvfl.releases.prediction_log import NO_LIMIT, PredictionLog
from secure_sccvfl.runs.endpoint import Endpoint, Reply, turns
from secure_sccvfl.runs.jobs import Progress
from secure_sccvfl.runs.predict import CHANGED, LOST, REFUSED_FILE, Answers, Asked, PredictJob, Question
from secure_sccvfl.runs.scoring import prediction_plan
from secure_sccvfl.training.modes.options import RunOptions

MOST = 1_000_000
"""Decisions of a session where the plan has no limit, on public data."""
FULL = "no more people may be decided: the plan's number is reached"
HERE = f"a cell of this record cannot be read here: see {REFUSED_FILE}"
ALIKE = "another record of this host's file has the same id but for case, spaces or the like: nobody can be decided"


class ServeJob(PredictJob):
    """Job "serve": single decisions at the receiver's endpoint."""

    def __init__(self, config: SessionConfig, rank: int) -> None:
        super().__init__(config, rank)
        self.deadline, self.idle = config.deadline, config.idle

    @staticmethod
    def public_plan(config: SessionConfig) -> ReleasePlan:
        options = RunOptions.of(config.options)
        return prediction_plan(options, options.schema(len(config.parties)), times=_times(options))

    def plan(self) -> ReleasePlan:
        return prediction_plan(self.options, self.schema, 1, _times(self.options))

    def _answered(self, session: Session, log: PredictionLog, progress: Progress) -> tuple[int, int]:
        progress("waiting for requests", 1, 2)
        if session.folder is not None:
            self.new.write(session.folder, {})
        desk, endpoint = _Desk(self, session, log), None
        if session.rank == self.receiver and session.folder is not None:
            endpoint = Endpoint(session.folder, self.options.session.port)
        waits = {"deadline": self.deadline, "idle": self.idle}
        return turns(session, self.receiver, endpoint, desk.local, desk.decide, **waits), desk.refused


def _times(options: RunOptions) -> int:
    """How many decisions a session may open."""
    return options.privacy.predictions or MOST


class _Desk:
    """One party's part in the decisions of a session."""

    def __init__(self, job: ServeJob, session: Session, log: PredictionLog) -> None:
        self.job, self.session, self.log, self.refused = job, session, log, 0
        self.scoring = job.engine(session, job.model, job.schema)
        self.left, ids = job.plan().releases[PREDICTIONS.name].times, job.new.ids.tolist()
        self.rows = {name: row for row, name in enumerate(self._exact(ids))}
        self.written = {written: row for row, written in enumerate(job.new.written.tolist())}
        self.people = dict[str, list[int]]()
        for row, name in enumerate(log.names(ids, job.kind)):
            self.people.setdefault(name, []).append(row)

    def _exact(self, ids: list[str]) -> list[str]:
        """Pseudonyms by which parties name records to each other.

        Those of the log are of a coarser form, in which two records of a file may have the same one.
        """
        return self.log.names([name.encode().hex() for name in ids], "exact id")

    def local(self, person: str) -> Reply | str:
        """At the receiver: the reply that needs no other party, or the pseudonym of the person's record."""
        log, contents, row = self.log, self.job.contents, self.written.get(person)
        name = log.names([person if row is None else self.job.new.ids[row]], self.job.kind)[0]
        if name not in self.people:
            return Reply.refused(404, "this host has no record with that id")
        if len(self.people[name]) > 1:
            return Reply.refused(409, ALIKE)
        (exact,) = self._exact([self.job.new.ids[self.people[name][0]]])
        question = self._question(exact)
        if not question.new.readable[0]:
            return Reply.refused(409, HERE)
        if question.requests.changed[0]:
            return Reply.refused(409, CHANGED)
        if question.requests.fresh[0]:
            return Reply.refused(429, FULL) if self._full or not self.left else exact
        earlier = log.answers.get(name)
        if why := LOST if earlier is None else contents.lacks(earlier):
            return Reply.refused(409, why)
        return self._words(question, Answers(np.array([contents.taken(earlier or [])]), np.ones(1, np.bool_)))

    @property
    def _full(self) -> bool:
        return self.job.allowed != NO_LIMIT and len(self.log.decided) >= self.job.allowed

    def decide(self, name: str) -> Reply | None:
        """Run by all parties together; the reply at the receiver."""
        question, job = self._question(name), self.job
        if self._full and question.requests.fresh[0]:  # others may have room, so the session goes on
            nobody = np.zeros(1, np.bool_)
            question = replace(question, requests=replace(question.requests, readable=nobody))
        requested = question.requests.readable & question.requests.fresh
        self.log.agree(self.session, int(requested.sum()), job.allowed)
        answers = job.opened(self.session, self.log, self.scoring, question)
        self.left -= 1
        why = next((why for why, records in answers.why.items() if records[0]), "")
        self.refused += bool(why)
        if self.session.rank != job.receiver:
            return None
        return Reply.refused(409, why) if why else self._words(question, answers)

    def _question(self, name: str) -> Question:
        """About one person. A party without a record of it puts any other in its place, and cannot read it."""
        row, nothing = np.arange(1), np.zeros(1, np.bool_)
        new = self.job.new.take(row + self.rows.get(name, 0))
        asked = Asked.of(self.log, new, self.job.kind)
        if name not in self.rows:
            asked = Asked([name], [""], nothing, nothing, ~nothing)
        return Question(new, asked, new.data(self.job.schema).part(row), Aligned(1, row), row)

    def _words(self, question: Question, answers: Answers) -> Reply:
        titles, line = self.job.lines(question.new, answers.values, answers.held)
        content: dict[str, Any] = dict(zip(titles, line, strict=True))
        return Reply(200, {"answer": content})
