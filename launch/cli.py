"""The console program `sccvfl`: one name for the programs in launch/.

sccvfl run --parties 3                                train on census data under MPC, with a report
sccvfl report runs/2026-01-01                         make its page again
sccvfl explain runs/2026-01-01 --record g0374         one person: columns, roles, edit, decisions, why
sccvfl audit verify runs/2026-01-01                   can it be trusted?
sccvfl export modelcard runs/2026-01-01               also mlflow, intoto
sccvfl attack runs/2026-01-01                         what could be guessed from what each one saw
sccvfl predict --model runs/2026-01-01 --records new.csv
sccvfl policy appeal runs/2026-01-01 --feature housing --who "an applicant" --text "no choice of mine"
sccvfl privacy runs/2026-01-01
sccvfl selftest --parties 5
sccvfl init bank.csv --party bank --label late        draft a description of your own data
sccvfl check loans.toml --party bank                  everything that is wrong with your own file
sccvfl certs request certs --member party-0 --name bank
sccvfl plan session.toml
sccvfl approve session.toml --certs certs --rank 0
sccvfl preflight session.toml --certs certs --rank 0  meet all members once, before the session
sccvfl raise-cap show cap.toml
sccvfl party --rank 0 --config session.toml --certs certs --out out
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib import import_module
from importlib.metadata import version

from secure_sccvfl.config.fields import json_schema, listing
from secure_sccvfl.config.sections import OPTIONS, SECTIONS
from secure_sccvfl.config.session_file import top_level_schema
from secure_sccvfl.launch.arguments import argument, did_you_mean, program
from secure_sccvfl.runs.console import EXIT_CODES, OK, WRONG_USE, guarded, say

COMMANDS: dict[str, tuple[str, list[str], str]] = {
    "run": ("run_mpc", [], "train, test and report a whole run on this machine"),
    "predict": ("run_mpc", ["predict"], "decide about new records with a trained model, under MPC"),
    "discovery": ("run_mpc", ["discovery"], "noisy statistics and roles only, under MPC"),
    "selftest": ("run_mpc", ["selftest"], "check every kind of secret operation on this machine"),
    "options": ("cli:options", [], "every option of a run, with type, default and meaning; their JSON Schema"),
    "runs": ("finished:runs", [], "list finished runs; compare some side by side"),
    "report": ("finished:report", [], "make report.html of a run again"),
    "explain": ("finished:explain", [], "walk one person through a run in six steps"),
    "export": ("exports:export", [], "a finished run as an MLflow run, an in-toto statement or a model card"),
    "audit": ("finished:audit", [], "verify that a run can be trusted; show its log"),
    "policy": ("policy", [], "show, check, approve, review and compare policy cards; appeals"),
    "attack": ("security_eval", [], "attacks on what a run really gave to each one"),
    "privacy": ("privacy_report", [], "what was released about the records, and what it cost"),
    "reproduce": ("reproduce", [], "the method's tables over seeds, on the plaintext engine"),
    "bench": ("bench", [], "measure next to stock CrypTen and plain torch"),
    "init": ("own_data:init", [], "draft the description of your own data; merge the parties' drafts"),
    "check": ("own_data:check", [], "read your own file against the description: every problem at once"),
    "certs": ("certs", [], "keys and certificates of a consortium: request, sign, install, pin, revoke"),
    "align": ("own_data:align", [], "what an alignment of records would tell, before it is made"),
    "plan": ("consortium:plan", [], "what a session will open, to whom and at what price, before it starts"),
    "kit": ("consortium:kit", [], "one archive for each member: session file, certificates, commands"),
    "preflight": ("consortium:preflight", [], "meet all members once: routes, clocks, versions, files, plan"),
    "approve": ("consortium:approve", [], "sign the plan of a session as one of its parties"),
    "raise-cap": ("consortium:raise_cap", [], "raise the cap of the budget, with the signatures of all parties"),
    "flare": ("flare", [], "a session as a job of NVIDIA FLARE: make the job, prepare a site"),
    "party": ("run_party", [], "start one party, on any host"),
    "dealer": ("run_dealer", [], "start the dealer, on any host"),
}
"""Module in launch/ (with the function, unless it is `main`), first arguments, and meaning of each command."""


@program(
    "options",
    argument("section", nargs="?", choices=SECTIONS, help="this section alone"),
    argument("--schema", action="store_true", help="print a JSON Schema"),
    json=False,
)
def options(given: argparse.Namespace) -> int:
    """List every option of a run by section: name, type, default, documentation.

        sccvfl options                     all of them
        sccvfl options privacy             one section
        sccvfl options --schema            the JSON Schema of session files, for editors

    In a session file an option is a key of its section; on the command line it is --set section.key=value.
    """
    if given.schema:
        print(json.dumps(json_schema(OPTIONS, top_level_schema()), indent=1))
        return OK
    for line in listing(tuple(o for o in OPTIONS if given.section in (None, o.section))):
        say(line)
    return OK


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    return guarded("sccvfl", lambda: _dispatched(given))


def _dispatched(given: list[str]) -> int:
    if not given or given[0] in ("-h", "--help"):
        print(__doc__)
        for name, (_, _, meaning) in COMMANDS.items():
            print(f"  {name:<11}{meaning}")
        print("\nsccvfl COMMAND --help tells more; --debug works everywhere, --json where there is a result.")
        print(EXIT_CODES)
        return OK
    if given[0] == "--version":
        print(f"secure-sccvfl {version('secure-sccvfl')}")
        return OK
    if given[0] not in COMMANDS:
        meant = did_you_mean(given[0], COMMANDS)
        say(f"sccvfl: no command {given[0]!r}{meant or '; available: ' + ', '.join(COMMANDS)}", error=True)
        return WRONG_USE
    path, first, _ = COMMANDS[given[0]]
    module, _, function = path.partition(":")
    sys.argv[0] = f"sccvfl {given[0]}"  # the name of the program in --help and errors
    code: int = getattr(import_module(f"secure_sccvfl.launch.{module}"), function or "main")([*first, *given[1:]])
    return code


if __name__ == "__main__":
    sys.exit(main())
