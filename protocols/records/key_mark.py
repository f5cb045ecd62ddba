"""Marks next to what is saved under a MAC key: one is there while a check could reveal the key, or after one did.

If a party deviated, the sums of tags of all parties reveal the key to whoever has them. A party may stop after it has
received those of the others, so the mark is written before a party sends its own and is removed when the check has
passed. Whoever knows the key can change what is saved under it, so it must not be used again.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from secure_sccvfl.protocols.errors import InputError

_PREFIX = "mac-key-exposed-"


class KeyMark:
    """The mark of one session in a folder; none if nothing is saved. Sessions at the same time have one each."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder, self._file = folder, ""

    def set(self) -> None:
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, self._file = tempfile.mkstemp(prefix=_PREFIX, dir=self._folder)
            os.close(handle)

    def clear(self) -> None:
        if self._folder is not None:
            os.unlink(self._file)


def check_key(folder: Path) -> None:
    """Raise if the MAC key of what is saved in a folder may be known."""
    if any(folder.glob(f"{_PREFIX}*")):
        raise InputError(
            f"{folder.parent.name}/{folder.name}: a check of MACs failed or was cut off, which can reveal the "
            "MAC key: train again"
        )
