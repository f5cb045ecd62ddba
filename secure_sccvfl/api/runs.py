"""Runs under MPC on this machine: start one, or open the folder of one that is finished."""

from __future__ import annotations

import json
import math
import os
import secrets
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from secure_sccvfl.api.figures import SHOWN
from secure_sccvfl.api.frames import as_frame
from secure_sccvfl.api.functions import Data, as_data
from secure_sccvfl.data.catalogue import is_benchmark
from secure_sccvfl.data.dataset import Dataset, DataWarning
from secure_sccvfl.data.features import DataError
from secure_sccvfl.data.party_data import own_schema
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.protocols.records.private import private
from secure_sccvfl.reports.figures import interval
from secure_sccvfl.reports.folders import RunFolder
from secure_sccvfl.reports.results import REPORT, Report, read
from secure_sccvfl.reports.verify import verify
from secure_sccvfl.runs.local.processes import new_folder, run_job, session_config
from secure_sccvfl.runs.local.whole_run import WholeRun, with_usual_epsilon
from secure_sccvfl.runs.predict import ELSEWHERE, REFUSED_FILE
from secure_sccvfl.training.model import probabilities
from secure_sccvfl.training.modes.options import RunOptions, prediction_options

Progress = Callable[[str, int, int], None]
"""Takes a step's name, its number and how many there are."""

SECURITY = "security.json"
SHOWN_REFUSALS = 5


class Run:
    """A finished run: one folder, with a report, a page, and a folder for each party.

    `Run.open("runs/a")` opens one. Nothing here changes it, except that `attack` adds its findings.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __repr__(self) -> str:
        return f"<Run {self.report.run[:12]} of {self.report.dataset} in {self.folder}>"

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """The run of this folder; ConfigError if none has finished."""
        path = Path(folder).resolve()
        if not (path / REPORT).is_file():
            raise ConfigError(f"{folder} is not the folder of a finished run: it has no report.json")
        return cls(path)

    @cached_property
    def report(self) -> Report:
        """All results as a tree of dataclasses: what report.json holds."""
        return read(self.folder)

    @property
    def page(self) -> Path:
        return self.folder / "report.html"

    @property
    def roles(self) -> dict[str, str]:
        """The role of every column: M (edited with s), P (a proxy) or N (held fixed)."""
        return dict(sorted(self.report.roles.items()))

    @property
    def metrics(self) -> pd.DataFrame:
        """Figures of the test part with 95 % intervals, and those of the majority and of dropping mediators.

        Names are those of `TrainedModel.evaluate`. An interval allows for noise in the figure; rates always have
        one.
        """
        figures, others = self.report.metrics, self.report.baselines
        baselines = {name: others[name] for name in ("majority", "drop_m") if name in others}
        rows = []
        for name in (name for name in SHOWN if name in figures):
            low, high = interval(self.report, name, figures[name]) or (math.nan, math.nan)
            rows.append({"": name, "value": figures[name], "low": low, "high": high})
            rows[-1] |= {other: other_figures.get(name, math.nan) for other, other_figures in baselines.items()}
        return pd.DataFrame(rows).set_index("").rename_axis(None).round(4)

    @property
    def baselines(self) -> pd.DataFrame:
        """The same figures of the baselines: of pooled data many, trained in plaintext with the roles of the run; of
        your own the majority and a model without mediators and proxies, with noise."""
        return pd.DataFrame(self.report.baselines).reindex(self.metrics.index).round(4)

    def privacy(self) -> dict[str, Any]:
        """What was released about the records and what it cost.

        `training` is about the training records; `evaluation` about the test records, if their figures carry noise.
        """
        names = {"training": "privacy_budget.json", "evaluation": "evaluation_budget.json"}
        return {
            key: json.loads((self.folder / name).read_text(encoding="utf-8"))
            for key, name in names.items()
            if (self.folder / name).is_file()
        }

    def verify(self, seal: str | None = None) -> tuple[str, ...]:
        """Check every log, digest and figure of the folder against each other; returns what was checked.

        A ProtocolError names what does not fit. `seal`: the one that was noted when the run ended.
        """
        checks = verify(self.folder, seal)
        problems = [line for lines in checks.values() for line in lines]
        if problems:
            raise ProtocolError(f"{self.folder} cannot be trusted: {'; '.join(problems)}")
        return tuple(checks)

    def attack(self, releases: int = 400) -> dict[str, Any]:
        """Attack the run with what each process really saw; returns security.json, and puts the findings on the page.

        For runs made with `transcript=True`. The attacks run once, in separate processes, and take minutes.
        """
        if not (self.folder / SECURITY).is_file():
            if not (self.folder / "dealer" / "transcript").is_dir():
                raise ConfigError(f"{self.folder} has no transcripts: make a run with transcript=True")
            _attack(self.folder, releases)
        return dict(json.loads((self.folder / SECURITY).read_text(encoding="utf-8")))

    def predict(self, frame: pd.DataFrame) -> pd.Series:
        """Decisions about new records, by a session of real processes; only the label's holder sees them.

        `frame` holds the columns of all parties; each process reads its own. Without an id column, all rows are new
        people. A record that a party cannot read is refused: it has no decision (NaN), and a warning says why. A
        model answers once for each id: asked again it returns the same answer, and with other columns it refuses.
        """
        return self._predicted(frame, scores=False).iloc[:, 0]

    def predict_proba(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Probability of each class, from calibrated logits that are opened to the label's holder."""
        data = self.report.data
        if not data.label.classes:
            raise ValueError("a regression has no probabilities; use predict")
        predicted = self._predicted(frame, scores=True)
        logits = predicted.filter(like="logit ").to_numpy(dtype=float)
        return pd.DataFrame(probabilities(logits, data.task), predicted.index, data.label.classes)

    def _predicted(self, frame: pd.DataFrame, scores: bool) -> pd.DataFrame:
        frame = as_frame(frame, "the table of new records")
        folder = RunFolder.of(self.folder)
        folder.must_hold_all("every host decides together, with run_party.py predict")
        session = folder.session()
        settings = prediction_options(session.options)
        key = RunOptions.of(settings).schema(len(session.parties)).id_rule.name
        numbered = key not in frame
        token = secrets.token_hex(8)  # rows without an id are new people: a model answers for each id once
        records = frame.assign(**{key: [f"{token}-{n}" for n in range(len(frame))]}) if numbered else frame
        with tempfile.TemporaryDirectory(prefix="sccvfl-") as work:
            path = Path(work) / "records.csv"
            with open(path, "w", newline="", encoding="utf-8", opener=private) as file:
                records.to_csv(file, index=False)
            options = {**settings, "model": str(self.folder), "records": str(path), "scores": scores}
            session_folder = Path(work) / "session"
            config = session_config(session_folder, "predict", len(session.parties), options)
            run_job(config, session_folder).check(session_folder)
            path = next(session_folder.glob("party-*/predictions.csv"))
            title = pd.read_csv(path, nrows=0).columns[0]
            predicted = pd.read_csv(path, dtype={title: str, "decision": str})
            _warn_refused(session_folder)
        ordered = predicted.set_index(title).reindex(records[key].astype("string").str.normalize("NFC").str.strip())
        return ordered.set_axis(frame.index if numbered else pd.Index(frame[key]))


def _warn_refused(folder: Path) -> None:
    """Say which records a session refused, as each party reports to its people."""
    tables = [
        pd.read_csv(path, dtype=str, keep_default_na=False) for path in sorted(folder.glob(f"party-*/{REFUSED_FILE}"))
    ]
    rows = [row for table in tables for row in table.itertuples() if row.why != ELSEWHERE]
    lines = list(dict.fromkeys(": ".join(filter(None, (row.id, row.column, row.why))) for row in rows))
    if lines:
        shown = "; ".join(lines[:SHOWN_REFUSALS]) + ("; ..." if len(lines) > SHOWN_REFUSALS else "")
        warnings.warn(f"records without a decision: {shown}", DataWarning, stacklevel=4)


def run_local(
    data: Data | Dataset | str | Path = "german",
    parties: int | None = None,
    folder: str | Path | None = None,
    *,
    transcript: bool = False,
    harness: bool = True,
    progress: Progress | None = None,
    **settings: Any,
) -> Run:
    """Train, evaluate and report under MPC: a process for each party and one for the dealer, on this machine.

    `parties`: as many as the data have; benchmark data can be distributed over another number. `folder`: a new
    folder (default `runs/TIME`). `settings` are the options of a run, such as seed, epsilon, delta, mode, card,
    evaluation and ledger; `secure_sccvfl.training.modes.options.RunOptions` lists them. `pooled=True` says that your
    own data may be pooled here: the report then has common counterfactual models and baselines (`harness=False`
    leaves these out), and figures of test records are exact. `transcript=True` writes down everything that each
    process sees, shares included, for `Run.attack`; it is for pooled data only.

    DataFrames are written to `FOLDER-data` next to the run: a file for each party, which only you may read. What
    their records have spent is kept in `sccvfl-ledgers` next to both, or in `ledger`. Use the same folder for every
    run on the same people. Call this from the main thread: it passes signals on to its processes.
    """
    if parties is not None and (not isinstance(parties, int) or parties < 2):
        raise ConfigError(f"parties must be a whole number from 2 on, not {parties!r}")
    path = new_folder() if folder is None else Path(folder)
    if path.exists() and any(path.iterdir()):
        raise ConfigError(f"{path} is not empty; choose a new folder for the run")
    path = path.resolve()
    options = dict(settings)
    options["dataset"], natural = _dataset(data, path, options)
    if transcript and not RunOptions.of(options).data.pooled:
        raise ConfigError("a transcript writes shares to disk: for benchmark data, or with pooled=True")
    config = session_config(path, "train", parties or natural, with_usual_epsilon(options))
    whole = WholeRun(path, config, None, _events(progress), False, transcript)
    whole.train().check(path)
    whole.finish(pooled_evaluation=harness)
    return Run.open(path)


def _dataset(data: Data | Dataset | str | Path, path: Path, options: dict[str, Any]) -> tuple[str, int]:
    """What the processes read, and its number of parties. No record of files is read here."""
    if isinstance(data, (str, Path)) and not is_benchmark(str(data)):
        description = Path(data).resolve()
        return str(description), len(own_schema(description).parties)
    loaded = as_data(data)
    count = len(loaded.dataset.parties)
    if loaded.source is not None:
        return loaded.source, count
    pooled = bool(options.get("pooled", False))
    if loaded.read_off and not pooled:
        raise DataError(
            f"ranges, categories, classes or groups of {', '.join(loaded.read_off)} were read off the records, and "
            "a run would publish them: declare them in load, or say pooled=True if the data may be pooled"
        )
    if not pooled:
        options.setdefault("ledger", str(path.parent / "sccvfl-ledgers"))
    return str(loaded.write(path.with_name(f"{path.name}-data"))), count


def _events(progress: Progress | None) -> Callable[[dict[str, Any]], None]:
    def event(event: dict[str, Any]) -> None:
        if progress is not None and "step" in event:
            progress(event["step"], event["number"], event["total"])

    return event


def _attack(folder: Path, releases: int) -> None:
    """The security evaluation in its own process, which starts others and has the same imports as this one."""
    search_path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    environment = {**os.environ, "PYTHONPATH": search_path, "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "secure_sccvfl.runs.local.security_evaluation", str(folder), str(releases)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    if ended.returncode != 0:
        lines = ended.stderr.strip().splitlines() or ["no message"]
        raise ProtocolError(lines[-1])
