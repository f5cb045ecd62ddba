"""Files that only their owner can read, from the first byte on: setting the mode afterwards would be too late.

The system does not name the file that cannot grow on a full disk; `naming` does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def private(path: str, flags: int) -> int:
    """An `opener` for `open`: a file that nobody else may read, whatever the umask is."""
    handle = os.open(path, flags, 0o600)
    os.fchmod(handle, 0o600)  # an existing file may have been readable by others
    return handle


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """A context in which write errors carry the name of this file."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise
