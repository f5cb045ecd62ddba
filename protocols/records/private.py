"""Files that only their owner can read, from the first byte on: setting the mode afterwards would be too late."""

from __future__ import annotations

import os


def private(path: str, flags: int) -> int:
    """An `opener` for `open`: a file that nobody else may read, whatever the umask is."""
    handle = os.open(path, flags, 0o600)
    os.fchmod(handle, 0o600)  # an existing file may have been readable by others
    return handle
