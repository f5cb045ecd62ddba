"""`aware` mode, declared: as `sealed`, but s enters every decision under MPC, supplied by its holder.

It opens what `sealed` opens and no more. It is refused unless the policy card of the run has a valid entry
(`secure_sccvfl.policy.card`) and decides every column. The number of encoded columns follows from the
roles, and the dealer, who knows sizes, must not learn from it what was found about s. Lambda is small: aware
encodings leave individual flips nearly as they are and remove net flips and group gaps, for which little is enough.
"""

from __future__ import annotations

import datetime

from protocols.config import ConfigError
from secure_sccvfl.data.party_data import Schema
from secure_sccvfl.policy.card import AwareEntry, PolicyCard
from secure_sccvfl.releases.mechanisms import HeadPlan
from secure_sccvfl.training.aware import AwareTrainer
from secure_sccvfl.training.heads import head_plan
from secure_sccvfl.training.modes.base import check_budget, check_sampling
from secure_sccvfl.training.modes.options import RunOptions
from secure_sccvfl.training.modes.sealed import Sealed


def declared(card: PolicyCard | None, today: datetime.date | None = None) -> AwareEntry:
    """The card's entry for a model that uses s; ConfigError without one, or after its review date."""
    if card is None or card.aware is None:
        raise ConfigError(
            "mode aware uses s for every decision: the policy card (--card) must declare it in an entry [aware] with "
            "purpose, legal_basis, owner and review_due"
        )
    in_time(card.aware, today)
    return card.aware


def in_time(entry: AwareEntry, today: datetime.date | None = None) -> None:
    """Raise ConfigError if the review of a declared use of s is overdue."""
    if entry.overdue(today or datetime.date.today()):
        raise ConfigError(
            f"the use of s was to be reviewed by {entry.review_due}: review it, and set a new review_due in the "
            "entry [aware] of the policy card (--card)"
        )


class Aware(Sealed):
    """The `aware` gradient mode."""

    driver = AwareTrainer

    def heads(self, options: RunOptions, schema: Schema) -> HeadPlan | None:
        card = options.policy(schema)
        if card is None:
            raise ConfigError("mode aware needs a policy card (--card)")
        aware = (card.roles, schema.group_counts[0])
        return head_plan(options.train_config(), schema.layouts.values(), schema.task, schema.outputs, aware=aware)

    def check(self, options: RunOptions, schema: Schema) -> None:
        check_sampling(options, "aware")
        card = options.policy(schema)
        declared(card)
        left = sorted({f.name for own in schema.features for f in own} - set(card.decisions if card else ()))
        if left:
            raise ConfigError(
                f"mode aware needs a card that decides every column; {left[0]!r} is left to discovery. The size of "
                "the model follows from the roles, and would tell the dealer what discovery found"
            )
        if len(schema.protected) != 1:
            raise ConfigError(f"mode aware takes one protected attribute; {schema.name} has {len(schema.protected)}")
        check_budget(options, schema)
