"""`sccvfl align --dry-run`: own counts and what a mode would reveal, from the own files alone."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from secure_sccvfl.data.party_data import own_part
from secure_sccvfl.launch.cli import main
from secure_sccvfl.runs.alignment import REVEALS
from tests.support.overlap import write_overlap


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of the clinic, on a machine without those of the others and without a network."""

    def no_network(*given: Any) -> None:
        raise AssertionError("something was sent")

    path = write_overlap(tmp_path)
    for other in ("hospital.csv", "payer.csv"):
        (tmp_path / other).unlink()
    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr(socket.socket, "bind", no_network)
    monkeypatch.setattr("sys.argv", ["sccvfl"])
    return path


@pytest.mark.parametrize("mode", ["hidden", "revealed", "exact"])
def test_a_party_sees_its_own_counts_and_what_the_mode_would_reveal(
    dataset: Path, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    part = own_part(dataset, 1, 0)
    parts = {name: len(getattr(part.split, name)) for name in ("train", "validation", "test")}
    command = ["align", str(dataset), "--party", "clinic", "--dry-run", "--align", mode]
    assert main([*command, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["records"] == {"all": len(part.ids), **parts} and summary["align"] == mode
    assert summary["reveals"] == REVEALS[mode]  # type: ignore[index]
    assert main(command) == 0
    lines = capsys.readouterr().out
    assert f"clinic: {len(part.ids)} records, each with a unique id" in lines
    assert f"align = {mode} reveals, {REVEALS[mode]}" in " ".join(lines.split())  # type: ignore[index]


def test_an_id_twice_and_a_call_without_dry_run_are_one_line(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["align", str(dataset), "--party", "clinic"]) == 2
    assert "add --dry-run" in capsys.readouterr().err
    table = dataset.parent / "clinic.csv"
    table.write_text(table.read_text() + table.read_text().splitlines()[1] + "\n")
    assert main(["align", str(dataset), "--party", "1", "--dry-run"]) == 2
    message = capsys.readouterr().err.strip()
    assert (
        "id: 1 value repeated" in message
        and "keep one record of each id" in message
        and len(message.splitlines()) == 1
    )
