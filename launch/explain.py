"""Walk one person through a run in six steps: who holds what, roles, the edit, both decisions, why, what it means.

    python launch/explain.py runs/2026-01-01 --record g0374
    python launch/explain.py runs/2026-01-01 --record g0374 --party 1     as that party sees it

On public data everything is shown, by plaintext twins of the model: nobody has the model of a run in
secret. Of a consortium's records a party sees its own columns and what its own generator does to
them, with --party; in the folder of its own host it sees that without. `--config` names the session
file if it is elsewhere. `--predictions FILE` adds the decision that it received.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from launch.arguments import answer, argument, program
from protocols.config import ConfigError


def run(options: argparse.Namespace) -> int:
    import torch

    from secure_sccvfl.reports.explain import explain, explain_to_party, walk
    from secure_sccvfl.reports.folders import RunFolder

    torch.set_num_threads(1)  # small models: more threads are slower
    party = RunFolder.of(options.run).host if options.party is None else options.party
    if party is not None:
        explanation = explain_to_party(options.run, options.record, party, options.config, options.predictions)
    elif options.config is not None or options.predictions is not None:
        raise ConfigError("--config and --predictions are for one party: name it with --party")
    else:
        explanation = explain(options.run, options.record)
    return answer(options, explanation, *walk(explanation).splitlines())


main = program(
    "explain",
    run,
    argument("run", type=Path, help="the folder of a finished run, or one party's own folder"),
    argument("--record", required=True, help="the id of the record"),
    argument("--party", type=int, help="only what this party (its number, from 0) can see"),
    argument("--config", type=Path, help="with --party: the session file, if it is not in the folder"),
    argument("--predictions", type=Path, help="with --party: predictions that it received"),
)

if __name__ == "__main__":
    sys.exit(main())
