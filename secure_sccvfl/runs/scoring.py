"""What evaluations and predictions share: their releases, from public things alone, and the check of a model's parts.

Each party loads its own part of the model; the parts must be of one run and unchanged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from secure_sccvfl.accounting.calibration import noise_multiplier
from secure_sccvfl.accounting.ledger import LedgerError, read_ledger
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.party import AtHolder, Blocks, Party
from secure_sccvfl.data.party_data import Schema
from secure_sccvfl.metrics.exact import Shared, exact_release
from secure_sccvfl.metrics.noisy import Sums, fewest, planned_deviation
from secure_sccvfl.metrics.rates import NULL
from secure_sccvfl.models.aware import AwareCounterfactuals, hypotheses
from secure_sccvfl.models.certificate import CertificateError, end_rows
from secure_sccvfl.models.counterfactuals import EncodedCounterfactuals
from secure_sccvfl.models.encoders import PlainEncoder, reached
from secure_sccvfl.models.generators import Generator
from secure_sccvfl.policy.card import AwareEntry
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.protocols.config import ACTIVE, SEMI_HONEST, ConfigError, SessionConfig
from secure_sccvfl.protocols.dealing.verification import MacKey
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.protocols.records.key_mark import check_key
from secure_sccvfl.protocols.records.releases import ANY, Release, ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.releases.catalogue import (
    COLUMNS,
    HEAD,
    OTHER_GROUPS,
    PREDICTIONS,
    REASON_NAMES,
    REFUSED_RECORDS,
    PlanFacts,
    plan_of,
)
from secure_sccvfl.releases.ledgers import LEDGER
from secure_sccvfl.releases.mechanisms import NoiseLevel
from secure_sccvfl.runs.files import ModelError
from secure_sccvfl.runs.model_files import PartyModel, load_model, model_folder
from secure_sccvfl.training.config import BASELINES
from secure_sccvfl.training.modes.options import RunOptions
from secure_sccvfl.training.secure import SecureEngine
from secure_sccvfl.training.shared import SharedHead, SharedModule, SharedRows

OWN = "own"
"""The run's own generator as a counterfactual model: a diagnostic where there is no common one."""


def plan_facts(options: RunOptions, parties: int, **sizes: int) -> PlanFacts:
    """The facts that the plan of a job on a model follows from."""
    return PlanFacts({rank: {} for rank in range(parties)}, sizes=sizes, align=options.data.align)


def common_releases(options: RunOptions, parties: int) -> list[Release]:
    """What every job on a model opens: alignment and the sizes of encodings."""
    facts = plan_facts(options, parties)
    return [*plan_of(facts, "alignment"), *COLUMNS.releases(facts)]


def sums_of(options: RunOptions, schema: Schema) -> Sums:
    """What a noisy evaluation opens, from public things alone.

    Flips have a null control where the generator follows from tables alone and the model does not use s.
    """
    config, controls = options.train_config(), options.evaluation.controls
    null = config.generator.kind != "masked" and options.training.mode != "aware"
    models = (OWN, NULL + OWN) if controls != "none" and null else (OWN,)
    counted = options.data.align == "hidden"
    certificate = options.evaluation.certificate
    return Sums(
        schema.task,
        schema.group_counts[0],
        models,
        controls != "none",
        len(schema.classes),
        counted,
        certificate,
        BASELINES if options.evaluation.baselines else (),
    )


def fewest_records(options: RunOptions, schema: Schema, sums: Sums) -> int:
    """How many test records noisy figures need where their number is secret."""
    multiplier = noise_multiplier(options.evaluation.epsilon, options.evaluation.delta, options.evaluation.planned)
    level = NoiseLevel(multiplier, options.privacy.noise, len(schema.parties))
    holders = {schema.label_holder, schema.group_holders[0]}
    return fewest(planned_deviation(sums, level, len(holders)), options.evaluation.min_group)


def evaluation_plan(options: RunOptions, schema: Schema, models: Sequence[str], sums: Sums) -> ReleasePlan:
    """What an evaluation opens: noisy sums, or exact figures under these counterfactual models."""
    parties, groups = len(schema.parties), schema.group_counts[0]
    if options.evaluation.kind == "noisy":
        opened = sums.release(parties)
    else:
        opened = exact_release(parties, schema.task, models, groups, options.evaluation.certificate)
    return ReleasePlan([*common_releases(options, parties), opened])


def prediction_plan(options: RunOptions, schema: Schema, records: int = ANY, times: int = 1) -> ReleasePlan:
    """What a prediction for this many records opens, and to whom. times: how often, where it goes on."""
    receiver = schema.label_holder if options.session.receiver < 0 else options.session.receiver
    if not 0 <= receiver < len(schema.parties):
        named = ", ".join(f"{rank} ({name})" for rank, name in enumerate(schema.parties))
        raise ConfigError(f"the receiver of predictions must be a party: {named}; not {receiver}")
    detail = "calibrated logits" if options.session.scores else "decisions"
    asked = options.session
    for given, part in ((asked.certificate, "certificate"), (asked.reasons, "reasons")):
        if given and schema.task == "regression":
            raise CertificateError(f"no {part}: a regression decides nothing; use --no-{part}")
    tells_s = asked.what_if and schema.task == "regression" and not options.data.pooled
    if tells_s and receiver != schema.group_holders[0]:
        raise CertificateError(
            "no what-if: how a number changes with the group tells s of nearly every person, so only the holder of s "
            f"may receive it: use --receiver {schema.group_holders[0]}"
        )
    if asked.reasons and schema.task != "binary":
        raise CertificateError("no reasons: they are for decisions between two classes; leave out --reasons")
    if asked.certificate:
        detail += ", and whether no values of the mediators change the decision"
    if options.data.align == "hidden":
        detail += ", where all parties hold the record, and whether they do"
    sizes = {"records": records if options.data.align == "exact" or times > 1 else ANY, "weighed": ANY}
    sizes["other groups"] = (schema.group_counts[0] - 1) * schema.outputs
    facts = plan_facts(options, len(schema.parties), **sizes).with_settings(asked)
    opened = PREDICTIONS.releases(facts, receiver=receiver, detail=detail, times=times)
    for kind in (OTHER_GROUPS, REASON_NAMES, REFUSED_RECORDS):
        opened += kind.releases(facts, receiver=receiver, times=times * kind.times(facts))
    return ReleasePlan([*common_releases(options, len(schema.parties)), *opened])


class ModelJob:
    """What both jobs share: the model's parts, checked to belong together."""

    model: PartyModel

    def __init__(self, config: SessionConfig, rank: int) -> None:
        self.options, self.rank, self.parties = RunOptions.of(config.options), rank, len(config.parties)
        if not self.options.session.model:
            raise ConfigError("name the run whose model is to be used (--model RUN)")

    def load(self, layout: Layout, schema: Schema) -> PartyModel:
        folder = model_folder(self.options.session.model, self.rank)
        model = load_model(folder, layout)
        if (model.rank, model.parties) != (self.rank, self.parties):
            raise ModelError(f"this part of the model is of party {model.rank} of {model.parties}: use the own one")
        if model.schema != schema.digest():
            raise ModelError("the model was trained for another description of the data")
        active, wanted = model.mac_key is not None, self.options.session.security == ACTIVE
        if active != wanted:
            raise ModelError(
                f"the model was trained with {ACTIVE if active else SEMI_HONEST} security: use --security "
                f"{ACTIVE if active else SEMI_HONEST}, or train again"
            )
        check_key(folder)
        return model

    def mac_key(self, out: Path) -> tuple[MacKey | None, Path]:
        """This party's part of the key of the model's tags, and the folder that has its mark."""
        return self.model.mac_key, model_folder(self.options.session.model, self.rank)

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
        engine = SecureEngine(session, schema.label_holder, schema.group_holders)
        layout = Layout.of(schema.features[session.rank])
        columns = engine.publish(COLUMNS.name, {str(session.rank): model.columns(layout)})
        widths = [int(columns[str(rank)]) for rank in range(session.parties)]
        if model.module is not None:
            shared = SharedModule(model.module, model.layers, {}, schema.task, schema.outputs)
            return engine, engine.restored_module(shared, widths)
        return engine, engine.restored(model.weight, model.bias, schema.task, widths)

    @staticmethod
    def check_additive(model: PartyModel, wanted: str) -> None:
        """Raise for a model whose logit is no sum over features: it has no certificate and no reasons."""
        if not isinstance(model.encoder, PlainEncoder) or model.module is not None or model.aware is not None:
            raise CertificateError(
                f"no {wanted}: the logit of this model is no sum over the features of a record; use --no-{wanted}"
            )

    @staticmethod
    def moving(model: PartyModel, schema: Schema) -> Mapping[int, np.ndarray] | None:
        """Of every party, the columns that an edit may change; None where that is not public."""
        roles = Roles(dict(model.roles), model.proxies)
        if model.aware is not None or not isinstance(model.encoder, PlainEncoder):
            return None
        names = set(roles.edited) - set(roles.dropped)
        return {rank: reached(layout, names) for rank, layout in schema.layouts.items()}

    @staticmethod
    def own_counterfactuals(
        model: PartyModel, party: Party, groups: int, generator: Generator, draws: int = 1
    ) -> EncodedCounterfactuals:
        """Party step, local: counterfactuals of these records by the run's own generator."""
        rank, seed, generators = party.rank, model.drawn_seed, {party.rank: generator}
        if model.aware is not None:
            encoders = model.aware_encoders(party.layout)
            return AwareCounterfactuals((party,), groups, generators, encoders, draws, seed)
        encoder = model.encoder
        encoded = {rank: encoder(party.inputs)}
        return EncodedCounterfactuals((party,), groups, generators, {rank: encoder}, encoded, draws, seed)

    @classmethod
    def end_rows(cls, model: PartyModel, schema: Schema, inputs: np.ndarray) -> tuple[np.ndarray, list[int]]:
        """This party's part of the rows that are scored for the certificate of these records."""
        cls.check_additive(model, "certificate")
        return end_rows(schema.layouts, model.rank, inputs, Roles(dict(model.roles), model.proxies).edited)

    @staticmethod
    def rows(engine: SecureEngine, model: PartyModel, party: Party, groups: AtHolder) -> Blocks | SharedRows:
        """A party's encodings; of a model that uses s, what s selects among them under MPC."""
        if model.aware is None:
            return {party.rank: model.encoder(party.inputs)}
        return engine.select(hypotheses(model.aware_encoders(party.layout), (party,)), groups)


def cooled(logits: Shared, temperature: float) -> Shared:
    return logits if temperature == 1.0 else logits / temperature
