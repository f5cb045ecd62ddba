"""Data that may be used but not shipped: beside the checkout, or where SCCVFL_REFERENCE says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REFERENCE = Path(
    os.environ.get("SCCVFL_REFERENCE", Path(__file__).resolve().parents[3] / "shared" / "data" / "reference")
)


def reference(name: str) -> Path:
    """The path of such a file; the test is skipped with the reason when it is absent."""
    path = REFERENCE / name
    if not path.exists():
        pytest.skip(f"reference data {name} is not at hand (set SCCVFL_REFERENCE)")
    return path
