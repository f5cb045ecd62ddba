"""The options of a run: its configuration, checked, with what the method and the data make of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Self

from secure_sccvfl.accounting.calibration import check_target
from secure_sccvfl.config.rules import check, resolved
from secure_sccvfl.config.sections import ANSWERS, Config, wire_names
from secure_sccvfl.data.catalogue import forget
from secure_sccvfl.data.features import DataError
from secure_sccvfl.data.party_data import (
    PartyData,
    Schema,
    benchmark_part,
    benchmark_schema,
    own_part,
    own_schema,
    pooled,
)
from secure_sccvfl.policy.card import PolicyCard, named_card
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.protocols.steps.weighted_sums import nearest_sampling
from secure_sccvfl.releases.ledgers import LEDGER, ledger_folder
from secure_sccvfl.releases.noise import SpendingPlan
from secure_sccvfl.training import RECIPES, paper_settings
from secure_sccvfl.training.config import TrainConfig
from secure_sccvfl.training.modes import gradient_mode

DISCOVERY_OPTIONS = wire_names("discovery")
"""Flat names of the settings of discovery, which `DiscoveryConfig` has under the same names."""
NO_STATE = ("dataset", "card", "checkpoints", "resume", "model", "records", "port", *ANSWERS, "cap")
"""Settings that a run's state does not follow from; files enter by their digests."""


class RunOptions(Config):
    """The configuration of a run (`secure_sccvfl.config.sections`) after inference and all checks."""

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """From the flat options of a session; unknown or impossible settings raise ConfigError."""
        try:
            options = cls.of_flat(**resolved(settings))
        except DataError as error:
            raise ConfigError(str(error)) from None
        check(options)
        try:
            check_target(options.privacy.epsilon, options.privacy.delta)
            check_target(options.evaluation.epsilon, options.evaluation.delta)
            options.train_config()
            nearest_sampling(options.training.dp_sampling)
        except (ValueError, TypeError) as error:
            private = options.privacy.private_model and "private head" in str(error)
            hint = "; private_model = false trains without (public data only)" if private else ""
            raise ConfigError(f"{error}{hint}") from None
        return options

    def train_config(self) -> TrainConfig:
        """Settings of the method: those of its recipe, and all options that `TrainConfig` has by the same name."""
        recipe, flat, training = RECIPES.get(self.training.method), self.flat(), self.training
        paper = training.method == "paper"
        latent = paper_settings(self.data.dataset).latent if paper else recipe.generator.latent
        return replace(
            recipe,
            **{f.name: flat[f.name] for f in fields(recipe) if f.name in flat}
            | {
                "private": self.privacy.private_model,
                "discovery": replace(recipe.discovery, **{name: flat[name] for name in DISCOVERY_OPTIONS}),
                "generator": replace(recipe.generator, kind=self.model.generator, latent=latent),
            },
        )

    @property
    def drawn_seed(self) -> int:
        """The seed of encoders and counterfactuals."""
        return self.data.seed if self.model.generator_seed < 0 else self.model.generator_seed

    @property
    def spendable(self) -> float:
        """The budget of this run: the cap without the reserve."""
        return self.privacy.epsilon * (1 - self.privacy.reserve)

    @property
    def charged(self) -> int:
        """How many releases of statistics of s the budget is planned for."""
        return self.train_config().charged

    def simulated_budget(self, parties: int) -> SpendingPlan:
        """The same cap, releases and noise for a simulation in the clear."""
        return SpendingPlan(self.spendable, self.privacy.delta, self.charged, self.privacy.noise, parties)

    def settings(self, description: str, records: str) -> dict[str, str]:
        """Everything that a run's state follows from, as its checkpoints carry it; files enter by their digests.

        The ledger is part of it: another one does not have the charges of the run.
        """
        settings = {name: str(value) for name, value in self.flat().items() if name not in NO_STATE}
        card = self.policy()
        roles = hashlib.sha256(("None" if card is None else card.rules()).encode()).hexdigest()
        return {**settings, "description": description, "records": records, "card": roles}

    def policy(self, schema: Schema | None = None) -> PolicyCard | None:
        """The policy card, if there is one; it must fit the schema, if that is given."""
        card = named_card(self.training.card, self.data.dataset)
        if card is not None and schema is not None:
            card.check({f.name for party_features in schema.features for f in party_features}, schema.name)
        return card

    def tabled(self, schema: Schema) -> tuple[str, ...]:
        """The columns whose tables of s are released (`TrainConfig.tabled`); empty: all.

        Modes `aware` and `split` need all tables. So does mode `dp`: its encoders mix columns, and the penalty of a
        mixed column is averaged over records that are drawn from the tables of all columns of the party.
        """
        card = self.policy() if self.training.mode == "sealed" else None
        features = [f.name for party_features in schema.features for f in party_features]
        return self.train_config().tabled(None if card is None else card.roles, features)

    def ledger_folder(self, session: Session, home: Path | None = None) -> Path:
        """The folder of this party's ledgers; `home` is the run's folder if that is not the session's.

        A run on public data that uses another run's tables continues with its ledger and pseudonyms of records.
        """
        if self.privacy.cached_tables and self.data.pooled and not self.privacy.ledger:
            other = Path(self.privacy.cached_tables)
            return other if (other / LEDGER).is_file() else other / f"party-{session.rank}"
        return ledger_folder(self.data.dataset, self.privacy.ledger, self.data.pooled, session, home)

    def check(self, parties: int) -> None:
        """Raise for every error that can be found before a process starts or a record is read."""
        schema = self.schema(parties)
        if self.data.align_bounds and (self.data.align != "hidden" or len(self.data.align_bounds) != parties):
            raise ConfigError(f"align_bounds are for align = hidden: one for each of {parties} parties")
        gradient_mode(self.training.mode).check(self, schema)
        self.policy(schema)

    def schema(self, parties: int) -> Schema:
        """The public description of the data set."""
        schema = (
            benchmark_schema(pooled(self.data.dataset, parties))
            if self.data.pooled
            else own_schema(Path(self.data.dataset))
        )
        if len(schema.parties) != parties:
            raise ConfigError(f"{self.data.dataset} has {len(schema.parties)} parties, the session {parties}")
        return schema

    def load(self, rank: int, parties: int, in_parts: bool = False) -> PartyData:
        """The part of the data set that this process holds. in_parts: as of `own_part`."""
        if self.data.pooled:
            part = benchmark_part(pooled(self.data.dataset, parties), rank, self.data.split, self.data.seed)
            forget()  # a party continues with its own columns only
            return part
        self.schema(parties)
        return own_part(Path(self.data.dataset), rank, self.data.seed, in_parts)


def prediction_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a prediction takes from the session that trained: data and record alignment.

    The log of predictions is next to the ledger. How many are allowed is in the model.
    """
    names = ("dataset", "split", "seed", "pooled", "align_bounds", "ledger")
    taken_over = {k: v for k, v in options.items() if k in names}
    return {**taken_over, "align": RunOptions.of(options).data.align}
