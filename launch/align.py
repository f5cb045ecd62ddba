"""What would an alignment tell? One party looks at its own records before anything is sent.

    sccvfl align loans.toml --party bank --dry-run
    sccvfl align loans.toml --party bank --dry-run --align revealed

It reads the files of this party by the rule for ids of the description, reports records without an
id and ids that occur twice, counts the records of each part, and says what the mode would reveal to
whom. Nothing is sent, and nobody else takes part. The alignment itself is the first phase of every
run; job = "align" in a session file does it alone.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import get_args

from launch.arguments import answer, argument, program
from protocols.alignment.interface import AlignKind
from protocols.config import ConfigError


def run(options: argparse.Namespace) -> int:
    from secure_sccvfl.data.party_data import own_part, own_schema
    from secure_sccvfl.runs.alignment import REVEALS, own_counts

    if not options.dry_run:
        raise ConfigError(
            'add --dry-run: an alignment with the others is the first phase of a run, or job = "align" in a session '
            "file (sccvfl party)"
        )
    schema = own_schema(options.dataset)
    names = {name: rank for rank, party in enumerate(schema.parties) for name in (party, str(rank))}
    if options.party not in names:
        raise ConfigError(f"no party {options.party!r}; available: {', '.join(schema.parties)}")
    rank = names[options.party]
    counts = own_counts(own_part(options.dataset, rank, options.seed))
    told = {
        "party": schema.parties[rank],
        "align": options.align,
        "id": list(schema.id_rule.columns),
        "records": counts,
        "reveals": REVEALS[options.align],
    }
    return answer(
        options,
        told,
        f"{told['party']}: {counts['all']} records, each with an id of its own ({schema.id_rule.name})",
        f"parts: {counts['train']} to train, {counts['validation']} to validate, {counts['test']} to test",
        f"align = {options.align} reveals, {REVEALS[options.align]}",
    )


main = program(
    "align",
    run,
    argument("dataset", type=Path, help="the description of the data"),
    argument("--party", required=True, help="the own party: its name, or its number from 0"),
    argument("--align", choices=get_args(AlignKind), default="hidden", help="the mode; default: hidden"),
    argument("--seed", type=int, default=0, help="the seed of the run, which the parts follow from"),
    argument("--dry-run", action="store_true", help="look at the own records alone; needed"),
)

if __name__ == "__main__":
    sys.exit(main())
