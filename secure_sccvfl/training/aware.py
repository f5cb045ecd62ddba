"""Mode `aware`: the driver of a model that uses s, in secret, at training and at every decision.

Before: the holder of s has it per record; every other party has its own columns and its own noisy tables by group.
After: shares of a head on encodings of which s has selected one for each record (`secure_sccvfl.models.aware`).

Each owner encodes its records for every group that they may be in. The one-hot of s selects one encoding per record
in secret (`Engine.select`), as it selects edits. An edit moves s along: its displacement is the encoding of the
edited record in its target group minus that of the record in its own. So the penalty asks for equal logits of a
record and of its counterpart in the other group, each judged as a member of its group.

Offsets come from the final tables, so records are handed to the engine after discovery, and the head is warmed up
then. Nothing more is opened than in mode `sealed`: no value of s per record passes through this code.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from secure_sccvfl.data.party import Blocks, Part, Party
from secure_sccvfl.discovery.decisions import RoleAssignment
from secure_sccvfl.models.aware import AwareEdits, AwareEncoders, hypotheses, make_aware
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
    """Every party weighs its encodings by the sizes of groups, which a table tells it."""

    def enter(self) -> None:
        if len(self.train.protected) != 1:
            raise ValueError(f"mode aware takes one protected attribute, not {len(self.train.protected)}")
        self.state = State(None)
        self.aware: AwareEncoders = {}

    def _read(self) -> None:
        """Nothing: records are encoded once their roles are known."""

    def limit(self) -> None:
        """Nothing: bounds are those of the encodings."""

    def learned(self, finding: RoleAssignment) -> None:
        sketch, engine = self.state.sketches[0], self.engine
        self.aware = {
            p.rank: make_aware(p.layout, self.encoders[p.rank], sketch, finding.roles, self.config.private)
            for p in self.train.parties
        }
        self.rows = [self._rows(part) for part in (self.train, self.validation)]
        self.batch, self.check = self._bound(self.rows[0], self.train), self._bound(self.rows[1], self.validation)
        nothing: Blocks = {}  # edits of mode aware encode the records themselves
        self.encodings = self.check_encodings = nothing
        self.flat = self._flat()
        if self.state.head is None:
            zero = engine.head(self.batch, self.outputs, self.task)
            self.go_on(head=zero)
            self.hooks.keep(self.state)

    def refresh_late(self, number: int) -> RoleAssignment | None:
        """The same; encodings follow from tables, so a head on the old ones is of no use: the next is warmed up."""
        found = super().refresh_late(number)
        if found is not None:
            self.go_on(head=None)
        return found

    def _rows(self, part: Part) -> Any:
        """The encodings that s selects."""
        return self.engine.select(hypotheses(self.aware, part.parties), part.protected[0].codes)

    def _bound(self, rows: Any, part: Part) -> Any:
        """A batch of these encodings."""
        ridge = {p.rank: np.full(self.columns(p.rank), self.config.ridge) for p in part.parties}
        return self.engine.bind(rows, part.label, ridge, self.outputs, part.presence, self.classes)

    def _flat(self) -> Blocks:
        """Each owner's curvature bound: it does not know s, so it takes the largest square over groups."""
        found: Blocks = {}
        for blocks in hypotheses(self.aware, self.train.parties):
            squares = {rank: block**2 for rank, block in blocks.items()}
            found = {rank: np.maximum(found.get(rank, square), square) for rank, square in squares.items()}
        steep = CURVATURE[self.task]
        return {rank: steep * self.largest_mean(square) + self.config.ridge for rank, square in found.items()}

    def steepness(self) -> Blocks:
        return self.flat

    def edits_of(
        self, part: Part, encodings: Blocks, groups: int, generators: Mapping[int, Generator], draws: int
    ) -> AwareEdits:
        return AwareEdits(part.parties, groups, generators, self.aware, draws, self.seed)

    def gram_of(self, party: Party, generator: Generator, names: Collection[str], groups: int) -> TableGram:
        return table_gram(party.layout, generator, self.aware[party.rank], names, groups)

    def public_reach(self) -> Blocks:
        """Rows are scaled to their radius, so no entry is larger."""
        return {rank: np.full(own.columns, own.radius) for rank, own in self.aware.items()}

    def moving(self, roles: Roles) -> None:
        """Any column: encodings move with s itself."""

    def columns(self, rank: int) -> int:
        return self.aware[rank].columns

    def run(self, *arguments: Any, **named: Any) -> Model:
        return replace(super().run(*arguments, **named), aware=self.aware)
