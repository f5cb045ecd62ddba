"""The tutorial, command by command, in an empty folder; what it shows is what comes out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.sessions import LONG

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = ROOT / "docs" / "tutorial.md"
MARK = "=== block"
NUMBER = re.compile(r"\d+(\.\d+)?(e-?\d+)?")


@dataclass(frozen=True)
class Block:
    """A fenced block and what is shown below it; `noisy`: its numbers are new in every run."""

    language: str
    text: str
    shown: str | None
    noisy: bool


def blocks(tutorial: str) -> list[Block]:
    fenced = re.findall(r"^```(\w+)( noisy)?\n(.*?)^```$", tutorial, re.MULTILINE | re.DOTALL)
    parsed = []
    for (language, _, text), after in zip(fenced, [*fenced[1:], ("", "", "")], strict=True):
        if language != "text":
            shown = after[2] if after[0] == "text" else None
            parsed.append(Block(language, text, shown, bool(after[1])))
    return parsed


def script(parts: list[Block]) -> str:
    """All blocks in order, as a reader would type them: one Python, and a shell for the commands."""
    lines = ["import subprocess"]
    for block in parts:
        lines.append(f"print({MARK!r})")
        lines.append(
            block.text
            if block.language == "python"
            else f"subprocess.run(['bash', '-euc', {block.text!r}], check=True)"
        )
    return "\n".join(lines)


def outputs(parts: list[Block], folder: Path) -> list[str]:
    """What each block prints."""
    folder.mkdir()
    path = folder.parent / "tutorial.py"
    path.write_text(script(parts))
    paths = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-u", str(path)]
    environment = {**os.environ, **paths}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LONG)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout.split(f"{MARK}\n")[1:]


def differ(printed: str, shown: str, noisy: bool) -> bool:
    """Other words, or other numbers: beyond what another processor may change, and not where they are noisy."""
    words = [
        [" ".join(NUMBER.sub("#", line).split()) for line in text.strip().splitlines()] for text in (printed, shown)
    ]
    numbers = [[float(match[0]) for match in NUMBER.finditer(text)] for text in (printed, shown)]
    return words[0] != words[1] or (not noisy and numbers[0] != pytest.approx(numbers[1], abs=0.02))


def test_the_tutorial_works_in_an_empty_folder(tmp_path: Path) -> None:
    parts = blocks(TUTORIAL.read_text(encoding="utf-8"))
    assert [block.language for block in parts].count("python") >= 5
    for block, printed in zip(parts, outputs(parts, tmp_path / "empty"), strict=True):
        if block.shown is not None:
            assert not differ(printed, block.shown, block.noisy), f"{block.text}\n{printed}"
        else:
            assert printed == "", block.text
    written = {path.name for path in (tmp_path / "empty").iterdir()}
    drafts = {f"draft-{party}.toml" for party in ("bank", "employer", "bureau")}
    files = {"bank.csv", "employer.csv", "bureau.csv", "loans.toml", *drafts}
    assert written == {*files, "runs", "sccvfl-ledgers"}
    assert (tmp_path / "empty" / "runs" / "first" / "report.html").exists()


@pytest.mark.parametrize("noisy", [False, True])
def test_the_comparison_sees_another_output(noisy: bool) -> None:
    assert not differ("acc  0.71\n", "acc 0.71", noisy)
    assert differ("acc 0.71", "rmse 0.71", noisy) and differ("acc 0.71", "acc 0.71\ndp_gap 0.1", noisy)
    assert differ("acc 0.71", "acc 0.68", noisy) is not noisy
