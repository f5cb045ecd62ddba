"""The figures of a model are opened once: they are kept beside the model, and returned again.

Two evaluations of the same records would tell more than one, and noise drawn twice is half of a noise. So a second
call returns the recorded figures and opens nothing. The parties tell each other what they have on record. All
records must agree. A party without one (a fault came before it was written) takes over that of the others. What each
party's records have spent is not on it: that is the party's own. Two short rounds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from protocols.errors import ProtocolError
from protocols.records.private import private
from protocols.session.runtime import Session
from secure_sccvfl.run.model_files import ModelError

FILE = "evaluation.json"


def recorded(session: Session, folder: Path, about: str) -> dict[str, Any] | None:
    """Run by all parties together: the figures of `about` that some party has on record, or None."""
    own = _read(folder, about)
    told = sorted({text for text in session.swap_texts("recorded figures", own) if text})
    if not told:
        return None
    if len(told) > 1:
        raise ProtocolError(
            f"the parties have different figures of one evaluation on record ({FILE} beside the model)"
        )
    if not own:
        _write(folder, about, told[0])
    return dict(json.loads(told[0]))


def record(folder: Path, about: str, figures: dict[str, Any]) -> None:
    """Keep what was opened about `about`."""
    _write(folder, about, json.dumps(figures, sort_keys=True).encode())


def _read(folder: Path, about: str) -> bytes:
    try:
        kept = json.loads((folder / FILE).read_text())
        return json.dumps(kept[about], sort_keys=True).encode() if about in kept else b""
    except FileNotFoundError:
        return b""
    except (ValueError, TypeError, OSError):
        raise ModelError(f"{FILE} beside the model cannot be read: bring back the copy of another party") from None


def _write(folder: Path, about: str, figures: bytes) -> None:
    path = folder / FILE
    kept = json.loads(path.read_text()) if path.exists() else {}
    kept[about] = json.loads(figures)
    fresh = path.with_suffix(".part")
    with open(fresh, "w", opener=private) as file:
        json.dump(kept, file, indent=1, sort_keys=True)
    fresh.replace(path)
