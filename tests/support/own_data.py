"""A consortium's own data in a folder: three CSV files and their description, from the Heart records."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.sessions import local_config, run_session

HEART = Path(__file__).resolve().parents[2] / "secure_sccvfl" / "data" / "embedded" / "heart_cleveland303.csv"
COLUMNS = {
    "hospital": ("y", "trestbps", "chol", "thalach", "oldpeak", "exang"),
    "clinic": ("s", "age", "cp", "slope"),
    "payer": ("fbs", "restecg"),
}
DESCRIPTION = """
name = "heart of our own"
task = "binary"
id = "id"
label = { party = "hospital", column = "y", classes = ["0", "1"] }
protected = [ { party = "clinic", column = "s", groups = ["0", "1"] } ]
[parties.hospital]
file = "hospital.csv"
features = [
  { name = "trestbps", kind = "number", low = 90, high = 200 },
  { name = "chol", kind = "number", low = 100, high = 600 },
  { name = "thalach", kind = "number", low = 60, high = 220 },
  { name = "oldpeak", kind = "number", low = 0, high = 7 },
  { name = "exang", kind = "category", categories = ["0", "1"] },
]
[parties.clinic]
file = "clinic.csv"
features = [
  { name = "age", kind = "number", low = 25, high = 80 },
  { name = "cp", kind = "category", categories = ["asymptomatic", "atypical ang", "non-anginal", "typical ang"] },
  { name = "slope", kind = "category", categories = ["downsloping", "flat", "upsloping"] },
]
[parties.payer]
file = "payer.csv"
features = [
  { name = "fbs", kind = "category", categories = ["0", "1"] },
  { name = "restecg", kind = "category", categories = ["ST-T abnormal", "left vent hypertrophy", "normal"] },
]
"""


def heart_rows(count: int = 303) -> list[dict[str, str]]:
    with HEART.open() as file:
        return list(csv.DictReader(file))[:count]


def write_own(folder: Path, rows: Sequence[dict[str, str]]) -> Path:
    """The files of these records; returns the description."""
    folder.mkdir(parents=True, exist_ok=True)
    for party, columns in COLUMNS.items():
        with (folder / f"{party}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", *columns])
            writer.writerows([f"p{row['id']}", *(row[c] for c in columns)] for row in rows)
    path = folder / "own.toml"
    path.write_text(DESCRIPTION)
    return path


def without(table: Path, left_out: Sequence[int]) -> str:
    """A table's text without the records at these places."""
    header, *rows = table.read_text().splitlines()
    return "\n".join([header, *(row for index, row in enumerate(rows) if index not in left_out)]) + "\n"


def jobs_of(
    make: Any, options: dict[str, Any], parties: int = 3, certificates: dict[str, str] | None = None
) -> list[Any]:
    """One job of this kind at every party."""
    config, listeners = local_config(parties, options=options, certificates=certificates or {})
    for listener in listeners:
        listener.close()
    return [make(config, rank) for rank in range(parties)]


def run_jobs(jobs: list[Any], folder: Path, **settings: Any) -> list[dict[str, Any]]:
    """Run them as threads with real sockets, each with its own folder."""
    return run_session(
        lambda session: jobs[session.rank].run(session, lambda *step: None),
        len(jobs),
        jobs[0].plan(),
        folder=folder,
        **settings,
    )
