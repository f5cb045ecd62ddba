"""`sealed` mode, the default: a secret head on local encoders; no gradient is returned to anybody."""

from __future__ import annotations

from protocols.config import ConfigError
from protocols.records.releases import Release
from secure_sccvfl.data.party_data import Schema
from secure_sccvfl.models.encoders import reached
from secure_sccvfl.releases.catalogue import plan_of
from secure_sccvfl.releases.mechanisms import HeadPlan
from secure_sccvfl.training.heads import head_plan
from secure_sccvfl.training.modes.base import (
    PartyContext,
    Trained,
    check_budget,
    check_sampling,
    common_releases,
    facts_of,
)
from secure_sccvfl.training.modes.options import RunOptions
from secure_sccvfl.training.modules import HeadError
from secure_sccvfl.training.trainer import Trainer


def sealed_releases(schema: Schema, options: RunOptions) -> list[Release]:
    """Everything that a sealed run opens."""
    return [*common_releases(schema, options), *plan_of(facts_of(schema, options), "head", "validation")]


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
        check_sampling(options, "sealed")
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
