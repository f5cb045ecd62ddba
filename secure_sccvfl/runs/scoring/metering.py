"""New records against a party's log of predictions: who is new, who is on record, and with which columns."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from protocols.config import ConfigError, SessionConfig
from protocols.steps.choice import REFUSED, REPEATED, SHOWN
from secure_sccvfl.config.rules import PREDICTIONS
from secure_sccvfl.releases.prediction_log import NO_LIMIT, PredictionLog
from secure_sccvfl.runs.model_files import PartyModel
from secure_sccvfl.runs.scoring.new_records import ELSEWHERE, LOST, NO_SCORES, NewRecords
from secure_sccvfl.training.modes.options import RunOptions


def allowed_predictions(config: SessionConfig, options: RunOptions, model: PartyModel) -> int:
    """How many people a model may answer for.

    That is the number it was trained with, or the one in a session file that all parties have approved since. A
    session file that nobody approves cannot change it.
    """
    trained = model.predictions
    if trained is None:  # of an earlier version
        trained = NO_LIMIT if model.held_out.pooled else PREDICTIONS
    if config.needs_approval and not model.held_out.pooled:
        return options.privacy.predictions
    if config.options.get("predictions", trained) != trained:
        raise ConfigError(
            f"the model may answer for {trained} people: another number ({options.privacy.predictions}) needs a "
            "session file that all parties have approved, or a new training"
        )
    return trained


@dataclass(frozen=True)
class Asked:
    """The new records of a party, as its log knows them. All arrays have one entry for each.

    readable: this party reads all its cells, and they are those that it had when the person was decided, if ever.
    changed: they are others. fresh: the person is not on record, and in no record above: two spellings of an id have
    one pseudonym.
    """

    names: list[str]
    digests: list[str]
    readable: np.ndarray
    changed: np.ndarray
    fresh: np.ndarray

    @classmethod
    def of(cls, log: PredictionLog, new: NewRecords, kind: str) -> Asked:
        """kind: of answer, if each kind has an answer of its own."""
        names = log.names(new.ids.tolist(), kind)
        digests = log.digests(names, new.columns)
        known, here = [], dict[str, str]()
        for name, digest, readable in zip(names, digests, new.readable, strict=True):
            known.append(log.decided.get(name, here.get(name)))
            if readable:  # the same person again, in another spelling
                here.setdefault(name, digest)
        fresh = np.array([digest is None for digest in known], np.bool_)
        same = np.array([one == digest for one, digest in zip(known, digests, strict=True)], np.bool_)
        changed = new.readable & ~fresh & ~same
        return cls(names, digests, new.readable & ~changed, changed, fresh)

    def people(self, rows: np.ndarray) -> dict[str, str]:
        """What goes on record of these."""
        return {self.names[row]: self.digests[row] for row in rows}


@dataclass
class Answers:
    """At the receiver: the answer for each of its new records.

    values: what was opened, or is on record. held: whether there is an answer; not for a record that not all parties
    hold. why: the records that are refused, by reason.
    """

    values: np.ndarray
    held: np.ndarray
    why: dict[str, np.ndarray] = field(default_factory=dict)

    def settle(self, log: PredictionLog, asked: Asked, shown: np.ndarray, marks: np.ndarray, scores: bool) -> None:
        """Put what was opened on record, and take from it what was opened before.

        shown: records that this party asked for now. marks: those of `protocols.steps.choice`.
        """
        opened_now = (marks == SHOWN) & self.held & shown
        kind = [float(scores)]
        log.answer(
            {asked.names[row]: [*kind, *self.values[row]] for row in np.flatnonzero(opened_now)},
            {asked.names[row] for row in np.flatnonzero(shown & ~opened_now)},
        )
        unanswered, poor = np.zeros((2, len(marks)), np.bool_)
        for row in np.flatnonzero(asked.readable & ~opened_now & (marks != REFUSED)):
            earlier = log.answers.get(asked.names[row])
            if earlier is None:
                unanswered[row] = marks[row] == REPEATED
            elif scores and not earlier[0]:
                poor[row] = True
            else:
                self.values[row], self.held[row] = earlier[1:], True
        self.why = {ELSEWHERE: asked.readable & (marks == REFUSED), NO_SCORES: poor, LOST: unanswered}
