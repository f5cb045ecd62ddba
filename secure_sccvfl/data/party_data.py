"""What one process of a secure run holds: its own columns, and the label or s only if it is the holder.

In a consortium every process reads the files of its own party and nothing else, and rows are split by a public rule
on the ids. In a benchmark (`pooled`) the data are public: the split is stratified, and each process gets its part.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.dataset import Dataset, PartyTable, Task
from secure_sccvfl.data.features import PLAIN, DataError, Feature, check_disjoint
from secure_sccvfl.data.files import Reader, id_rule, warn_absent, warn_constant
from secure_sccvfl.data.groups import beyond_a_list, factors_of, names_of
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.party import AtHolder, Attribute, Part, Party, make_party
from secure_sccvfl.data.splits import TEST_SHARE, UNSPLIT, VALIDATION_SHARE, Split, SplitKind, make_split
from secure_sccvfl.protocols.alignment.ids import IdRule
from secure_sccvfl.protocols.dealing.matching import ABSENT, Aligned

BY_ID = IdRule(("id",))


@dataclass(frozen=True)
class Schema:
    """The public description of a data set."""

    name: str
    task: Task
    classes: tuple[str, ...]
    features: tuple[tuple[Feature, ...], ...]
    parties: tuple[str, ...]
    label_holder: int
    protected: tuple[Attribute, ...]
    id_rule: IdRule = BY_ID
    own_ids: tuple[str, ...] = ()
    """Each party's own name for the id column; empty where it is that of the rule."""

    def own_id(self, rank: int) -> str:
        """The id column of a party's files."""
        own = self.own_ids[rank] if self.own_ids else ""
        return own or (self.id_rule.columns[0] if len(self.id_rule.columns) == 1 else "id")

    @property
    def outputs(self) -> int:
        return len(self.classes) if self.task == "multiclass" else 1

    @property
    def group_holders(self) -> tuple[int, ...]:
        return tuple(self.parties.index(a.holder) for a in self.protected)

    @property
    def group_counts(self) -> tuple[int, ...]:
        return tuple(len(a.groups) for a in self.protected)

    @property
    def bins(self) -> dict[int, dict[str, int]]:
        """Rank -> feature -> number of public bins."""
        return {rank: {f.name: f.bins for f in features} for rank, features in enumerate(self.features)}

    @property
    def owners(self) -> dict[str, str]:
        return {f.name: self.parties[rank] for rank, features in enumerate(self.features) for f in features}

    @property
    def layouts(self) -> dict[int, Layout]:
        return {rank: Layout.of(features) for rank, features in enumerate(self.features)}

    @property
    def may_be_missing(self) -> tuple[str, ...]:
        return tuple(f.name for features in self.features for f in features if f.missing)

    def digest(self) -> str:
        """Stands for the public description in model files."""
        public = (self.name, self.task, self.classes, self.parties, self.label_holder, self.features)
        groups: list[Any] = [(a.name, a.groups, self.parties.index(a.holder)) for a in self.protected]
        groups += [(a.name, a.factors) for a in self.protected if a.factors]
        groups += [(f.name, f.frequent) for features in self.features for f in features if f.frequent]
        if not self.id_rule.plain:
            groups.append(self.id_rule)
        written = [(f.name, f.cells) for features in self.features for f in features if f.cells != PLAIN]
        content = (public, groups, written) if written else (public, groups)
        return hashlib.sha256(repr(content).encode()).hexdigest()


@dataclass(frozen=True)
class PartyData:
    schema: Schema
    rank: int
    ids: np.ndarray
    party: Party
    label: AtHolder
    protected: tuple[Attribute, ...]
    split: Split

    def spread(self, rows: np.ndarray, table: Aligned) -> Part:
        """These records at their places of a common table.

        A row without a record is a copy of the first one and marked absent: what is passed on of it is zero.
        """
        source = np.zeros(table.size, np.int64)
        source[table.rows] = np.arange(len(rows))
        part = self.part(rows[source])
        return replace(part, parties=(replace(part.parties[0], present=table.present),))

    def common(self, table: Aligned) -> PartyData:
        """The records of a table that all parties have in common, in its order; not split."""
        order = np.argsort(table.rows)[int((table.rows == ABSENT).sum()) :]
        part, ids = self.part(order), self.ids[order]
        return PartyData(self.schema, self.rank, ids, part.parties[0], part.label, part.protected, UNSPLIT)

    def part(self, rows: np.ndarray) -> Part:
        """These rows in the form that the driver takes."""
        return Part((self.party,), self.label, self.protected).take(rows)


def regrouped(data: Dataset, parties: int) -> Dataset:
    """The same columns distributed over another number of parties, in order; the first holds y, the last holds s.

    For benchmarks only: a consortium has the parties it has.
    """
    if parties == len(data.parties):
        return data
    if not 2 <= parties <= len(data.features):
        raise DataError(f"{data.name} has {len(data.features)} columns: 2 to that many parties, not {parties}")
    cuts = [round(len(data.features) * k / parties) for k in range(parties + 1)]
    tables = tuple(
        PartyTable(f"party-{k}", data.features[a:b], data.values[:, a:b]) for k, (a, b) in enumerate(pairwise(cuts))
    )
    return replace(
        data,
        parties=tables,
        label=replace(data.label, holder=tables[0].name),
        protected=tuple(replace(a, holder=tables[-1].name) for a in data.protected),
    )


def pooled(dataset: str, parties: int) -> Dataset:
    """The whole of a benchmark data set, for a number of parties."""
    return regrouped(load(dataset), parties)


def benchmark_schema(data: Dataset) -> Schema:
    names = tuple(table.name for table in data.parties)
    features = tuple(table.features for table in data.parties)
    protected = tuple(Attribute(a.name, a.holder, a.groups, None, factors=a.factors) for a in data.protected)
    holder = names.index(data.label.holder)
    return Schema(data.name, data.task, data.label.classes, features, names, holder, protected)


def benchmark_part(data: Dataset, rank: int, split: SplitKind, seed: int) -> PartyData:
    schema = benchmark_schema(data)
    held = {a.name: a.codes for a in data.protected if a.holder == schema.parties[rank]}
    protected = tuple(replace(a, codes=held.get(a.name)) for a in schema.protected)
    label = data.label.values if schema.label_holder == rank else None
    rows, table = make_split(data, split, seed), data.parties[rank]
    party = make_party(rank, table.name, table.features, table.values)
    return PartyData(schema, rank, data.ids, party, label, protected, rows)


def own_schema(path: Path) -> Schema:
    """The public part of a description; no data file is read."""
    return _schema(Reader.of(path))


def own_part(path: Path, rank: int, seed: int, in_parts: bool = False) -> PartyData:
    """What one party reads by itself: its own files, and the public description.

    in_parts: whether the features stay in their file, if they can, until workers of row shards read them.
    """
    reader = Reader.of(path)
    schema = _schema(reader)
    if rank >= len(schema.parties):
        raise DataError(f"{path.name} has {len(schema.parties)} parties, so there is no party {rank}")
    owner = schema.parties[rank]
    found = reader.held_in_parts(owner) if in_parts else None
    held, rows = (reader.held(owner), None) if found is None else found
    warn_constant(held.table)
    label = None if held.label is None else held.label.values
    protected = tuple(held.protected.get(at, attribute) for at, attribute in enumerate(schema.protected))
    split = public_split(reader.id_array, seed)
    if rows is None:
        party = make_party(rank, owner, held.table.features, held.table.values)
    else:
        party = Party(rank, owner, rows.layout, rows)
    for attribute in held.protected.values():
        warn_absent(attribute.codes[split.train], attribute.groups, attribute.name, owner)
    return PartyData(schema, rank, reader.id_array, party, label, protected, split)


def _schema(reader: Reader) -> Schema:
    names, spec = tuple(reader.spec["parties"]), reader.spec
    check_disjoint(reader.features)
    features = tuple(reader.features[name] for name in names)
    protected = tuple(
        Attribute(e["column"], e["party"], names_of(factors), None, factors=beyond_a_list(factors))
        for e, factors in ((e, factors_of(e, spec["name"])) for e in spec["protected"])
    )
    holder, rule = names.index(spec["label"]["party"]), id_rule(spec["id"], spec["name"])
    own_ids = tuple(party.get("id", "") for party in spec["parties"].values())
    return Schema(spec["name"], spec["task"], reader.classes, features, names, holder, protected, rule, own_ids)


def public_split(ids: np.ndarray, seed: int) -> Split:
    """Train, validation and test by a hash of seed and id: every party finds the same rows alone.

    A record's part depends on its own id alone. If it depended on its rank among all records, one more record could
    push another one out of the training part, and a release about that part would change by two records where one is
    charged. The split is not stratified: no party knows label and s together.

    The hash has no key, although ledgers use keyed pseudonyms. A key would hide parts only from the dealer, which
    sees no id, and from strangers, who learn in which part a record of a known id would be, not whether there is one.
    It would cost two things: a party could not check its own parts before it meets the others, and with another key
    test records of an earlier model would move into the training part of a later one. A party that makes up ids can
    choose their parts either way and gains nothing: a record pays by its pseudonym in every part.
    """
    digests = [hashlib.sha256(f"{seed} {name}".encode()).digest() for name in ids]
    point = np.array([int.from_bytes(d[:7]) for d in digests], np.int64)
    test, validation = (round(share * 2**56) for share in (TEST_SHARE, 1 - (1 - TEST_SHARE) * (1 - VALIDATION_SHARE)))
    masks = (point >= validation, (test <= point) & (point < validation), point < test)
    parts = tuple(np.flatnonzero(mask) for mask in masks)
    if min(len(part) for part in parts) < 10:
        raise DataError(f"{len(ids)} records are too few to train, validate and test on")
    return Split(*parts)
