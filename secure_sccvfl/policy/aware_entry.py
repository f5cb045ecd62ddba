"""The entry of a policy card that allows a model to use s: who answers for it, why, and until when.

    [aware]
    purpose = "..."
    legal_basis = "..."
    owner = "..."
    review_due = "2027-01-31"

Without it, or after its review date, mode `aware` is refused.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

USES_S = "this model uses s"
LEGAL_NOTE = (
    "Secret use of s is still use of s. It may be unlawful, for example in decisions about credit or hiring; ask "
    "before you decide with it."
)


@dataclass(frozen=True)
class AwareEntry:
    """A declared use of s; ValueError for an entry that says too little."""

    purpose: str
    legal_basis: str
    owner: str
    review_due: str

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, str) or not value.strip():
                raise ValueError(f"[aware] needs {field.name} in words, got {value!r}")
        self._due()

    @classmethod
    def of(cls, raw: Any) -> AwareEntry:
        """From a card: all four lines, and no others."""
        known = {field.name for field in fields(cls)}
        if not isinstance(raw, Mapping) or set(raw) != known:
            given = ", ".join(sorted(map(str, raw))) if isinstance(raw, Mapping) else repr(raw)
            raise ValueError(
                f"[aware] needs purpose, legal_basis, owner and review_due, and nothing else; got {given}"
            )
        due = raw["review_due"]
        return cls(**{**raw, "review_due": due.isoformat() if isinstance(due, datetime.date) else due})

    def _due(self) -> datetime.date:
        try:
            return datetime.date.fromisoformat(self.review_due)
        except ValueError:
            raise ValueError(f"[aware] review_due {self.review_due!r} is no date; write it as 2027-01-31") from None

    def overdue(self, today: datetime.date) -> bool:
        return self._due() < today

    def as_record(self) -> dict[str, str]:
        return asdict(self)

    def words(self) -> str:
        """For people: what is done, what for, who answers for it, and the legal note."""
        said = (self.purpose, self.legal_basis, self.owner)
        purpose, basis, owner = (text.strip().rstrip(".") for text in said)
        return (
            f"{USES_S.capitalize()}. Purpose: {purpose}. Legal basis: {basis}. Owner: {owner}. Review due: "
            f"{self.review_due}. {LEGAL_NOTE}"
        )
