"""A trained model at work: evaluation of the test part, and prediction for new records, under MPC.

Each party loads its own part of the model and its own columns; the parts must be of one run and unchanged.
Evaluation opens figures of the test part to all. Prediction opens the decision (or, if asked for, the calibrated
logit) of each record to the declared receiver alone, once for each person and model
(`secure_sccvfl.releases.prediction_log`).

The model decides which records are the test part, never the session: seed, split and the salted digests of all
parts are in it, and other records are refused. Figures are noisy and paid for by the evaluation ledger of these
records (`secure_sccvfl.metrics.noisy`), or exact if all agreed to that before training
(`secure_sccvfl.metrics.exact`). Either way they are opened once for a model
(`secure_sccvfl.runs.scoring.evaluation_record`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from accounting.calibration import noise_multiplier
from accounting.ledger import LedgerError, read_ledger
from accounting.records import RecordSet
from protocols.alignment.hidden_intersection import unveiled
from protocols.alignment.interface import AlignmentError
from protocols.config import ConfigError, SessionConfig
from protocols.dealing.randomness import fresh_key
from protocols.errors import ProtocolError
from protocols.records.releases import ReleasePlan
from protocols.session.runtime import Session, crypten
from protocols.steps.choice import SHOWN, withheld
from secure_sccvfl.data.features import DataError
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.party import AtHolder, Blocks, Party
from secure_sccvfl.data.party_data import Schema
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.discovery.noisy_tables import shuffled
from secure_sccvfl.metrics.batching import Shared, split
from secure_sccvfl.metrics.exact import SecureEvaluation, exact_figures
from secure_sccvfl.metrics.noisy import BASELINES, MAJORITY, NoisyEvaluation, Sums, figures_of, share_of_copies
from secure_sccvfl.metrics.rates import NULL, Copies
from secure_sccvfl.metrics.slices import secret_counts, slice_table
from secure_sccvfl.models.aware import AwareCounterfactuals, hypotheses
from secure_sccvfl.models.counterfactuals import EncodedCounterfactuals, below_each_other, public_targets
from secure_sccvfl.models.encoders import PlainEncoder, reached
from secure_sccvfl.models.generators import Generator
from secure_sccvfl.policy.entries import USES_S, AwareEntry
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.releases.caps import raise_cap
from secure_sccvfl.releases.catalogue import COLUMNS, HEAD, PREDICTIONS, REFUSED_RECORDS
from secure_sccvfl.releases.charging import Charger, refusals_in_one_line
from secure_sccvfl.releases.ledgers import EVALUATIONS, LEDGER, agree_on_run, keep_copy, open_budget, spent_in
from secure_sccvfl.releases.prediction_log import PredictionLog, open_log
from secure_sccvfl.releases.record_key import record_key
from secure_sccvfl.runs.alignment import aligned_part, common_records, placed, split_records
from secure_sccvfl.runs.costs import PhaseMeter
from secure_sccvfl.runs.jobs import Progress
from secure_sccvfl.runs.model_files import PartyModel, load_model, model_folder
from secure_sccvfl.runs.paths import ModelError
from secure_sccvfl.runs.scoring.decisions import write_decisions
from secure_sccvfl.runs.scoring.evaluation_record import begin, record, recorded, took_part
from secure_sccvfl.runs.scoring.metering import Answers, Asked, allowed_predictions
from secure_sccvfl.runs.scoring.new_records import CHANGED, read_new_records
from secure_sccvfl.runs.scoring.plans import (
    OWN,
    crossed_of,
    evaluation_plan,
    fewest_records,
    prediction_plan,
    sums_of,
)
from secure_sccvfl.training.modes.aware import declared, in_time
from secure_sccvfl.training.modes.options import RunOptions
from secure_sccvfl.training.secure import SecureEngine
from secure_sccvfl.training.shared import SharedHead, SharedModule, SharedRows

REFUSED = "refused"
"""In a record of figures: why none are told, though they were paid for."""


class _WithModel:
    """What both jobs share: the model's parts, checked to belong together."""

    def __init__(self, config: SessionConfig, rank: int) -> None:
        self.options, self.rank, self.parties = RunOptions.of(config.options), rank, len(config.parties)
        if not self.options.session.model:
            raise ConfigError("name the run whose model is to be used (--model RUN)")

    def load(self, layout: Layout, schema: Schema) -> PartyModel:
        model = load_model(model_folder(self.options.session.model, self.rank), layout)
        if (model.rank, model.parties) != (self.rank, self.parties):
            raise ModelError(f"this part of the model is of party {model.rank} of {model.parties}: use the own one")
        if model.schema != schema.digest():
            raise ModelError("the model was trained for another description of the data")
        return model

    @staticmethod
    def compare(session: Session, model: PartyModel, aware: AwareEntry | None = None, policy: str = "") -> None:
        """Check that the parts are of one run and say the same about its records.

        aware: the declared use of s under which records are decided; it must be the same at all. policy: the card
        that records of decisions name.
        """
        descriptions = session.swap_bytes("model", model.public())
        if len(set(descriptions)) > 1:
            raise ProtocolError("the parts of the model differ: they are of different runs, or one was changed")
        if aware is not None:
            digest = hashlib.sha256(repr(aware).encode()).digest()
            if len(set(session.swap_bytes("use of s", digest))) > 1:
                raise ProtocolError("the parties declare different uses of s: give all the same policy card")
        if policy and len(set(session.swap_bytes("card", hashlib.sha256(policy.encode()).digest()))) > 1:
            raise ProtocolError("the parties decide under different policy cards: give all the same one")

    @staticmethod
    def check_charged(session: Session, model: PartyModel, ledgers: Path) -> None:
        """Run by all parties together: refuse a model whose head is not in every ledger, before anything is opened.

        On public data a model need not be private.
        """
        if not model.charged and model.held_out.pooled:
            return
        try:
            charges = [entry for entry in read_ledger(ledgers / LEDGER)[0] if entry["kind"] == "charge"]
            keys = {entry["key"] for entry in charges if entry["event"]["name"] == HEAD.charged_as()}
        except LedgerError:
            keys = set()
        answers = session.tell_all("charge of the model", int(model.charged in keys))
        if not all(answers):
            raise ModelError(
                f"the ledger of party {answers.index(0)} has no charge of this model: use the ledger that it was "
                "trained with, or train again"
            )

    @staticmethod
    def engine(session: Session, model: PartyModel, schema: Schema) -> tuple[SecureEngine, SharedHead | SharedModule]:
        """The head, restored."""
        engine = SecureEngine(session, schema.label_holder, schema.group_holders)
        layout = Layout.of(schema.features[session.rank])
        columns = engine.publish(COLUMNS.name, {str(session.rank): model.columns(layout)})
        widths = [int(columns[str(rank)]) for rank in range(session.parties)]
        if model.module is not None:
            shared = SharedModule(model.module, model.layers, {}, schema.task, schema.outputs)
            return engine, engine.restored_module(shared, widths)
        return engine, engine.restored(model.weight, model.bias, schema.task, widths)

    @staticmethod
    def rows(engine: SecureEngine, model: PartyModel, party: Party, groups: AtHolder) -> Blocks | SharedRows:
        """A party's encodings; of a model that uses s, what s selects among them under MPC."""
        if model.aware is None:
            return {party.rank: model.encoder(party.inputs)}
        return engine.select(hypotheses(model.aware_encoders(party.layout), (party,)), groups)


def as_trained(options: RunOptions, given: Mapping[str, Any], model: PartyModel) -> RunOptions:
    """Options whose held-out records, and what may be told of them, are those of the model; others are refused."""
    fixed: dict[str, Any] = {"seed": model.seed}
    names = ("split", "pooled", "evaluation", "controls", "align")
    fixed |= {name: getattr(model.held_out, name) for name in names}
    for name, value in fixed.items():
        if given.get(name, value) != value:
            raise ConfigError(
                f"the model was trained with {name} = {value!r}, so it is not evaluated with {given[name]!r}"
            )
    return options.changed(**fixed)


def shuffled_anew(codes: AtHolder, present: np.ndarray | None = None) -> AtHolder:
    """At the holder of s: its groups, shuffled over the records with fresh randomness that nobody else has.

    present: the rows where it has a record; the others stay as they are, and count nowhere.
    """
    if codes is None:
        return None
    rows = np.arange(len(codes)) if present is None else np.flatnonzero(present)
    shuffled_codes, rng = codes.copy(), np.random.default_rng(np.frombuffer(fresh_key(), np.uint64))
    shuffled_codes[rows] = rng.permutation(codes[rows])
    return shuffled_codes


def cooled(logits: Shared, temperature: float) -> Shared:
    """Logits divided by a public temperature."""
    return logits if temperature == 1.0 else logits / temperature


class EvaluateJob(_WithModel):
    """Job "evaluate": metrics of the test part under the judges whose edited records the harness handed out."""

    def __init__(self, config: SessionConfig, rank: int) -> None:
        super().__init__(config, rank)
        self.certificates = config.certificates
        schema = self.options.schema(self.parties)
        self.model = self.load(Layout.of(schema.features[rank]), schema)
        self.options = as_trained(self.options, config.options, self.model)
        self.data = self.options.load(rank, self.parties)
        self.test = self.data.part(self.data.split.test)
        if self.model.aware is not None:
            in_time(self.model.aware)
        if self.test.rows < self.options.evaluation.min_group:
            raise DataError(
                f"{self.test.rows} test records are fewer than min_group = {self.options.evaluation.min_group}"
            )
        self.judged = self._judged()
        self.crossed = crossed_of(self.options, self.data.schema)
        self._enough()

    def _enough(self) -> None:
        """Refuse before anything is sent if own test records, of which the common ones are a part, are too few."""
        if self.options.data.align != "hidden":
            return
        needed = fewest_records(self.options, self.data.schema, self.sums)
        if self.test.rows < needed:
            raise DataError(
                f"{self.test.rows} own test records, and figures of common ones need {needed} at this noise: bring "
                "more records, allow a higher evaluation_epsilon or fewer evaluations, or train with align = revealed"
            )

    @staticmethod
    def public_plan(config: SessionConfig) -> ReleasePlan:
        """What it opens on a host, from public things alone: no harness hands out edited records there."""
        options = RunOptions.of(config.options)
        schema = options.schema(len(config.parties))
        return evaluation_plan(options, schema, [OWN], sums_of(options, schema))

    def _judged(self) -> dict[str, tuple[Party, AtHolder, Copies]]:
        """Own columns of the edited records of each judge, from the files next to the model; targets at the holder.

        The holder of s gives their groups to a model that uses s: an edited record is one of its target group. Under
        the null control s itself does not change.
        """
        edited_records: dict[str, tuple[Party, AtHolder, Copies]] = {}
        if self.noisy:  # a judge is fitted on other records too, so one record may move more than is paid for
            return edited_records
        codes = self.test.protected[0].codes
        for path in sorted(model_folder(self.options.session.model, self.rank).parent.glob("judge-*.npz")):
            judge = path.stem.removeprefix("judge-")
            with np.load(path) as file:
                copies = Copies(file["source"], file["weight"], file.get("target"))
                edited, groups = replace(self.data.party, inputs=file["units"]), None
            if self.model.aware is not None and codes is not None:
                moved = codes if judge.startswith(NULL) else copies.target
                if moved is None:
                    raise DataError(f"{path.name} has no groups of edited records, which a model that uses s needs")
                groups = moved[copies.source]
            edited_records[judge] = (edited, groups, copies)
        return edited_records

    @property
    def judges(self) -> list[str]:
        return [*self.judged, OWN, *([NULL + OWN] if self._has_null else [])]

    @property
    def _has_null(self) -> bool:
        """Whether flips by the own generator have a null control: it must follow from tables alone, and not use s."""
        model = self.model
        follows = model.generator.kind != "masked"
        return self.noisy and model.held_out.controls != "none" and follows and model.aware is None

    @property
    def noisy(self) -> bool:
        return self.options.evaluation.kind == "noisy"

    @property
    def sums(self) -> Sums:
        """What a noisy evaluation opens."""
        schema = self.data.schema
        model = self.model
        baselines = BASELINES if model.held_out.controls != "none" else ()
        controls = tuple(name for name in baselines if name == MAJORITY or model.control is not None)
        classes, groups = len(schema.classes), schema.group_counts[0]
        full, counted = model.held_out.controls == "full", self.options.data.align == "hidden"
        return Sums(schema.task, groups, tuple(self.judges), controls, classes, full, counted)

    def plan(self) -> ReleasePlan:
        return evaluation_plan(self.options, self.data.schema, self.judges, self.sums)

    def run(self, session: Session, progress: Progress) -> dict[str, Any]:
        with refusals_in_one_line():
            return self._run(session, progress)

    def _run(self, session: Session, progress: Progress) -> dict[str, Any]:
        data, model = self.data, self.model
        meter = PhaseMeter(session)
        with meter.phase("evaluation"):
            progress("alignment", 0, 3)
            self.compare(session, model)
            folder = model_folder(self.options.session.model, self.rank)
            ledgers = self.options.ledger_folder(session, folder.parent)
            key = record_key(session, ledgers, data.schema.id_rule)
            self.check_charged(session, model, ledgers)
            held_out = model.held_out
            if self.options.data.align == "revealed":
                self._same_records(session, held_out.own in ("", key.tags(data.ids).digest))
                data = self.data = split_records(session, self.options, data, progress)
            parts = key.parts(data.ids, data.split)
            self._same_records(session, held_out.parts == {name: part.digest for name, part in parts.items()})
            about = f"{model.run} {self.options.evaluation.kind} {' '.join(self.judges)}"
            about += "" if self.crossed is None else f" slices {self.crossed.name}"
            paid = partial(took_part, ledgers / EVALUATIONS, session.folder, parts["test"])
            figures = recorded(session, folder, about, paid if self.noisy else None)
            if figures is None or self._may_pass(figures):
                figures = self._opened(session, ledgers, parts["test"], progress, partial(begin, folder, about))
                record(folder, about, figures)
            if REFUSED in figures:
                raise AlignmentError(f"{figures[REFUSED]} (paid for once, and on record)")
            if self.noisy:  # what the own records have spent is not on the record that the parties compare
                evaluation = figures["evaluation"]
                evaluation |= spent_in(ledgers / EVALUATIONS, evaluation["noise"], [evaluation.pop("charged", "")])
                if session.folder is not None:
                    keep_copy(ledgers / EVALUATIONS, session.folder)
        costs = {"cost": meter.costs, "crypten_operations": meter.operations}
        return {"ok": True, "run": model.run, "align": self.options.data.align, **figures, **costs}

    def _may_pass(self, figures: Mapping[str, Any]) -> bool:
        """Whether figures that were paid for and not told may be told for another `min_group`, if paid for again."""
        return REFUSED in figures and figures["evaluation"]["min_group"] != self.options.evaluation.min_group

    @staticmethod
    def _same_records(session: Session, same: bool) -> None:
        """Refuse together, before anything is opened, if the records are not those of the model."""
        if not all(session.tell_all("records of the model", int(same))):
            raise ModelError(
                "the records are not those that the model was trained with and set aside: bring those back, or train "
                "again, which is charged again"
            )

    def _opened(
        self, session: Session, ledgers: Path, test: RecordSet, progress: Progress, begin: Callable[[str], None]
    ) -> dict[str, Any]:
        """Score test records and their copies under MPC, pay if figures are noisy, and open them.

        begin: notes the name under which they are paid for.
        """
        schema, model, options = self.data.schema, self.model, self.options
        if options.data.align == "exact":
            common_records(session, options, self.data, progress)
        self.test = aligned_part(session, options, self.data, "test")
        engine, head = self.engine(session, model, schema)
        controls = []
        if model.control is not None:
            controls = [engine.plain_head(*model.control, schema.task)]

        progress("scoring", 1, 3)
        party, codes = self._every_record()
        scored = cooled(
            engine.shared_logits(head, self.rows(engine, model, party, codes), *controls), model.temperature
        )
        rows, outputs = self.test.rows, model.weight.size(1)
        control = scored[:rows, outputs:] if controls else None
        plain, edited = scored[:rows, :outputs], scored[rows:, :outputs]
        parts = split(edited.reshape(-1), [(len(of.source), outputs) for _, _, of in self.judged.values()])
        copies = {judge: (part, self.judged[judge][2]) for judge, part in zip(self.judged, parts, strict=True)}
        copies |= self._own_copies(session, engine, head, plain)
        progress("metrics", 2, 3)
        secret = SecureEvaluation(
            session, schema.task, schema.label_holder, schema.group_holders[0], options.evaluation.min_group
        )
        label, first = self.test.label, self.test.protected[0]
        result: dict[str, Any] = {
            "evaluation": {"kind": options.evaluation.kind, "min_group": options.evaluation.min_group}
        }
        if not self.noisy:
            opened = secret.metrics(plain, label, first.codes, len(first.groups), copies)
            figures = exact_figures(opened, self.judges, len(first.groups))
            if self.crossed is not None:
                held = self.crossed.member(self.test, session.rank)
                counts = secret_counts(secret, plain, label, first.codes, len(first.groups), held, self.crossed)
                figures["slices"] = slice_table(counts, first.groups, self.crossed)
            return {**result, **figures, "noise": {}}
        cap, delta = options.evaluation.epsilon, options.evaluation.delta
        raise_cap(session, ledgers / EVALUATIONS, options.privacy.cap_decision, self.certificates)
        budget, _ = open_budget(ledgers, cap, delta, self.test.rows, EVALUATIONS)
        multiplier = noise_multiplier(cap, delta, options.evaluation.planned)
        # New noise needs a new name in the ledger, whatever model it is about.
        name, same_records = agree_on_run(session, ledgers), options.data.align != "hidden"
        begin(name)
        result["evaluation"]["charged"] = name
        charger = Charger(session, budget, multiplier, name, test, options.privacy.noise, alike=same_records)
        noisy = NoisyEvaluation(secret, charger)
        sums = noisy.sums(self.sums, plain, label, first.codes, copies, control, self.test.membership)
        scales = {judge: share_of_copies(of) for judge, (_, of) in copies.items()}
        deviation = noisy.deviation(self.sums)
        try:
            figures = figures_of(self.sums, sums, scales, deviation, self.test.rows, options.evaluation.min_group)
        except AlignmentError as error:
            return {**result, REFUSED: str(error)}
        errors = self.sums.standard_errors(deviation, figures.get("records", self.test.rows))
        result["evaluation"] |= {"noise": options.privacy.noise, "controls": options.evaluation.controls}
        result["evaluation"] |= {"deviation": deviation, "standard_errors": errors}
        return {**result, **figures}

    def _every_record(self) -> tuple[Party, AtHolder]:
        """Test records and, below them, the edited copies of all judges, which are scored together."""
        party, codes = self.test.parties[0], self.test.protected[0].codes
        if not self.judged:
            return party, codes
        edited = [one.inputs for one, _, _ in self.judged.values()]
        groups = [of for _, of, _ in self.judged.values() if of is not None]
        every_code = None if codes is None or not groups else np.concatenate([codes, *groups])
        return replace(party, inputs=np.concatenate([party.inputs, *edited])), every_code

    def _own_copies(
        self, session: Session, engine: SecureEngine, head: SharedHead | SharedModule, plain: Shared
    ) -> dict[str, tuple[Shared, Copies]]:
        """Test records under the run's own generator, with tables as released and the direction chosen under MPC.

        The null control is the same with tables of shuffled groups, which each owner draws itself, and groups that
        the holder of s shuffles over the records. Both are selected together: the control takes no round more.
        """
        data, model, first = self.data, self.model, self.test.protected[0]
        trained, party, count = data.party.take(data.split.train), self.test.parties[0], len(first.groups)
        real = model
        rng = stream(model.drawn_seed, "null tables", session.rank)
        null = replace(real, sketches=tuple(shuffled(s, rng) for s in model.sketches))
        names = [name for name in (OWN, NULL + OWN) if name in self.judges]
        makers = [(real if name == OWN else null).generators(trained)[first.name] for name in names]
        edits = [self._own_edits(party, count, {party.rank: maker}) for maker in makers]
        codes = [first.codes if name == OWN else shuffled_anew(first.codes, party.present) for name in names]
        held_codes = [one for one in codes if one is not None]
        every = np.concatenate(held_codes) if held_codes else None
        selection = engine.selected(below_each_other(edits), every, 0, self._moving())
        encodings = {party.rank: np.tile(model.encoder(party.inputs), (len(names), 1))}
        shift = cooled(engine.shared_shift(head, selection, encodings), model.temperature)
        parts = split(shift.reshape(-1), [tuple(plain.size())] * len(names))
        rows = np.arange(len(party.inputs))
        targets = public_targets(len(rows), count, model.drawn_seed, 0)
        return {
            name: (plain + moved, Copies(rows, np.ones(len(rows)), None if of is None else targets[rows, of]))
            for name, of, moved in zip(names, codes, parts, strict=True)
        }

    def _moving(self) -> Mapping[int, np.ndarray] | None:
        """Of every party, the columns that an edit may change; None where that is not public."""
        roles, encoder = Roles(dict(self.model.roles), self.model.proxies), self.model.encoder
        if self.model.aware is not None or not isinstance(encoder, PlainEncoder):
            return None
        names = set(roles.edited) - set(roles.dropped)
        return {rank: reached(layout, names, "plain") for rank, layout in self.data.schema.layouts.items()}

    def _own_edits(self, party: Party, groups: int, generator: Mapping[int, Generator]) -> EncodedCounterfactuals:
        model = self.model
        if model.aware is not None:
            return AwareCounterfactuals(
                (party,), groups, generator, model.aware_encoders(party.layout), 1, model.drawn_seed
            )
        encoders, encoded = {party.rank: model.encoder}, {party.rank: model.encoder(party.inputs)}
        return EncodedCounterfactuals((party,), groups, generator, encoders, encoded, 1, model.drawn_seed)


class PredictJob(_WithModel):
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
            Path(self.options.session.records), self.schema, rank, uses_s=self.aware is not None
        )
        self.allowed = allowed_predictions(config, self.options, self.model)
        (self.receiver,) = self.plan().releases[PREDICTIONS.name].receivers

    @staticmethod
    def public_plan(config: SessionConfig) -> ReleasePlan:
        """What it opens, from public things alone: as many decisions as there will be new records."""
        options = RunOptions.of(config.options)
        return prediction_plan(options, options.schema(len(config.parties)))

    def _declared(self) -> AwareEntry | None:
        """The declared use of s of a model that uses it. A card with a later review date may be given."""
        trained = self.model.aware
        if trained is None:
            return None
        if self.options.session.scores and not self.model.held_out.pooled:
            raise ConfigError("this model uses s: its scores would tell s of a record, so it opens decisions alone")
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

        They are those of the training, or of a card with the same roles that was approved since.
        """
        mask, version = Roles(dict(self.model.roles), self.model.proxies).digest(), self.model.policy
        if self.card is not None:
            if self.card.roles.digest() != mask:
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
        requests = Asked.of(log, new, "scores" if options.session.scores and self.model.held_out.pooled else "")
        requested = requests.readable & requests.fresh
        if options.data.align != "revealed":  # all own records are asked for
            log.agree(session, int(requested.sum()), self.allowed)
        data = common_records(session, options, new.data(self.schema), progress)
        part, table = placed(session, options, data, np.arange(len(data.ids)))
        at = new.places(data.ids)
        if options.data.align == "revealed":
            log.agree(session, int(requested[at].sum()), self.allowed)
        engine, head = self.engine(session, self.model, self.schema)
        progress("scoring", 1, 2)
        rows = self.rows(engine, self.model, part.parties[0], part.protected[0].codes)
        result = cooled(engine.shared_logits(head, rows), self.model.temperature)
        if not options.session.scores and self.schema.task != "regression":
            judge = SecureEvaluation(session, self.schema.task, self.schema.label_holder, 0)
            result = judge.decisions(result)
        readable, fresh = np.ones((2, part.rows), np.bool_)
        readable[table.rows], fresh[table.rows] = requests.readable[at], requests.fresh[at]
        values, marks = withheld(session, result, readable, fresh)
        if part.membership is not None:
            one = values[:, :1] * 0 + 1  # opened as 1 where all parties have the record
            veiled = part.membership.veiled(session, crypten.cat([values, one, marks[:, None]], dim=1))
            values, marks = veiled[:, :-1], veiled[:, -1]
        log.record(session, requests.people(at[requested[at]]))
        openings = [(values, session.declared(PREDICTIONS.name)), (marks, session.declared(REFUSED_RECORDS.name))]
        opened, marks_opened = (None if one is None else np.asarray(one) for one in session.open_each(openings))
        if part.membership is not None and opened is not None and marks_opened is not None:
            mark = opened[:, -1]
            opened, marks_opened = unveiled(opened, mark)[0], unveiled(marks_opened, mark)[0]
        why = {CHANGED: requests.changed}
        if opened is not None and marks_opened is not None:
            values_of_own = np.zeros((len(new.ids), opened.shape[1]))
            values_of_own[at] = opened[table.rows]
            mark = np.full(len(new.ids), SHOWN)
            mark[at] = marks_opened[table.rows]
            held = np.zeros(len(new.ids), np.bool_)  # where all know what is common, the others were left out
            held[at] = True if part.membership is None else values_of_own[at, -1] > 0.5
            answers = Answers(values_of_own if part.membership is None else values_of_own[:, :-1], held)
            answers.settle(log, requests, requested, mark, options.session.scores or self.schema.task == "regression")
            why |= answers.why
            if session.folder is not None:
                decided = requests.readable & ~np.any(list(answers.why.values()), axis=0)
                self._write(session.folder / "predictions.csv", answers.values, decided, answers.held)
        if session.folder is not None:
            new.write(session.folder, why)
        return part.rows, int((~new.readable | np.any(list(why.values()), axis=0)).sum())

    def _write(self, path: Path, opened: np.ndarray, decided: np.ndarray, held: np.ndarray) -> None:
        """Refused records have no line. Each line names the card's version, the mask and the date of approval.

        A model that uses s says so in each.
        """
        notes = self.named | ({} if self.aware is None else {"note": USES_S})
        ids, scores = self.new.ids[decided], self.options.session.scores
        write_decisions(path, self.schema, ids, opened[decided], held[decided], notes, scores)
