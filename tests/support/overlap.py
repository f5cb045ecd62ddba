"""Own data of three parties that hold different people: the Heart records, of which all hold a share."""

from __future__ import annotations

import csv
from collections.abc import Collection
from pathlib import Path

from tests.support.own_data import COLUMNS, DESCRIPTION, heart_rows

COMMON = 7
"""Of ten records in a row all parties hold so many, and each of the others is held by one party."""


def holders(number: int) -> tuple[str, ...]:
    """Who holds a record, by its number."""
    residue = number % 10
    return tuple(COLUMNS) if residue < COMMON else (list(COLUMNS)[residue - COMMON],)


def write_overlap(folder: Path, *, only_common: bool = False, left_out: Collection[str] = ()) -> Path:
    """The files; `left_out`: ids that the first party no longer has. Each party has its own order of rows."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = list(enumerate(heart_rows()))
    for turn, (party, columns) in enumerate(COLUMNS.items()):
        party_rows = [row for n, row in rows if party in holders(n) and (not only_common or len(holders(n)) > 1)]
        party_rows = [row for row in party_rows if turn or f"p{row['id']}" not in left_out]
        with (folder / f"{party}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", *columns])
            turned = party_rows if only_common else party_rows[turn:] + party_rows[:turn]
            writer.writerows([f"p{row['id']}", *(row[c] for c in columns)] for row in turned)
    path = folder / "own.toml"
    path.write_text(DESCRIPTION)
    return path
