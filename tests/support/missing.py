"""Records in which s acts only through the missingness of one mediator; the counterfactual of each is known.

`score`, a test result of the clinic, is missing for 58 % of group 1 and 23 % of group 0. Where it is present its
value does not depend on s, and neither does any other column. The label depends on the value, on whether it is
missing, and on the bank's `amount`. `grade` has the same missing shares as a category, where a test asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from secure_sccvfl.data.dataset import Dataset, Label, PartyTable, Protected
from secure_sccvfl.data.features import Feature
from secure_sccvfl.policy.card import Decision, PolicyCard

SHARES = (0.23, 0.58)
"""Share of missing scores in each group."""
SCORE = Feature("score", "number", 0.0, 1.0, (0.0, 0.25, 0.5, 0.75, 1.0), missing=True)
GRADE = Feature("grade", "category", categories=("a", "b", "c"), missing=True)
CLINIC = (Feature("age", "number", 0.0, 1.0, (0.0, 0.5, 1.0)),)
BANK = (
    Feature("amount", "number", 0.0, 1.0, (0.0, 0.25, 0.5, 0.75, 1.0)),
    Feature("own", "category", categories=("n", "y")),
)


@dataclass(frozen=True)
class MissingWorld:
    """A data set and the true counterfactual values of all columns (rows x columns), with s changed."""

    data: Dataset
    other: np.ndarray


def missing_world(rows: int, seed: int, mediator: Feature = SCORE) -> MissingWorld:
    """Records of two groups of about the same size; the same seed gives the same records."""
    rng = np.random.default_rng(seed)
    s = rng.integers(0, 2, rows)
    amount, age, own = rng.random(rows), rng.random(rows), rng.integers(0, 2, rows)
    value, propensity = rng.random(rows), rng.random(rows)
    missing = propensity < np.array(SHARES)[s]
    present = 2.0 * (value - 0.5) + 0.9
    logit = np.where(missing, -1.5, present) + 2.0 * (amount - 0.5) + 0.4 * own
    y = (logit + rng.logistic(size=rows) > 0).astype(int)
    column = value if mediator.kind == "number" else np.floor(3 * value)

    def clinic(lacking: np.ndarray) -> np.ndarray:
        return np.column_stack([np.where(lacking, np.nan, column), age])

    bank = np.column_stack([amount, own.astype(float)])
    data = Dataset(
        "missing",
        "binary",
        np.array([f"r{number:06d}" for number in range(rows)]),
        (PartyTable("bank", BANK, bank), PartyTable("clinic", (mediator, *CLINIC), clinic(missing))),
        Label("bank", y, ("no", "yes")),
        (Protected("s", "clinic", ("0", "1"), s),),
    )
    return MissingWorld(data, np.hstack([bank, clinic(propensity < np.array(SHARES)[1 - s])]))


def missing_card(data: Dataset, mediator: Feature = SCORE) -> PolicyCard:
    """A card that names the mediator and holds every other column fixed."""
    decisions = {f.name: Decision("M" if f.name == mediator.name else "N", "a test", ()) for f in data.features}
    return PolicyCard(data.name, "1", ("board",), decisions)
