"""A release as data: what was released about which records, how much one record can move it, and its noise.

All parties know who is in the data, so a record's content is what must stay hidden. Two data sets are neighbours
when one record is *replaced* by any other; that relation decides. Adding or removing a record is reported next to
it. An event does not say how the release was made. Accountants interpret events, and an event that they cannot
interpret cannot be built.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

Mechanism = Literal["gaussian", "paper", "objective", "objective-symmetric"]
OBJECTIVE: tuple[Mechanism, ...] = ("objective", "objective-symmetric")
"""Noise in the objective of a head instead of in what is opened (`accounting.objective_bounds`)."""


@dataclass(frozen=True)
class Sensitivity:
    """Joint l2 norm of what one record can change in everything that a release opens.

    replaced: the record is replaced by any other. added: it joins or leaves. unit: the step of the grid of values
    and noise.
    """

    replaced: float
    added: float
    unit: float = 1.0

    @classmethod
    def of_counts(cls, added: float) -> Sensitivity:
        """For sums of contributions without a negative entry.

        Then <v, w> >= 0 for any two of them, so |v - w|^2 <= |v|^2 + |w|^2 <= 2 added^2. Changing one s reaches the
        bound: a record leaves one cell of each table for another.
        """
        return cls(math.sqrt(2) * added, added)

    @classmethod
    def of_any(cls, added: float, unit: float) -> Sensitivity:
        """For everything else: the record leaves, another joins."""
        return cls(2 * added, added, unit)


@dataclass(frozen=True)
class Event:
    """One differentially private release, or `count` equal releases under one charge.

    sensitivity: joint l2 norm of what replacing one record can change in everything that the release opens. added:
    the same for adding or removing one; 0 means the value of `sensitivity`. sigma: deviation of ONE noise
    contribution, in the unit of `sensitivity`. copies: how many such contributions stay hidden from every coalition
    of parties that does not hold the attribute. dealer_copies: how many stay hidden from a dealer who later reads
    what was opened; 0 means that nothing is left against it. records: digest of the set of records it is about.
    sampling: a record's chance to take part in each release. It is decided for every record independently and kept
    secret (Poisson); 1 means that all take part. mechanism: "paper" marks a table scaled to a norm first
    (`accounting.paper`); it is priced in the same way.

    A head trained with objective perturbation has the mechanism "objective" if the slopes of its loss have one sign
    (logistic: a record's gradient is -q c u with q in (0, 1)), and "objective-symmetric" if they lie in (-c, c)
    (log-cosh: (2 q - 1) c u). Its sensitivity is 2 c R, the most that a replaced record changes the gradient of the
    summed loss, and sigma is the deviation of the noise that is added to this gradient. curvature: kappa such that a
    replaced record changes the log determinant of the Hessian by at most log(1 + kappa q (1 - q)); 0 for all other
    mechanisms. count: heads with independent noise. The price for a replaced record also covers an added one, who
    replaces a row of zeros.
    """

    name: str
    sensitivity: float
    sigma: float
    records: str
    refresh: int = 0
    count: int = 1
    sampling: float = 1.0
    mechanism: Mechanism = "gaussian"
    added: float = 0.0
    copies: int = 1
    dealer_copies: int = 0
    curvature: float = 0.0

    def __post_init__(self) -> None:
        if not self.name or not self.records:
            raise ValueError("an event needs a name and the digest of its records")
        object.__setattr__(self, "added", self.added or self.sensitivity)
        for field in ("sensitivity", "added", "sigma"):
            value = getattr(self, field)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{self.name}: {field} must be finite and positive, got {value}")
        if self.sensitivity > 2 * self.added * (1 + 1e-9):
            raise ValueError(f"{self.name}: a replaced record moves at most twice what an added one does")
        if not 0 < self.sampling <= 1:
            raise ValueError(f"{self.name}: sampling must lie in (0, 1], got {self.sampling}")
        if self.count < 1 or self.refresh < 0:
            raise ValueError(f"{self.name}: need count >= 1 and refresh >= 0, got {self.count}, {self.refresh}")
        if self.copies < 1 or self.dealer_copies < 0:
            raise ValueError(f"{self.name}: need a hidden copy of noise, got {self.copies}, {self.dealer_copies}")
        if self.mechanism not in get_args(Mechanism):
            raise ValueError(
                f"{self.name}: unknown mechanism {self.mechanism!r}; use {', '.join(get_args(Mechanism))}"
            )
        if self.mechanism in OBJECTIVE:
            if not (math.isfinite(self.curvature) and self.curvature > 0):
                raise ValueError(f"{self.name}: curvature must be finite and positive, got {self.curvature}")
            if self.sampling != 1:
                raise ValueError(f"{self.name}: sampling must be 1 for a head, got {self.sampling}")
        elif self.curvature != 0:
            raise ValueError(f"{self.name}: curvature must be 0 for mechanism {self.mechanism}, got {self.curvature}")
        for field in ("sensitivity", "added", "sigma", "sampling", "curvature"):
            object.__setattr__(self, field, float(getattr(self, field)))  # one spelling in every ledger
        for field in ("count", "copies", "dealer_copies"):
            object.__setattr__(self, field, int(getattr(self, field)))

    @property
    def multiplier(self) -> float:
        """Deviation of the hidden noise over what a replaced record moves: the figure that decides."""
        return self.sigma * math.sqrt(self.copies) / self.sensitivity

    @property
    def multiplier_added(self) -> float:
        """Deviation of the hidden noise over what an added record moves."""
        return self.sigma * math.sqrt(self.copies) / self.added

    def to_dict(self) -> dict[str, Any]:
        """All fields; the curvature only where there is one, so that other lines of a ledger stay as they were."""
        found = asdict(self)
        if not self.curvature:
            del found["curvature"]
        return found

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Event:
        """An event from the result of `to_dict`; an extra or missing field is an error."""
        needed = {field.name for field in fields(cls)}
        if data.get("mechanism") not in OBJECTIVE:
            needed.discard("curvature")
        if set(data) != needed:
            raise ValueError(f"not an event: fields {sorted(data)}")
        return cls(**data)
