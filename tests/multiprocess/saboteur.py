"""A party with a valid certificate that misbehaves in one way: `saboteur.py FAULT [run_party arguments]`.

It runs the real program until it sends its first truncation, and goes wrong there (or, for
faults of the handshake, from the start).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from launch import run_party
from protocols import rendezvous
from protocols.certificates import Credentials
from protocols.link import DATA, HEADER, Link

honest_queue = Link.queue
done: set[int] = set()


def at_first_truncation(misbehave: Callable[[Link, bytes, Sequence[Any]], int]) -> None:
    """Replace, once per link, how the frame of the first truncation is written."""

    def queue(self: Link, kind: int, description: bytes, arrays: Sequence[Any]) -> int:
        if kind == DATA and description.startswith(b"truncate") and self.node not in done:
            done.add(self.node)
            return misbehave(self, description, arrays)
        return honest_queue(self, kind, description, arrays)

    Link.queue = queue  # type: ignore[method-assign]


def truncated(link: Link, description: bytes, arrays: Sequence[Any]) -> int:
    size = honest_queue(link, DATA, description, arrays)
    whole = b"".join(bytes(part) for part in link._out)
    link._out.clear()
    link._out.append(memoryview(whole[: len(whole) // 2]))
    link.flush("sabotage")
    link.sock.close()
    return size


def oversized(link: Link, description: bytes, arrays: Sequence[Any]) -> int:
    frame = HEADER.pack(DATA, len(description), link._sent_frames, 1 << 60) + description
    link._out.append(memoryview(frame))
    return len(frame)


def replayed(link: Link, description: bytes, arrays: Sequence[Any]) -> int:
    size = honest_queue(link, DATA, description, arrays)
    link._out.extend([memoryview(bytes(part)) for part in link._out])
    return size


def out_of_order(link: Link, description: bytes, arrays: Sequence[Any]) -> int:
    link._sent_frames += 1
    return honest_queue(link, DATA, description, arrays)


def shape(link: Link, description: bytes, arrays: Sequence[Any]) -> int:
    short = arrays[0][:-1]
    return honest_queue(link, DATA, f"truncate|<i8{list(short.shape)}".encode(), [short])


def dtype(link: Link, description: bytes, arrays: Sequence[Any]) -> int:
    narrow = arrays[0].astype(np.int32)
    return honest_queue(link, DATA, f"truncate|<i4{list(narrow.shape)}".encode(), [narrow])


def lying_length(link: Link, description: bytes, arrays: Sequence[Any]) -> int:
    """The right description over a payload that is too short."""
    return honest_queue(link, DATA, description, [arrays[0][:-1]])


def main() -> int:
    fault, arguments = sys.argv[1], sys.argv[2:]
    frames = {f.__name__: f for f in (truncated, oversized, replayed, out_of_order, shape, dtype, lying_length)}
    if fault in frames:
        at_first_truncation(frames[fault])
    elif fault == "other_rank":
        honest = Credentials.of
        Credentials.of = lambda folder, node: honest(folder, "party-1")  # type: ignore[method-assign]
    elif fault == "other_code":
        rendezvous.code_digest = lambda: b"x" * 32  # type: ignore[assignment]
    elif fault == "hang":

        def sleep(link: Link, description: bytes, arrays: Sequence[Any]) -> int:
            time.sleep(3600)
            return 0

        at_first_truncation(sleep)
    else:
        raise SystemExit(f"no such fault: {fault}")
    return run_party.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
