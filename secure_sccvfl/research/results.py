"""Where results of `bench.py` and `reproduce.py` go: a JSON file, and a Markdown page next to it."""

from __future__ import annotations

import datetime
import json
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from protocols.config import code_digest

PACKAGES = ("torch", "crypten", "numpy", "scikit-learn")


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
        "versions": {name: metadata.version(name) for name in PACKAGES},
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
