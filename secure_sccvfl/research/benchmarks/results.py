"""Where results go: a file of data, and a page of Markdown beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_results(path: Path, result: Mapping[str, Any], text: str) -> None:
    """Write `result` as JSON, with the command that made it, and `text` beside it in a file that ends in .md."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(text, encoding="utf-8")
