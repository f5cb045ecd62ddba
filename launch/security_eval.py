"""Attack a finished run with what each process really saw, and audit its differential privacy.

    python launch/security_eval.py runs/2026-01-01              a run made with --transcript
    python launch/security_eval.py runs/new --fresh             make such a run first (acs12-gender)
    python launch/security_eval.py runs/new --fresh --dataset german --mode split
    python launch/security_eval.py runs/2026-01-01 --json       the result for a machine

Views: label holder, every party, every coalition of up to m-1, the dealer, the network (recorded
TLS bytes), the receiver of predictions (a real session opens the logits of the test records to it),
and next to them the paper's plaintext server. Attacks: s and y of training records, telling shares of
two secrets apart, membership inference, the retraining attack, model completion, columns of others
from scores and gradients, property inference on released tables, PGD on the model. Each has a
positive control that must succeed. The audit gives an empirical lower bound on the epsilon of every
kind of release that the run was charged for, and tests the noise that was drawn. The exit code is 0
only if all promises, targets and controls hold. The program writes security.json and security.md
into RUN, and makes its page (report.html) again.

It needs data that may be pooled: transcripts of all parties in one place give every secret away.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path

from secure_sccvfl.launch.arguments import argument, program
from secure_sccvfl.runs.console import CHECK_FAILED, OK, say

_FRESH = ("dataset", "seed", "parties", "mode")


@program(
    "security_eval",
    argument("run", type=Path, metavar="RUN", help="folder of a run made with --transcript"),
    argument("--fresh", action="store_true", help="make the run first; RUN must be a new folder"),
    argument("--dataset", help="with --fresh: as for run_mpc.py"),
    argument("--seed", help="with --fresh: as for run_mpc.py"),
    argument("--parties", help="with --fresh: as for run_mpc.py"),
    argument("--mode", help="with --fresh: as for run_mpc.py"),
    argument("--releases", type=int, default=400, help="releases of each kind for the audit (400)"),
)
def main(options: argparse.Namespace) -> int:
    from secure_sccvfl.protocols.config import ConfigError
    from secure_sccvfl.reports.folders import RunFolder

    given = [name for name in _FRESH if getattr(options, name) is not None]
    if given and not options.fresh:
        raise ConfigError(f"--{given[0]} goes with --fresh: a finished run has its own")
    if options.releases < 10:
        raise ConfigError(f"--releases must be at least 10, not {options.releases}")
    if options.fresh:
        from secure_sccvfl.launch import run_mpc

        settings = [text for name in given for text in (f"--{name}", getattr(options, name))]
        with contextlib.redirect_stdout(sys.stderr):
            code = run_mpc.main(["--transcript", "--no-harness", "--out", str(options.run), *settings])
        if code != OK:
            return code
    RunFolder.of(options.run).must_hold_all("attacks need what every process saw")
    if (options.run / "session.toml").exists() and not (options.run / "dealer" / "transcript").is_dir():
        raise ConfigError(f"{options.run} has no transcripts: make a run with --transcript, or give --fresh")
    from secure_sccvfl.runs.local.security_evaluation import evaluate_run

    report = evaluate_run(options.run, options.releases, _tell)
    if options.json:
        print(json.dumps(report))
    else:
        print((options.run / "security.md").read_text())
    return OK if report["ok"] else CHECK_FAILED


def _tell(what: str) -> None:
    if sys.stderr.isatty():
        say(what, error=True)


if __name__ == "__main__":
    sys.exit(main())
