"""A consortium one of whose members writes names into the description to reach the others' screens and readers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np

from secure_sccvfl.launch.cli import main
from tests.multiprocess.programs import run_mpc
from tests.unit.reports.test_plain_text import read

HTML = "<img src=x onerror=alert(1)>\"'&{{7*7}}"
MARKUP, PIPE, ESCAPE = "x[/red]", "a|b", "\x1b[2J\x1b]0;owned\x07"
NAMES = (HTML, MARKUP, PIPE, ESCAPE)


def write(folder: Path, rows: int = 600) -> Path:
    rng = np.random.default_rng(0)
    quoted = [json.dumps(name) for name in NAMES]

    def table(file: str, names: list[str]) -> None:
        head = ["id", *names]
        lines = [",".join('"' + name.replace('"', '""') + '"' for name in head)]
        lines += [",".join([f"p{row}", *map(str, rng.integers(0, 2, len(names)))]) for row in range(rows)]
        (folder / file).write_text("\n".join(lines) + "\n")

    table("bank.csv", ["y", HTML, MARKUP])
    table("shop.csv", ["s", PIPE, ESCAPE])
    feature = 'kind = "category", categories = ["0", "1"], labels = [{0}, {0}], meaning = {0}'
    party = "[parties.{0}]\nfile = {1}\nfeatures = [\n  {{ name = {2}, {4} }},\n  {{ name = {3}, {4} }},\n]\n"
    text = f'name = {quoted[0]}\nabout = {quoted[3]}\ntask = "binary"\nid = "id"\n[label]\nparty = {quoted[1]}\n'
    text += f'column = "y"\nclasses = ["0", "1"]\nlabels = [{quoted[0]}, {quoted[3]}]\nmeaning = {quoted[1]}\n'
    text += f'[[protected]]\nparty = {quoted[3]}\ncolumn = "s"\ngroups = ["0", "1"]\nlabels = [{quoted[2]}, '
    text += f"{quoted[3]}]\nmeaning = {quoted[1]}\n"
    text += party.format(quoted[1], '"bank.csv"', quoted[0], quoted[1], feature.format(quoted[0]))
    text += party.format(quoted[3], '"shop.csv"', quoted[2], quoted[3], feature.format(quoted[3]))
    (folder / "own.toml").write_text(text)
    return folder / "own.toml"


def harmless(text: str) -> None:
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)


def test_a_run_with_hostile_names_ends_well_and_its_files_hold_words(tmp_path: Path, capsys) -> None:
    short = ("--lambdas", "8", "--warmup", "10", "--steps", "10", "--refreshes", "0")
    ran = run_mpc("--dataset", write(tmp_path), "--out", "run", *short, cwd=tmp_path)
    harmless(ran.stdout + ran.stderr)
    assert "x[/red]" in ran.stdout and "seal, to be kept" in ran.stdout
    files = sorted((tmp_path / "run").rglob("*.md"))
    assert {"policy_card.md", "privacy_budget.md"} <= {path.name for path in files}
    for path in files:
        harmless(path.read_text())
        read(path.read_text())
    rows = read((tmp_path / "run" / "policy_card.md").read_text())[1]
    assert {HTML, MARKUP, PIPE} < {row[0] for row in rows[1:]} and {len(row) for row in rows} == {5, 6}
    for log in (tmp_path / "run" / "logs").iterdir():
        harmless(log.read_text())
    for command in (["policy", "show"], ["audit", "verify"], ["audit", "log"]):
        assert main([*command, str(tmp_path / "run")]) == 0
        shown = capsys.readouterr()
        harmless(shown.out + shown.err)
