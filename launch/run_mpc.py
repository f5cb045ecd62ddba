"""Run a whole session on this machine: the dealer and m parties, one process each.

    python launch/run_mpc.py --parties 3                                   train on census data, in secret
    python launch/run_mpc.py --dataset german                              German Credit, roles by discovery
    python launch/run_mpc.py --dataset heart --epsilon 4 --seed 1          another data set, less budget
    python launch/run_mpc.py --dataset german --head mlp --no-private-model    a network as the head
    python launch/run_mpc.py --dataset loans.toml --ledger ledgers         your own data
    python launch/run_mpc.py --resume runs/2026-01-01                      go on where a run was stopped
    python launch/run_mpc.py predict --model runs/2026-01-01 --records new.csv
    python launch/run_mpc.py discovery --dataset compas                    noisy statistics and roles only
    python launch/run_mpc.py selftest --parties 5                          every secret operation, checked

Training opens what SECURITY.md lists and nothing else. Results are in the run's folder
(report.json, privacy_budget.md, one folder per party). Throw-away certificates are made for the run
and removed as soon as all processes have met. For one process per host see run_party.py and
run_dealer.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launch.arguments import Parser
from secure_sccvfl.data.catalogue import dataset_help
from secure_sccvfl.models.generators import GENERATORS
from secure_sccvfl.policy.aware_entry import LEGAL_NOTE
from secure_sccvfl.releases.heads import EPSILON_RULE
from secure_sccvfl.runs.console import OK, guarded, say
from secure_sccvfl.runs.local.screens import Progress, show_concerns, show_report, show_result
from secure_sccvfl.runs.process import check_transcript
from secure_sccvfl.training import RECIPES
from secure_sccvfl.training.modes import MODES

if TYPE_CHECKING:
    from protocols.config import SessionConfig

_BUDGET = ("epsilon", "delta", "private_model", "head_share", "refreshes", "noise", "ledger", "reserve", "cap")
_ALIGN = ("align", "align_bounds")
_TRAINING = (
    *("dataset", "split", "seed", "mode", "card", *_ALIGN, *_BUDGET),
    *("late_refreshes", "tables", "generator_seed", "predictions"),
)
_EVALUATION = ("evaluation", "evaluation_epsilon", "evaluation_delta", "min_group", "leak", "slices", "controls")
_ROLES = (
    *("rule", "score", "rho_m", "rho_p", "fdr", "hysteresis", "per_party"),
    *("conditional", "gain", "sketch", "clip", "decay"),
)
_DISCOVERY = ("dataset", "seed", *_ALIGN, *_BUDGET, *_ROLES)
_MODEL = (
    *("encoder", "head", "hidden", "generator", "consistency"),
    *("warmup", "steps", "grid_steps", "ridge", "dp_steps", "dp_sampling"),
)
_WEIGHTS = ("weight_identity", "weight_support", "weight_leak")
_CONSISTENCY = ("consistency_from", "lambdas", "gap_target", "flip_target", "take_lambda", "guard", "guard_grows")
_METHOD = ("method", *_ROLES, *_MODEL, *_CONSISTENCY, *_WEIGHTS)
FIRST_RUN = {"dataset": "acs12-gender", "card": "shipped"}
"""What is trained if no data set is named."""


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(__doc__)
    jobs = ("train", "predict", "discovery", "selftest")
    parser.add_argument("job", nargs="?", default="train", choices=jobs, help="what to do (default train)")
    parser.add_argument("--parties", type=int, help="number of parties (default 3, or as the data say)")
    _add_data(parser)
    _add_roles(parser)
    _add_method(parser)
    _add_running(parser)
    return parser


def _add_data(parser: argparse.ArgumentParser) -> None:
    data = parser.add_argument_group("data and privacy")
    data.add_argument("--dataset", help=f"default {FIRST_RUN['dataset']} with its shipped card; {dataset_help()}")
    data.add_argument("--split", choices=("iid", "shift"), help="how benchmark data are split (default iid)")
    data.add_argument(
        "--align",
        choices=("hidden", "revealed", "exact"),
        help="how own records are brought together: nobody learns who is common (hidden, the default where settings "
        "allow it), all parties learn it, or ids must be equal; hidden goes with modes sealed and aware and noisy "
        "evaluation, not with conditional scores or the clipped sketch",
    )
    data.add_argument(
        "--align-bounds",
        type=float,
        nargs="+",
        metavar="RECORDS",
        help="align hidden: the most records of each party",
    )
    data.add_argument("--seed", type=int, help="of split, generators and encoders (default 0)")
    data.add_argument("--epsilon", type=float, help=f"cap of the privacy budget (default {EPSILON_RULE})")
    data.add_argument("--delta", type=float, help="default 1e-5; must be below 1 / records")
    data.add_argument(
        "--refreshes", type=int, help="further releases of the sketch before joint training (default 0)"
    )
    data.add_argument(
        "--late-refreshes",
        type=int,
        help="the same during joint training: roles, edits and penalty follow them, and the budget pays (default 1)",
    )
    data.add_argument("--noise", choices=("dealer+holder", "dealer", "all-parties"), help="default dealer+holder")
    data.add_argument(
        "--ledger", help="folder of the budget's ledgers, kept from run to run (default: the run's own)"
    )
    data.add_argument(
        "--tables",
        metavar="RUN",
        help="use the statistics of s that this run has paid for (or the last ones: kept): only the head is charged",
    )
    data.add_argument(
        "--private-model",
        action=argparse.BooleanOptionalAction,
        help="train a differentially private head under the same epsilon (default). Without it the model reveals "
        "training records: for research on public data, and needed for --gap-target, --flip-target, other encoders "
        "and generators that are fitted to records",
    )
    data.add_argument(
        "--head-share", type=float, help="the head's share of the budget (default .6; .75 with a whole card)"
    )
    data.add_argument("--reserve", type=float, help="share of the cap that is left for later runs (default 0)")
    data.add_argument("--cap", metavar="FILE", help="decision of all parties to raise the cap (sccvfl raise-cap)")
    data.add_argument("--generator-seed", type=int, help="of generators and encoders alone (default: the seed)")
    data.add_argument(
        "--card", help='policy card that fixes roles: a file, "shipped", or a shipped name; see docs/policy.md'
    )
    data.add_argument(
        "--evaluation",
        choices=("noisy", "exact"),
        help="how validation and test records are looked at: with noise that is charged, or exactly, which is not "
        "private (default: exact for public benchmark data, noisy for your own)",
    )
    data.add_argument("--evaluation-epsilon", type=float, help="cap of the budget of test records (default 4)")
    data.add_argument("--evaluation-delta", type=float, help="default 1e-5")
    data.add_argument("--min-group", type=int, help="fewest records that a rate of a group may rest on (default 20)")
    data.add_argument(
        "--leak",
        action=argparse.BooleanOptionalAction,
        help="measure under MPC how well s is recovered from the encodings of validation records (exact evaluation "
        "and --no-private-model only, since it reveals s of training records; about 100 rounds for each attribute)",
    )
    data.add_argument(
        "--slices", metavar="COLUMN", help="rates of groups crossed with this column (pooled data, exact evaluation)"
    )
    data.add_argument(
        "--controls",
        choices=("none", "standard", "full"),
        help="what noisy figures are compared with: the majority, flips with groups shuffled and, with "
        "--no-private-model, a model without mediators and proxies (standard, the default); also its rates of groups "
        "(full); nothing, for less noise (none)",
    )
    data.add_argument(
        "--predictions",
        type=int,
        metavar="PEOPLE",
        help="how many people the model may answer for, over all predictions, each of them once (default 1000; data "
        "that may be pooled: no limit)",
    )
    data.add_argument("--pooled", action="store_true", help="your own data may be pooled here: adds common judges")


def _add_roles(parser: argparse.ArgumentParser) -> None:
    """Options of discovery."""
    roles = parser.add_argument_group("roles: which columns follow from s")
    switch = argparse.BooleanOptionalAction
    roles.add_argument(
        "--rule",
        choices=("fdr", "fractions", "tri-partition"),
        help="fdr: columns with evidence follow from s; fractions: those with the highest scores, however low; "
        "tri-partition: the paper's section 3.2, those with the highest HSIC, and of these the ones with the largest "
        "probability gap are proxies (default fdr; v1 fractions; paper tri-partition)",
    )
    roles.add_argument(
        "--score",
        choices=("hsic", "stable", "gap", "paper", "conditional"),
        help="hsic: computed under MPC from noisy tables, opened to all; owners announce others; stable: distance "
        "of groups, less what noise explains; gap: the largest difference between two groups; paper: its probability "
        "gap plus HSIC; conditional: --gain and --conditional alone (default hsic; v1 gap; paper paper)",
    )
    roles.add_argument("--rho-m", type=float, help="rules without evidence: share that follows s (default 0.6)")
    roles.add_argument(
        "--rho-p", type=float, help="share of those that are proxies (default 0; v1 0.5; paper 0.5); a card decides"
    )
    roles.add_argument("--fdr", type=float, help="rule fdr: share of false findings that is accepted (default 0.1)")
    roles.add_argument(
        "--hysteresis", type=float, help="margin by which a score must pass a boundary to change a role (default 0.1)"
    )
    roles.add_argument(
        "--per-party", action=switch, help="take shares within the columns of each party (default off; paper on)"
    )
    roles.add_argument(
        "--conditional",
        action=switch,
        help="score what s tells of a column beyond its owner's other columns, by residual HSIC: one more charged "
        "release (default off; paper on)",
    )
    roles.add_argument(
        "--gain",
        action=switch,
        help="score how much s adds to the prediction of a column from its owner's others: one more charged release "
        "(default off; paper on)",
    )
    roles.add_argument(
        "--sketch",
        choices=("counts", "clipped"),
        help="tables of counts, or scaled to one length first, which noise then hides nearly all of (default counts; "
        "paper clipped)",
    )
    roles.add_argument("--clip", type=float, help="sketch clipped: the length (default 1)")
    roles.add_argument(
        "--decay", type=float, help="weight that older tables keep after the records have changed (default 0.5)"
    )


def _add_method(parser: argparse.ArgumentParser) -> None:
    method = parser.add_argument_group("method")
    method.add_argument(
        "--mode",
        choices=MODES.names,
        help="gradient mode (default sealed). In mode aware the model uses s, in secret, for every decision; the "
        f"card must declare it in an entry [aware]. {LEGAL_NOTE}",
    )
    method.add_argument(
        "--method",
        choices=RECIPES.names,
        help="recipe that other options of the method change: scc (default), v1 (the first one), paper (mode split)",
    )
    method.add_argument("--encoder", choices=("plain", "random", "autoencoder"), help="default plain")
    method.add_argument(
        "--head",
        help="linear (default), or mlp: one hidden layer, trained by CrypTen's autograd; needs --no-private-model, "
        "so it is for public data (mode sealed, exact evaluation)",
    )
    method.add_argument("--hidden", type=int, metavar="UNITS", help="head mlp: hidden units (default 16)")
    method.add_argument("--generator", choices=GENERATORS.names, help="default minimal; v1 quantile; paper masked")
    method.add_argument("--consistency", choices=("squared", "l1"), help="default squared")
    method.add_argument(
        "--consistency-from",
        choices=("tables", "records"),
        help="build the consistency penalty from the released tables (default), or from edits of every training "
        "record: with noise that is charged, or with --no-private-model exactly, which reveals s of them",
    )
    method.add_argument(
        "--lambdas",
        type=float,
        nargs="+",
        help="grid of the consistency weight, rising; every private head is charged (default: --lambda alone)",
    )
    point = method.add_mutually_exclusive_group()
    point.add_argument("--lambda", type=float, dest="take_lambda", help="weight of consistency (default 3)")
    point.add_argument(
        "--gap-target",
        type=float,
        help="instead: the smallest lambda whose gap under edits is at most this share of the logit's spread, as in "
        "recipe v1 (.02)",
    )
    point.add_argument("--flip-target", type=float, help="instead: ... whose decisions flip at most this often")
    method.add_argument(
        "--guard",
        type=float,
        help="weight of the guard: the head must not use the direction in which proxies tell s (default 0.1; v1 "
        "0.05)",
    )
    method.add_argument(
        "--guard-grows",
        action=argparse.BooleanOptionalAction,
        help="the guard's weight is a share of lambda (default off; v1 on)",
    )
    for name, what in zip(_WEIGHTS, ("identity", "support", "leakage of s"), strict=True):
        flag = f"--{name.replace('_', '-')}"
        method.add_argument(flag, type=float, help=f"mode split: weight of {what} in the parties' own training")
    method.add_argument(
        "--warmup", type=int, help="first-order steps before consistency: several classes, l1 (default 60)"
    )
    method.add_argument(
        "--steps",
        type=int,
        help="first-order steps at each lambda: head mlp, l1, mode split (default 60; paper: the most after "
        "the warm-up, default as its table; it stops early)",
    )
    method.add_argument("--grid-steps", type=int, help="second-order steps of all lambdas at once (default 9)")
    method.add_argument(
        "--ridge",
        type=float,
        help="without a private head: weight of the squares of the head's weights (default 0.005)",
    )
    method.add_argument("--dp-steps", type=int, help="mode dp: noisy steps of the encoders (default 10)")
    method.add_argument("--dp-sampling", type=float, help="mode dp: chance of a record to be in a step (default 1)")
    method.add_argument("--no-harness", action="store_true", help="no common judges, no baselines (both plaintext)")
    method.add_argument(
        "--seeds",
        type=int,
        help="seeds of the plaintext engine that give figures an interval (default 10; large data 0)",
    )


def _add_running(parser: argparse.ArgumentParser) -> None:
    work = parser.add_argument_group("a model at work")
    work.add_argument("--model", type=Path, help="predict: the folder of the run")
    work.add_argument(
        "--records",
        type=Path,
        help="predict: a CSV with the id column and the features (mode aware: s too, which its holder reads alone)",
    )
    work.add_argument("--scores", action="store_true", help="predict: open calibrated logits, not decisions alone")
    work.add_argument("--receiver", type=int, help="predict: who sees the predictions (default: the label's holder)")
    work.add_argument("--resume", type=Path, metavar="RUN", help="go on with a run that was stopped")
    test = parser.add_argument_group("self-test")
    test.add_argument("--selftest", action="store_true", help="the same as the job selftest")
    test.add_argument("--size", type=int, default=400, help="length of its vectors (default 400)")
    test.add_argument("--repeat", type=int, default=1, help="how often it runs (default 1)")
    running = parser.add_argument_group("running")
    running.add_argument("--transport", choices=("tls", "gloo"), default="tls", help="default tls")
    running.add_argument("--deadline", type=float, default=60.0, help="seconds to wait for a peer (default 60)")
    running.add_argument("--certs", type=Path, help="certificates made by certs.py, instead of throw-away ones")
    running.add_argument("--out", type=Path, help="a new folder for logs and results (default runs/TIME)")
    running.add_argument(
        "--transcript",
        action="store_true",
        help="for security_eval.py: every process writes what it sees, SHARES INCLUDED, to disk (pooled data only)",
    )


def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    if options.selftest:
        options.job = "selftest"
    return guarded("run_mpc", lambda: run(options), debug=options.debug)


def run(options: argparse.Namespace) -> int:
    from protocols.config import ConfigError
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
    config = session_config(folder, job, parties, settings, transport=options.transport, deadline=options.deadline)
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
            show_result(job, result, folder)
    if ending.code != OK:
        again = ""
        if job == "train" and any(folder.glob("party-*/checkpoints/*.npz")):
            again = f"; to go on from the last checkpoint: --resume {folder}"
        say(f"run_mpc: {ending.cause} (logs are in {folder / 'logs'}{again})", error=True)
    return ending.code


def _job(options: argparse.Namespace) -> tuple[str, int, dict[str, Any]]:
    """The job, the number of parties, and the content of the session file."""
    from protocols.config import ConfigError
    from secure_sccvfl.reports.folders import RunFolder
    from secure_sccvfl.runs.local.whole_run import natural_parties, with_usual_epsilon
    from secure_sccvfl.training.modes.options import prediction_options

    if options.job == "selftest":
        seed = options.seed or 0
        return "selftest", options.parties or 3, {"seed": seed, "size": options.size, "repeat": options.repeat}
    if options.resume is not None:
        folder = RunFolder.of(options.resume)
        folder.must_hold_all("every host goes on with run_party.py --resume")
        _check_resume(options)
        known = folder.session()
        return "train", len(known.parties), {**known.options, "resume": True}
    if options.job == "predict":
        if options.model is None or options.records is None:
            raise ConfigError("predict needs --model RUN and --records FILE")
        folder = RunFolder.of(options.model)
        folder.must_hold_all("every host decides together, with run_party.py predict")
        known = folder.session()
        settings = prediction_options(known.options)
        settings |= {"model": str(options.model.resolve()), "records": str(options.records.resolve())}
        settings |= {"scores": options.scores, **({"card": options.card} if options.card else {})}
        if options.receiver is not None:
            settings["receiver"] = options.receiver
        return "predict", len(known.parties), settings
    wanted = (*_TRAINING, *_EVALUATION, *_METHOD) if options.job == "train" else _DISCOVERY
    settings = {name: getattr(options, name) for name in wanted if getattr(options, name) is not None}
    if "dataset" not in settings:
        settings = {k: v for k, v in FIRST_RUN.items() if k in wanted} | settings
    for name in ("tables", "cap"):  # a folder and a file, wherever the processes run
        if settings.get(name, "kept") != "kept":
            settings[name] = str(Path(settings[name]).resolve())
    if options.pooled and options.job == "train":
        settings["pooled"] = True
    parties = options.parties or natural_parties(settings["dataset"])
    return options.job, parties, with_usual_epsilon(settings) if options.job == "train" else settings


def _pinned(config: SessionConfig, certs: Path | None) -> SessionConfig:
    """The session with the certificates of this folder: those who may raise a cap."""
    from protocols.config import ConfigError, node_folder
    from protocols.net.certificates import Credentials
    from protocols.net.signatures import fingerprint

    if certs is None:
        raise ConfigError("--cap is signed with the parties' certificates: name their folder with --certs")
    places = [node_folder(node, config.dealer) for node in range(config.dealer + 1)]
    prints = {place: fingerprint(Credentials.of(certs, place).certificate.read_bytes()) for place in places}
    return replace(config, certificates=prints, approval="none")


def _check_resume(options: argparse.Namespace) -> None:
    """Refuse other settings than the run began with, and a finished run, which would be trained over."""
    from protocols.config import ConfigError
    from secure_sccvfl.reports.run_log import LOG

    known = ("parties", "out", *_TRAINING, *_EVALUATION, *_METHOD)
    given = [name.replace("_", "-") for name in known if getattr(options, name) is not None]
    if given:
        raise ConfigError(f"--{given[0]} does not go with --resume: the run has its own")
    if (options.resume / LOG).exists():
        raise ConfigError(f"{options.resume} is finished: there is nothing to resume; train anew in another folder")


def _check_transcript(options: argparse.Namespace, settings: dict[str, Any]) -> None:
    from protocols.config import ConfigError

    check_transcript(settings)
    if options.transport != "tls" or options.resume is not None:
        raise ConfigError("--transcript needs the tls transport and a new run")


if __name__ == "__main__":
    sys.exit(main())
