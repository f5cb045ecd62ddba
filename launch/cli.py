"""The console program `sccvfl`: one name for the programs in launch/.

sccvfl run --parties 3                                train on census data under MPC, with a report
sccvfl report runs/2026-01-01                         make its page again
sccvfl explain runs/2026-01-01 --record g0374         one person: columns, roles, edit, decisions, why
sccvfl audit verify runs/2026-01-01                   can it be trusted?
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
sccvfl raise-cap show cap.toml
sccvfl party --rank 0 --config session.toml --certs certs --out out
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec

from secure_sccvfl.runs.console import EXIT_CODES, OK, WRONG_USE

COMMANDS: dict[str, tuple[str, list[str], str]] = {
    "run": ("run_mpc", [], "train, test and report a whole run on this machine"),
    "predict": ("run_mpc", ["predict"], "decide about new records with a trained model, under MPC"),
    "discovery": ("run_mpc", ["discovery"], "noisy statistics and roles only, under MPC"),
    "selftest": ("run_mpc", ["selftest"], "check every kind of secret operation on this machine"),
    "options": ("options", [], "every option of a run, with type, default and meaning; their JSON Schema"),
    "report": ("report", [], "make report.html of a run again"),
    "explain": ("explain", [], "walk one person through a run in six steps"),
    "audit": ("audit", [], "verify that a run can be trusted; show its log"),
    "policy": ("policy", [], "show, check, approve, review and compare policy cards; appeals"),
    "attack": ("security_eval", [], "attacks on what a run really gave to each one"),
    "privacy": ("privacy_report", [], "what was released about the records, and what it cost"),
    "reproduce": ("reproduce", [], "the method's tables over seeds, on the plaintext engine"),
    "bench": ("bench", [], "measure next to stock CrypTen and plain torch"),
    "init": ("init", [], "draft the description of your own data; merge the parties' drafts"),
    "check": ("check", [], "read your own file against the description: every problem at once"),
    "certs": ("certs", [], "keys and certificates of a consortium: request, sign, install, pin, revoke"),
    "align": ("align", [], "what an alignment of records would tell, before it is made"),
    "plan": ("plan", [], "what a session will open, to whom and at what price, before it starts"),
    "approve": ("approve", [], "sign the plan of a session as one of its parties"),
    "raise-cap": ("raise_cap", [], "raise the cap of the budget, with the signatures of all parties"),
    "party": ("run_party", [], "start one party, on any host"),
    "dealer": ("run_dealer", [], "start the dealer, on any host"),
}


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if not given or given[0] in ("-h", "--help"):
        print(__doc__)
        for name, (_, _, meaning) in COMMANDS.items():
            print(f"  {name:<11}{meaning}")
        print("\nsccvfl COMMAND --help tells more; --debug works everywhere, --json where there is a result.")
        print(EXIT_CODES)
        return OK
    if given[0] not in COMMANDS:
        print(f"sccvfl: no command {given[0]!r}; available: {', '.join(COMMANDS)}", file=sys.stderr)
        return WRONG_USE
    module, first, _ = COMMANDS[given[0]]
    if find_spec(f"launch.{module}") is None:
        print(f"sccvfl: {given[0]} is not part of this version", file=sys.stderr)
        return WRONG_USE
    sys.argv[0] = f"sccvfl {given[0]}"  # the name of the program in --help and errors
    code: int = import_module(f"launch.{module}").main([*first, *given[1:]])
    return code


if __name__ == "__main__":
    sys.exit(main())
