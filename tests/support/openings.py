"""Where openings, exchanges and requests for tuples come from: all of them must be those of CrypTen operators."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from secure_sccvfl.protocols.dealing.dealer import TupleSource
from secure_sccvfl.protocols.dealing.party import Party
from secure_sccvfl.protocols.net.mesh import Mesh

BELOW = ("protocols/dealing", "protocols/operations", "protocols/net", "tests/support")
"""Kernels, what they stand on, and the support of tests."""
WATCHED = {
    Party: ("open_masked", "open_slices", "collect_all", "take", "publish", "broadcast", "compared"),
    TupleSource: ("take", "match", "veil"),
    Mesh: ("exchange",),
}
"""Every way of asking the dealer, or sending to another party."""


def _origin() -> str:
    """The first frame above the kernels."""
    frame: Any = sys._getframe(2)
    while frame is not None and any(folder in frame.f_code.co_filename for folder in BELOW):
        frame = frame.f_back
    return "?" if frame is None else str(frame.f_code.co_filename)


def _node_of(caller: Any) -> int:
    if isinstance(caller, Party):
        caller = caller.transport
    return int((caller if isinstance(caller, Mesh) else caller._transport).node)


@contextmanager
def watched() -> Iterator[Counter[tuple[str, str]]]:
    """Counts at party 0 what was called, and from which file."""
    seen: Counter[tuple[str, str]] = Counter()

    def watching(kind: type, name: str) -> Any:
        honest = getattr(kind, name)

        def called(self: Any, *args: Any, **options: Any) -> Any:
            if _node_of(self) == 0:
                seen[name, _origin()] += 1
            return honest(self, *args, **options)

        return called

    with pytest.MonkeyPatch.context() as patch:
        for kind, names in WATCHED.items():
            for name in names:
                patch.setattr(kind, name, watching(kind, name))
        yield seen


def outside(seen: Counter[tuple[str, str]]) -> list[str]:
    """What does not come from an operator of a session or its declared releases."""
    return sorted({f"{name} in {Path(file).name}" for name, file in seen if "protocols/session" not in file})
