"""Mode `aware`: the driver of a model that uses s, under MPC, at training and at every decision.

Before: the holder of s has it per record; every other party has its own columns and its own noisy tables by group.
After: shares of a head on encodings of which s has selected one for each record (`secure_sccvfl.models.aware`).

Each owner encodes its records for every group that they may be in. The one-hot of s selects one encoding per record
under MPC (`Engine.select`), as it selects counterfactuals. A counterfactual changes s too: its displacement is the
encoding of the changed record in its target group minus that of the record in its own. So the penalty asks for equal
logits of a record and of its counterpart in the other group, each scored as a member of its group.

Offsets come from the final tables, so records enter after discovery. Nothing more is opened than in mode `sealed`: no
value of s per record passes through this code.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from secure_sccvfl.data.party import Blocks, Part, Party
from secure_sccvfl.discovery.decisions import RoleAssignment
from secure_sccvfl.models.aware import AwareCounterfactuals, AwareEncoders, hypotheses, make_aware
from secure_sccvfl.models.generators import Generator
from secure_sccvfl.models.table_gram import TableGram, table_gram
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.training.engine import CURVATURE
from secure_sccvfl.training.trainer import Model, State, Trainer


class AwareTrainer(Trainer):
    """The same phases; records enter after discovery, in encodings that use s. One protected attribute."""

    further_steps = 18
    """Rows are scaled to the public radius, so their curvature is small next to its bound and steps converge slowly.
    On acs12-gender 13 more sufficed on all of seeds 620 to 639; with none, none of seeds 620 to 627 settled."""
    by_card = False
    """Every party weighs its encodings by the sizes of groups, which it reads from a table."""

    def enter(self) -> None:
        if len(self.train.protected) != 1:
            raise ValueError(f"mode aware takes one protected attribute, not {len(self.train.protected)}")
        self.state = State(None)
        self.aware: AwareEncoders = {}

    def _read(self) -> None:
        """Nothing: records are encoded once their roles are known."""

    def encode_with(self, finding: RoleAssignment) -> None:
        sketch = self.state.sketches[0]
        self.aware = {
            p.rank: make_aware(p.layout, self.encoders[p.rank], sketch, finding.roles, self.config.private)
            for p in self.train.parties
        }
        rows = [self._selected(part) for part in (self.train, self.validation)]
        self.batch, self.check = self.bind(rows[0], self.train), self.bind(rows[1], self.validation)
        nothing: Blocks = {}  # counterfactuals of mode aware encode the records themselves
        self.encodings = self.check_encodings = nothing
        if self.state.head is None:
            self.update(head=self.engine.head(self.batch, self.outputs, self.task))
            self.hooks.keep(self.state)

    def release_again(self, number: int) -> RoleAssignment | None:
        """The same; encodings follow from tables, so weights for the old ones are of no use: the next start at 0."""
        finding = super().release_again(number)
        if finding is not None:
            self.update(head=None)
        return finding

    def _selected(self, part: Part) -> Any:
        """The encodings that s selects."""
        return self.engine.select(hypotheses(self.aware, part.parties), part.protected[0].codes)

    def curvature_bound(self) -> Blocks:
        """An owner does not know s, so it takes the largest square over groups."""
        largest: Blocks = {}
        for blocks in hypotheses(self.aware, self.train.parties):
            squares = {rank: block**2 for rank, block in blocks.items()}
            largest = {rank: np.maximum(largest.get(rank, square), square) for rank, square in squares.items()}
        steep = CURVATURE[self.task]
        return {rank: steep * self.largest_mean(square) + self.config.ridge for rank, square in largest.items()}

    def encoded(
        self,
        part: Part,
        encodings: Blocks,
        groups: int,
        generators: Mapping[int, Generator],
        radii: Mapping[int, float] | None = None,
    ) -> AwareCounterfactuals:
        return AwareCounterfactuals(part.parties, groups, generators, self.aware, self._draws(part), self.seed)

    def gram_of(self, party: Party, generator: Generator, names: Collection[str], groups: int) -> TableGram:
        return table_gram(party.layout, generator, self.aware[party.rank], names, groups)

    def largest_entries(self) -> Blocks:
        """Rows are scaled to their radius, so no entry is larger."""
        return {rank: np.full(own.columns, own.radius) for rank, own in self.aware.items()}

    def moving(self, roles: Roles) -> None:
        """Any column: encodings move with s itself."""

    def columns(self, rank: int) -> int:
        return self.aware[rank].columns

    def run(self, *arguments: Any, **named: Any) -> Model:
        return replace(super().run(*arguments, **named), aware=self.aware)
