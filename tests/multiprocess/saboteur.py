"""A party with a valid certificate that misbehaves in one way: `saboteur.py FAULT [run_party arguments]`.

It runs the real program until it sends its first truncation, and goes wrong there (or, for
faults of the handshake, from the start).
"""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from launch import run_party
from protocols.config import code_parts
from protocols.net import certificates, rendezvous
from protocols.net.certificates import Credentials
from protocols.net.link import DATA, HEADER, Frame, Link

honest_queue = Link.queue
done: set[int] = set()


def at_first_truncation(misbehave: Callable[[Link, bytes, Any], None]) -> None:
    """Replace, once per link, how the frame of the first truncation is written."""

    def queue(self: Link, frame: Frame) -> None:
        whole = b"".join(frame.parts)
        description, payload = whole[: frame.described], whole[frame.described :]
        if frame.kind == DATA and description.startswith(b"truncate") and self.node not in done:
            done.add(self.node)
            misbehave(self, description, np.frombuffer(payload, np.int64))
        else:
            honest_queue(self, frame)

    Link.queue = queue  # type: ignore[method-assign]


def truncated(link: Link, description: bytes, words: Any) -> None:
    honest_queue(link, Frame.of(DATA, description, [words]))
    whole = b"".join(bytes(part) for part in link._out)
    link._out.clear()
    link._out.append(memoryview(whole[: len(whole) // 2]))
    link.flush("sabotage")
    link.sock.close()


def oversized(link: Link, description: bytes, words: Any) -> None:
    frame = HEADER.pack(DATA, len(description), link._sent_frames, 1 << 60) + description
    link._out.append(memoryview(frame))


def replayed(link: Link, description: bytes, words: Any) -> None:
    honest_queue(link, Frame.of(DATA, description, [words]))
    link._out.extend([memoryview(bytes(part)) for part in link._out])


def out_of_order(link: Link, description: bytes, words: Any) -> None:
    link._sent_frames += 1
    honest_queue(link, Frame.of(DATA, description, [words]))


def shape(link: Link, description: bytes, words: Any) -> None:
    short = words[:-1]
    honest_queue(link, Frame.of(DATA, f"truncate|<i8{list(short.shape)}".encode(), [short]))


def dtype(link: Link, description: bytes, words: Any) -> None:
    narrow = words.astype(np.int32)
    honest_queue(link, Frame.of(DATA, f"truncate|<i4{list(narrow.shape)}".encode(), [narrow]))


def lying_length(link: Link, description: bytes, words: Any) -> None:
    """The right description over a payload that is too short."""
    honest_queue(link, Frame.of(DATA, description, [words[:-1]]))


def main() -> int:
    fault, arguments = sys.argv[1], sys.argv[2:]
    frames = {f.__name__: f for f in (truncated, oversized, replayed, out_of_order, shape, dtype, lying_length)}
    if fault in frames:
        at_first_truncation(frames[fault])
    elif fault == "other_rank":
        honest = Credentials.of
        Credentials.of = lambda folder, node: honest(folder, "party-1")  # type: ignore[method-assign]
    elif fault == "other_code":
        rendezvous.code_digest = lambda: b"x" * 32
        rendezvous.code_parts = lambda: {**code_parts(), "torch": "0.0"}
    elif fault == "other_clock":
        certificates._now = lambda: datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC)
    elif fault == "hang":

        def sleep(link: Link, description: bytes, words: Any) -> None:
            time.sleep(3600)

        at_first_truncation(sleep)
    else:
        raise SystemExit(f"no such fault: {fault}")
    return run_party.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
