"""A release as data: what was released about which records, how much one record can move it, and its noise.

Two data sets are neighbours when one record is added or removed. An event says nothing of how the release
was made; accountants interpret it, and an event they cannot interpret cannot be built.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

Mechanism = Literal["gaussian", "paper"]


@dataclass(frozen=True)
class Event:
    """One differentially private release, or `count` alike under one charge.

    sensitivity: joint l2 norm of what one record can change in all that the release opens.
    sigma: deviation of the one copy of noise that is counted, in the unit of `sensitivity`.
    records: digest of the records it is about. sampling: chance of a record to take part in each, decided for
    every record on its own and kept secret (Poisson); 1 means that all take part.
    mechanism: "paper" marks a table scaled to a norm first (`accounting.paper`); it is priced alike.
    """

    name: str
    sensitivity: float
    sigma: float
    records: str
    refresh: int = 0
    count: int = 1
    sampling: float = 1.0
    mechanism: Mechanism = "gaussian"

    def __post_init__(self) -> None:
        if not self.name or not self.records:
            raise ValueError("an event needs a name and the digest of its records")
        for field in ("sensitivity", "sigma"):
            value = getattr(self, field)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{self.name}: {field} must be finite and positive, got {value}")
        if not 0 < self.sampling <= 1:
            raise ValueError(f"{self.name}: sampling must lie in (0, 1], got {self.sampling}")
        if self.count < 1 or self.refresh < 0:
            raise ValueError(f"{self.name}: need count >= 1 and refresh >= 0, got {self.count}, {self.refresh}")
        if self.mechanism not in get_args(Mechanism):
            raise ValueError(f"{self.name}: unknown mechanism {self.mechanism!r}; use gaussian or paper")
        for field, kind in (("sensitivity", float), ("sigma", float), ("sampling", float), ("count", int)):
            object.__setattr__(self, field, kind(getattr(self, field)))  # one spelling in every ledger

    @property
    def multiplier(self) -> float:
        """Deviation of the noise over sensitivity: all that the price depends on."""
        return self.sigma / self.sensitivity

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Event:
        """Back from `to_dict`; a field too many or too few is an error. Without `sampling`, all took part."""
        data = {"sampling": 1.0, **data}
        if set(data) != {field.name for field in fields(cls)}:
            raise ValueError(f"not an event: fields {sorted(data)}")
        return cls(**data)
