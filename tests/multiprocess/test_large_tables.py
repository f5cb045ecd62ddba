"""A table that is larger than the memory of a process: one of 5 GB trains within 2 GB per process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

COLUMNS = 1600
USED = 8
MOST = 2 * 1024**2
"""Kilobytes that the largest process may hold at its peak."""
DESCRIPTION = """
name = "large"
task = "binary"
id = "id"
label = {{ party = "bank", column = "late", classes = ["0", "1"] }}
protected = [ {{ party = "employer", column = "over_40", groups = ["no", "yes"] }} ]
[parties.bank]
file = "{file}"
features = [ {bank} ]
[parties.employer]
file = "employer.csv"
features = [ {{ name = "wage", kind = "number", low = -8, high = 8 }} ]
"""


def write(folder: Path, records: int, file: str) -> int:
    """Two tables of this many records, one of them of 1600 numbers each; returns its bytes."""
    rng, names = np.random.default_rng(0), [f"x{column}" for column in range(COLUMNS)]
    schema = pa.schema([("id", pa.int64()), ("late", pa.int8()), *((name, pa.float64()) for name in names)])
    with (
        pq.ParquetWriter(folder / "bank.parquet", schema, compression="none", use_dictionary=False) as table,
        (folder / "employer.csv").open("w") as employer,
    ):
        employer.write("id,over_40,wage\n")
        for start in range(0, records, 20_000):
            ids = np.arange(start, min(start + 20_000, records))
            values = rng.standard_normal((COLUMNS, len(ids))).clip(-8, 8).round(5)
            old = rng.integers(0, 2, len(ids))
            late = (values[:USED].sum(0) + old + rng.normal(0, 2, len(ids)) > 0).astype(np.int8)
            table.write_table(pa.table([pa.array(ids), pa.array(late), *map(pa.array, values)], schema=schema))
            wages = (old + rng.normal(0, 1, len(ids))).clip(-8, 8)
            employer.writelines(
                f"{i},{'yes' if s else 'no'},{wage:.3f}\n" for i, s, wage in zip(ids, old, wages, strict=True)
            )
    features = ", ".join(f'{{ name = "{name}", kind = "number", low = -8, high = 8 }}' for name in names[:USED])
    (folder / "bank.sql").write_text("SELECT * FROM 'bank.parquet'")
    (folder / "large.toml").write_text(DESCRIPTION.format(file=file, bank=features))
    if file == "bank.csv":
        duckdb.sql(f"COPY (FROM '{folder}/bank.parquet') TO '{folder}/bank.csv'")
    return (folder / file.replace("sql", "parquet")).stat().st_size


def peaks(session: int) -> dict[int, int]:
    """The peak memory, in kilobytes, of each process that runs in an operating-system session."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, StopIteration):  # it ended
            if os.getsid(int(path.name)) == session:
                lines = (path / "status").read_text().splitlines()
                found[int(path.name)] = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return found


def train(folder: Path) -> list[int]:
    """Train under MPC; the peak memory of each process, in kilobytes, the largest first."""
    program = [sys.executable, "-m", "secure_sccvfl", "run", "--dataset", "large.toml", "--out", "run"]
    program += ["--set", "privacy.delta=1e-6", "--set", "evaluation.delta=1e-6"]  # below 1 / records
    largest: Counter[int] = Counter()
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(program, cwd=folder, stdout=log, stderr=log, start_new_session=True)
        while process.poll() is None:  # the parties are children of a fork server, which nobody waits for
            largest |= Counter(peaks(process.pid))
            time.sleep(0.1)
    assert process.returncode == 0, (folder / "log.txt").read_text()[-3000:]
    assert (folder / "run" / "report.html").is_file()
    return sorted(largest.values(), reverse=True)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("file", ["bank.parquet", "bank.sql", "bank.csv"])
def test_five_gigabytes_train_within_two_per_process(file: str, tmp_path: Path) -> None:
    assert write(tmp_path, 400_000, file) > 5e9
    largest = train(tmp_path)
    assert len(largest) >= 4 and largest[0] < MOST, "at least the program, two parties and the dealer"
