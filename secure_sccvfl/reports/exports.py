"""A finished run in the formats of other tools: MLflow run, in-toto statement, Hugging Face model card.

Readers of `report.json` and the run's log alone: they hold no record, share or model. Nothing here imports torch or
CrypTen. Whoever gets an export learns what the report says; the statement adds digests of public files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from secure_sccvfl.accounting.budget import GRADIENTS, HEAD
from secure_sccvfl.accounting.plain_text import markdown, plain
from secure_sccvfl.accounting.tables import Table, page
from secure_sccvfl.metrics.rates import CERTIFIED
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.protocols.errors import LogError
from secure_sccvfl.protocols.net.certificates import Credentials, dsse_envelope
from secure_sccvfl.reports.figures import METRIC_WORDS, interval, noise_words, trusted
from secure_sccvfl.reports.folders import RunFolder
from secure_sccvfl.reports.page import PAGE
from secure_sccvfl.reports.policy_card import CARD
from secure_sccvfl.reports.results import REPORT, Report, read
from secure_sccvfl.reports.run_log import FINISHED, file_digest, last_seal, read_log, recorded
from secure_sccvfl.reports.sections import headline

PAYLOAD = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:secure-sccvfl:run:1"
TASKS = {"regression": "tabular-regression"}
TYPES = {"acc": "accuracy"}
"""Figures whose metric has another name at Hugging Face."""
MLFLOW_SETTINGS = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "MLFLOW_ALLOW_FILE_STORE": "true"}
"""Environment variables that MLflow reads when it is imported: it sends nothing, and takes a folder as its store."""
ROLES = {"M": "mediator: may count", "P": "proxy", "N": "held fixed"}
LIMITS = (
    "Nothing proves that parties gave true inputs.",
    "The dealer must collude with no party.",
    "A flip rate is about one model of counterfactuals, and not about the causal effect of the protected attribute.",
    "Figures are about people like those in the test records. Decisions about others may be worse.",
    "The parameters are secret-shared: this card comes without weights, and predictions need all parties.",
)


@dataclass(frozen=True)
class Figure:
    """A figure of the test records with its 95 % interval, if it has one, and that of the most frequent answer."""

    name: str
    words: str
    value: float
    low: float | None
    high: float | None
    majority: float | None


@dataclass(frozen=True)
class Finished:
    """A finished run whose log is whole and whose report is the one that the log has."""

    run: Path
    report: Report
    seal: str
    log: list[dict[str, Any]]
    digests: dict[str, str]
    """Of the files that an export names, as the log has them."""

    @classmethod
    def of(cls, run: Path) -> Finished:
        report, log = read(run), read_log(run)
        digests = {name: digest for name, digest in recorded(log).items() if name in (REPORT, CARD, PAGE)}
        for name in (REPORT, CARD, PAGE):
            here = file_digest(run / name) if (run / name).is_file() else None
            if here != digests.get(name) or (here is None and name == REPORT):
                raise LogError(
                    f"{name} is not the one that the run's log has; `sccvfl audit verify {run}` tells more"
                )
        return cls(run, report, last_seal(run), log, digests)

    @property
    def ended(self) -> dict[str, Any]:
        """The line of the log at the end of the run."""
        return next(entry for entry in reversed(self.log) if entry["event"] == FINISHED)

    @property
    def figures(self) -> Iterator[Figure]:
        report, model = self.report, trusted(self.report)
        words = {"acc": METRIC_WORDS["acc"], "rmse": "root mean square error, of the label's range"}
        if model is not None:
            words |= {f"fr_{model}": METRIC_WORDS[f"fr_{model}"], f"fr_null_{model}": "flip rate with s permuted"}
        words |= {CERTIFIED: METRIC_WORDS[CERTIFIED], "dp_gap": "demographic parity gap"}
        words |= {"eo_gap": "equalized odds gap"}
        majority = report.baselines.get("majority", {})
        for name in (name for name in words if name in report.metrics):
            value = report.metrics[name]
            low, high = interval(report, name, value) or (None, None)
            yield Figure(name, words[name], value, low, high, majority.get(name))

    @property
    def private(self) -> bool:
        """Whether epsilon covers the model."""
        return not {HEAD, GRADIENTS}.isdisjoint(self.report.privacy.parts)

    @property
    def settings(self) -> dict[str, Any]:
        """What was trained, and the privacy cost per record."""
        report, privacy = self.report, self.report.privacy
        about: dict[str, Any] = {
            "dataset": report.dataset,
            "task": report.data.task,
            "mode": report.mode,
            "engine": report.engine,
        }
        about |= {"parties": len(report.party_names), "alignment": report.align, "seed": report.seed}
        about |= {"security": report.security}
        about |= {"lambda": report.lam, "train_records": report.rows.get("train"), "noise_by": privacy.noise}
        about |= {"epsilon_covers_model": self.private}
        return about | {"epsilon": privacy.epsilon_rdp, "delta": privacy.delta, "epsilon_cap": privacy.cap}


def statement(finished: Finished, signer: str) -> dict[str, Any]:
    """The in-toto statement that a member makes about a run: digests of its public files, its seal and its code."""
    subject = [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(finished.digests.items())]
    about = {"run": finished.report.run, "seal": finished.seal, "code": finished.ended["code"], "signer": signer}
    predicate = {**about, "finished": finished.ended["time"], **finished.settings}
    return {"_type": STATEMENT, "subject": subject, "predicateType": PREDICATE, "predicate": predicate}


def envelope(finished: Finished, certs: Path, rank: int) -> str:
    """The statement in a DSSE envelope, signed with the key of this party's certificate."""
    host = RunFolder.of(finished.run).host
    if host not in (None, rank) or not 0 <= rank < len(finished.report.party_names):
        raise ConfigError(f"--rank {rank} is not a party whose folder this is")
    node = f"party-{rank}"
    payload = json.dumps(statement(finished, node), sort_keys=True).encode()
    return json.dumps(dsse_envelope(Credentials.of(certs, node), PAYLOAD, payload), indent=1) + "\n"


def model_card(finished: Finished) -> str:
    """A Hugging Face model card: a YAML header with the figures, then text."""
    report, privacy = finished.report, finished.report.privacy
    task = TASKS.get(report.data.task, "tabular-classification")
    figures, name = list(finished.figures), plain(report.dataset)
    metrics = [{"type": TYPES.get(f.name, f.name), "name": f.words, "value": round(f.value, 6)} for f in figures]
    results = {"task": {"type": task}, "dataset": {"name": name, "type": name}, "metrics": metrics}
    header = {
        "library_name": "secure_sccvfl",
        "pipeline_tag": task,
        "tags": ["vertical-federated-learning", "multiparty-computation", "differential-privacy", "fairness"],
        "model-index": [{"name": f"{name}-{report.run[:12]}", "results": [results]}],
    }
    roles = {role: ", ".join(sorted(name for name, given in report.roles.items() if given == role)) for role in "MPN"}
    head = headline(report)
    spent = (
        f"Epsilon {privacy.epsilon_rdp:.4g} of at most {privacy.cap:g} at delta {privacy.delta:g} for one training "
        f"record, by Rényi accounting; noise by {privacy.noise}. It covers noisy tables of s, and "
        f"{'the model' if finished.private else 'NOT the model'}. {noise_words(report)}"
    )
    return f"---\n{yaml.safe_dump(header, sort_keys=False, allow_unicode=True)}---\n\n" + page(
        f"# {markdown(head['title'])}",
        *map(markdown, head["story"]),
        f"## Figures\n\nOf {report.rows['test']} test records, with 95 % intervals where there is one.",
        Table(
            ("figure", "value", "95 % interval", "most frequent answer"),
            [(f.words, _number(f.value), _interval(f), _number(f.majority)) for f in figures],
        ),
        "## Privacy",
        markdown(spent),
        "## Columns",
        Table(("role", "columns"), [(word, roles[role]) for role, word in ROLES.items()]),
        "## Limits",
        "\n".join(f"- {markdown(line)}" for line in (*report.warnings, report.security_words, *LIMITS)),
        f"Made from the report of run {markdown(report.run)}, sealed {finished.seal}.",
    )


def to_mlflow(finished: Finished, store: Path) -> str:
    """Add the run to a local file store of MLflow, without telemetry; returns the new run's id."""
    os.environ |= MLFLOW_SETTINGS
    try:
        from mlflow.entities import Metric, Param, RunTag
        from mlflow.tracking import MlflowClient
    except ImportError:
        raise ConfigError("install the extra `mlflow` for this export") from None
    client, report = MlflowClient(store.absolute().as_uri()), finished.report
    known = client.get_experiment_by_name(report.dataset)
    experiment = client.create_experiment(report.dataset) if known is None else known.experiment_id
    run = client.create_run(experiment, run_name=report.run).info.run_id
    ends = [(f"{f.name}_{end}", value) for f in finished.figures for end, value in (("low", f.low), ("high", f.high))]
    values = [*((f.name, f.value) for f in finished.figures), *ends, ("epsilon", report.privacy.epsilon_rdp)]
    metrics = [Metric(name, value, 0, 0) for name, value in values if value is not None]
    tags = [RunTag("sccvfl.seal", finished.seal), RunTag("sccvfl.code", finished.ended["code"])]
    params = [Param(name, str(value)) for name, value in finished.settings.items()]
    client.log_batch(run, metrics, params, tags)
    for name in finished.digests:
        client.log_artifact(run, str(finished.run / name))
    client.set_terminated(run)
    return str(run)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _interval(figure: Figure) -> str:
    return "" if figure.low is None else f"{_number(figure.low)} to {_number(figure.high)}"
