"""Results of `bench.py` and `reproduce.py`: a JSON file and a Markdown page, their origin, names of data sets."""

from __future__ import annotations

import datetime
import json
import re
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from secure_sccvfl.protocols.config import CRYPTEN, code_digest

PACKAGES = ("torch", "numpy", "scikit-learn")


def provenance(command: str) -> dict[str, Any]:
    """Command, date, commit, digest of the code and versions of packages; the commit is empty outside a checkout."""
    git = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent, check=False
    )
    return {
        "command": command,
        "date": datetime.date.today().isoformat(),
        "commit": git.stdout.strip(),
        "code": code_digest().hex()[:16],
        "versions": {"crypten": CRYPTEN, **{name: metadata.version(name) for name in PACKAGES}},
    }


def origin(made: Mapping[str, Any]) -> str:
    """One paragraph of a page: how its figures were made."""
    packages = ", ".join(f"{name} {number}" for name, number in made["versions"].items())
    commit = f" from commit {made['commit'][:12]}" if made["commit"] else ""
    return f"Made by `{made['command']}` on {made['date']}{commit} with {packages}."


def write_results(path: Path, result: Mapping[str, Any], text: str) -> None:
    """Write `result` as JSON, and `text` next to it with the suffix .md."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(text, encoding="utf-8")


def short_name(dataset: str) -> str:
    """A data set without its path: `acs-income:dir/file.csv` is acs-income, `dir/loans.toml` is loans."""
    for mark in (":", "@"):
        if dataset.startswith("acs-") and mark in dataset:
            return dataset.split(mark)[0]
    return Path(dataset).stem


STATES = {"ca": "California", "co": "Colorado"}
TITLES = {
    "german": "German Credit",
    "heart": "UCI Heart (Cleveland), unique rows",
    "compas": "COMPAS persons, other partition than the paper's",
    "mobility": "CPS 1994-95, stand-in for ACSMobility",
}
"""Data sets that stand for those of the paper, and how they differ from them."""


def title_of(dataset: str) -> str:
    """A data set's name for a table: which records these are, where the paper has others."""
    task, mark, place = dataset.replace("@", ":").partition(":")
    if not mark or not task.startswith(("acs-income", "acs-mobility")):
        return TITLES.get(short_name(dataset), short_name(dataset))
    found = re.search(r"(?:^|[_-])([a-z]{2})-?(\d{4})", Path(place).name.lower())
    where = f"{STATES.get(found[1], found[1].upper())} {found[2]}" if found else "records of a file"
    note = "" if where == "California 2018" else " (the paper: California 2018)"
    name = {"acs-income": "ACS Income", "acs-income-sex": "ACS Income, by sex"}.get(task, "ACS Mobility")
    return f"{name}, {where}{note}"
