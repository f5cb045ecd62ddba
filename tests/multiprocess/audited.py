"""What an audit says about a run."""

from __future__ import annotations

from pathlib import Path

from secure_sccvfl.reports.verify import verify


def problems(run: Path, *checks: str) -> list[str]:
    """The lines of these checks, or of all."""
    lines_of_checks = verify(run)
    return [line for name, lines in lines_of_checks.items() for line in lines if not checks or name in checks]
