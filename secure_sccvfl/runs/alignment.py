"""Alignment as the first phase of a job: which records of this party the job is about.

| `align` | what a job works on | who learns what |
|---|---|---|
| `exact` | all own records; those of the others must be the same, in the same order | one bit for each party |
| `revealed` | the records that all parties have, sorted by id | all: which these are |
| `hidden` | a table of all parties' records; which rows all parties have is secret | sizes of tables |

Which part of the split a record belongs to follows from its id alone (`public_split`, which says why no key is in it;
ledgers know records by keyed tags). So with `hidden` every part
has a table of its own, and a person is in the same part in every run, whoever holds a record of it.

A job that resumes, or that uses a model, aligns again. The order of the rows has no effect on what was kept. Ids that
have changed since are noticed by their tags before (`secure_sccvfl.releases.record_key`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from secure_sccvfl.data.party import Part
from secure_sccvfl.data.party_data import PartyData, Schema, public_split
from secure_sccvfl.data.splits import PARTS, SHARES
from secure_sccvfl.protocols.alignment.hidden_intersection import HiddenIntersection, MembershipMask
from secure_sccvfl.protocols.alignment.interface import AlignKind
from secure_sccvfl.protocols.alignment.pre_aligned import PreAligned
from secure_sccvfl.protocols.alignment.psi import PrivateSetIntersection
from secure_sccvfl.protocols.config import SHARD_KINDS, SessionConfig
from secure_sccvfl.protocols.dealing.matching import Aligned, Bounds
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.releases.catalogue import plan_of
from secure_sccvfl.releases.charging import refusals_in_one_line
from secure_sccvfl.runs.jobs import PhaseMeter, Progress
from secure_sccvfl.training.modes.base import plan_facts
from secure_sccvfl.training.modes.options import RunOptions

ROOM = 6.0
REVEALS: Mapping[AlignKind, str] = {
    "exact": "to all parties, for every party but the first: one bit, whether it holds the records of the first",
    "revealed": "to all parties: how many records each has, and which records all have; to the first party also how "
    "many are common to which parties",
    "hidden": "to all parties: how many different records there are, by part; so two alignments with one id more in "
    "the second tell whether anybody else holds it (neither with align_bounds); to the dealer: how many records each "
    "party has, and how many are common to which parties, but no id. About how many records all parties have comes "
    "with noise, from statistics that are charged",
}
"""What an alignment tells, in words."""


def own_counts(data: PartyData) -> dict[str, int]:
    """How many records a party has, by part; for its own people."""
    return {"all": len(data.ids), **{name: len(getattr(data.split, name)) for name in PARTS}}


def reads_in_parts(config: SessionConfig, options: RunOptions) -> bool:
    """Whether workers of row shards read the features themselves.

    Workers in a Ray cluster may be elsewhere. With hidden alignment, and where more than bins and encodings is made
    of records (residuals, counterfactuals of records, other generators, means of a model that is not private), the
    head process reads them.
    """
    plan = options.train_config()
    if not config.shards or config.shards.get("kind", SHARD_KINDS[0]) != SHARD_KINDS[0]:
        return False
    more = plan.discovery.conditional or plan.discovery.gain or plan.generator.kind != "minimal"
    return not more and plan.private and plan.consistency_from == "tables" and options.data.align != "hidden"


class RecordsJob:
    """A job about this party's records. Its releases follow from the public schema and the options."""

    def __init__(self, config: SessionConfig, rank: int) -> None:
        self.options, self.certificates = RunOptions.of(config.options), config.certificates
        self.data = self.options.load(rank, len(config.parties), reads_in_parts(config, self.options))

    @staticmethod
    def releases(schema: Schema, options: RunOptions) -> ReleasePlan:
        raise NotImplementedError

    @classmethod
    def public_plan(cls, config: SessionConfig) -> ReleasePlan:
        """What it opens, from public things alone."""
        options = RunOptions.of(config.options)
        return cls.releases(options.schema(len(config.parties)), options)

    def plan(self) -> ReleasePlan:
        return self.releases(self.data.schema, self.options)

    def run(self, session: Session, progress: Progress) -> dict[str, Any]:
        with refusals_in_one_line():
            return self.compute(session, progress)

    def compute(self, session: Session, progress: Progress) -> dict[str, Any]:
        raise NotImplementedError


class AlignJob(RecordsJob):
    """Job "align": an alignment alone. A party learns what its mode reveals, and nothing is computed on records."""

    @staticmethod
    def releases(schema: Schema, options: RunOptions) -> ReleasePlan:
        return ReleasePlan(plan_of(plan_facts(schema, options), "alignment"))

    def compute(self, session: Session, progress: Progress) -> dict[str, Any]:
        meter = PhaseMeter(session)
        with meter.phase("alignment"):
            progress("alignment", 0, 1)
            data = split_records(session, self.options, self.data, progress)
            rows = {name: aligned_part(session, self.options, data, name).rows for name in PARTS[:2]}
        return {
            "ok": True,
            "dataset": data.schema.name,
            "align": self.options.data.align,
            "own records": own_counts(self.data),
            "places": rows,
            "reveals": REVEALS[self.options.data.align],
            "cost": meter.costs,
        }


def common_records(session: Session, options: RunOptions, data: PartyData, progress: Progress) -> PartyData:
    """Run by all parties together: the records that a job is about, as far as a party may know them."""
    if options.data.align == "exact":
        PreAligned(session, data.schema.parties).align(data.ids.tolist())
    elif options.data.align == "revealed":
        return data.common(PrivateSetIntersection(session, progress).align(data.ids.tolist()))
    return data


def split_records(session: Session, options: RunOptions, data: PartyData, progress: Progress) -> PartyData:
    """The same, in the parts of the split: a record's part follows from its id, so it is the one that it was."""
    common = common_records(session, options, data, progress)
    return common if common is data else replace(common, split=public_split(common.ids, options.data.seed))


def part_bounds(bounds: Sequence[float], share: float) -> Bounds | None:
    """The most records that parties have in a part of this share, if they have at most `bounds` in all.

    Which part a record is in follows from a hash. More than ROOM deviations above the average are there with chance
    1e-9.
    """
    most = [min(n, n * share + ROOM * math.sqrt(n * share * (1 - share))) for n in bounds]
    return tuple(math.ceil(n) for n in most) or None


def aligned_part(session: Session, options: RunOptions, data: PartyData, part: str) -> Part:
    """Run by all parties together: one part of the split in the form that the driver takes.

    `data`: as `split_records` gave them.
    """
    return placed(session, options, data, getattr(data.split, part), SHARES[PARTS.index(part)])[0]


def placed(
    session: Session, options: RunOptions, data: PartyData, rows: np.ndarray, share: float = 1.0
) -> tuple[Part, Aligned]:
    """The same of any rows, about this share of all, and the places of the own records in the common table."""
    if options.data.align != "hidden":
        return data.part(rows), Aligned(len(rows), np.arange(len(rows)))
    bounds = part_bounds(options.data.align_bounds, share)
    table = HiddenIntersection(session, bounds).align(data.ids[rows].tolist())
    return replace(data.spread(rows, table), membership=MembershipMask.of(table.shares)), table
