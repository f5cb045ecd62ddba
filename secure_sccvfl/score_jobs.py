"""A trained model at work: evaluation of the test part, and prediction for new records, in secret.

Each party loads its own part of the model and its own columns; the parts must be of one run and unchanged.
Evaluation opens rates and means to all (`secure_evaluation`), prediction the decision (or, if asked for, the
calibrated logit) of each record to the declared receiver alone.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from protocols import arithmetic
from protocols.alignment import alignment_release, check_alignment
from protocols.config import ConfigError, SessionConfig
from protocols.errors import ProtocolError
from protocols.private import private
from protocols.releases import ANY, Release, ReleasePlan
from protocols.ring import FRACTION_BITS, Words
from protocols.runtime import Session
from secure_sccvfl.displacements import Displacements
from secure_sccvfl.jobs import Progress
from secure_sccvfl.model_files import ModelError, PartyModel, load_model
from secure_sccvfl.own_files import read_table
from secure_sccvfl.parties import Party
from secure_sccvfl.party_data import Scheme
from secure_sccvfl.phases import PhaseMeter
from secure_sccvfl.run_options import RunOptions
from secure_sccvfl.schema import DataError
from secure_sccvfl.secure_engine import SecureEngine
from secure_sccvfl.secure_evaluation import Copies, SecureEvaluation, evaluation_release
from secure_sccvfl.secure_handles import Head
from secure_sccvfl.units import Layout

OWN = "own"
"""The run's own generator as a judge: a diagnostic, for want of a common one."""


def model_folder(root: str, rank: int) -> Path:
    """Where a party's part of a model is: the folder itself, the party's own, or in the folder of a whole run."""
    path = Path(root)
    near = [place for place in (path, path / "model") if (place / "model.json").exists()]
    return near[0] if near else path / f"party-{rank}" / "model"


class _WithModel:
    """What both jobs share: the model's parts, checked to belong together."""

    def __init__(self, config: SessionConfig, rank: int) -> None:
        self.options, self.rank, self.parties = RunOptions.of(config.options), rank, len(config.parties)
        if not self.options.model:
            raise ConfigError("name the run whose model is to be used (--model RUN)")

    def load(self, layout: Layout, scheme: Scheme) -> PartyModel:
        model = load_model(model_folder(self.options.model, self.rank), layout)
        if (model.rank, model.parties) != (self.rank, self.parties):
            raise ModelError(f"this part of the model is of party {model.rank} of {model.parties}: use the own one")
        if model.scheme != scheme.digest():
            raise ModelError("the model was trained for another description of the data")
        return model

    def engine(self, session: Session, model: PartyModel, scheme: Scheme) -> tuple[SecureEngine, Head]:
        """Compare the runs of the parts, then restore the head."""
        runs = session.swap_bytes("run of the model", bytes.fromhex(model.run))
        odd = [rank for rank, run in enumerate(runs) if run != runs[0]]
        if odd:
            raise ProtocolError(f"the parts of the model are of different runs: {scheme.parties[odd[0]]} has another")
        engine = SecureEngine(session, None, scheme.label_holder, scheme.group_holders)
        columns = engine.publish("columns", {str(session.rank): model.encoder.columns})
        widths = [int(columns[str(rank)]) for rank in range(session.parties)]
        return engine, engine.restored(model.weight, model.bias, scheme.task, widths)

    @staticmethod
    def columns_release(parties: int) -> Release:
        purpose = "announced: encoded columns of each party, by the public dictionary"
        return Release("columns", tuple(range(parties)), (parties,), purpose)


def cooled(session: Session, logits: Words, temperature: float) -> Words:
    """Shared logits over a public temperature."""
    factor = round(2**FRACTION_BITS / temperature)
    return arithmetic.truncate(session.party, logits * factor, FRACTION_BITS)


class EvaluateJob(_WithModel):
    """Job "evaluate": metrics of the test part under the judges whose edited records the harness handed out."""

    def __init__(self, config: SessionConfig, rank: int) -> None:
        super().__init__(config, rank)
        self.data = self.options.load(rank, self.parties)
        self.model = self.load(self.data.party.layout, self.data.scheme)
        self.test = self.data.part(self.data.split.test)
        self.judged = self._judged()

    def _judged(self) -> dict[str, tuple[np.ndarray, Copies]]:
        """Own columns of the edited records of each judge, from the files beside the model."""
        found = {}
        for path in sorted(model_folder(self.options.model, self.rank).parent.glob("judge-*.npz")):
            with np.load(path) as file:
                copies = Copies(file["source"], file["weight"])
                found[path.stem.removeprefix("judge-")] = (file["units"], copies)
        return found

    @property
    def judges(self) -> list[str]:
        return [*self.judged, OWN]

    def plan(self) -> ReleasePlan:
        scheme = self.data.scheme
        return ReleasePlan(
            [
                alignment_release(self.parties),
                self.columns_release(self.parties),
                evaluation_release(self.parties, scheme.task, self.judges),
            ]
        )

    def run(self, session: Session, progress: Progress) -> dict[str, Any]:
        scheme, data, model = self.data.scheme, self.data, self.model
        meter = PhaseMeter(session)
        with meter.phase("evaluation"):
            progress("alignment", 0, 3)
            check_alignment(session, data.ids, scheme.parties)
            engine, head = self.engine(session, model, scheme)
            party, encoder = self.test.parties[0], model.encoder

            def logits(units: np.ndarray) -> Words:
                shared = engine.shared_logits(head, {session.rank: encoder(units)})
                return cooled(session, shared, model.temperature)

            progress("scoring", 1, 3)
            plain = logits(party.units)
            copies = {judge: (logits(units), of) for judge, (units, of) in self.judged.items()}
            copies[OWN] = self._own_copies(session, engine, head, plain)
            progress("metrics", 2, 3)
            judge = SecureEvaluation(session, scheme.task, scheme.label_holder, scheme.group_holders[0])
            first = self.test.protected[0]
            metrics = judge.metrics(plain, self.test.label, first.codes, len(first.groups), copies)
        return {"ok": True, "run": model.run, "metrics": finished(metrics, self.judges), "cost": meter.costs}

    def _own_copies(self, session: Session, engine: SecureEngine, head: Head, plain: Words) -> tuple[Words, Copies]:
        """Test records under the run's own generator, tables as released, the direction chosen in secret."""
        data, model, first = self.data, self.model, self.test.protected[0]
        trained = data.party.take(data.split.train)
        calm = replace(model, generator=replace(model.generator, thinning=0.0))
        generator = calm.generators(trained)[first.name]
        party = self.test.parties[0]
        made = Displacements(
            (party,), len(first.groups), {party.rank: generator}, {party.rank: model.encoder}, 1, model.seed
        )
        (chosen,) = engine.selected(made, first.codes, 0)
        shift = cooled(session, engine.shared_shift(head, chosen), model.temperature)
        rows = np.arange(len(party.units))
        return plain + shift, Copies(rows, np.ones(len(rows)))


def finished(metrics: dict[str, float], judges: list[str]) -> dict[str, float]:
    """Opened numbers as the tables of the plaintext evaluation have them."""
    out = dict(metrics)
    spread = max(out.pop("variance"), 0.0) ** 0.5
    if "mse" in out:
        out["rmse"] = max(out.pop("mse"), 0.0) ** 0.5
    for judge in judges:
        out[f"scg_norm_{judge}"] = out[f"scg_{judge}"] / spread if spread > 1e-6 else 0.0
    return out


class PredictJob(_WithModel):
    """Job "predict": new records of every party, their decisions to one receiver."""

    def __init__(self, config: SessionConfig, rank: int) -> None:
        super().__init__(config, rank)
        if not self.options.records:
            raise ConfigError("name the file with the new records (--records FILE)")
        self.scheme = self.options.scheme(self.parties)
        layout = Layout.of(self.scheme.features[rank])
        self.model = self.load(layout, self.scheme)
        self.ids, self.party = self._read(layout)
        self.receiver = self.scheme.label_holder if self.options.receiver < 0 else self.options.receiver
        if not 0 <= self.receiver < self.parties:
            raise ConfigError(f"the receiver of predictions must be a party, not {self.receiver}")

    def _read(self, layout: Layout) -> tuple[np.ndarray, Party]:
        """Own columns of the file with new records; other columns are dropped."""
        path = Path(self.options.records)
        key = self.scheme.id_column
        if not path.is_file():
            raise DataError(f"no file {path.name} with records")
        owner = self.scheme.parties[self.rank]
        frame = read_table(path, key, owner)
        lost = [name for name in layout.names if name not in frame]
        if lost:
            raise DataError(f"{path.name} has no column {lost[0]!r}, which {owner} needs")
        frame = frame[[key, *layout.names]].sort_values(key, kind="stable")
        features = self.scheme.features[self.rank]
        values = np.column_stack([f.read(frame[f.name]) for f in features])
        return frame[key].to_numpy(str), Party(
            self.rank, self.scheme.parties[self.rank], layout, layout.encode(values)
        )

    def plan(self) -> ReleasePlan:
        what = "calibrated logits" if self.options.scores else "decisions"
        made = Release("predictions", (self.receiver,), (len(self.ids), ANY), f"{what} of new records, as asked for")
        return ReleasePlan([alignment_release(self.parties), self.columns_release(self.parties), made])

    def run(self, session: Session, progress: Progress) -> dict[str, Any]:
        meter = PhaseMeter(session)
        with meter.phase("prediction"):
            progress("alignment", 0, 2)
            check_alignment(session, self.ids, self.scheme.parties)
            engine, head = self.engine(session, self.model, self.scheme)
            progress("scoring", 1, 2)
            shared = engine.shared_logits(head, {session.rank: self.model.encoder(self.party.units)})
            logits = cooled(session, shared, self.model.temperature)
            bits = FRACTION_BITS
            if not self.options.scores and self.scheme.task != "regression":
                judge = SecureEvaluation(session, self.scheme.task, self.scheme.label_holder, 0)
                logits, bits = judge.decisions(logits), 0
            opened = session.open(session.wrap(logits, bits), session.declared("predictions"))
        if opened is not None and session.folder is not None:
            self._write(session.folder / "predictions.csv", np.asarray(opened))
        receiver = self.scheme.parties[self.receiver]
        return {
            "ok": True,
            "run": self.model.run,
            "records": len(self.ids),
            "receiver": receiver,
            "cost": meter.costs,
        }

    def _write(self, path: Path, opened: np.ndarray) -> None:
        """id, decision (as the description names the classes) and, if asked for, the score of each class."""
        scheme = self.scheme
        with open(path, "w", newline="", opener=private) as file:
            writer = csv.writer(file)
            if scheme.task == "regression":
                writer.writerow(["id", "prediction"])
                writer.writerows([name, f"{v[0]:.6f}"] for name, v in zip(self.ids, opened, strict=True))
                return
            chosen = opened[:, 0] > 0 if scheme.task == "binary" else opened.argmax(axis=1)
            scores = [f"logit {c}" for c in (scheme.classes[1:] if scheme.task == "binary" else scheme.classes)]
            writer.writerow(["id", "decision", *(scores if self.options.scores else [])])
            for name, code, row in zip(self.ids, chosen.astype(int), opened, strict=True):
                told = [f"{v:.5f}" for v in row] if self.options.scores else []
                writer.writerow([name, scheme.classes[code], *told])
