"""What an audit says about a run."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

from secure_sccvfl.reports import verify as verifier


def problems(run: Path, *checks: str) -> list[str]:
    """The lines of these checks, or of all, on the folder of a whole run. Other checks are not made, to save time."""
    wanted = {name: check for name, check in verifier.CHECKS.items() if not checks or name in checks}
    with patch.object(verifier, "CHECKS", wanted):
        found = verifier.verify(run)
    return [line for name, lines in found.items() for line in lines if not checks or name in checks]
