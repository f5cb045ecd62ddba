"""Masks as the paper finds them, from the clipped, noisy tables alone (appendix C.3), and their refreshes.

For every column: |Delta P_j| and HSIC_j of its noisy table. The tri-partition of section 3.2, with thresholds by
percentile within each party: the top rho_M of a party's columns by HSIC_j are M, the others N, and the top rho_P of M
by |Delta P_j| are P. Appendix C.2 has another rule, S_j for both (Eq. proxy_set); `partition` chooses. A run of
method `paper` under MPC decides by the same function (`discovery.decisions`). At a refresh tables are released again,
averaged with the earlier ones, and a column keeps its role unless its number passes the boundary by the margin of
`DiscoveryConfig.hysteresis`. Every release is charged as what it is, and the budget is planned for the first one and
as many refreshes as the cap allows. P is a part of the paper's M; here M names what is left.

What noise leaves: a whole table is scaled to norm S = 1, and the noise must hide a record that is all of a table. For
19 tables and epsilon 8 its deviation is several times S, so roles are close to drawn at random
(results/paper/letter-roles.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np

from secure_sccvfl.data.layout import Block, unit_cuts
from secure_sccvfl.data.party import part_of
from secure_sccvfl.discovery.decisions import RoleAssignment, Rule
from secure_sccvfl.discovery.discovery import Discovery
from secure_sccvfl.discovery.noisy_tables import NoisyTables
from secure_sccvfl.discovery.scores import probabilities
from secure_sccvfl.evaluation.methods import Prepared
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.releases.noise import GaussianNoise, Noise
from secure_sccvfl.research.paper.settings import PaperSettings, Partition
from secure_sccvfl.training import RECIPES

RULES: Mapping[Partition, Rule] = {"section": "tri-partition", "score": "fractions"}


class Masks:
    """The masks of one paper-faithful run: a first release, then at most `settings.refreshes` more."""

    def __init__(self, ready: Prepared, settings: PaperSettings, noise: Noise | None = None) -> None:
        """noise: other than that of the budget, for comparison."""
        self.ready, self.settings, self.releases = ready, settings, 0
        recipe = replace(RECIPES.get("paper"), refreshes=0, late_refreshes=settings.refreshes)
        self.noise = noise or GaussianNoise(replace(ready.budget, releases=recipe.charged, head=None), ready.seed)
        self.noisy_tables: tuple[NoisyTables, ...] = ()
        self.assignment: RoleAssignment | None = None
        self.roles = ready.roles
        if settings.roles == "letter":
            self._release()

    @cached_property
    def _discovery(self) -> Discovery:
        ready, recipe = self.ready, RECIPES.get("paper")
        rule, fractions = RULES[self.settings.partition], (self.settings.rho_m, self.settings.rho_p)
        config = replace(recipe.discovery, rule=rule, rho_m=fractions[0], rho_p=fractions[1])
        train, owners = part_of(ready.data, ready.split.train, ready.parties), ready.data.owners
        return Discovery.plain(self.noise, train, len(owners), config, ready.seed, owners=owners)

    def refresh(self) -> bool:
        """Release tables once more unless the cap is reached. Whether masks changed."""
        if self.settings.roles != "letter" or self.releases > self.settings.refreshes:
            return False
        before = self.roles
        self._release()
        return self.roles != before

    def _release(self) -> None:
        self.noisy_tables, self.assignment = self._discovery.refresh(
            self.releases, self.noisy_tables, self.assignment
        )
        self.releases += 1
        self.roles = self.assignment.roles

    def embeddings(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Columns in input space of every edited feature, and where the noisy sketch puts each group in them.

        The embedding of a group is the mean of the feature in it by its noisy table, with bins at their centres.
        """
        tables = self.noisy_tables[0].tables if self.noisy_tables else self.ready.model.noisy_tables[0].tables
        names, start, made = set(edited_names(self.roles, self.settings)), 0, []
        for party in self.ready.parties:
            for block in party.layout.blocks:
                if block.feature.name in names:
                    columns = start + np.arange(block.start, block.stop)
                    made.append((columns, probabilities(tables[block.feature.name]).T @ _bin_values(block)))
            start += party.layout.width
        return made


def _bin_values(block: Block) -> np.ndarray:
    """Bins of a feature in input space (bins x columns): categories, or centres of ranges; the last may be a gap."""
    if block.one_hot:
        return np.eye(block.width)
    cuts = unit_cuts(block.feature)
    values = np.zeros((block.feature.bins, block.width))
    values[: len(cuts) - 1, 0] = (cuts[:-1] + cuts[1:]) / 2
    if block.feature.missing:
        values[-1, 1] = 1.0
    return values


def edited_names(roles: Roles, settings: PaperSettings) -> tuple[str, ...]:
    """What edits may change."""
    if settings.mask == "all":
        return tuple(sorted(roles.of))
    return roles.descendants if settings.proxies == "edit" else roles.named("M")
