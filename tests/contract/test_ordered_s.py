"""A number in public cells as s under MPC: tables by cell, and their order in the model that each party keeps."""

from __future__ import annotations

import json
from pathlib import Path

from secure_sccvfl.runs.model_files import load_model
from secure_sccvfl.runs.train import TrainJob
from tests.contract.test_cached_releases import SHORT, train
from tests.support.own_data import DESCRIPTION, heart_rows, jobs_of, write_own

CELLS = 'column = "born", cells = [1930, 1945, 1955, 1970, 1990]'


def test_cells_are_trained_on_and_kept_with_their_order(tmp_path: Path) -> None:
    rows = [{**row, "s": str(2010 - int(float(row["age"])))} for row in heart_rows()]
    data = write_own(tmp_path, rows)
    clinic = tmp_path / "clinic.csv"
    clinic.write_text(clinic.read_text().replace("id,s,", "id,born,", 1))
    text = DESCRIPTION.replace('column = "s", groups = ["0", "1"]', CELLS)
    data.write_text(text)
    options = {"dataset": str(data), "align": "exact", **SHORT}
    results = train(tmp_path / "run", options)
    assert len({json.dumps(result["roles"], sort_keys=True) for result in results}) == 1
    for rank, job in enumerate(jobs_of(TrainJob, options)):
        model = load_model(tmp_path / "run" / f"party-{rank}" / "model", job.data.party.layout)
        (tables,) = model.noisy_tables
        assert tables.structure == ((4, True),)
        assert all(table.shape[1] == 4 for table in tables.tables.values())
        generator = model.generators(job.data.party)["born"]
        assert generator.material.structure == tables.structure  # type: ignore[attr-defined]
