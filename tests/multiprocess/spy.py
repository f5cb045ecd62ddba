"""A party that notes its keys and shares for the test: `spy.py NOTES [crash] [run_party arguments]`.

With `crash` the job fails with an error whose text holds an input, once the notes have what the test looks for.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from secure_sccvfl.launch import run_party
from secure_sccvfl.protocols.dealing import randomness
from secure_sccvfl.protocols.dealing.party import Party
from secure_sccvfl.runs.selftest import SelfTest

KEYS, SHARES = 12, 100
"""So many are noted before a run ends badly. Each of three parties derives nine keys when a session opens."""


def wait_for(notes: Path) -> None:
    """Wait until the slower parties have noted theirs too, on however busy a machine."""
    until = time.monotonic() + 100  # below the deadline of the others
    while time.monotonic() < until:
        noted = notes.read_text() if notes.exists() else ""
        if noted.count("key ") >= KEYS and noted.count("share ") > SHARES:
            return
        time.sleep(0.05)


def main() -> int:
    notes, arguments = Path(sys.argv[1]), sys.argv[2:]
    derive, zero_share = randomness._hkdf, Party.zero_share

    def noting_keys(*args: Any, **kwargs: Any) -> bytes:
        key = derive(*args, **kwargs)
        with notes.open("a") as file:
            file.write(f"key {key.hex()}\n")
        return key

    def noting_shares(self: Party, shape: tuple[int, ...], among: Any = None) -> Any:
        share = zero_share(self, shape, among)
        with notes.open("a") as file:
            file.write("".join(f"share {word}\n" for word in share.reshape(-1)[:20]))
        return share

    randomness._hkdf = noting_keys
    Party.zero_share = noting_shares  # type: ignore[method-assign]
    if arguments[0] == "crash":
        arguments = arguments[1:]

        def crash(self: SelfTest, *args: Any) -> NoReturn:
            wait_for(notes)
            raise ValueError(f"could not convert {self.values['x'].tolist()}")

        SelfTest._try = crash  # type: ignore[method-assign]
    return run_party.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
