"""Run a whole session on this machine: the dealer and m parties, one process each.

    python launch/run_mpc.py --parties 3                                   train on census data under MPC
    python launch/run_mpc.py --dataset german                              German Credit, roles by discovery
    python launch/run_mpc.py --dataset heart --epsilon 4 --seed 1          another data set, a smaller budget
    python launch/run_mpc.py --dataset german --head mlp --no-private-model    a network as the head
    python launch/run_mpc.py --dataset german --set training.proxy_penalty=0.2 --set discovery.rho_p=0.5
    python launch/run_mpc.py --dataset loans.toml --ledger ledgers         your own data
    python launch/run_mpc.py --transcript                                  record all views, for security_eval.py
    python launch/run_mpc.py --resume runs/2026-01-01                      continue a run that was stopped
    python launch/run_mpc.py predict --model runs/2026-01-01 --records new.csv
    python launch/run_mpc.py discovery --dataset compas                    noisy statistics and roles only
    python launch/run_mpc.py selftest --parties 5                          check every MPC operation

Training opens what the release plan declares (docs/releases.md). Throw-away certificates are made for the run and
removed as soon as all processes are connected. For one process per host see run_party.py and run_dealer.py.

The run's folder (default runs/TIME) gets report.html, report.json, policy_card.*, privacy_budget.*,
evaluation_budget.*, session.toml, audit.jsonl and audit.head, logs/ (dealer.log, party-0.log, ...), and party-0/,
party-1/, ...: what each party holds. That is result.json, audit.jsonl, releases.jsonl (what was opened), its shares
(model/ with model.* and evaluation.json, checkpoints/STEP.npz, judge-NAME.npz), ledger.jsonl and ledger.jsonl.head,
their sets/ and tables/ (files named by digests), records.key, and predictions-MODEL.* with all answers of its model.
evaluation/ and examples/ have the same of later sessions, records.csv the public records of examples. predict writes
predictions.csv and refused.csv into party-0/, ... Ledgers of own data are in sccvfl-ledgers next to the description.

--set reaches every option; `sccvfl options` lists them. Options of this program that are not listed below:
--certs FOLDER (certificates made by certs.py), --deadline SECONDS (wait for a peer; 60),
--no-harness (no counterfactual models and baselines), --seeds N (plaintext seeds behind intervals), and of the
self-test --size N, --repeat N.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secure_sccvfl.config.sections import ANSWERS, CACHED, OPTIONS, wire_names
from secure_sccvfl.launch.arguments import Parser, add_options, given_options
from secure_sccvfl.runs.console import OK, guarded, say
from secure_sccvfl.runs.local.screens import Progress, show_concerns, show_job_result, show_report
from secure_sccvfl.runs.process import check_transcript

if TYPE_CHECKING:
    from secure_sccvfl.protocols.config import SessionConfig

FIRST_RUN = {"dataset": "acs12-gender", "card": "shipped"}
"""What is trained if no data set is named."""
JOB_OPTIONS = {
    "train": tuple(o.wire for o in OPTIONS),
    "discovery": wire_names("data", "privacy", "discovery"),
    "predict": ("card", *ANSWERS),
    "selftest": ("seed",),
}
"""The options that a job reads."""


def make_parser() -> argparse.ArgumentParser:
    parser, hidden = Parser(__doc__), argparse.SUPPRESS
    parser.add_argument("job", nargs="?", default="train", choices=tuple(JOB_OPTIONS), help="default: train")
    parser.add_argument("--parties", type=int, help="number of parties (default: 3, or as the data say)")
    add_options(parser)
    parser.add_argument("--out", type=Path, help="a new folder for logs and results (default: runs/TIME)")
    parser.add_argument("--resume", type=Path, metavar="RUN", help="continue a run that was stopped")
    parser.add_argument("--model", type=Path, metavar="RUN", help="predict: the folder of the run")
    parser.add_argument("--records", type=Path, help="predict: a CSV with the id column and the features")
    parser.add_argument("--transcript", action="store_true", help=hidden)
    parser.add_argument("--no-harness", action="store_true", help=hidden)
    parser.add_argument("--seeds", type=int, help=hidden)
    parser.add_argument("--selftest", action="store_true", help=hidden)
    parser.add_argument("--size", type=int, default=400, help=hidden)
    parser.add_argument("--repeat", type=int, default=1, help=hidden)
    parser.add_argument("--deadline", type=float, default=60.0, help=hidden)
    parser.add_argument("--certs", type=Path, help=hidden)
    return parser


def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    if options.selftest:
        options.job = "selftest"
    return guarded("run_mpc", lambda: run(options), debug=options.debug)


def run(options: argparse.Namespace) -> int:
    from secure_sccvfl.protocols.config import ConfigError
    from secure_sccvfl.reports.folders import result_of
    from secure_sccvfl.reports.results import Report, to_json
    from secure_sccvfl.reports.run_log import last_seal
    from secure_sccvfl.runs.local.processes import new_folder, run_job, session_config
    from secure_sccvfl.runs.local.whole_run import WholeRun

    if options.parties is not None and options.parties < 2:
        raise ConfigError(f"--parties must be at least 2, not {options.parties}")
    folder = options.resume or options.out or new_folder()
    if options.resume is None and folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; choose a new folder for the run")
    job, parties, settings = _job(options)
    if options.transcript:
        _check_transcript(options, settings)
    config = session_config(folder, job, parties, settings, deadline=options.deadline)
    if settings.get("cap"):
        config = _pinned(config, options.certs)
    report: Report | None = None
    with Progress(quiet=options.json) as progress:
        if job == "train":
            whole = WholeRun(folder, config, options.certs, progress.event, options.debug, options.transcript)
            show_concerns(settings)
            ending = whole.train()
            report = whole.finish(not options.no_harness, options.seeds) if ending.code == OK else None
            result = None if report is None else {**to_json(report), "seal": last_seal(folder)}
        else:
            ending = run_job(config, folder, options.certs, progress.event, options.debug, options.transcript)
            result = result_of(folder, 0) if (folder / "party-0" / "result.json").exists() else None
    if options.json:
        print(json.dumps({"exit_codes": ending.exit_codes, "failures": ending.failures, "result": result}))
        return ending.code
    if result is not None:
        if report is not None:
            show_report(report, folder)
        else:
            show_job_result(job, result, folder)
    if ending.code != OK:
        again = ""
        if job == "train" and any(folder.glob("party-*/checkpoints/*.npz")):
            again = f"; to go on from the last checkpoint: --resume {folder}"
        say(f"run_mpc: {ending.cause} (logs are in {folder / 'logs'}{again})", error=True)
    return ending.code


def _job(options: argparse.Namespace) -> tuple[str, int, dict[str, Any]]:
    """The job, the number of parties, and the content of the session file."""
    from secure_sccvfl.protocols.config import ConfigError
    from secure_sccvfl.reports.folders import RunFolder
    from secure_sccvfl.runs.local.whole_run import natural_parties, with_usual_epsilon
    from secure_sccvfl.training.modes.options import prediction_options

    settings = given_options(options)
    if options.resume is not None:
        folder = RunFolder.of(options.resume)
        folder.must_hold_all("every host goes on with run_party.py --resume")
        _check_resume(options, settings)
        session = folder.session()
        return "train", len(session.parties), {**session.options, "resume": True}
    if unread := [name for name in settings if name not in JOB_OPTIONS[options.job]]:
        raise ConfigError(f"{options.job} does not read {unread[0]}; it reads {', '.join(JOB_OPTIONS[options.job])}")
    if options.job == "selftest":
        sizes = {"size": options.size, "repeat": options.repeat}
        return "selftest", options.parties or 3, {"seed": settings.get("seed", 0), **sizes}
    if options.job == "predict":
        if options.model is None or options.records is None:
            raise ConfigError("predict needs --model RUN and --records FILE")
        folder = RunFolder.of(options.model)
        folder.must_hold_all("every host decides together, with run_party.py predict")
        session = folder.session()
        files = {"model": str(options.model.resolve()), "records": str(options.records.resolve())}
        return (
            "predict",
            len(session.parties),
            {**prediction_options(session.options), **files, "scores": False, **settings},
        )
    if "dataset" not in settings:
        settings = {k: v for k, v in FIRST_RUN.items() if k in JOB_OPTIONS[options.job]} | settings
    for name in ("tables", "cap"):  # a folder and a file, wherever the processes run
        if settings.get(name, CACHED) != CACHED:
            settings[name] = str(Path(settings[name]).resolve())
    parties = options.parties or natural_parties(settings["dataset"])
    return options.job, parties, with_usual_epsilon(settings) if options.job == "train" else settings


def _pinned(config: SessionConfig, certs: Path | None) -> SessionConfig:
    """The session with the certificates of this folder: those who may raise a cap."""
    from secure_sccvfl.protocols.config import ConfigError, node_folder
    from secure_sccvfl.protocols.net.certificates import Credentials, fingerprint

    if certs is None:
        raise ConfigError("--cap is signed with the parties' certificates: name their folder with --certs")
    folders = [node_folder(node, config.dealer) for node in range(config.dealer + 1)]
    prints = {folder: fingerprint(Credentials.of(certs, folder).certificate.read_bytes()) for folder in folders}
    return replace(config, certificates=prints, approval="none")


def _check_resume(options: argparse.Namespace, settings: dict[str, Any]) -> None:
    """Refuse other settings than the run began with, and a finished run, which would be trained over."""
    from secure_sccvfl.protocols.config import ConfigError
    from secure_sccvfl.reports.run_log import LOG

    given = [*settings, *(name for name in ("parties", "out") if getattr(options, name) is not None)]
    if given:
        raise ConfigError(f"--{given[0].replace('_', '-')} does not go with --resume: the run has its own")
    if (options.resume / LOG).exists():
        raise ConfigError(f"{options.resume} is finished: there is nothing to resume; train again in another folder")


def _check_transcript(options: argparse.Namespace, settings: dict[str, Any]) -> None:
    from secure_sccvfl.protocols.config import ConfigError

    check_transcript(settings)
    if options.resume is not None:
        raise ConfigError("--transcript needs a new run")


if __name__ == "__main__":
    sys.exit(main())
