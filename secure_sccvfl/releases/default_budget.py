"""The epsilon of a run that names none: by the public number of training records, from measured curves.

docs/privacy-accounting.md has the curves.
"""

from __future__ import annotations

import math

FEW, MANY = 5_000, 15_000
"""Training records from which on epsilon 4, and 2, keep the loss small."""
EPSILON_RULE = f"8 below {FEW:,} training records or where their number is not public, 4 from there, 2 from {MANY:,}"
BASELINE_SHARE = 0.35
"""Of the heads' share of the budget: what the two baseline heads have together, chosen among .1, .2, .35 and .5 on
German and acs12-gender, epsilon 8, seeds 1250 to 1259. At .35 the model loses .002 (acs12) to .007 (German) of its
accuracy, and noise takes .012 and .034 from plain training; on seeds 1200 to 1209 .001 to .002, and .011 and .029."""
BASELINE_NOISE = math.sqrt(2 * (1 - BASELINE_SHARE) / BASELINE_SHARE)
"""How many times the noise of the model each of them has."""


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
