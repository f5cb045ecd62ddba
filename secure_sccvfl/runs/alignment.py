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
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from secure_sccvfl.data.party import Part
from secure_sccvfl.data.party_data import PartyData, Schema, public_split
from secure_sccvfl.data.splits import PARTS, SHARES
from secure_sccvfl.protocols.alignment.hidden_intersection import HiddenIntersection, MembershipMask
from secure_sccvfl.protocols.alignment.pre_aligned import PreAligned
from secure_sccvfl.protocols.alignment.psi import PrivateSetIntersection
from secure_sccvfl.protocols.config import SessionConfig
from secure_sccvfl.protocols.dealing.matching import Aligned, Bounds
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.releases.charging import refusals_in_one_line
from secure_sccvfl.runs.jobs import Progress
from secure_sccvfl.training.modes.options import RunOptions

ROOM = 6.0


class RecordsJob:
    """A job about this party's records. Its releases follow from the public schema and the options."""

    def __init__(self, config: SessionConfig, rank: int) -> None:
        self.options = RunOptions.of(config.options)
        self.data = self.options.load(rank, len(config.parties))

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
