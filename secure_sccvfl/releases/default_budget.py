"""The epsilon of a run that names none: by the public number of training records, from measured curves.

docs/privacy-accounting.md has the curves.
"""

from __future__ import annotations

FEW, MANY = 5_000, 15_000
"""Training records from which on epsilon 4, and 2, keep the loss small."""
EPSILON_RULE = f"8 below {FEW:,} training records or where their number is not public, 4 from there, 2 from {MANY:,}"


def default_epsilon(records: int | None) -> float:
    """The epsilon of a run that names none, by the public number of its training records; None: not public."""
    return 8.0 if records is None or records < FEW else 4.0 if records < MANY else 2.0


def default_words(epsilon: float, records: int | None) -> str:
    """Why this is the epsilon of a run that names none; "" if it is not."""
    if epsilon != default_epsilon(records):
        return ""
    if records is None:
        return f"the default where the number of training records is not public: from {FEW:,} on, name 4"
    return f"the default for {records:,} training records"
