"""Job "evaluate": figures of the test part of a trained model, under MPC.

Each party loads its own part of the model and its own columns. The model decides which records are the test part,
never the session: seed, split and the salted digests of all parts are in it, and other records are refused. Figures
are noisy and paid for by the evaluation ledger of these records (`secure_sccvfl.metrics.noisy`), or exact if all
agreed to that before training (`secure_sccvfl.metrics.exact`).

The figures of a model are opened once: two evaluations of the same records would reveal more than one, and averaging
two noise draws halves the variance. They are kept next to the model. A second call returns them and opens nothing.
The parties tell each other what they have on record, and all records must agree. What each party's records have spent
is not on it: that is the party's own. Two short rounds, and one more if some party has no record.

A party without a record (a fault came before it was written) takes over noisy figures of the others only if it took
part in the evaluation that they are of: it had begun this very evaluation under that name, its own ledger has the
charge, and its own release log has the release. Otherwise all stop. What it cannot check are the values: a party that
deviates and stops an evaluation between the release line and the opening could report figures of its choice later.
Exact figures are opened again instead, which reveals nothing new about the same records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from secure_sccvfl.accounting.calibration import noise_multiplier
from secure_sccvfl.accounting.ledger import read_ledger
from secure_sccvfl.accounting.records import RecordSet
from secure_sccvfl.data.features import DataError
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.party import AtHolder, Party
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.discovery.noisy_tables import shuffled
from secure_sccvfl.metrics.certified import AtEnds
from secure_sccvfl.metrics.certified import ends as ends_of
from secure_sccvfl.metrics.exact import SecureEvaluation, Shared, exact_figures, split
from secure_sccvfl.metrics.noisy import NoisyEvaluation, Sums, figures_of, share_of_copies
from secure_sccvfl.metrics.rates import NULL, Copies
from secure_sccvfl.models.counterfactuals import below_each_other, public_targets
from secure_sccvfl.protocols.alignment.interface import AlignmentError
from secure_sccvfl.protocols.config import ConfigError, SessionConfig
from secure_sccvfl.protocols.dealing.randomness import fresh_key
from secure_sccvfl.protocols.errors import LogError, ProtocolError
from secure_sccvfl.protocols.records.chain import read_chain
from secure_sccvfl.protocols.records.private import private
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.releases.catalogue import EVALUATION
from secure_sccvfl.releases.charging import Charger, refusals_in_one_line
from secure_sccvfl.releases.ledgers import EVALUATIONS, agree_on_run, keep_copy, open_budget, raise_cap, spent_in
from secure_sccvfl.releases.record_key import record_key
from secure_sccvfl.runs.alignment import aligned_part, common_records, reads_in_parts, split_records
from secure_sccvfl.runs.files import ModelError
from secure_sccvfl.runs.jobs import PhaseMeter, Progress
from secure_sccvfl.runs.model_files import PartyModel, model_folder
from secure_sccvfl.runs.scoring import OWN, ModelJob, cooled, evaluation_plan, fewest_records, sums_of
from secure_sccvfl.training.modes.options import RunOptions
from secure_sccvfl.training.modes.sealed import in_time
from secure_sccvfl.training.secure import SecureEngine
from secure_sccvfl.training.shared import SharedHead, SharedModule

REFUSED = "refused"
"""In a record of figures: why none are told, though they were paid for."""


def as_trained(options: RunOptions, given: Mapping[str, Any], model: PartyModel) -> RunOptions:
    """Options whose held-out records, and what may be told of them, are those of the model; others are refused."""
    fixed: dict[str, Any] = {"seed": model.seed}
    names = ("split", "pooled", "evaluation", "controls", "align", "certificate", "baselines")
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


class EvaluateJob(ModelJob):
    """Job "evaluate". Exact figures are also under counterfactual models whose edited records were handed out."""

    def __init__(self, config: SessionConfig, rank: int) -> None:
        super().__init__(config, rank)
        self.certificates = config.certificates
        schema = self.options.schema(self.parties)
        self.model = self.load(Layout.of(schema.features[rank]), schema)
        self.options = as_trained(self.options, config.options, self.model)
        self.data = self.options.load(rank, self.parties, reads_in_parts(config, self.options))
        self.test = self.data.part(self.data.split.test)
        if self.model.aware is not None:
            in_time(self.model.aware)
        if self.test.rows < self.options.evaluation.min_group:
            raise DataError(
                f"{self.test.rows} test records are fewer than min_group = {self.options.evaluation.min_group}"
            )
        self.edited = self._edited_records()
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
        """What it opens on a host, from public things alone: no pooled evaluation hands out edited records there."""
        options = RunOptions.of(config.options)
        schema = options.schema(len(config.parties))
        return evaluation_plan(options, schema, [OWN], sums_of(options, schema))

    def _edited_records(self) -> dict[str, tuple[Party, AtHolder, Copies]]:
        """Own columns of the records that counterfactual models edited, from files next to the model; their targets.

        The holder of s gives their groups to a model that uses s: an edited record is one of its target group. Under
        the permutation baseline s itself does not change.
        """
        edited_records: dict[str, tuple[Party, AtHolder, Copies]] = {}
        if self.noisy:  # such a model is fitted on other records too, so one record may move more than is paid for
            return edited_records
        codes = self.test.protected[0].codes
        for path in sorted(model_folder(self.options.session.model, self.rank).parent.glob("judge-*.npz")):
            model = path.stem.removeprefix("judge-")
            with np.load(path) as file:
                copies = Copies(file["source"], file["weight"], file.get("target"))
                edited, groups = replace(self.data.party, inputs=file["units"]), None
            if self.model.aware is not None and codes is not None:
                moved = codes if model.startswith(NULL) else copies.target
                if moved is None:
                    raise DataError(f"{path.name} has no groups of edited records, which a model that uses s needs")
                groups = moved[copies.source]
            edited_records[model] = (edited, groups, copies)
        return edited_records

    @property
    def models(self) -> list[str]:
        return [*self.edited, OWN, *([NULL + OWN] if self._has_null else [])]

    @property
    def _has_null(self) -> bool:
        """Whether flips by the own generator have a permutation baseline: it must follow from tables alone."""
        model = self.model
        follows = model.generator.kind != "masked"
        return self.noisy and model.held_out.controls != "none" and follows and model.aware is None

    @property
    def noisy(self) -> bool:
        return self.options.evaluation.kind == "noisy"

    @property
    def sums(self) -> Sums:
        schema = self.data.schema
        model = self.model
        classes, groups = len(schema.classes), schema.group_counts[0]
        majority, counted = model.held_out.controls != "none", self.options.data.align == "hidden"
        models, certificate = tuple(self.models), model.held_out.certificate
        return Sums(schema.task, groups, models, majority, classes, counted, certificate, tuple(model.baselines))

    def plan(self) -> ReleasePlan:
        return evaluation_plan(self.options, self.data.schema, self.models, self.sums)

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
                self._same_records(session, held_out.own in ("", key.record_set(data.ids).digest))
                data = self.data = split_records(session, self.options, data, progress)
            parts = key.parts(data.ids, data.split)
            self._same_records(session, held_out.parts == {name: part.digest for name, part in parts.items()})
            about = f"{model.run} {self.options.evaluation.kind} {' '.join(self.models)}"
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
        self.test = aligned_part(session, options, self.data, "test").in_memory()
        engine, head = self.engine(session, model, schema)
        progress("scoring", 1, 3)
        party, codes, levels = self._every_record()
        heads = [engine.plain_head(*weights, schema.task) for weights in model.baselines.values()]
        every = cooled(engine.shared_logits(head, self.rows(engine, model, party, codes), *heads), model.temperature)
        rows, outputs = self.test.rows, model.weight.size(1)
        scored = every[:, :outputs]
        lengths = [rows, *(len(of.source) for _, _, of in self.edited.values())]
        at_ends = [] if levels is None else [rows, sum(levels)]
        plain, *parts = split(scored.reshape(-1), [(length, outputs) for length in [*lengths, *at_ends]])
        ends = None if levels is None else AtEnds.of(parts[-2], *ends_of(session, parts[-1], levels))
        copies = {name: (part, self.edited[name][2]) for name, part in zip(self.edited, parts, strict=False)}
        own, *others = self._own_copies(session, engine, [head, *heads], every[:rows])
        copies |= own
        baselines = {
            name: (every[:rows, start : start + outputs], other)
            for name, start, other in zip(
                model.baselines, range(outputs, every.size(1), outputs), others, strict=True
            )
        }
        progress("metrics", 2, 3)
        secret = SecureEvaluation(
            session, schema.task, schema.label_holder, schema.group_holders[0], options.evaluation.min_group
        )
        label, first = self.test.label, self.test.protected[0]
        result: dict[str, Any] = {
            "evaluation": {"kind": options.evaluation.kind, "min_group": options.evaluation.min_group}
        }
        if not self.noisy:
            opened = secret.metrics(plain, label, first.codes, len(first.groups), copies, ends)
            figures = exact_figures(opened, self.models, len(first.groups))
            return {**result, **figures, "noise": {}}
        cap, delta = options.evaluation.epsilon, options.evaluation.delta
        raise_cap(session, ledgers / EVALUATIONS, options.privacy.cap_decision, self.certificates)
        budget, _ = open_budget(ledgers, cap, delta, self.test.rows, EVALUATIONS)
        multiplier = noise_multiplier(cap, delta, options.evaluation.planned)
        # New noise needs a new name in the ledger, whatever model it is about.
        name, same_records = agree_on_run(session, ledgers), options.data.align != "hidden"
        begin(name)
        result["evaluation"]["charged"] = name
        charger = Charger(session, budget, multiplier, name, test, options.privacy.noise, same_records=same_records)
        noisy = NoisyEvaluation(secret, charger)
        sums = noisy.sums(self.sums, plain, label, first.codes, copies, self.test.membership, ends, baselines)
        scales = {name: share_of_copies(of) for name, (_, of) in copies.items()}
        deviation = noisy.deviation(self.sums)
        try:
            figures = figures_of(self.sums, sums, scales, deviation, self.test.rows, options.evaluation.min_group)
        except AlignmentError as error:
            return {**result, REFUSED: str(error)}
        errors = self.sums.standard_errors(deviation, figures.get("records", self.test.rows))
        result["evaluation"] |= {"noise": options.privacy.noise, "controls": options.evaluation.controls}
        result["evaluation"] |= {"deviation": deviation, "standard_errors": errors}
        return {**result, **figures}

    def _every_record(self) -> tuple[Party, AtHolder, list[int] | None]:
        """All rows that are scored together: test records, edited copies of all counterfactual models, and at the end
        the rows of the certificate, with the number of levels of each mediator.
        """
        party, codes = self.test.parties[0], self.test.protected[0].codes
        every, levels = [party.inputs, *(one.inputs for one, _, _ in self.edited.values())], None
        if self.options.evaluation.certificate and self.data.schema.task != "regression":
            rows, levels = self.end_rows(self.model, self.data.schema, party.inputs)
            every.append(rows)
        groups = [of for _, of, _ in self.edited.values() if of is not None]
        every_code = None if codes is None else np.concatenate([codes, *groups])
        return replace(party, inputs=np.concatenate(every)), every_code, levels

    def _own_copies(
        self, session: Session, engine: SecureEngine, heads: Sequence[SharedHead | SharedModule], plain: Shared
    ) -> list[dict[str, tuple[Shared, Copies]]]:
        """Test records under the run's own generator, with tables as released and the direction chosen under MPC.

        Of each of these heads, of which `plain` has the logits side by side.

        The permutation baseline is the same with tables of shuffled groups, which each owner draws itself, and groups
        that the holder of s shuffles over the records. Both are selected together: the baseline takes no extra round.
        """
        data, model, first = self.data, self.model, self.test.protected[0]
        trained, party, count = data.party.take(data.split.train), self.test.parties[0], len(first.groups)
        real = model
        rng = stream(model.drawn_seed, "null tables", session.rank)
        null = replace(real, noisy_tables=tuple(shuffled(s, rng) for s in model.noisy_tables))
        names = [name for name in (OWN, NULL + OWN) if name in self.models]
        makers = [(real if name == OWN else null).generators(trained)[first.name] for name in names]
        counterfactuals = [self.own_counterfactuals(model, party, count, maker) for maker in makers]
        codes = [first.codes if name == OWN else shuffled_anew(first.codes, party.present) for name in names]
        held_codes = [one for one in codes if one is not None]
        every = np.concatenate(held_codes) if held_codes else None
        selection = engine.selected(below_each_other(counterfactuals), every, 0, self.moving(model, data.schema))
        encodings = {party.rank: np.tile(model.encoder(party.inputs), (len(names), 1))}
        shift = cooled(engine.shared_shift(selection, encodings, *heads), model.temperature)
        parts = split(shift.reshape(-1), [tuple(plain.size())] * len(names))
        outputs = model.weight.size(1)
        rows = np.arange(len(party.inputs))
        targets = public_targets(len(rows), count, model.drawn_seed, 0)
        return [
            {
                name: (
                    (plain + moved)[:, start : start + outputs],
                    Copies(rows, np.ones(len(rows)), None if of is None else targets[rows, of]),
                )
                for name, of, moved in zip(names, codes, parts, strict=True)
            }
            for start in range(0, plain.size(1), outputs)
        ]


FILE = "evaluation.json"
BEGUN = "begun: "
"""Before what an evaluation is about: the name under which it was begun, until its figures are on record."""


def recorded(
    session: Session, folder: Path, about: str, took_part: Callable[[str], bool] | None
) -> dict[str, Any] | None:
    """Run by all parties together: the figures of `about` that are on record, or None if they are to be opened.

    took_part: whether this party paid for and released something under a name; None if figures are exact.
    """
    record_here = _read(folder, about)
    texts = session.swap_texts("recorded figures", record_here)
    records = sorted({text for text in texts if text})
    if not records:
        return None
    if len(records) > 1:
        raise ProtocolError(
            f"the parties have different figures of one evaluation on record ({FILE} next to the model)"
        )
    if all(texts):
        return dict(json.loads(records[0]))
    if took_part is None:
        return None
    fits = bool(record_here) or _fits(folder, about, records[0], took_part)
    states = session.tell_all("figures of an evaluation that this party took part in", int(fits))
    if not all(states):
        raise ProtocolError(
            f"party {states.index(0)} has no charge, or no line in its release log, for the figures that others have "
            f"on record; nothing was opened or charged: remove {FILE} next to the model at the others if they made "
            "it up, or copy it from a party that you trust"
        )
    if not record_here:
        _write(folder, about, records[0])
    return dict(json.loads(records[0]))


def begin(folder: Path, about: str, name: str) -> None:
    """Note, before anything is charged, under which name this party evaluates `about`."""
    _put(folder, BEGUN + about, name)


def record(folder: Path, about: str, figures: dict[str, Any]) -> None:
    _write(folder, about, json.dumps(figures, sort_keys=True).encode())


def took_part(ledger: Path, folder: Path | None, records: RecordSet, name: str) -> bool:
    """Whether a charge of this name about these records is in a ledger, and its release in an own release log.

    folder: of this session; those of earlier attempts lie next to it.
    """
    charge = f"{name} {EVALUATION.charged_as()}"
    if folder is None or not ledger.is_file():
        return False
    charged = (entry for entry in read_ledger(ledger)[0] if entry["kind"] == "charge")
    if not any(entry["key"] == charge and entry["event"]["records"] == records.digest for entry in charged):
        return False
    on_one_machine = folder.name.startswith("party-")
    pattern = f"*/{folder.name}/releases*.jsonl" if on_one_machine else "*/releases*.jsonl"
    logs = (folder.parent.parent if on_one_machine else folder.parent).glob(pattern)
    return any(entry["charge"] == charge for log in logs for entry in _intact(log))


def _intact(log: Path) -> list[dict[str, Any]]:
    """The lines of a release log; none if it was changed or torn."""
    try:
        return read_chain(log)
    except LogError:
        return []


def _fits(folder: Path, about: str, figures: bytes, took_part: Callable[[str], bool]) -> bool:
    """Whether figures of others are of the evaluation that this party had begun."""
    try:
        name = json.loads(figures)["evaluation"]["charged"]
    except (ValueError, KeyError, TypeError):
        return False
    return isinstance(name, str) and name == _kept(folder).get(BEGUN + about) and took_part(name)


def _read(folder: Path, about: str) -> bytes:
    kept = _kept(folder)
    return json.dumps(kept[about], sort_keys=True).encode() if about in kept else b""


def _kept(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / FILE).read_text()))
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, OSError):
        raise ModelError(f"{FILE} next to the model cannot be read: bring back the copy of another party") from None


def _write(folder: Path, about: str, figures: bytes) -> None:
    _put(folder, about, json.loads(figures), without=BEGUN + about)


def _put(folder: Path, key: str, value: Any, without: str = "") -> None:
    kept = {**_kept(folder), key: value}
    kept.pop(without, None)
    path = folder / FILE
    fresh = path.with_suffix(".part")
    with open(fresh, "w", opener=private) as file:
        json.dump(kept, file, indent=1, sort_keys=True)
    fresh.replace(path)
