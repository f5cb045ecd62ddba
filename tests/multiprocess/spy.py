"""A party that notes its keys and shares for the test: `spy.py NOTES [crash] [run_party arguments]`.

With `crash` the job fails with an error whose text holds an input.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NoReturn

from launch import run_party
from protocols.dealing import randomness
from protocols.dealing.party import Party
from secure_sccvfl.run.selftest import SelfTest


def main() -> int:
    notes, arguments = Path(sys.argv[1]), sys.argv[2:]
    derive, zero_share = randomness._hkdf, Party.zero_share

    def noting_keys(*args: Any, **kwargs: Any) -> bytes:
        key = derive(*args, **kwargs)
        with notes.open("a") as file:
            file.write(f"key {key.hex()}\n")
        return key

    def noting_shares(self: Party, shape: tuple[int, ...], how: Any = "add", among: Any = None) -> Any:
        share = zero_share(self, shape, how, among)
        with notes.open("a") as file:
            file.write("".join(f"share {word}\n" for word in share.reshape(-1)[:20]))
        return share

    randomness._hkdf = noting_keys
    Party.zero_share = noting_shares  # type: ignore[method-assign]
    if arguments[0] == "crash":
        arguments = arguments[1:]

        def crash(self: SelfTest, *args: Any) -> NoReturn:
            raise ValueError(f"could not convert {self.values['x'].tolist()}")

        SelfTest._try = crash  # type: ignore[method-assign]
    return run_party.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
