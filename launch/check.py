"""Check your own file against the description, offline: every problem at once, and what to write.

    sccvfl check loans.toml --party bank                   the file that the description names
    sccvfl check loans.toml --party bank --file other.csv  another one
    sccvfl check loans.toml --party bank --json

Cells are read as a run reads them. For each problem it shows the column, how many cells, the first rows
(counted from the first record) with their ids, and the line of the description to change or what else
to do. Warnings are about traps that your own columns show: one value only, an identifier, a copy of the
label or of the protected column. Only your own files are read, and nothing is sent.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from launch.arguments import answer, argument, program
from secure_sccvfl.runs.console import OK, WRONG_USE


def run(options: argparse.Namespace) -> int:
    from secure_sccvfl.data.checks import check
    from secure_sccvfl.data.features import counted

    found = check(options.description, options.party, options.file)
    lines = [f"{found.file} as {found.party}: {found.records} records, {found.columns} columns"]
    for number, problem in enumerate(found.problems, 1):
        first, second = problem.lines()
        lines += [f"  {number}. {first}", f"     {second.strip()}"]
    lines += [f"  warning: {warning}" for warning in found.warnings]
    many = counted(len(found.problems), "problem")
    lines.append(f"{many}: a run would refuse this file" if found.problems else "no problem")
    answer(options, found.as_record(), *lines)
    return WRONG_USE if found.problems else OK


main = program(
    "check",
    run,
    argument("description", type=Path, help="the description of all parties"),
    argument("--party", required=True, metavar="NAME", help="whose file is checked"),
    argument("--file", type=Path, help="a file in place of the one that the description names"),
)

if __name__ == "__main__":
    sys.exit(main())
