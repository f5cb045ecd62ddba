"""Files that are their owner's alone from the first byte on: a mode that is set afterwards comes too late."""

from __future__ import annotations

import os


def private(path: str, flags: int) -> int:
    """An `opener` for `open`: a new file that nobody else may read, whatever the umask is."""
    handle = os.open(path, flags, 0o600)
    os.fchmod(handle, 0o600)  # one that was there already may have been anybody's
    return handle
