"""Job "predict": decisions about new records under MPC, opened to one receiver, once for each person and model.

A record with a cell that does not fit the public description is refused by its id; the rest are scored. All parties
score the same rows, so a refused record keeps its row with values of the public range, and its result is withheld
(protocols/steps/choice.py). That holds if it is the only record too: a party that stopped would reveal it to all.
This party's people find in `refused.csv` what is wrong with their own cells. The receiver of predictions also finds
there which records another party refused, and not why. With hidden alignment it learns nothing of a record that not
all parties hold. `secure_sccvfl.releases.prediction_log` has the log of people who were answered.
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from secure_sccvfl.config.rules import PREDICTIONS as DEFAULT_PREDICTIONS
from secure_sccvfl.data.dataset import DataWarning
from secure_sccvfl.data.features import CellProblem, DataError, Feature, refuse
from secure_sccvfl.data.files import absent, read_table
from secure_sccvfl.data.groups import read_codes
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.party import AtHolder, Part, Party
from secure_sccvfl.data.party_data import PartyData, Schema
from secure_sccvfl.data.splits import UNSPLIT
from secure_sccvfl.metrics.certified import AtEnds, certified, ends
from secure_sccvfl.metrics.exact import SecureEvaluation, Shared
from secure_sccvfl.metrics.what_if import (
    DRAWS,
    Strongest,
    majorities,
    reason_names,
    strongest,
    together_fits,
    weights_by_feature,
)
from secure_sccvfl.policy.card import USES_S, AwareEntry
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.protocols.alignment.hidden_intersection import unveiled
from secure_sccvfl.protocols.config import ConfigError, SessionConfig
from secure_sccvfl.protocols.dealing.matching import Aligned
from secure_sccvfl.protocols.dealing.randomness import fresh_key
from secure_sccvfl.protocols.records.private import private
from secure_sccvfl.protocols.records.releases import Release, ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session, crypten
from secure_sccvfl.protocols.steps.choice import REFUSED, REPEATED, SHOWN, withheld
from secure_sccvfl.releases.catalogue import OTHER_GROUPS, PREDICTIONS, REASON_NAMES, REFUSED_RECORDS, Kind
from secure_sccvfl.releases.prediction_log import NO_LIMIT, PredictionLog, open_log
from secure_sccvfl.releases.record_key import record_key
from secure_sccvfl.runs.alignment import common_records, placed
from secure_sccvfl.runs.answers import (
    CERTIFICATE,
    LACKS,
    NO_SCORES,
    PARTS,
    REASONS,
    WHAT_IF,
    Contents,
    certificate_words,
    other_groups,
    reasons,
)
from secure_sccvfl.runs.jobs import PhaseMeter, Progress
from secure_sccvfl.runs.model_files import PartyModel, model_folder
from secure_sccvfl.runs.scoring import ModelJob, cooled, prediction_plan
from secure_sccvfl.training.modes.options import RunOptions
from secure_sccvfl.training.modes.sealed import declared, in_time
from secure_sccvfl.training.secure import SecureEngine
from secure_sccvfl.training.shared import SharedHead, SharedModule

REFUSED_FILE = "refused.csv"
OPENED_APART: Mapping[str, Kind] = {WHAT_IF: OTHER_GROUPS, REASONS: REASON_NAMES}
"""The parts of answers that have a release of their own; others are opened with the decision."""
ELSEWHERE = "another party cannot read its cells of this record or gave other values when it was decided before"
CHANGED = "was decided before with other values: a person is answered once, and that answer stands"
LOST = "another party has it on record as asked for before, and no answer is on record here"
WHAT_IF_NEEDS_S = "what-if needs s"


@dataclass(frozen=True, eq=False)
class NewRecords:
    """Records in the order of their ids. groups: at the holder of s, if it is needed; decided_by_s: by the model.

    written: the id of each as the file writes it. in_file: the records in the order of the file.
    """

    ids: np.ndarray
    party: Party
    groups: AtHolder
    problems: tuple[CellProblem, ...]
    written: np.ndarray
    in_file: np.ndarray
    decided_by_s: bool = True

    @property
    def readable(self) -> np.ndarray:
        """Which records have no cell that this party cannot read."""
        return ~_refused(self.problems, len(self.ids))

    def take(self, rows: np.ndarray) -> NewRecords:
        groups = None if self.groups is None else self.groups[rows]
        problems = tuple(replace(one, bad=one.bad[rows]) for one in self.problems)
        taken = replace(self, ids=self.ids[rows], party=self.party.take(rows), groups=groups, problems=problems)
        return replace(taken, written=self.written[rows], in_file=np.arange(len(rows)))

    def data(self, schema: Schema) -> PartyData:
        """In the form that an alignment takes."""
        first, *others = schema.protected
        protected = (replace(first, codes=self.groups), *others)
        return PartyData(schema, self.party.rank, self.ids, self.party, None, protected, UNSPLIT)

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        order = np.argsort(self.ids)
        rows: np.ndarray = order[np.searchsorted(self.ids, ids, sorter=order)]
        return rows

    @property
    def columns(self) -> list[np.ndarray]:
        """What this party gives of each record: encoded columns, with s where decisions use it. s alone otherwise."""
        inputs = self.party.inputs
        if self.groups is None:
            return [inputs]
        return [np.column_stack([inputs, self.groups])] if self.decided_by_s else [inputs, self.groups[:, None]]

    def refusals(self, why: Mapping[str, np.ndarray]) -> Iterator[tuple[int, str, str]]:
        """Record, column and reason of each refused cell of this party; then other reasons, by their records.

        A record that this party cannot read has no other reason, and each record has the first that holds.
        """
        for problem in self.problems:
            yield from ((row, problem.column, problem.reason) for row in np.flatnonzero(problem.bad).tolist())
        left = self.readable
        for reason, records in why.items():
            yield from ((row, "", reason) for row in np.flatnonzero(records & left).tolist())
            left = left & ~records

    def write(self, folder: Path, why: Mapping[str, np.ndarray]) -> None:
        """`refused.csv`, for this party's people; none if nothing is refused that they may know of."""
        place = np.argsort(self.in_file)
        refusals = sorted(self.refusals(why), key=lambda refusal: place[refusal[0]])
        if lines := [(self.written[row], *reason) for row, *reason in refusals]:
            with open(folder / REFUSED_FILE, "w", newline="", encoding="utf-8", opener=private) as file:
                csv.writer(file).writerows([("id", "column", "why"), *lines])


def read_new_records(path: Path, schema: Schema, rank: int, *, uses_s: bool, what_if: bool = False) -> NewRecords:
    """Own columns of a file with new records; other columns are dropped. s is read at its holder alone, if needed."""
    owner, features = schema.parties[rank], schema.features[rank]
    if not path.is_file():
        raise DataError(f"{owner}: no file {path.name} with records")
    holds_s = (uses_s or what_if) and schema.group_holders[0] == rank
    of_s = [factor.column for factor in schema.protected[0].columns] if holds_s else []
    wanted = [*(feature.name for feature in features), *of_s]
    frame = read_table(path, schema.id_rule, owner, wanted, schema.own_id(rank))
    order = np.argsort(frame[schema.id_rule.name].to_numpy(object), kind="stable")
    written = frame.index[order].to_numpy(str)
    frame = frame.iloc[order].set_index(schema.id_rule.name)
    refuse(owner, [absent(f.name, path.name, frame) for f in features if f.name not in frame], frame.index)
    looked = [feature.look(frame[feature.name]) for feature in features]
    problems = [problem for _, all_odd in looked for problem in all_odd]
    groups = None
    if holds_s:
        groups, problem = _groups(frame, schema, path.name, USES_S if uses_s else WHAT_IF_NEEDS_S)
        problems += problem
    refused = _refused(tuple(problems), len(frame))
    if refused.all():  # for people here alone: whoever stopped now would tell all others of these records
        warnings.warn(f"{owner}: no readable record in {path.name!r}: see {REFUSED_FILE}", DataWarning, stacklevel=2)
    values = np.column_stack([values for values, _ in looked])
    values[refused] = [_any_value(feature) for feature in features]
    layout = Layout.of(features)
    party = Party(rank, owner, layout, layout.encode(values))
    given = groups, tuple(problems), written, np.argsort(order), uses_s
    return NewRecords(frame.index.to_numpy(str), party, *given)


def _groups(frame: pd.DataFrame, schema: Schema, file: str, why: str) -> tuple[np.ndarray, list[CellProblem]]:
    """The group of each new record, at the holder of s."""
    attribute = schema.protected[0]
    if lost := [factor.column for factor in attribute.columns if factor.column not in frame]:
        raise DataError(f"{why}: {file} has no column {lost[0]!r}, which {attribute.holder} needs")
    return read_codes(attribute.columns, frame.__getitem__)


def _refused(problems: tuple[CellProblem, ...], rows: int) -> np.ndarray:
    marked = np.zeros(rows, bool)
    for problem in problems:
        marked |= problem.bad
    return marked


def _any_value(feature: Feature) -> float:
    """A value of the public range."""
    return 0.0 if feature.kind == "category" else feature.low


def allowed_predictions(config: SessionConfig, options: RunOptions, model: PartyModel) -> int:
    """How many people a model may answer for.

    That is the number it was trained with, or the one in a session file that all parties have approved since. A
    session file that nobody approves cannot change it.
    """
    trained = model.predictions
    if trained is None:  # of an earlier version
        trained = NO_LIMIT if model.held_out.pooled else DEFAULT_PREDICTIONS
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
        digests = log.digests(names, *new.columns)
        answered, here = [], dict[str, str]()
        for name, digest, readable in zip(names, digests, new.readable, strict=True):
            answered.append(log.decided.get(name, here.get(name)))
            if readable:  # the same person again, in another spelling
                here.setdefault(name, digest)
        fresh = np.array([digest is None for digest in answered], np.bool_)
        same = np.array([_same(one, digest) for one, digest in zip(answered, digests, strict=True)], np.bool_)
        changed = new.readable & ~fresh & ~same
        return cls(names, digests, new.readable & ~changed, changed, fresh)

    def people(self, rows: np.ndarray) -> dict[str, str]:
        return {self.names[row]: self.digests[row] for row in rows}


def _same(recorded: str | None, digest: str) -> bool:
    """Whether a party gives what it gave when a person was decided, as far as both digests go: s may be in one."""
    return recorded is not None and all(a == b for a, b in zip(recorded.split(), digest.split(), strict=False))


@dataclass(frozen=True, eq=False)
class Question:
    """What is scored: own new records, as the log knows them, and the rows that all score.

    table: the rows of own records. at: which of the new records these are.
    """

    new: NewRecords
    requests: Asked
    part: Part
    table: Aligned
    at: np.ndarray


@dataclass
class Answers:
    """At the receiver: the answer for each of its new records.

    values: what was opened, or is on record. held: whether there is an answer; not for a record that not all parties
    hold. why: the records that are refused, by reason.
    """

    values: np.ndarray
    held: np.ndarray
    why: dict[str, np.ndarray] = field(default_factory=dict)

    def settle(
        self, log: PredictionLog, asked: Asked, shown: np.ndarray, marks: np.ndarray, contents: Contents
    ) -> None:
        """Put what was opened on record, and take from it what was opened before.

        shown: records that this party asked for now. marks: those of `protocols.steps.choice`.
        """
        opened_now = (marks == SHOWN) & self.held & shown
        log.answer(
            {asked.names[row]: [contents.kind, *self.values[row]] for row in np.flatnonzero(opened_now)},
            {asked.names[row] for row in np.flatnonzero(shown & ~opened_now)},
        )
        self.why = {why: np.zeros(len(marks), np.bool_) for why in (ELSEWHERE, NO_SCORES, *LACKS.values(), LOST)}
        self.why[ELSEWHERE] = asked.readable & (marks == REFUSED)
        for row in np.flatnonzero(asked.readable & ~opened_now & (marks != REFUSED)):
            earlier = log.answers.get(asked.names[row])
            if earlier is None:
                self.why[LOST][row] = marks[row] == REPEATED
            elif why := contents.lacks(earlier):
                self.why[why][row] = True
            else:
                self.values[row], self.held[row] = contents.taken(earlier), True


def classes_of(values: np.ndarray, task: str) -> np.ndarray:
    """The number of the class of each record, from logits or decisions."""
    return (values[:, 0] > 0).astype(int) if task == "binary" else values.argmax(axis=1)


def _number(value: float) -> str:
    """The answer of a regression."""
    return f"{value:.6f}"


UNDECIDED = "undecided: not all parties hold this record"


def decision_lines(
    schema: Schema,
    ids: Sequence[str],
    opened: np.ndarray,
    held: np.ndarray,
    said: Mapping[str, str],
    scores: bool,
    parts: Mapping[str, Sequence[str]],
    id_title: str = "id",
) -> list[list[str]]:
    """Titles, then id, decision (as the description names the classes) and, if asked for, the score of each class.

    held: whether all parties hold a record. Of the others nothing was told, and the decision says so. said: what
    each line says besides. parts: further columns, in words.
    """
    title, note = list(said), list(said.values())
    opened, what, scores = opened[:, : schema.outputs], "decision", scores and schema.task != "regression"
    if schema.task == "regression":
        what, decided = "prediction", [_number(value) for value in opened[:, 0]]
    else:
        decided = [schema.classes[code] for code in classes_of(opened, schema.task)]
    logits = [f"logit {c}" for c in (schema.classes[1:] if schema.task == "binary" else schema.classes)]
    lines = [[id_title, what, *(logits if scores else []), *parts, *title]]
    for number, (name, word, row, here) in enumerate(zip(ids, decided, opened, held, strict=True)):
        texts = [f"{v:.5f}" if here else "" for v in row] if scores else []
        texts += [words[number] if here else "" for words in parts.values()]
        lines.append([name, word if here else UNDECIDED, *texts, *note])
    return lines


class PredictJob(ModelJob):
    """Job "predict": new records of every party, their decisions to one receiver."""

    def __init__(self, config: SessionConfig, rank: int) -> None:
        super().__init__(config, rank)
        if not self.options.session.records:
            raise ConfigError("name the file with the new records (--records FILE)")
        self.schema = self.options.schema(self.parties)
        self.model = self.load(Layout.of(self.schema.features[rank]), self.schema)
        self.card = self.options.policy(self.schema)
        self.aware = self._declared()
        self.named = self._named()
        self.new = read_new_records(
            Path(self.options.session.records),
            self.schema,
            rank,
            uses_s=self.aware is not None,
            what_if=self.options.session.what_if,
        )
        self.contents = self._contents()
        self._ends: tuple[Shared, Shared] | None = None  # of the model, kept while a session serves
        for part in set(self.contents.asked) - {WHAT_IF}:
            self.check_additive(self.model, part)
        self.allowed = allowed_predictions(config, self.options, self.model)
        (self.receiver,) = self.plan().releases[PREDICTIONS.name].receivers

    @staticmethod
    def public_plan(config: SessionConfig) -> ReleasePlan:
        """What it opens, from public things alone: as many decisions as there will be new records."""
        options = RunOptions.of(config.options)
        return prediction_plan(options, options.schema(len(config.parties)))

    def _contents(self) -> Contents:
        """What answers have, as asked for."""
        given, schema, groups = self.options.session, self.schema, self.schema.group_counts[0]
        wanted = {CERTIFICATE: given.certificate, WHAT_IF: given.what_if, REASONS: given.reasons}
        widths = {CERTIFICATE: 1, WHAT_IF: (groups - 1) * schema.outputs, REASONS: len(self._weighed)}
        scores = given.scores or schema.task == "regression"
        return Contents(scores, schema.outputs, widths, [part for part in PARTS if wanted[part]])

    @property
    def kind(self) -> str:
        """Of answers, on data that may be pooled: each kind has one of its own."""
        kinds = [*(["scores"] if self.options.session.scores else []), *self.contents.asked]
        return " ".join(kinds) if self.model.held_out.pooled else ""

    @property
    def _roles(self) -> Roles:
        return Roles(dict(self.model.roles), self.model.proxies)

    @property
    def _weighed(self) -> list[str]:
        return reason_names(self.schema.layouts, self._roles.dropped)

    def _declared(self) -> AwareEntry | None:
        """The declared use of s of a model that uses it. A card with a later review date may be given."""
        trained = self.model.aware
        if trained is None:
            return None
        asked = self.options.session
        if (asked.scores or asked.what_if) and not self.model.held_out.pooled:
            what = "scores" if asked.scores else "decisions in other groups"
            raise ConfigError(f"this model uses s: its {what} would tell s of a record, so it opens decisions alone")
        if self.card is None:
            in_time(trained)
            return trained
        entry = declared(self.card)
        if replace(entry, review_due=trained.review_due) != trained:
            raise ConfigError(
                "the card declares another use of s than the model was trained for: only its review date may be later"
            )
        return entry

    def _named(self) -> dict[str, str]:
        """What the record of every decision names: the card's version, the mask, and the date of approval.

        They are those of the training, or of a card with the same roles that was approved since. A card need not
        decide every column.
        """
        mask, version = self._roles.digest(), self.model.policy
        if self.card is not None:
            decided = self.card.roles
            if Roles({**self.model.roles, **decided.of}, decided.proxies).digest() != mask:
                raise ConfigError("the card has other roles than the model: give the card of its run")
            version = {"version": self.card.version, "approved": self.card.approved_on}
        return {"card": version.get("version") or "none", "mask": mask, "approved": version.get("approved") or "no"}

    def plan(self) -> ReleasePlan:
        return prediction_plan(self.options, self.schema, len(self.new.ids))

    def run(self, session: Session, progress: Progress) -> dict[str, Any]:
        meter = PhaseMeter(session)
        with meter.phase("prediction"):
            progress("alignment", 0, 2)
            self.compare(session, self.model, self.aware, str(sorted(self.named.items())))
            ledgers = self.options.ledger_folder(session, model_folder(self.options.session.model, self.rank).parent)
            key = record_key(session, ledgers, self.schema.id_rule)
            self.check_charged(session, self.model, ledgers)
            with open_log(ledgers, self.model.released_in, key) as log:
                rows, refused = self._answered(session, log, progress)
                used = len(log.decided)
        return {
            "ok": True,
            "run": self.model.run,
            "align": self.options.data.align,
            "records": rows,
            "refused": refused,
            "on_record": used,
            "allowed": self.allowed,
            "receiver": self.schema.parties[self.receiver],
            "policy": self.named,
            "note": "" if self.aware is None else self.aware.words(),
            "cost": meter.costs,
        }

    def _answered(self, session: Session, log: PredictionLog, progress: Progress) -> tuple[int, int]:
        """Score new records, open the results of people who are on nobody's record, and write what this party learns.

        Returns how many rows were scored, and how many of the own records are refused as far as this party knows.
        """
        new, options = self.new, self.options
        requests = Asked.of(log, new, self.kind)
        requested = requests.readable & requests.fresh
        if options.data.align != "revealed":  # all own records are asked for
            log.agree(session, int(requested.sum()), self.allowed)
        data = common_records(session, options, new.data(self.schema), progress)
        part, table = placed(session, options, data, np.arange(len(data.ids)))
        at = new.rows_of(data.ids)
        if options.data.align == "revealed":
            log.agree(session, int(requested[at].sum()), self.allowed)
        scoring = self.engine(session, self.model, self.schema)
        progress("scoring", 1, 2)
        answers = self.opened(session, log, scoring, Question(new, requests, part, table, at))
        if session.folder is not None:
            if session.rank == self.receiver:
                decided = requests.readable & ~np.any(list(answers.why.values()), axis=0)
                self._write(session.folder / "predictions.csv", answers.values, decided, answers.held)
            new.write(session.folder, answers.why)
        return part.rows, int((~new.readable | np.any(list(answers.why.values()), axis=0)).sum())

    def opened(
        self,
        session: Session,
        log: PredictionLog,
        scoring: tuple[SecureEngine, SharedHead | SharedModule],
        question: Question,
    ) -> Answers:
        """Run by all parties together: score records, put people on record, open results and settle the answers.

        Elsewhere than at the receiver there is no answer, and the reasons are those of this party alone.
        """
        new, requests, part, table, at = (getattr(question, f.name) for f in fields(Question))
        requested = requests.readable & requests.fresh
        result = self._result(session, *scoring, part)
        readable, fresh = np.ones((2, part.rows), np.bool_)
        readable[table.rows], fresh[table.rows] = requests.readable[at], requests.fresh[at]
        values, marks = withheld(session, result, readable, fresh)
        held_by_all = list[Shared]()
        if part.membership is not None:
            one = values[:, :1] * 0 + 1  # opened as 1 where all parties have the record
            veiled = part.membership.veiled(session, crypten.cat([values, one, marks[:, None]], dim=1))
            values, held_by_all, marks = veiled[:, :-2], [veiled[:, -2:-1]], veiled[:, -1]
        log.record(session, requests.people(at[requested[at]]))
        openings = [*self._releases(session, values, *held_by_all), (marks, session.declared(REFUSED_RECORDS.name))]
        *pieces, marks_opened = (None if one is None else np.asarray(one) for one in session.open_each(openings))
        held = np.zeros(len(new.ids), np.bool_)  # where all know what is common, the others were left out
        if marks_opened is None:
            return Answers(np.zeros((len(new.ids), 0)), held, {CHANGED: requests.changed})
        known, real = [piece for piece in pieces if piece is not None], np.ones(part.rows, np.bool_)
        if part.membership is not None:
            known[0], mark = known[0][:, :-1], known[0][:, -1]
            marks_opened, real = unveiled(marks_opened, mark)
        opened = np.where(real[:, None], np.concatenate(known, axis=1), 0.0)
        values_of_own = np.zeros((len(new.ids), opened.shape[1]))
        values_of_own[at] = opened[table.rows]
        mark = np.full(len(new.ids), SHOWN)
        mark[at] = marks_opened[table.rows]
        held[at] = real[table.rows]
        answers = Answers(values_of_own, held)
        answers.settle(log, requests, requested, mark, self.contents)
        answers.why = {CHANGED: requests.changed, **answers.why}
        return answers

    def _releases(self, session: Session, values: Shared, *more: Shared) -> list[tuple[Shared, Release]]:
        """The columns of answers, in their order, with the releases that open them. more: opened with decisions."""
        apart = [part for part in self.contents.asked if part in OPENED_APART]
        at = values.size(1) - sum(self.contents.widths[part] for part in apart)
        pieces = [(crypten.cat([values[:, :at], *more], dim=1), session.declared(PREDICTIONS.name))]
        for part in apart:
            end = at + self.contents.widths[part]
            pieces.append((values[:, at:end], session.declared(OPENED_APART[part].name)))
            at = end
        return pieces

    def _result(self, session: Session, engine: SecureEngine, head: SharedHead | SharedModule, part: Part) -> Shared:
        """Decisions, or with `scores` logits, of all rows; then what else is asked for, in the order of answers."""
        asked, party, outputs, count = self.contents.asked, part.parties[0], self.schema.outputs, part.rows
        evaluation = SecureEvaluation(session, self.schema.task, self.schema.label_holder, 0)
        every, levels = party, list[int]()
        if CERTIFICATE in asked:
            at_ends, levels = self.end_rows(self.model, self.schema, party.inputs)
            at_ends = at_ends if self._ends is None else at_ends[:count]
            every = replace(party, inputs=np.concatenate([party.inputs, at_ends]))
        rows = self.rows(engine, self.model, every, None if self.aware is None else part.protected[0].codes)
        scored = engine.shared_logits(head, rows, *self._by_feature(session, engine))
        contributions, scored = scored[:count, outputs:], cooled(scored[:, :outputs], self.model.temperature)
        logits = scored[:count]
        if not asked and self.contents.scores:
            return logits
        copies = [self._in_other_groups(engine, head, part, logits)] if WHAT_IF in asked else []
        if self.schema.task == "regression":  # the mean of the draws of each step
            drawn = copies[0].reshape(-1, DRAWS, count).sum(1) / DRAWS
            return crypten.cat([logits, drawn.t()], dim=1)
        values = list[Shared]()
        if CERTIFICATE in asked:
            if self._ends is None:
                self._ends = ends(session, scored[2 * count :], levels)
            at = AtEnds.of(scored[count : 2 * count], *self._ends)
            values = [at.low, at.high]
        shares_rounds = REASONS in asked and together_fits(count, contributions.size(1))
        weighed = Strongest(contributions) if shares_rounds else None
        values += [] if weighed is None else weighed.values
        decided, signs = evaluation.compared(crypten.cat([logits, *copies]), *values)
        columns = [logits if self.contents.scores else decided[:count]]
        if CERTIFICATE in asked:
            columns.append(certified(*signs[:2])[:, None])
        ranks = [] if weighed is None else [weighed.ranks(signs[-3])]
        if WHAT_IF in asked:
            in_groups, among = majorities(evaluation, decided[count:], count, *ranks)
            columns.append(in_groups)
        else:
            among = [rank < 0 for rank in ranks]
        if weighed is not None:
            columns.append(weighed.named(*among, *signs[-2:]))
        elif REASONS in asked:
            columns.append(strongest(session, contributions))
        return crypten.cat(columns, dim=1)

    def _by_feature(self, session: Session, engine: SecureEngine) -> list[SharedHead]:
        """With `reasons`, the head whose outputs are what each column adds to the logit."""
        if REASONS not in self.contents.asked:
            return []
        weight = weights_by_feature(self.model.weight, self.schema.layouts, self._roles.dropped)
        nothing = session.public(np.zeros(len(self._weighed)), session.fraction(self.model.bias))
        return [engine.plain_head(weight, nothing, self.schema.task)]

    def _in_other_groups(
        self, engine: SecureEngine, head: SharedHead | SharedModule, part: Part, logits: Shared
    ) -> Shared:
        """Logits of the records after each step from their own groups and in each draw, below each other.

        Each owner draws with fresh randomness of its own, so that a draw does not follow from the row of a record.
        """
        party, first = part.parties[0], part.protected[0]
        model = replace(self.model, generator_seed=int.from_bytes(fresh_key()))
        generator, groups = model.generators(party)[first.name], len(first.groups)
        copies = (groups - 1) * DRAWS
        edits = self.own_counterfactuals(model, party, groups, generator, DRAWS).to_other_groups()
        codes = None if first.codes is None else np.tile(first.codes, copies)
        selection = engine.selected([edits], codes, 0, self.moving(model, self.schema))
        encodings = {party.rank: np.tile(model.encoder(party.inputs), (copies, 1))} if model.module else {}
        shift = cooled(engine.shared_shift(selection, encodings, head), model.temperature)
        return logits[np.tile(np.arange(part.rows), copies)] + shift

    def lines(self, new: NewRecords, opened: np.ndarray, held: np.ndarray) -> list[list[str]]:
        """Titles and answers about these records. Each names the card's version, the mask and the date of approval.

        Each line names the card's version, the mask and the date of approval. A model that uses s says so in each.
        """
        notes = self.named | ({} if self.aware is None else {"note": USES_S})
        scores, parts = self.options.session.scores, self._in_words(new, opened)
        title = self.schema.own_id(self.receiver)
        return decision_lines(self.schema, new.written.tolist(), opened, held, notes, scores, parts, title)

    def _write(self, path: Path, opened: np.ndarray, decided: np.ndarray, held: np.ndarray) -> None:
        """Ids and order are those of the file of new records; a refused record has no line."""
        rows = self.new.in_file[decided[self.new.in_file]]
        with open(path, "w", newline="", opener=private) as file:
            csv.writer(file).writerows(self.lines(self.new.take(rows), opened[rows], held[rows]))

    def _in_words(self, new: NewRecords, opened: np.ndarray) -> dict[str, list[str]]:
        """The parts of answers as columns of words."""
        at, schema, words = self.contents.slices(self.contents.asked), self.schema, dict[str, list[str]]()
        codes = classes_of(opened[:, : schema.outputs], schema.task)
        if CERTIFICATE in at:
            stays = opened[:, at[CERTIFICATE]][:, 0] > 0.5
            words["certificate"] = [certificate_words(bit, self._roles.edited) for bit in stays]
        if WHAT_IF in at:
            steps = np.split(opened[:, at[WHAT_IF]], schema.group_counts[0] - 1, axis=1)
            if schema.task == "regression":
                decided, *others = (np.array([_number(v) for v in one[:, 0]]) for one in (opened, *steps))
            else:
                decided, *others = (
                    np.array(schema.classes)[one] for one in (codes, *(classes_of(s, schema.task) for s in steps))
                )
            words |= other_groups(decided, np.column_stack(others), schema.protected[0].groups, new.groups)
        if REASONS in at:
            words |= reasons(codes, opened[:, at[REASONS]], self._weighed)
        return words
