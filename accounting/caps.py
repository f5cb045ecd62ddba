"""A cap that is raised: what was decided, and whether it fits the ledger that it is about.

A cap is set before the first release. Afterwards only all parties together can raise it. Their decision names the
ledger by a hash of its lines, so it fits one ledger of each party (`accounting.ledger.states_of`). It names the old
cap, so it counts once. It becomes a line of every party's ledger, with the signatures. Who checks these is
`secure_sccvfl/releases/caps.py`: a key is no matter of accounting. A decision never lowers a cap: what was released
stays released.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from accounting.calibration import check_target

RAISED = "cap"
"""The kind of the ledger's line."""


@dataclass(frozen=True)
class CapDecision:
    """What the parties sign. ledger: the name of its file. head: a hash of its lines. date: as people write it."""

    ledger: str
    before: float
    after: float
    delta: float
    head: str
    reason: str
    date: str

    def __post_init__(self) -> None:
        for name in ("before", "after", "delta"):
            object.__setattr__(self, name, float(getattr(self, name)))
        check_target(self.before, self.delta)
        check_target(self.after, self.delta)
        if self.after <= self.before:
            raise ValueError(f"a cap is only raised: {self.after:g} is not above {self.before:g}")
        if not all(
            isinstance(text, str) and text.strip() for text in (self.ledger, self.head, self.reason, self.date)
        ):
            raise ValueError("a decision on a cap needs the name of its ledger, a head, a reason and a date")

    @property
    def message(self) -> bytes:
        """What is signed."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.message).hexdigest()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CapDecision:
        """From data that have its fields among others; a missing one is a KeyError."""
        return cls(**{field.name: data[field.name] for field in fields(cls)})

    def misfit(self, cap: float, delta: float, heads: Collection[str]) -> str | None:
        """Why the decision is not about a ledger with this cap and these hashes, or None."""
        if self.head not in heads:
            return "is about another ledger, or another state of it"
        if (self.before, self.delta) != (cap, delta):
            return f"raises a cap of {self.before:g} at delta {self.delta:g}; here it is {cap:g} at {delta:g}"
        return None


@dataclass(frozen=True)
class Raised:
    """A decision as a ledger holds it. signed: a certificate (PEM) and a signature for each party's place."""

    decision: CapDecision
    signed: Mapping[str, Mapping[str, str]]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self.decision), "signed": {place: dict(one) for place, one in sorted(self.signed.items())}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Raised:
        signed = {
            str(place): {"certificate": str(one["certificate"]), "signature": str(one["signature"])}
            for place, one in data["signed"].items()
        }
        return cls(CapDecision.from_dict(data), signed)
