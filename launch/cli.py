"""The console program `sccvfl`: one name for the programs in launch/.

sccvfl run --parties 3
sccvfl selftest --parties 5
sccvfl certs certs --parties 3
sccvfl party --rank 0 --config session.toml --certs certs
sccvfl dealer --config session.toml --certs certs
sccvfl reproduce main --dataset german --seeds 10 --out results/german
sccvfl privacy runs/2026-01-01
sccvfl bench ops
"""

from __future__ import annotations

import sys
from importlib import import_module

from launch.console import EXIT_CODES, OK, WRONG_USE

COMMANDS = {
    "run": ("run_mpc", "run a whole session on this machine"),
    "selftest": ("run_mpc", "check every kind of secret operation on this machine"),
    "party": ("run_party", "start one party, on any host"),
    "dealer": ("run_dealer", "start the dealer, on any host"),
    "certs": ("certs", "make the certificates of a consortium"),
    "reproduce": ("reproduce", "the method's tables over seeds, on the plaintext engine"),
    "privacy": ("privacy_report", "what was released about the records, and what it cost"),
    "bench": ("bench", "measure beside stock CrypTen and plain torch"),
}


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if not given or given[0] in ("-h", "--help"):
        print(__doc__)
        for name, (_, meaning) in COMMANDS.items():
            print(f"  {name:<10}{meaning}")
        print(f"\nsccvfl COMMAND --help tells more.\n{EXIT_CODES}")
        return OK
    if given[0] not in COMMANDS:
        print(f"sccvfl: no command {given[0]!r}; there is {', '.join(COMMANDS)}", file=sys.stderr)
        return WRONG_USE
    module = import_module(f"launch.{COMMANDS[given[0]][0]}")
    rest = [*given[1:], *(["--selftest"] if given[0] == "selftest" else [])]
    code: int = module.main(rest)
    return code


if __name__ == "__main__":
    sys.exit(main())
