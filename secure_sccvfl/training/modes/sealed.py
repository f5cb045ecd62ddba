"""Modes `sealed`, the default, and `aware`: a secret head on local encoders; no gradient is returned to any party.

Mode `aware` opens what `sealed` opens and no more, but s enters every decision under MPC, supplied by its holder. It
is refused unless the policy card of the run has a valid entry (`secure_sccvfl.policy.card`) and decides every
column: the number of encoded columns follows from the roles, and the dealer, who knows sizes, must not learn from it
what discovery found. Lambda is small: aware encodings leave individual flips nearly as they are and remove net flips
and group gaps, for which little is enough.
"""

from __future__ import annotations

import datetime

from secure_sccvfl.data.party_data import Schema
from secure_sccvfl.models.encoders import reached
from secure_sccvfl.policy.card import AwareEntry, PolicyCard
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.protocols.records.releases import Release
from secure_sccvfl.releases.catalogue import plan_of
from secure_sccvfl.releases.mechanisms import HeadPlan
from secure_sccvfl.training.config import head_plan
from secure_sccvfl.training.modes.base import (
    PartyContext,
    Trained,
    check_budget,
    common_releases,
    plan_facts,
    refuse_dp_sampling,
)
from secure_sccvfl.training.modes.options import RunOptions
from secure_sccvfl.training.modules import HeadError
from secure_sccvfl.training.trainer import AwareTrainer, Trainer


def sealed_releases(schema: Schema, options: RunOptions) -> list[Release]:
    """Everything that a sealed run opens."""
    return [*common_releases(schema, options), *plan_of(plan_facts(schema, options), "head", "validation")]


def check_head(options: RunOptions, schema: Schema) -> None:
    """Raise ConfigError for a module that cannot be trained on the columns of all parties."""
    module = options.train_config().module
    if module is None:
        return
    columns = sum(len(reached(layout, ())) for layout in schema.layouts.values())
    try:
        module.build(columns, schema.outputs)
    except HeadError as error:
        raise ConfigError(str(error)) from None


class Sealed:
    """The `sealed` gradient mode. driver: what trains the head."""

    driver: type[Trainer] = Trainer

    def check(self, options: RunOptions, schema: Schema) -> None:
        refuse_dp_sampling(options, "sealed")
        check_head(options, schema)
        check_budget(options, schema)

    def releases(self, options: RunOptions, schema: Schema) -> list[Release]:
        return sealed_releases(schema, options)

    def charged_steps(self, options: RunOptions) -> tuple[tuple[float, int], ...]:
        return ()

    def heads(self, options: RunOptions, schema: Schema) -> HeadPlan | None:
        given = options.train_config(), schema.layouts.values(), schema.task, schema.outputs
        return head_plan(*given, tabled=options.tabled(schema))

    def train(self, context: PartyContext) -> Trained:
        config = context.options.train_config()
        trainer = context.trainer(config, driver=self.driver)
        model = trainer.run(state=context.state, phase=context.phase)
        return Trained(model, context.engine, trainer.total_steps)


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
        refuse_dp_sampling(options, "aware")
        card = options.policy(schema)
        declared(card)
        left = sorted(
            {f.name for party_features in schema.features for f in party_features}
            - set(card.decisions if card else ())
        )
        if left:
            raise ConfigError(
                f"mode aware needs a card that decides every column; {left[0]!r} is left to discovery. The size of "
                "the model follows from the roles, and would tell the dealer what discovery found"
            )
        if len(schema.protected) != 1:
            raise ConfigError(f"mode aware takes one protected attribute; {schema.name} has {len(schema.protected)}")
        check_budget(options, schema)
