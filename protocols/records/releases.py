"""Declared releases: which secrets may be opened, to whom and why. Recorded before they are opened.

A plan lists every release of a run and is part of what the processes compare before they start. `ReleaseDesk.admit`
is called before each opening. A release that is not in the plan, has another shape, or comes more often than declared
raises on every party, because all run the same program. A release that a differential-privacy event pays for needs
the receipt of its charge, and a receipt pays once. Admitted releases go to a hash-chained log without the value
itself (only its receivers may know it). The parties compare the digests of their logs at the end.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from secure_sccvfl.protocols.config import can_receive
from secure_sccvfl.protocols.errors import ProtocolError, UndeclaredRelease
from secure_sccvfl.protocols.records.chain import HashChain

ANY = -1
"""In a declared shape: a length that is not fixed in advance."""


@dataclass(frozen=True)
class Release:
    """One kind of value that leaves the computation.

    receivers: the ranks that see it. shape: as opened, ANY for a free length. event: the name of the
    differential-privacy event that pays for it, or None with the reason in `purpose`. times: how often it may be
    opened.
    """

    name: str
    receivers: tuple[int, ...]
    shape: tuple[int, ...]
    purpose: str
    event: str | None = None
    times: int = 1

    def __post_init__(self) -> None:
        if not self.name or not self.purpose:
            raise ProtocolError("a release needs a name and a purpose")
        if not self.receivers or len(set(self.receivers)) != len(self.receivers) or min(self.receivers) < 0:
            raise ProtocolError(f"release {self.name!r}: receivers must be distinct ranks, not {self.receivers}")
        if self.times < 1:
            raise ProtocolError(f"release {self.name!r}: times must be at least 1, not {self.times}")

    def covers(self, other: Release) -> bool:
        """Whether another release opens the same to the same receivers, no more often, at the same privacy cost.

        Its content is in its purpose: decisions and scores of records have one name and one shape.
        """
        mine, its = ((r.name, r.receivers, r.purpose, r.event) for r in (self, other))
        return mine == its and self.fits(other.shape) and other.times <= self.times

    def fits(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == len(self.shape) and all(
            declared in (ANY, length) for declared, length in zip(self.shape, shape, strict=True)
        )


@dataclass(frozen=True)
class Receipt:
    """Proof that an event was charged. It pays for one opening of each release that names the event.

    charge: the name of the charge in the ledger, unlike any other.
    """

    event: str
    charge: str


class ReleasePlan:
    def __init__(self, releases: Iterable[Release] = ()) -> None:
        self.releases: dict[str, Release] = {}
        for release in releases:
            if release.name in self.releases:
                raise ProtocolError(f"release {release.name!r} is declared twice")
            self.releases[release.name] = release

    def digest(self) -> bytes:
        listed = [asdict(release) for _, release in sorted(self.releases.items())]
        return hashlib.sha256(json.dumps(listed).encode()).digest()


@dataclass(frozen=True)
class Admission:
    """What `ReleaseDesk.admit` returns for one opening; shares can be collected only with it."""

    release: Release
    head: str


class ReleaseDesk:
    """Admits declared releases and logs them, at one party."""

    def __init__(self, plan: ReleasePlan, parties: int, log: Path | None = None) -> None:
        for release in plan.releases.values():
            if not all(can_receive(node, parties) for node in release.receivers):
                raise ProtocolError(f"release {release.name!r} names a receiver that is not a party")
        self._plan = plan
        self._used: Counter[str] = Counter()
        self._paid: set[tuple[str, str]] = set()
        self.chain = HashChain(log)

    def admit(self, release: Release, shape: tuple[int, ...], receipt: Receipt | None = None) -> Admission:
        """Record a release before it is opened, or raise."""
        return self.admit_all([(release, shape)], receipt)[0]

    def admit_all(
        self, wanted: Sequence[tuple[Release, tuple[int, ...]]], receipt: Receipt | None = None
    ) -> list[Admission]:
        """Record several releases before they are opened in one round, or raise and record none.

        `receipt` belongs to the charge that pays for all of them.
        """
        asked = Counter(release.name for release, _ in wanted)
        for release, shape in wanted:
            if self._plan.releases.get(release.name) != release:
                raise UndeclaredRelease(f"release {release.name!r} is not in the run plan")
            if not release.fits(shape):
                raise UndeclaredRelease(f"release {release.name!r} is declared as {release.shape}, not {shape}")
            if self._used[release.name] + asked[release.name] > release.times:
                raise UndeclaredRelease(f"release {release.name!r} was already made {release.times} times")
            self._check_paid(release, receipt)
        self._used.update(asked)
        if receipt is not None:
            self._paid.update((receipt.charge, release.name) for release, _ in wanted)
        heads = self.chain.extend(
            [
                {
                    "release": release.name,
                    "receivers": list(release.receivers),
                    "shape": list(shape),
                    "purpose": release.purpose,
                    "event": release.event,
                    "charge": receipt.charge if receipt is not None else None,
                }
                for release, shape in wanted
            ]
        )
        return [Admission(release, head) for (release, _), head in zip(wanted, heads, strict=True)]

    def _check_paid(self, release: Release, receipt: Receipt | None) -> None:
        """Raise unless the receipt is for the release's event and has not paid for this release before."""
        if release.event is None and receipt is None:
            return
        if receipt is None:
            raise UndeclaredRelease(f"release {release.name!r} needs the receipt of its charge ({release.event})")
        if receipt.event != release.event:
            raise UndeclaredRelease(f"release {release.name!r} is paid by {release.event}, not by {receipt.event}")
        if (receipt.charge, release.name) in self._paid:
            raise UndeclaredRelease(f"release {release.name!r}: its charge has paid for an opening already")
