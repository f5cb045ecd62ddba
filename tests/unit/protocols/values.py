"""Sharing and opening in tests of sessions."""

from __future__ import annotations

from typing import Any

import numpy as np

from secure_sccvfl.protocols.session.runtime import Session
from tests.support.sessions import results

ULP = 2.0**-16


def secret(session: Session, value: np.ndarray, owner: int = 0, **options: Any) -> Any:
    """Share a value that only the owner gives; the others give its shape."""
    given = value if session.rank == owner else None
    return session.share(given, owner=owner, shape=value.shape, **options)


def opened(session: Session, value: Any) -> np.ndarray:
    plain = session.open(value, results(session.parties)[value.dim()])
    assert plain is not None
    return plain.numpy()
