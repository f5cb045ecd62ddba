"""New records at one party: its own columns of a file, and the records of it that cannot be read.

A record with a cell that does not fit the public description is refused by its id; the rest are scored. All parties
score the same rows, so a refused record keeps its place with values of the public range, and its result is withheld
(protocols/steps/choice.py). That holds if it is the only record too: a party that stopped would tell all of it.
This party's people find in `refused.csv` what is wrong with their own cells. The receiver of predictions also finds
there which records another party refused, and not why. With hidden alignment it is told nothing of a
record that not all parties hold.
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from protocols.records.private import private
from secure_sccvfl.data.cells import CellProblem, refuse
from secure_sccvfl.data.dataset import DataWarning
from secure_sccvfl.data.features import DataError, Feature
from secure_sccvfl.data.files import absent, look_at_codes, read_table
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.party import AtHolder, Party
from secure_sccvfl.data.party_data import PartyData, Schema
from secure_sccvfl.data.splits import UNSPLIT
from secure_sccvfl.policy.entries import USES_S

REFUSED = "refused.csv"
ELSEWHERE = "another party cannot read its cells of this record or gave other values when it was decided before"
CHANGED = "was decided before with other values: a person is answered once, and that answer stands"
LOST = "another party has it on record as asked for before, and no answer is on record here"
NO_SCORES = "was decided before without scores: a person is answered once"


@dataclass(frozen=True, eq=False)
class NewRecords:
    """Records in the order of their ids. `groups` at the holder of s, if the model uses it."""

    ids: np.ndarray
    party: Party
    groups: AtHolder
    found: tuple[CellProblem, ...]

    @property
    def readable(self) -> np.ndarray:
        """Which records have no cell that this party cannot read."""
        return ~_refused(self.found, len(self.ids))

    def data(self, schema: Schema) -> PartyData:
        """In the form that an alignment takes."""
        first, *others = schema.protected
        protected = (replace(first, codes=self.groups), *others)
        return PartyData(schema, self.party.rank, self.ids, self.party, None, protected, UNSPLIT)

    def places(self, ids: np.ndarray) -> np.ndarray:
        """Where records of these ids are among the own ones."""
        order = np.argsort(self.ids)
        rows: np.ndarray = order[np.searchsorted(self.ids, ids, sorter=order)]
        return rows

    @property
    def columns(self) -> np.ndarray:
        """All that this party gives of each record: encoded columns, and s where the model uses it."""
        inputs = self.party.inputs
        return inputs if self.groups is None else np.column_stack([inputs, self.groups])

    def refusals(self, why: Mapping[str, np.ndarray]) -> Iterator[tuple[str, str, str]]:
        """Id, column and reason of each refused cell of this party; then other reasons, by the records they concern.

        A record that this party cannot read has no other reason, and each record has the first that holds.
        """
        for finding in self.found:
            yield from ((name, finding.column, finding.reason) for name in self.ids[finding.bad])
        left = self.readable
        for reason, records in why.items():
            yield from ((name, "", reason) for name in self.ids[records & left])
            left = left & ~records

    def write(self, folder: Path, why: Mapping[str, np.ndarray]) -> None:
        """`refused.csv`, for this party's people; none if nothing is refused that they may know of."""
        lines = list(self.refusals(why))
        if lines:
            with open(folder / REFUSED, "w", newline="", encoding="utf-8", opener=private) as file:
                csv.writer(file).writerows([("id", "column", "why"), *lines])


def read_new_records(path: Path, schema: Schema, rank: int, *, uses_s: bool) -> NewRecords:
    """Own columns of a file with new records; other columns are dropped. s is read at its holder alone."""
    owner, features = schema.parties[rank], schema.features[rank]
    if not path.is_file():
        raise DataError(f"{owner}: no file {path.name} with records")
    frame = read_table(path, schema.id_rule, owner).set_index(schema.id_rule.name).sort_index()
    refuse(owner, [absent(f.name, path.name, frame) for f in features if f.name not in frame], frame.index)
    looked = [feature.look(frame[feature.name]) for feature in features]
    problems = [problem for _, all_odd in looked for problem in all_odd]
    groups = None
    if uses_s and schema.group_holders[0] == rank:
        groups, problem = _groups(frame, schema, path.name)
        problems += problem
    refused = _refused(tuple(problems), len(frame))
    if refused.all():  # for people here alone: whoever stopped now would tell all others of these records
        warnings.warn(f"{owner}: no record of {path.name!r} can be read: see {REFUSED}", DataWarning, stacklevel=2)
    values = np.column_stack([values for values, _ in looked])
    values[refused] = [_any_value(feature) for feature in features]
    layout = Layout.of(features)
    return NewRecords(
        frame.index.to_numpy(str), Party(rank, owner, layout, layout.encode(values)), groups, tuple(problems)
    )


def _groups(frame: pd.DataFrame, schema: Schema, file: str) -> tuple[np.ndarray, list[CellProblem]]:
    """The group of each new record, at the holder of s."""
    attribute = schema.protected[0]
    if attribute.name not in frame:
        owner = attribute.holder
        raise DataError(f"{USES_S}: {file} has no column {attribute.name!r}, which {owner} needs")
    return look_at_codes(frame[attribute.name], attribute.groups, "protected attribute")


def _refused(found: tuple[CellProblem, ...], rows: int) -> np.ndarray:
    marked = np.zeros(rows, bool)
    for finding in found:
        marked |= finding.bad
    return marked


def _any_value(feature: Feature) -> float:
    """A value of the public range."""
    return 0.0 if feature.kind == "category" else feature.low
